"""What batching does: the same rate, by turns to the service and to a second one that batches nothing.

The second is given by --unbatched-host: the same service with VISION_BATCH_COUNT=1. Turns of a few seconds, so that both
see the same noise.
"""

from locustfiles.answers import Ask, Judged
from locustfiles.arrivals import Phase
from locustfiles.client import VisionUser
from locustfiles.decks import one_operator
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo

TURNS = 6
UNBATCHED = "unbatched"


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    turn = slo.duration_s / TURNS
    names = [f"{'batched' if number % 2 else UNBATCHED} {number // 2 + 1}" for number in range(TURNS)]
    warm = [Phase(name, slo.warmup_s / 2, "open", rate) for name in (UNBATCHED, "batched")]
    return [*warm, *(Phase(name, turn, "open", rate, judged=True) for name in names)]


class Stream(VisionUser):
    """One part of the offered rate, to the service whose turn it is."""

    session = Session("batching", one_operator("small"), plan, second_host=True)

    def ask(self, ask: Ask, phase: str, intended_s: float | None = None, *, arm: str = "good", host: str = "") -> Judged:
        """As ever, but to the unbatched service in its turn."""
        if phase.startswith(UNBATCHED):
            arm, host = UNBATCHED, self.session.unbatched_host
        return super().ask(ask, phase, intended_s, arm=arm, host=host)
