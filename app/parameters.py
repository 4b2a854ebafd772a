"""Names and values a client sent -> an operator's parameters and the request's options, or every mistake at once.

Query and form values are text; they are read as JSON literals (`3`, `0.5`, `true`), so that the same strict check
serves all three request forms and a value means the same in each.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.problems import InvalidParameter, TooManySteps
from cuda_ops import Chain, ChainError, Operator, Step, check_chain

M = TypeVar("M", bound=BaseModel)
Error = dict[str, str]
Known = Mapping[str, Operator]


class Text(str):
    """A value from a query string or a form: text that may stand for a number or a truth value."""

    __slots__ = ()


class Options(BaseModel):
    """What every request may ask for besides its operator's parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    orient: bool = Field(True, description="Apply the EXIF/XMP orientation before anything else.")
    background: str = Field(
        "ffffff",
        pattern="^#?[0-9a-fA-F]{6}$",
        description="Color that transparent pixels are composited on, as six hex digits RRGGBB.",
    )
    output: Literal["auto", "json", "png", "webp", "npy"] = Field(
        "auto", description="Form of the answer; `auto` chooses by the Accept header, anything else overrides it."
    )
    mask_encoding: Literal["png", "rle", "none"] = Field(
        "png",
        description="How JSON carries images and masks: a PNG, row-major run lengths (masks only), or not at all.",
    )

    @property
    def rgb(self) -> tuple[int, int, int]:
        """The background as three bytes."""
        red, green, blue = bytes.fromhex(self.background.removeprefix("#"))
        return red, green, blue


OPTION_NAMES = frozenset(Options.model_fields)


@dataclass(frozen=True, slots=True)
class Fields:
    """Everything but the image: `values` are parameters and options by name, `op` and `steps` choose operators.

    `query` is the query string where it is all there is: equal ones mean the same.
    """

    values: Mapping[str, Any]
    op: Any = None
    steps: Any = None
    query: bytes | None = field(default=None, compare=False)


def parse_operator(operator: Operator, values: Mapping[str, Any]) -> tuple[Chain, Options]:
    """One operator's parameters and the request's options. InvalidParameter lists every mistake at once."""
    parameters = {name: value for name, value in values.items() if name not in OPTION_NAMES}
    errors: list[Error] = []
    options = _parse(Options, {name: value for name, value in values.items() if name in OPTION_NAMES}, "/params", errors)
    params = _parse(operator.params, parameters, "/params", errors, OPTION_NAMES)
    if options is None or params is None:
        raise _refusal(errors)
    return _chain([Step(operator, params)]), options


def parse_steps(steps: Any, values: Mapping[str, Any], known: Known, most: int) -> tuple[Chain, Options]:
    """A pipeline's steps and the request's options; no other parameter may be sent beside them."""
    if isinstance(steps, Text):
        steps = _literal(steps)
    if not isinstance(steps, list) or not steps:
        example = '[{"op": "histograms/clahe", "params": {"clip_limit": 3}}, {"op": "edges/canny"}]'
        raise _refusal([{"pointer": "/steps", "detail": f"`steps` should be a JSON list of at least one step, such as {example}."}])
    if len(steps) > most:
        raise TooManySteps(
            f"A pipeline may have {most} steps; this one has {len(steps)}. Split it into several requests.",
            limit=most,
            measured=len(steps),
            setting="VISION_MAX_STEPS",
            errors=[{"pointer": "/steps", "detail": f"at most {most} steps"}],
        )
    errors: list[Error] = []
    options = _parse(Options, values, "/params", errors)
    parsed = [_step(step, known, f"/steps/{index}", errors) for index, step in enumerate(steps)]
    chain = [step for step in parsed if step is not None]
    if options is None or errors:
        raise _refusal(errors)
    return _chain(chain), options


def find_operator(path: Any, known: Known, pointer: str = "/op") -> Operator:
    """The operator of that path. InvalidParameter, with the nearest names, when there is none."""
    errors: list[Error] = []
    operator = _find(path, known, pointer, errors)
    if operator is None:
        raise _refusal(errors)
    return operator


