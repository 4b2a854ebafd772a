"""A decoder that hangs, crashes, grows or lies costs its own request, and the pool is whole again."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import faulty_decoders
import numpy as np
import pytest
from pictures import encoded, exif, gif, scene

from app.codec import DecodeOptions, decode
from app.decoders import DecoderPool
from app.problems import DeadlineExceeded, Draining, ImageTooLarge, ImageUnreadable, Overloaded, UnsupportedMediaType

OPTIONS = DecodeOptions()
MIB = 1 << 20


@pytest.fixture
async def pool() -> AsyncIterator[DecoderPool]:
    pool = DecoderPool(2, timeout_s=20, memory_bytes=512 * MIB)
    await pool.start()
    yield pool
    await pool.close()


@pytest.fixture
async def faulty() -> AsyncIterator[DecoderPool]:
    pool = DecoderPool(2, timeout_s=2, memory_bytes=256 * MIB, queue_limit=4, worker=faulty_decoders.__name__)
    await pool.start()
    yield pool
    await pool.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the end of another process is no event of this loop
            await asyncio.sleep(0.005)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def whole(pool: DecoderPool) -> bool:
    return len(pool._idle) == pool.size


def children() -> dict[int, list[int]]:
    """Every process's living children."""
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found.setdefault(int(parent), []).append(int(stat.parent.name))
    return found


def nursery_of(pid: int) -> int:
    (nursery,) = [child for child in children().get(pid, []) if "_decoder" in command(child) or "decoder_" in command(child)]
    return nursery


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


async def test_pixels_are_those_of_the_codec(pool: DecoderPool) -> None:
    for kind in ("grey", "rgb"):
        for data in (encoded(scene(), "jpeg", exif=exif(6)), encoded(scene(30, 20, 4), "png"), encoded(scene(), "avif")):
            options = DecodeOptions(pixels=kind, background=(1, 2, 3))
            decoded = await pool.decode(data, options)
            pixels, info = decode(data, options)
            assert np.array_equal(decoded.pixels, pixels)
            assert decoded.info == info
            assert decoded.pixels.flags.c_contiguous
            assert decoded.pixels.flags.writeable
            assert 0 < decoded.seconds < 20


async def test_large_files_and_large_pictures_pass(pool: DecoderPool) -> None:
    image = np.random.default_rng(1).integers(0, 256, (2400, 2400, 3), np.uint8)
    decoded = await pool.decode(encoded(image, "bmp"), DecodeOptions(pixels="rgb"))
    assert np.array_equal(decoded.pixels, image)
    assert decoded.pixels.flags.writeable


async def test_pixels_outlive_the_next_pictures_and_the_pool() -> None:
    pool = DecoderPool(1, timeout_s=20, memory_bytes=512 * MIB)
    await pool.start()
    files = [encoded(np.full((5, 8 + value), value, np.uint8), "png") for value in range(40)]
    files.append(encoded(np.full((4200, 4200), 40, np.uint8), "png"))
    # Of every third picture only a view of a view is kept.
    kept = [(await pool.decode(file, OPTIONS)).pixels for file in files]
    kept = [pixels[1:].T[2:] if value % 3 == 0 else pixels for value, pixels in enumerate(kept)]
    gc.collect()
    for file in files:
        await pool.decode(file, OPTIONS)
    await pool.close()
    assert all((pixels == value).all() for value, pixels in enumerate(kept))


async def test_problems_arrive_whole(pool: DecoderPool) -> None:
    with pytest.raises(ImageTooLarge) as large:
        await pool.decode(gif(65535, 65535, 1), OPTIONS)
    assert (large.value.limit, large.value.measured, large.value.setting) == (40_000_000, 65535**2, "VISION_MAX_PIXELS")
    with pytest.raises(UnsupportedMediaType, match="AVIF"):
        await pool.decode(b"", OPTIONS)
    with pytest.raises(ImageUnreadable):
        await pool.decode(encoded(scene(), "png")[:-30], OPTIONS)
    assert pool.restarts == 0


