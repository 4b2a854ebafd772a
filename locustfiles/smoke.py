"""Every operator once, alone, in each form of upload in turn, then every attack once. Seconds, and the first thing to run."""

from locustfiles.arrivals import Phase
from locustfiles.attacks import ATTACKS
from locustfiles.client import Attacker
from locustfiles.decks import once_each
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return [Phase("main", slo.duration_s, "closed", judged=True)]


class Smoke(Attacker):
    """Goes through the deck once and ends the run."""

    session = Session("smoke", once_each, plan)

    def act(self) -> None:
        """Once each."""
        for _ in range(self.generator.deck_size):
            self.ask(self.generator.next_ask(), "main")
        for attack in ATTACKS:
            self.attack(attack)
        self.generator.end_now()
