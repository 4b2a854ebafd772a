"""Ten times the traffic for a moment: how much is refused, and how soon service is back to normal."""

from locustfiles.arrivals import Phase, calibrated
from locustfiles.client import VisionUser
from locustfiles.decks import one_operator
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo

USUAL = 0.3  # of the capacity


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    def at(name: str, share: float, multiple: float) -> Phase:
        return Phase(name, slo.duration_s * share, "open", multiple, of_capacity=True, judged=True, reference=False)

    return [*calibrated(slo.warmup_s), at("before", 0.25, USUAL), at("burst", 0.1, 10 * USUAL), at("recovery", 0.65, USUAL)]


class Stream(VisionUser):
    """One part of the offered rate."""

    session = Session("spike", one_operator("medium"), plan)
