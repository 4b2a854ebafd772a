"""What each form of upload costs: the same picture raw, as multipart and as base64 in JSON, in turn."""

from locustfiles.arrivals import Phase, steady
from locustfiles.client import VisionUser
from locustfiles.decks import each_form
from locustfiles.session import Session
from locustfiles.slo import ScenarioSlo


def plan(slo: ScenarioSlo, rate: float) -> list[Phase]:
    return steady("paced", slo.warmup_s, slo.duration_s, rate)


class Uploader(VisionUser):
    """Asks what the deck says."""

    session = Session("upload_forms", each_form, plan)
