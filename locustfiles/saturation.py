"""To the knee and past it: find the capacity, then offer shares of it in the open model, step by step.

The goodput curve (right answers within the limit, per second) is what a service is worth: it should rise with the offered
rate to the capacity, and stay there beyond it.
"""

from locustfiles.arrivals import Phase, calibrated, rest
from locustfiles.client import VisionUser
from locustfiles.decks import one_operator
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo

SHARES = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5)


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    seconds = slo.duration_s / len(SHARES)
    phases = calibrated(slo.warmup_s)
    for share in SHARES:
        phases += [Phase(f"step {share}", seconds, "open", share, of_capacity=True, judged=True, reference=False), rest()]
    return phases


class Stream(VisionUser):
    """One part of the offered rate."""

    session = Session("saturation", one_operator("medium"), plan)
