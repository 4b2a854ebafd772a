"""Bad pictures, bombs and broken requests beside good traffic, which keeps its objectives. Every attack gets its problem."""

import itertools

from locustfiles.arrivals import Phase, steady
from locustfiles.attacks import ATTACKS
from locustfiles.client import Attacker, VisionUser
from locustfiles.decks import realistic
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo

PAUSE_S = 0.1


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return steady("open", slo.warmup_s, slo.duration_s, rate)


class Good(VisionUser):
    """Ordinary traffic."""

    session = Session("hostile", realistic, plan)


class Hostile(Attacker):
    """Goes through the attacks, round and round."""

    session = Good.session
    fixed_count = 2

    def act(self) -> None:
        """Until the plan ends."""
        for attack in itertools.cycle(ATTACKS):
            if self.generator.is_over():
                break
            self.attack(attack)
            self.generator.sleep_until(self.generator.now() + PAUSE_S)