@pytest.mark.parametrize(
    "word",
    [
        *("hang", "spin", "crash", "exit", "allocate", "grow", "garbage", "shout", "pickle", "wrong shape", "too short", "unsealed"),
        *("unknown problem", "unknown fields"),
    ],
)
async def test_a_fault_costs_its_own_request(faulty: DecoderPool, word: str) -> None:
    neighbour = asyncio.create_task(faulty.decode(b"sleep 0.1", OPTIONS))
    with pytest.raises(ImageUnreadable) as caught:
        await faulty.decode(word.encode(), OPTIONS)
    if word != "grow":  # which ends by one limit or the other
        assert caught.value.setting == ("VISION_DECODE_TIMEOUT_S" if word in ("hang", "spin") else None)
    assert (await neighbour).pixels[0, 0] == len("sleep 0.1")
    assert faulty.restarts >= 1
    for _ in range(4):
        assert (await faulty.decode(b"1234567", OPTIONS)).pixels.tolist() == [[7]]
    await until(lambda: whole(faulty))
    assert (faulty.busy, faulty.waiting) == (0, 0)


async def test_faults_in_every_decoder_at_once(faulty: DecoderPool) -> None:
    words = [b"crash", b"hang", b"abc", b"garbage", b"grow"]
    outcomes = await asyncio.gather(*(faulty.decode(word, OPTIONS) for word in words), return_exceptions=True)
    assert [isinstance(outcome, ImageUnreadable) for outcome in outcomes] == [True, True, False, True, True]


@pytest.mark.parametrize("asleep", [True, False])
@pytest.mark.parametrize("nursery_too", [True, False])
async def test_processes_that_something_else_kills_fail_nobody(faulty: DecoderPool, *, asleep: bool, nursery_too: bool) -> None:
    tasks = [] if asleep else [asyncio.create_task(faulty.decode(b"sleep 0.3", OPTIONS)) for _ in range(2)]
    await asyncio.sleep(0)
    nursery = nursery_of(os.getpid())
    for pid in [nursery] if nursery_too else children()[nursery]:
        os.kill(pid, signal.SIGKILL)
    assert (await faulty.decode(b"abc", OPTIONS)).pixels[0, 0] == 3
    for task in tasks:
        assert (await task).pixels[0, 0] == len("sleep 0.3")
    await until(lambda: faulty.restarts >= 2 and whole(faulty))


async def test_an_image_that_ends_its_process_twice_is_not_tried_again(faulty: DecoderPool) -> None:
    with pytest.raises(ImageUnreadable):
        await faulty.decode(b"exit", OPTIONS)
    assert faulty.restarts == 2


async def test_signals_to_the_group_do_not_reach_decoders(faulty: DecoderPool) -> None:
    nursery = nursery_of(os.getpid())
    assert os.getpgid(nursery) != os.getpgid(0)
    for pid in (nursery, *children()[nursery]):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    for _ in range(4):
        await faulty.decode(b"abc", OPTIONS)
    assert faulty.restarts == 0


