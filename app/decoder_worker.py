"""The process that decodes untrusted bytes, and the nursery it is forked from.

`python -m app.decoder_worker FD` is the nursery: it imports the codec once and forks a worker for every socket it is sent on FD, in a few
milliseconds. A worker answers one request at a time on its socket and holds nothing else: no environment, no files, no core dump, bounded
memory and processor time. Messages are JSON with at most one file descriptor, so that a subverted worker cannot make its reader run code.

    service -> nursery  fork                         + socket and slabs of a new worker
    worker  -> service  {"pid"}                      + pidfd; once, when ready
    service -> worker   {"bytes", "slab", "options"} + memfd of the image file, if a slab is too small for it
    worker  -> service  {"shape", "info", "seconds"} + sealed memfd of the pixels, if a slab is too small for them
    worker  -> service  {"problem"}

The mark of the slabs is set as soon as a request is taken: should the process end, it tells whether the image can have had a part in it.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from app.codec import DecodeOptions, decode
from app.codec.image import Allocate, ImageInfo, Pixels
from app.problems import Problem
from app.slabs import SEALS, SLAB_BYTES, Slabs

MOST_MESSAGE_BYTES = 16_384

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38

Decode = Callable[[bytes, DecodeOptions, Allocate], tuple[Pixels, ImageInfo]]


def nursery(decode: Decode = decode) -> None:
    """Fork a worker for every socket that arrives, with its slabs, until the service closes its end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    memory_bytes, cpu_s = int(sys.argv[2]), float(sys.argv[3])
    # The service decides when its workers end: a signal to the terminal's or the container's group must not cost it what it is draining.
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended workers leave no zombies
    _die_with_parent()
    while True:
        message, descriptors, *_ = socket.recv_fds(control, 16, 2)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            service, slabs = socket.socket(fileno=descriptors[0]), Slabs(descriptors[1])
            _confine(memory_bytes)
            _work(service, slabs, decode, cpu_s)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _work(service: socket.socket, slabs: Slabs, decode: Decode, cpu_s: float) -> None:
    socket.send_fds(service, [orjson.dumps({"pid": os.getpid()})], [os.pidfd_open(os.getpid())])
    while True:
        message, descriptors, *_ = socket.recv_fds(service, MOST_MESSAGE_BYTES, 1)
        if not message:
            return
        slabs.mark = True
        # Only a backstop: the service's own clock ends a decode sooner, unless the service itself is stuck.
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime + cpu_s) + 1, resource.RLIM_INFINITY))
        request = orjson.loads(message)
        if descriptors:
            with mmap.mmap(descriptors[0], request["bytes"], access=mmap.ACCESS_READ) as file:
                data = file[:]
            os.close(descriptors[0])
        else:
            data = slabs.read(request["slab"], request["bytes"])
        options = DecodeOptions(**{**request["options"], "background": tuple(request["options"]["background"])})
        _answer(service, slabs, request["slab"], decode, data, options)


def _answer(service: socket.socket, slabs: Slabs, slab: int, decode: Decode, data: bytes, options: DecodeOptions) -> None:
    """One decode, straight into shared memory."""
    made: list[int] = []

    def allocate(shape: tuple[int, ...]) -> Pixels:
        size = math.prod(shape)
        if size <= SLAB_BYTES:
            return slabs.pixels(slab, shape)
        try:
            made.append(os.memfd_create("pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(made[-1], size)
            return np.ndarray(shape, np.uint8, mmap.mmap(made[-1], size))
        except OSError:
            raise MemoryError from None

    started = time.perf_counter()
    answer: dict[str, Any]
    try:
        pixels, info = decode(data, options, allocate)
        answer = {"shape": pixels.shape, "info": info, "seconds": time.perf_counter() - started}
    except Problem as problem:
        answer = {"problem": {name: getattr(problem, name) for name in ("code", "detail", "limit", "measured", "setting")}}
    given = made[-1:] if "shape" in answer else []
    for descriptor in given:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    socket.send_fds(service, [orjson.dumps(answer)], given)
    for descriptor in made:
        os.close(descriptor)


def _confine(memory_bytes: int) -> None:
    """Limit this process for good. Memory is limited to what it has mapped now and `memory_bytes` more."""
    _die_with_parent()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # libtiff and libjpeg print what they think of hostile files
        os.dup2(silence, descriptor)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for limit, value in {
        resource.RLIMIT_AS: mapped + memory_bytes,
        resource.RLIMIT_FSIZE: memory_bytes,
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }.items():
        resource.setrlimit(limit, (value, value))


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, even in the middle of a decode."""
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    nursery()
