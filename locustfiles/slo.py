"""slo.yaml as types: what each scenario offers and what the answers must keep.

Times are written for the reference machine. On any other machine they are multiples of the direct library call measured
there (see verdict.py), so a limit means the same on a laptop and on a server.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

SLO_FILE = Path(__file__).with_name("slo.yaml")

Size = Literal["small", "medium", "large"]
Ratio = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]

QUANTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}


def samples_needed(quantile: float) -> int:
    """How many samples a percentile takes before it may be judged: ten beyond it (20 for p50, 200 for p95, 1,000 for p99)."""
    return math.ceil(round(10 / (1 - quantile), 6))


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Model):
    """What one group of requests must keep. Times in milliseconds on the reference machine; an absent time is not judged."""

    p50_ms: Positive | None = None
    p95_ms: Positive | None = None
    p99_ms: Positive | None = None
    max_fail_ratio: Ratio = 0.0
    max_shed_ratio: Ratio = 0.0
    min_samples: Annotated[int, Field(ge=1)] = 20

    @model_validator(mode="after")
    def _ordered(self) -> Limits:
        times = [limit for name in QUANTILES if (limit := getattr(self, name)) is not None]
        if times != sorted(times):
            raise ValueError("p50_ms <= p95_ms <= p99_ms is expected")
        return self

    def times(self) -> dict[str, float]:
        """The percentile limits that are set, by field name."""
        return {name: limit for name in QUANTILES if (limit := getattr(self, name)) is not None}

    def required_samples(self) -> int:
        """The larger of ``min_samples`` and what the strictest judged percentile takes."""
        return max([self.min_samples, *(samples_needed(QUANTILES[name]) for name in self.times())])


class ScenarioSlo(Limits):
    """One scenario: what is offered, for how long, and the limits on all its good requests."""

    warmup_s: Annotated[float, Field(ge=0)] = 2.0
    duration_s: Positive
    users: Annotated[int, Field(ge=1)] = 8
    load: Positive | None = Field(None, description="offered work, in cores kept busy by direct library calls")
    rate_per_s: Positive | None = Field(None, description="offered requests per second; overrides load")
    min_rate_ratio: Ratio = 0.95
    max_rss_growth_mb: Positive | None = None
    sizes: dict[Size, Annotated[int, Field(ge=0)]] = {"small": 6, "medium": 3, "large": 1}
    operators: dict[str, Limits] = Field({}, description="by path; 'each' is every operator not named; small images only")
    groups: dict[str, Limits] = Field({}, description="by form of upload or by kind of side traffic")
    max_recovery_s: Positive | None = None
    goodput_ms: Positive | None = Field(None, description="an answer later than this is no goodput")
    min_capacity_cores: Positive | None = Field(None, description="throughput at the knee, in cores of direct calls")
    max_ratio: dict[str, Positive] = Field({}, description="'a/b': most that group a's p50 may be of group b's")

    def judged_percentiles(self) -> set[str]:
        """Field names of all percentiles that are judged, for whatever group."""
        return {name for limits in (self, *self.operators.values(), *self.groups.values()) for name in limits.times()}

    def judges_times(self) -> bool:
        """Whether anything depends on how fast this machine is."""
        return self.goodput_ms is not None or bool(self.judged_percentiles())


class Generator(_Model):
    """When the run says nothing about the service: the generator's share of one core, how late its loop wakes; the share of
    this machine that others take, or, where that is not known, how much longer the control is waited for than it computes."""

    max_cpu: Ratio = 0.9
    max_lag_ms: Positive = 40.0
    max_others: Ratio = 0.25
    max_control_ratio: Positive = 4.0


class Reference(_Model):
    """The machine the times were written on: what its direct library call takes (640 x 480 JPEG: decode and Canny)."""

    name: str
    control_p50_ms: Positive
    control_p95_ms: Positive
    connect_ms: Positive


class SloFile(_Model):
    """The whole file, with one profile applied."""

    reference: Reference
    machines: dict[str, Positive] = Field({}, description="known machine classes: fixed scale instead of a measured one")
    generator: Generator = Generator()
    profiles: dict[str, dict[str, dict[str, Any]]] = {}
    runs: dict[str, list[str]] = Field({}, description="names of runs: the scenarios each one plays, in order")
    scenarios: dict[str, ScenarioSlo]


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {key: _merged(base.get(key), over[key]) if key in over else base[key] for key in {**base, **over}}
    return base if over is None and isinstance(base, dict) else over


def load_slo(path: Path = SLO_FILE, profile: str = "full") -> SloFile:
    """Reads and checks the file; ``profile`` lays its overrides over the scenarios. KeyError for an unknown profile."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    profiles = raw.get("profiles") or {}
    if profile not in profiles:
        raise KeyError(f"profile {profile!r} is not one of {', '.join(profiles)}")
    over = profiles[profile] or {}
    for_all = over.pop("all", {})
    if unknown := set(over) - set(raw["scenarios"]):
        raise KeyError(f"profile {profile!r} names unknown scenarios: {', '.join(sorted(unknown))}")
    raw["scenarios"] = {name: _merged(_merged(scenario, for_all), over.get(name, {})) for name, scenario in raw["scenarios"].items()}
    return SloFile.model_validate(raw)
