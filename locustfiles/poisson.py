"""The realistic mix in the open model: arrivals at random, latency counted from the intended start.

A stall is felt by every request that should have started meanwhile, as it is by the users of a web service.
"""

from locustfiles.arrivals import Phase, steady
from locustfiles.client import VisionUser
from locustfiles.decks import realistic
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return steady("open", slo.warmup_s, slo.duration_s, rate)


class Arrivals(VisionUser):
    """One stream of arrivals; the streams of all users together are Poisson again."""

    session = Session("poisson", realistic, plan)
