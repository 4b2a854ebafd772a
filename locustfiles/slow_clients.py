"""Clients that trickle their requests, beside good traffic, which keeps its objectives: each is cut off in time."""

from locustfiles.arrivals import Phase, steady
from locustfiles.client import SideUser, VisionUser
from locustfiles.decks import realistic
from locustfiles.raw import trickle
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return steady("open", slo.warmup_s, slo.duration_s, rate)


class Good(VisionUser):
    """Ordinary traffic."""

    session = Session("slow_clients", realistic, plan)


class Slow(SideUser):
    """Half of them trickle their headers, half their body; each begins anew once it is cut off."""

    session = Good.session
    fixed_count = 32

    def act(self) -> None:
        """Until the plan ends."""
        in_body = self.dice.random() < 0.5
        while not self.generator.is_over():
            self.side("slow", lambda: trickle(self.generator.host, self.generator, in_body=in_body))
