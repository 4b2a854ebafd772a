"""Images wait for a decoder in fair order, with deadlines, and nobody is decoded for who has gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batching import FakeClock

from app.codec import DecodeOptions
from app.decoding import Decoding
from app.problems import DeadlineExceeded, ImageUnreadable, Overloaded

OPTIONS = DecodeOptions(pixels="grey", max_pixels=1000, max_side=100)


class Pool:
    """Decodes when told to."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.begun: list[bytes] = []
        self.running: list[asyncio.Future[Any]] = []

    async def decode(self, data: bytes, options: DecodeOptions, deadline: float | None) -> Any:
        assert options is OPTIONS
        assert deadline is None or deadline > 0.0
        self.begun.append(data)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.running.append(future)
        return await future


class Bench:
    def __init__(self, size: int = 1, queue_limit: int = 256) -> None:
        self.clock = FakeClock()
        self.pool = Pool(size)
        self.decoding = Decoding(self.pool, queue_limit, self.clock)

    async def send(self, *images: bytes, client: str = "c", deadline: float = float("inf")) -> list[asyncio.Task[Any]]:
        waits = [self.decoding.decode(image, OPTIONS, client=client, deadline=deadline) for image in images]
        tasks = [asyncio.create_task(wait) for wait in waits]
        await self.settle()
        return tasks

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)
            self.clock.run_soon()

    async def finish(self, outcome: Any = "pixels") -> None:
        future = self.pool.running.pop(0)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        await self.settle()


async def test_the_pool_gets_as_many_as_it_can_decode_at_once() -> None:
    bench = Bench(size=2)
    tasks = await bench.send(b"1", b"2", b"3")
    assert bench.pool.begun == [b"1", b"2"]
    await bench.finish("one")
    assert bench.pool.begun == [b"1", b"2", b"3"]
    assert await tasks[0] == "one"


async def test_a_bad_image_is_its_senders_problem() -> None:
    bench = Bench()
    bad, good = await bench.send(b"bad", b"good")
    await bench.finish(ImageUnreadable("The image is damaged."))
    with pytest.raises(ImageUnreadable):
        await bad
    await bench.finish("fine")
    assert await good == "fine"


async def test_many_images_of_one_client_do_not_delay_another_client() -> None:
    bench = Bench()
    await bench.send(*([b"x" * 1_000_000] * 50), client="heavy")
    for _ in range(10):
        await bench.finish()
    await bench.send(b"light", client="light")
    for _ in range(5):
        await bench.finish()
    assert b"light" in bench.pool.begun


async def test_a_deadline_is_kept_although_every_decoder_is_busy() -> None:
    bench = Bench()
    await bench.send(b"busy")
    [task] = await bench.send(b"late", deadline=bench.clock.now + 0.5)
    bench.clock.advance(0.5)
    await bench.settle()
    with pytest.raises(DeadlineExceeded):
        await task
    await bench.finish()
    assert bench.pool.begun == [b"busy"]


async def test_nothing_is_decoded_for_who_has_gone() -> None:
    bench = Bench()
    await bench.send(b"busy")
    for task in await bench.send(*([b"gone"] * 20)):
        task.cancel()
    await bench.settle()
    await bench.finish()
    assert bench.pool.begun == [b"busy"]


async def test_the_queue_is_bounded() -> None:
    bench = Bench(queue_limit=2)
    await bench.send(b"busy")
    tasks = await bench.send(b"1", b"2", b"3")
    with pytest.raises(Overloaded):
        await tasks[2]
