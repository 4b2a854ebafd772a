"""The scenario `mix` in a generator whose processor time is taken by something else."""

import time
from typing import Any

import gevent
from locust import events

from locustfiles.mix import Mix

__all__ = ["Mix"]


def take_all() -> None:
    while True:
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            pass
        gevent.sleep(0.002)


@events.test_start.add_listener
def starve(**_: Any) -> None:
    gevent.spawn_later(1.0, take_all)
