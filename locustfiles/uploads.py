"""The three ways to upload a picture, as ready bodies."""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import NamedTuple

from locustfiles.answers import Form
from locustfiles.images import Picture

_BOUNDARY = "visionbatch-load-boundary"


class Upload(NamedTuple):
    """A request body and its content type."""

    body: bytes
    content_type: str


@cache
def upload(picture: Picture, form: Form) -> Upload:
    """The body for one picture; made once, so that making it is no part of the measured time."""
    if form == "raw":
        return Upload(picture.data, "image/jpeg")
    if form == "multipart":
        head = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{picture.name}.jpg"\r\n'
            "Content-Type: image/jpeg\r\n\r\n"
        )
        return Upload(
            head.encode() + picture.data + f"\r\n--{_BOUNDARY}--\r\n".encode(),
            f"multipart/form-data; boundary={_BOUNDARY}",
        )
    body = json.dumps({"image": {"base64": base64.b64encode(picture.data).decode()}})
    return Upload(body.encode(), "application/json")
