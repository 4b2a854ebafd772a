"""What the batcher and the engine cost, and how they behave near and beyond capacity, on this machine's CPU backend.

    python benchmarks/bench_batcher.py [overhead] [core] [mix] [poisson] [overload] [fair]

No HTTP and no decoding: jobs are submitted from the event loop itself. Prints one line a measurement.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import uvloop

from app.batcher import Batcher
from app.engine import Engine
from app.jobs import Job, Limits, Observer
from app.problems import Overloaded, Problem
from cuda_ops import Backend, Item, Step, chain_key, check_chain, create_backend, operators

SIZES = {"320x240": (240, 320), "640x480": (480, 640), "1280x960": (960, 1280), "2560x1920": (1920, 2560)}


class Nothing:
    """A backend that answers at once."""

    name = "cpu"

    def __init__(self, slots: int, *, share: bool) -> None:
        self.slots = slots
        self.share = share

    def run(self, items: Sequence[Any], deliver: Callable[[int, Any], None]) -> dict[str, float]:
        for index, item in enumerate(items):
            deliver(index, [item])
        return {"kernel": 0.0}

    def scratch_bytes(self, _item: Any) -> int:
        return 0

    def warm_up(self, _operators: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Work:
    """Canny on a photo-like image of each size, as jobs."""

    def __init__(self) -> None:
        operator = operators()["edges/canny"]
        self.backend: Backend = create_backend("cpu")
        self.backend.warm_up([operator])
        self.chain = check_chain([Step(operator, operator.params(low=100, high=200))])
        self.key = chain_key(self.chain)
        rng = np.random.default_rng(0)
        self.items = {}
        for name, (height, width) in SIZES.items():
            coarse = rng.integers(0, 256, (height // 16 + 1, width // 16 + 1), dtype=np.uint8)
            pixels = np.ascontiguousarray(np.kron(coarse, np.ones((16, 16), np.uint8))[:height, :width])
            self.items[name] = Item(pixels, self.chain)

    def job(self, size: str, client: str = "", deadline_s: float = 60.0) -> Job:
        item = self.items[size]
        return Job(self.key, item.pixels.size, item, client, time.monotonic() + deadline_s)

    def direct(self, size: str) -> float:
        began = time.perf_counter()
        self.backend.run([self.items[size]], lambda _index, _outcome: None)
        return time.perf_counter() - began


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def opened(backend: Backend, limits: Limits | None = None, seen: Observer | None = None) -> tuple[Engine, Batcher]:
    engine = Engine([backend])
    engine.open()
    return engine, Batcher(engine, limits, seen)


async def overhead() -> None:
    """One job at a time: time through batcher and engine, less the time of the same call made directly."""
    work = Work()
    engine, batcher = await opened(work.backend)
    for size in ("320x240", "640x480"):
        direct, through = [], []
        for _ in range(1000):
            direct.append(work.direct(size))
            began = time.perf_counter()
            await batcher.submit(work.job(size))
            through.append(time.perf_counter() - began)
        added = [1e3 * (quantile(through, share) - quantile(direct, share)) for share in (0.5, 0.9, 0.99)]
        spread = ", ".join(f"{name} {ms:.3f}" for name, ms in zip(("p50", "p90", "p99"), added, strict=True))
        print(f"overhead {size}: direct p50 {1e3 * quantile(direct, 0.5):.3f} ms; added {spread} ms")
    await engine.close()


async def core() -> None:
    """Jobs a second that the core itself can pass on, with nothing to compute and a full queue."""
    for share in (True, False):
        engine, batcher = await opened(Nothing(2, share=share))
        jobs = 30_000

        async def client(count: int, batcher: Batcher = batcher) -> None:
            for i in range(count):
                await batcher.submit(Job("k", 10_000, i, str(i % 7), time.monotonic() + 10.0))

        began = time.perf_counter()
        await asyncio.gather(*(client(jobs // 100) for _ in range(100)))
        print(f"core share={share}: {jobs / (time.perf_counter() - began):,.0f} jobs/s from 100 callers")
        await engine.close()


async def closed_loop(batcher: Batcher, next_job: Callable[[], Job], callers: int, seconds: float) -> tuple[int, int]:
    """Jobs and pixels done by callers that always have one job in flight."""
    until = time.perf_counter() + seconds
    done = [0, 0]

    async def caller() -> None:
        while time.perf_counter() < until:
            job = next_job()
            await batcher.submit(job)
            done[0] += 1
            done[1] += job.cost

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done[0], done[1]


async def mix() -> None:
    """Throughput of a four-size mix against what the sizes reach alone, weighted by their pixels."""
    work = Work()
    engine, batcher = await opened(work.backend)
    alone = {}
    for size in SIZES:
        began = time.perf_counter()
        _, pixels = await closed_loop(batcher, lambda size=size: work.job(size), 16, 2.0)
        alone[size] = pixels / (time.perf_counter() - began)
    order = list(SIZES) * 1000
    random.Random(0).shuffle(order)
    began = time.perf_counter()
    _, pixels = await closed_loop(batcher, lambda: work.job(order.pop()), 16, 4.0)
    mixed = pixels / (time.perf_counter() - began)
    shares = {size: work.items[size].pixels.size for size in SIZES}
    expected = sum(shares.values()) / sum(pixels / alone[size] for size, pixels in shares.items())
    print(f"mix: {mixed / 1e6:.0f} MP/s, alone { ({s: round(r / 1e6) for s, r in alone.items()}) }, ratio {mixed / expected:.3f}")
    await engine.close()


async def open_loop(batcher: Batcher, job: Callable[[], Job], gaps: Callable[[], float], seconds: float) -> list[tuple[float, Any]]:
    """(seconds, result or problem) of jobs that come at their times, whatever became of the earlier ones."""
    outcomes: list[tuple[float, Any]] = []

    async def one() -> None:
        began = time.perf_counter()
        try:
            result: Any = await batcher.submit(job())
        except Problem as problem:
            result = problem
        outcomes.append((time.perf_counter() - began, result))

    tasks = []
    begin = when = time.perf_counter()
    while when < begin + seconds:
        when += gaps()
        await asyncio.sleep(max(0.0, when - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    return outcomes


async def capacity(work: Work, batcher: Batcher, size: str = "1280x960") -> float:
    """Jobs a second of a closed loop."""
    began = time.perf_counter()
    count, _ = await closed_loop(batcher, lambda: work.job(size), 8, 3.0)
    return count / (time.perf_counter() - began)


async def poisson() -> None:
    """p99 of Poisson arrivals against constant ones, both at 70 % of capacity."""
    work = Work()
    engine, batcher = await opened(work.backend)
    rate = 0.7 * await capacity(work, batcher)
    rng = random.Random(0)
    p99 = {}
    for name, gaps in (("constant", lambda: 1 / rate), ("poisson", lambda: rng.expovariate(rate))):
        outcomes = await open_loop(batcher, lambda: work.job("1280x960"), gaps, 8.0)
        p99[name] = quantile([seconds for seconds, _ in outcomes], 0.99)
    constant, poisson = 1e3 * p99["constant"], 1e3 * p99["poisson"]
    print(f"poisson: {rate:.0f}/s, p99 constant {constant:.1f} ms, poisson {poisson:.1f} ms, ratio {poisson / constant:.2f}")
    await engine.close()


async def overload() -> None:
    """Three times capacity with half a second to live: deadlines kept, refusals fast, goodput."""
    work = Work()
    engine, batcher = await opened(work.backend, Limits(queue_limit=256))
    most = await capacity(work, batcher)
    outcomes = await open_loop(batcher, lambda: work.job("1280x960", str(random.randrange(20)), 0.5), lambda: 1 / (3 * most), 8.0)
    good = [seconds for seconds, result in outcomes if not isinstance(result, Problem)]
    refused = [seconds for seconds, result in outcomes if isinstance(result, Overloaded)]
    late = len(outcomes) - len(good) - len(refused) + sum(seconds > 0.5 for seconds in good)
    kept = 1 - late / max(1, len(outcomes) - len(refused))
    print(
        f"overload: {3 * most:.0f}/s offered, accepted {len(good)}, refused {len(refused)}, deadlines kept {100 * kept:.2f} %, "
        f"refusal p95 {1e3 * quantile(refused, 0.95):.2f} ms, goodput {len(good) / 8.0 / most:.3f} of peak, "
        f"accepted p50 {1e3 * quantile(good, 0.5):.0f} ms"
    )
    await engine.close()


async def fair() -> None:
    """One client with 50 jobs always waiting beside ten with one each."""
    work = Work()
    engine, batcher = await opened(work.backend)
    served: Counter[str] = Counter()
    until = time.perf_counter() + 5.0

    async def caller(name: str) -> None:
        while time.perf_counter() < until:
            await batcher.submit(work.job("1280x960", name))
            served[name] += 1

    names = ["heavy"] * 50 + [f"light {i}" for i in range(10)]
    await asyncio.gather(*(caller(name) for name in names))
    light = [count for name, count in served.items() if name != "heavy"]
    share = sum(served.values()) / 11
    least = min(light) / share
    print(f"fair: heavy {served['heavy']}, light {min(light)}..{max(light)}, a fair share is {share:.0f}, least {least:.2f} of it")
    await engine.close()


MEASUREMENTS: dict[str, Callable[[], Awaitable[None]]] = {each.__name__: each for each in (overhead, core, mix, poisson, overload, fair)}


async def main() -> None:
    for name in sys.argv[1:] or MEASUREMENTS:
        await MEASUREMENTS[name]()


if __name__ == "__main__":
    uvloop.run(main())
