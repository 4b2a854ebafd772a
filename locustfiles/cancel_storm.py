"""Clients that hang up in the middle, beside good traffic, which keeps its objectives: nobody computes for the gone."""

from locustfiles.arrivals import Phase, steady
from locustfiles.client import SideUser, VisionUser
from locustfiles.decks import realistic
from locustfiles.raw import hang_up
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo

PAUSE_S = 0.02


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return steady("open", slo.warmup_s, slo.duration_s, rate)


class Good(VisionUser):
    """Ordinary traffic."""

    session = Session("cancel_storm", realistic, plan)


class Impatient(SideUser):
    """Sends a request and hangs up within 30 ms."""

    session = Good.session
    fixed_count = 2

    def act(self) -> None:
        """Until the plan ends."""
        while not self.generator.is_over():
            self.side("cancel", lambda: hang_up(self.generator.host, self.generator.next_ask(), self.dice.uniform(0, 0.03)))
            self.generator.sleep_until(self.generator.now() + PAUSE_S)
