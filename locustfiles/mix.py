"""A realistic mix: every operator, 60 % small pictures, 30 % of about two megapixels, 10 % of twelve, at a steady rate.

Closed model: a fixed number of users on a rhythm, enough of them that they do not wait for one another.
"""

from locustfiles.arrivals import Phase, steady
from locustfiles.client import VisionUser
from locustfiles.decks import realistic
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return steady("paced", slo.warmup_s, slo.duration_s, rate)


class Mix(VisionUser):
    """Asks what the deck says."""

    session = Session("mix", realistic, plan)
