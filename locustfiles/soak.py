"""Hours of ordinary traffic on small pictures: memory must not grow, answers must not change, latency must not creep."""

from locustfiles.arrivals import Phase, steady
from locustfiles.client import VisionUser
from locustfiles.decks import realistic
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return steady("paced", slo.warmup_s, slo.duration_s, rate)


class Soak(VisionUser):
    """Asks what the deck says."""

    session = Session("soak", realistic, plan)