async def test_decoders_know_no_secrets_and_have_limits(faulty: DecoderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISION_SECRET", "xyzzy")
    with pytest.raises(ImageUnreadable) as caught:
        await faulty.decode(b"environment", OPTIONS)
    assert set(caught.value.detail.split()) <= {"PYTHONPATH", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH", "LC_CTYPE"}
    assert caught.value.limit is not None
    process = Path(f"/proc/{int(caught.value.limit)}")
    limits = (process / "limits").read_text()
    assert "Max core file size        0 " in limits
    assert "Max open files            32 " in limits
    assert "NoNewPrivs:\t1" in (process / "status").read_text()
    assert sorted(str(each.readlink()) for each in (process / "fd").iterdir())[:3] == ["/dev/null"] * 3


async def test_first_come_first_served_and_the_queue_is_bounded() -> None:
    done: list[str] = []
    pool = DecoderPool(1, timeout_s=20, memory_bytes=256 * MIB, queue_limit=4, worker=faulty_decoders.__name__)
    await pool.start()

    async def ask(word: str) -> None:
        await pool.decode(word.encode(), OPTIONS)
        done.append(word)

    words = ["sleep 0.1", "a", "b", "c", "d"]
    tasks = [asyncio.create_task(ask(word)) for word in words]
    await asyncio.sleep(0)
    assert (pool.busy, pool.waiting) == (1, 4)
    with pytest.raises(Overloaded) as caught:
        await pool.decode(b"e", OPTIONS)
    assert caught.value.retry_after_s
    await asyncio.gather(*tasks)
    assert done == words
    await pool.close()


async def test_a_deadline_ends_the_wait_and_leaves_the_decoder_whole(faulty: DecoderPool) -> None:
    blockers = [asyncio.create_task(faulty.decode(b"sleep 0.3", OPTIONS)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded):
        await faulty.decode(b"abc", OPTIONS, asyncio.get_running_loop().time() + 0.05)
    assert faulty.waiting == 0
    await asyncio.gather(*blockers)
    with pytest.raises(DeadlineExceeded):
        await faulty.decode(b"sleep 0.2", OPTIONS, asyncio.get_running_loop().time() + 0.05)
    assert faulty.busy == 1
    await until(lambda: faulty.busy == 0)
    assert faulty.restarts == 0


async def test_cancelled_callers_free_their_places(faulty: DecoderPool) -> None:
    tasks = [asyncio.create_task(faulty.decode(b"sleep 0.2", OPTIONS)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (faulty.busy, faulty.waiting) == (2, 0)
    assert (await faulty.decode(b"abc", OPTIONS)).pixels[0, 0] == 3
    assert faulty.restarts == 0


async def test_a_cancelled_caller_of_a_hanging_decoder_does_not_keep_it(faulty: DecoderPool) -> None:
    for _ in range(2):
        task = asyncio.create_task(faulty.decode(b"hang", OPTIONS))
        await asyncio.sleep(0)
        task.cancel()
    assert faulty.busy == 2
    assert (await faulty.decode(b"abc", OPTIONS)).pixels[0, 0] == 3
    assert faulty.restarts >= 1


async def test_nothing_is_left_open(faulty: DecoderPool) -> None:
    async def round_trip() -> None:
        await asyncio.gather(*(faulty.decode(b"large 4200", OPTIONS) for _ in range(4)))
        await asyncio.gather(*(faulty.decode(word, OPTIONS) for word in (b"crash", b"unsealed")), return_exceptions=True)
        await faulty.decode(b"abc", OPTIONS)
        await until(lambda: whole(faulty))
        gc.collect()

    await round_trip()
    before = open_files()
    for _ in range(3):
        await round_trip()
    assert open_files() == before


async def test_closing_ends_every_process_and_fails_what_is_left() -> None:
    pool = DecoderPool(2, timeout_s=20, memory_bytes=256 * MIB, worker=faulty_decoders.__name__)
    await pool.start()
    nursery = nursery_of(os.getpid())
    everyone = [nursery, *children()[nursery]]
    tasks = [asyncio.create_task(pool.decode(word, OPTIONS)) for word in (b"hang", b"hang", b"abc")]
    await asyncio.sleep(0)
    await pool.close()
    assert [type(outcome) for outcome in await asyncio.gather(*tasks, return_exceptions=True)] == [Draining] * 3
    with pytest.raises(Draining):
        await pool.decode(b"abc", OPTIONS)
    await until(lambda: not any(pid in everyone for living in children().values() for pid in living))


async def test_a_nursery_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_decoders.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="exit code 3"):
        await DecoderPool(1, timeout_s=1, memory_bytes=MIB, worker="broken_decoders").start()


async def test_an_interpreter_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        await DecoderPool(1, timeout_s=1, memory_bytes=MIB).start()


def test_decoders_die_with_the_service() -> None:
    script = f"""
import asyncio, sys
sys.path[:] = {sys.path!r}
from app.codec import DecodeOptions
from app.decoders import DecoderPool
async def main():
    pool = DecoderPool(2, timeout_s=100, memory_bytes=1 << 28, worker="faulty_decoders")
    await pool.start()
    print("ready", flush=True)
    await pool.decode(b"spin", DecodeOptions())
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as service:
        assert service.stdout
        assert service.stdout.readline() == b"ready\n"
        nursery = nursery_of(service.pid)
        everyone = [nursery, *children()[nursery]]
        service.kill()
    limit = time.monotonic() + 20
    while any(pid in everyone for living in children().values() for pid in living):
        assert time.monotonic() < limit
        time.sleep(0.01)


async def test_memory_is_limited_to_what_a_decoder_is_given() -> None:
    data = encoded(np.zeros((4000, 4000, 3), np.uint8), "png")
    for memory, fits in ((32 * MIB, False), (512 * MIB, True)):
        pool = DecoderPool(1, timeout_s=50, memory_bytes=memory)
        await pool.start()
        try:
            if fits:
                assert (await pool.decode(data, OPTIONS)).pixels.shape == (4000, 4000)
            else:
                with pytest.raises(ImageUnreadable) as caught:
                    await pool.decode(data, OPTIONS)
                assert caught.value.setting == "VISION_DECODE_MEMORY_BYTES"
        finally:
            await pool.close()
