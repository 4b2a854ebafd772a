"""Three times the capacity, for long: what is accepted is answered in bounded time, the rest is refused at once and told
when to come back, and liveness is never in doubt."""

from locustfiles.arrivals import Phase, calibrated
from locustfiles.client import SideUser, VisionUser
from locustfiles.decks import one_operator
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return [*calibrated(slo.warmup_s), Phase("main", slo.duration_s, "open", 3.0, True, judged=True, reference=False)]


class Stream(VisionUser):
    """One part of the offered rate."""

    session = Session("overload", one_operator("medium"), plan)


class Prober(SideUser):
    """Asks /livez ten times a second, as an orchestrator would."""

    session = Stream.session
    fixed_count = 1

    def act(self) -> None:
        """Until the plan ends."""
        while not self.generator.is_over():
            self.probe("/livez", "livez")
            self.generator.sleep_until(self.generator.now() + 0.1)