def _step(step: Any, known: Known, pointer: str, errors: list[Error]) -> Step | None:
    """One entry of `steps`; None when `errors` got a reason."""
    if not isinstance(step, dict):
        errors.append({"pointer": pointer, "detail": 'A step should be an object such as {"op": "edges/canny"}.'})
        return None
    errors.extend(
        {
            "pointer": f"{pointer}/{_escape(name)}",
            "detail": f"A step has no `{name}`; it has `op`, `params` and `keep`.",
        }
        for name in step
        if name not in ("op", "params", "keep")
    )
    keep, values = step.get("keep", False), step.get("params", {})
    if not isinstance(keep, bool):
        errors.append({"pointer": f"{pointer}/keep", "detail": "`keep` should be true or false."})
    if not isinstance(values, dict):
        errors.append({"pointer": f"{pointer}/params", "detail": "`params` should be an object."})
        return None
    operator = _find(step.get("op"), known, f"{pointer}/op", errors)
    params = _parse(operator.params, values, f"{pointer}/params", errors) if operator else None
    return Step(operator, params, keep is True) if operator and params else None


def _find(path: Any, known: Known, pointer: str, errors: list[Error]) -> Operator | None:
    if isinstance(path, str) and path in known:
        return known[path]
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.5) if isinstance(path, str) else []
    hint = f"did you mean {near[0]}?" if near else "/v1/operators lists them."
    shown = orjson.dumps(path).decode()[:60] if path is not None else "missing"
    errors.append({"pointer": pointer, "detail": f"`op` is {shown}, which names no operator; {hint}"})
    return None


def _chain(steps: list[Step]) -> Chain:
    try:
        return check_chain(steps)
    except ChainError as error:
        raise _refusal([{"pointer": f"/steps/{error.step}", "detail": f"{error}."}]) from None


def _parse(model: type[M], values: Mapping[str, Any], pointer: str, errors: list[Error], others: Iterable[str] = ()) -> M | None:
    """The values as a `model`, or None with every mistake appended to `errors`."""
    typed = {name: _typed(model, name, value) for name, value in values.items()}
    try:
        return model.model_validate(typed, strict=True)
    except ValidationError as error:
        errors.extend(_explain(error, model, pointer, others))
        return None


def _typed(model: type[BaseModel], name: str, value: Any) -> Any:
    """The value as JSON would have it, ready for a strict check."""
    kind = _json_types(model).get(name)
    if isinstance(value, Text):
        value = str(value) if kind == "string" else _literal(value)
    if type(value) is float and value.is_integer():
        return int(value)  # JSON has one kind of number: 3.0 is the integer 3
    if type(value) is bool and kind != "boolean":
        return str(value).lower()  # Python takes True for 1, JSON does not
    return value


@cache
def _json_types(model: type[BaseModel]) -> Mapping[str, str | None]:
    """The JSON Schema type of each field."""
    return {name: schema.get("type") for name, schema in model.model_json_schema().get("properties", {}).items()}


def _literal(text: Text) -> Any:
    """The JSON value that the text spells (Python's True and False too), else the text itself."""
    try:
        return orjson.loads(text.lower() if text in ("True", "False") else str(text))
    except orjson.JSONDecodeError:
        return str(text)


def _explain(error: ValidationError, model: type[BaseModel], pointer: str, others: Iterable[str]) -> Iterator[Error]:
    known = [*model.model_fields, *others]
    for item in error.errors(include_url=False, include_context=False):
        name = str(item["loc"][0]) if item["loc"] else ""
        where = f"{pointer}/{_escape(name)}" if name else pointer
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known) or 'none'}."
            yield {"pointer": where, "detail": f"`{name[:60]}` is not a parameter here; {hint}"}
        else:
            message = item["msg"].removeprefix("Value error, ").replace("Input", f"`{name}`", 1)
            yield {"pointer": where, "detail": f"{message}; it is {_shown(item['input'])}." if name else f"{message}."}


def _shown(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()[:60]
    except TypeError:
        return str(value)[:60]


def _escape(name: str) -> str:
    """One reference token of a JSON pointer (RFC 6901)."""
    return name[:60].replace("~", "~0").replace("/", "~1")


def _refusal(errors: list[Error]) -> InvalidParameter:
    first = errors[0]["detail"]
    more = f" ({len(errors) - 1} more in `errors`.)" if len(errors) > 1 else ""
    return InvalidParameter(first + more, errors=errors)


def refusal(name: str, detail: str, parent: str = "/params") -> InvalidParameter:
    """The problem with one name that the client sent below the JSON pointer `parent`."""
    return _refusal([{"pointer": f"{parent}/{_escape(name)}", "detail": detail}])
