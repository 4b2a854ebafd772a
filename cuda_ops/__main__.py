"""`python -m cuda_ops`: every operator with what it promises and what it costs."""

from __future__ import annotations

from cuda_ops.operator import operators


def main() -> None:
    """Print one line per operator."""
    rows = [("operator", "result", "cost", "exactness")]
    rows += [(path, operator.kind, operator.cost, operator.exactness) for path, operator in operators().items()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201 - printing is its job


if __name__ == "__main__":
    main()
