"""One decoder process as the service sees it: forked by the nursery, given one image at a time, believed in nothing, replaced when lost."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from app.codec import DecodeOptions, ImageInfo
from app.codec.image import Pixels
from app.decoder_worker import MOST_MESSAGE_BYTES
from app.problems import ImageTooLarge, ImageUnreadable, Problem, UnsupportedMediaType
from app.slabs import SEALS, SLAB_BYTES, Slabs

logger = logging.getLogger("vision.decoders")

_PROBLEMS: dict[str, type[Problem]] = {kind.code: kind for kind in (ImageTooLarge, ImageUnreadable, UnsupportedMediaType)}
_BROKEN = "The image's decoder broke down over it: the image is damaged. Save or upload it again."


@dataclass(frozen=True, slots=True)
class Decoded:
    """uint8 pixels [h, w] or [h, w, 3], C-contiguous and writable; what the file was; seconds spent decoding."""

    pixels: Pixels
    info: ImageInfo
    seconds: float


@dataclass(slots=True, eq=False)
class DecodeJob:
    """An image on its way through a decoder. Nobody need wait for `result` any more. `tried`: a process has ended over it."""

    data: bytes
    options: DecodeOptions
    result: asyncio.Future[Decoded]
    tried: bool = False


class Nursery:
    """The process that forks decoders; it holds no image, and is itself started again if it is gone."""

    def __init__(self, module: str, memory_bytes: int, timeout_s: float) -> None:
        self._arguments = [sys.executable, "-m", module]
        self._limits = [str(memory_bytes), str(timeout_s)]
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs or before it ran."""
        return self._process.poll() if self._process else None

    def fork(self, slabs: int) -> socket.socket:
        """Ask for a decoder with these slabs. Returns the service's end of its socket; the first message on it says that it is ready."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with its:
            try:
                self._ask(its.fileno(), slabs)
            except OSError:
                ours.close()
                raise
        return ours

    def close(self) -> None:
        """End the process. Blocks until it has gone."""
        if self._control:
            self._control.close()
        if self._process:
            self._process.kill()
            self._process.wait()

    def _ask(self, *descriptors: int) -> None:
        if self._control is not None:
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._control, [b"fork"], descriptors)
                return
        socket.send_fds(self._start(), [b"fork"], descriptors)

    def _start(self) -> socket.socket:
        self.close()
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The environment may hold secrets, and what parses hostile bytes shall not know them.
        environment = {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path), "OPENBLAS_NUM_THREADS": "1"}
        environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with its:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module that the program itself names
                [*self._arguments, str(its.fileno()), *self._limits],
                pass_fds=[its.fileno()],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._control


class Decoder:
    """One process. It calls `freed` when it is ready and after every job; `lost` when it had to be killed or turned out to be gone.

    A job whose process just ended may be innocent of that: `lost` gets it back, unanswered, to be tried once more.
    """

    def __init__(
        self,
        nursery: Nursery,
        timeout_s: float,
        freed: Callable[[Decoder], None],
        lost: Callable[[Decoder, DecodeJob | None], None],
    ) -> None:
        self.job: DecodeJob | None = None
        self.ready = False
        self._timeout_s = timeout_s
        self._freed = freed
        self._lost = lost
        self._process: int | None = None  # a pidfd, which never comes to name another process
        self._timer: asyncio.TimerHandle | None = None
        self._slab = 0
        memory = Slabs.memory()
        try:
            self._slabs = Slabs(memory)
            self._socket = nursery.fork(memory)
        finally:
            os.close(memory)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def begin(self, job: DecodeJob) -> bool:
        """Hand an image to the idle process. False, and `lost` was called, if the process turns out to be gone."""
        self._slab = self._slabs.free()
        self._slabs.mark = False
        request = orjson.dumps({"bytes": len(job.data), "slab": self._slab, "options": job.options})
        descriptors: list[int] = []
        try:
            if len(job.data) <= SLAB_BYTES:
                self._slabs.write(self._slab, job.data)
            else:
                descriptors.append(_memory_of(job.data))
            socket.send_fds(self._socket, [request], descriptors)
        except OSError:
            self._give_up("had gone", ImageUnreadable(_BROKEN))
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.job = job
        self._timer = self._loop.call_later(self._timeout_s, self._overdue)
        return True

    def close(self, problem: Problem) -> None:
        """Kill the process, failing its job with `problem`."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()  # which ends a process that has not said yet who it is
        if self._process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            os.close(self._process)
        self._settle(problem)

    def _give_up(self, reason: str, problem: Problem, unanswered: DecodeJob | None = None) -> None:
        logger.warning("a decoder %s and is replaced", reason)
        self.close(problem)
        self._lost(self, unanswered)

    def _overdue(self) -> None:
        self._give_up(
            "took too long",
            ImageUnreadable(
                f"Decoding was stopped after {self._timeout_s:g} s. Scale the image down, or save it in a plainer form.",
                limit=self._timeout_s,
                setting="VISION_DECODE_TIMEOUT_S",
            ),
        )

    def _receive(self) -> None:
        descriptors: list[int] = []
        try:
            message, descriptors, flags, _ = socket.recv_fds(self._socket, MOST_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not message:
                self._ended()
                return
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("the process says too much")
            answer = orjson.loads(message)
            if not self.ready:
                self._process = os.dup(descriptors[0])
                self.ready = True
            elif self.job is None:
                raise ValueError("the process speaks without being asked")
            else:
                self._settle(self._read(answer, descriptors, self.job.options))
        except BlockingIOError:
            return
        except ConnectionResetError:  # it ended with a request unread
            self._ended()
            return
        except Exception:  # whatever is wrong with a message of a process that parses hostile bytes, the process is not to be used again
            self._give_up("talked nonsense", ImageUnreadable(_BROKEN))
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._freed(self)

    def _ended(self) -> None:
        job, taken = self.job, self._slabs.mark
        if job is not None and not (taken and job.tried):
            self.job = None
            job.tried = taken
            self._give_up("ended", ImageUnreadable(_BROKEN), unanswered=job)
        else:
            self._give_up("ended", ImageUnreadable(_BROKEN))

    def _settle(self, outcome: Decoded | Problem) -> None:
        """Give the job its outcome, if somebody still waits for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        job, self.job = self.job, None
        if job is None or job.result.done():
            return
        if isinstance(outcome, Decoded):
            job.result.set_result(outcome)
        else:
            job.result.set_exception(outcome)

    def _read(self, answer: dict[str, Any], descriptors: list[int], options: DecodeOptions) -> Decoded | Problem:
        """A worker's answer, checked as input from a stranger. Raises whatever it raises if it is not in order."""
        if "problem" in answer:
            fields = answer["problem"]
            return _PROBLEMS[fields.pop("code")](**fields)
        height, width, *channels = shape = tuple(answer["shape"])
        info = ImageInfo(**{**answer["info"], "converted": tuple(answer["info"]["converted"])})
        if (info.height, info.width, channels) != (height, width, [] if options.pixels == "grey" else [3]):
            raise ValueError("the shape is not what was asked for")
        if not 0 < height * width <= options.max_pixels:
            raise ValueError("the size is not allowed")
        if not descriptors:
            return Decoded(self._slabs.take(self._slab, shape), info, float(answer["seconds"]))
        size = math.prod(shape)
        # Sealed, the memory cannot be cut short under its reader, whom the kernel would kill.
        if os.fstat(descriptors[0]).st_size != size or fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise ValueError("the memory is not what was promised")
        return Decoded(np.ndarray(shape, np.uint8, mmap.mmap(descriptors[0], size)), info, float(answer["seconds"]))


def _memory_of(data: bytes) -> int:
    """A new memfd that holds `data`."""
    descriptor = os.memfd_create("image", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor
