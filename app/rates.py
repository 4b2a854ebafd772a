"""How often one client may ask: a token bucket each, forgotten when it is full again.

The headers follow the IETF draft "RateLimit header fields for HTTP": `RateLimit-Policy` says what holds, `RateLimit` what is left.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from app.problems import RateLimited

MOST_CLIENTS = 100_000


class Rates:
    """Token buckets by client. `share` divides every rate between the processes that share a port."""

    def __init__(self, share: int = 1, now: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, rate_per_s: float, burst: int) -> dict[str, str]:
        """Take one token, and give the headers of the answer; none without a rate. RateLimited when there is no token."""
        if rate_per_s <= 0:
            return {}
        rate, most = rate_per_s / self._share, max(1.0, burst / self._share)
        now = self._now()
        tokens, seen = self._buckets.pop(client, (most, now))
        tokens = min(most, tokens + (now - seen) * rate)
        allowed = tokens >= 1
        tokens -= allowed
        self._buckets[client] = (tokens, now)
        while len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        headers = {
            "RateLimit-Policy": f'"default";q={burst};w={max(1, math.ceil(burst / rate_per_s))}',
            "RateLimit": f'"default";r={int(tokens)};t={math.ceil((most - tokens) / rate)}',
        }
        if not allowed:
            wait = (1 - tokens) / rate
            raise RateLimited(
                f"This client may make {rate_per_s:g} requests a second, {burst} at once. Wait {math.ceil(wait)} s, then spread them out.",
                limit=rate_per_s,
                retry_after_s=wait,
                headers=headers,
            )
        return headers
