"""The only wiring: settings -> a FastAPI application with everything behind it. Nothing else imports this module."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from app import openapi
from app.batcher import Batcher
from app.decoders import DecoderPool
from app.decoding import Decoding
from app.door import Door
from app.engine import Engine
from app.fetch import Fetcher
from app.frame import Frame
from app.intake import Intake
from app.jobs import Limits
from app.keys import load_keys
from app.ledger import Ledger
from app.lifecycle import Lifecycle, Phase
from app.pipelines import batch_endpoint, pipeline_endpoint
from app.problems import Problem, handle
from app.rates import Rates
from app.routes import WorkEndpoint, operator_endpoint
from app.service import Service
from app.settings import Settings
from app.system import STATIC, system_router
from app.telemetry import BatchObserver, Metrics, RequestLog
from app.watchdog import LoopWatchdog
from cuda_ops import Backend, Operator, create_backend, operators

logger = logging.getLogger("vision.main")

SAMPLE_S = 1.0
CLOSING_S = 2.0


@dataclass(slots=True)
class Runtime:
    """What must be started, warmed, drained and stopped, in this order. With `listen_warm` starting includes warming."""

    settings: Settings
    service: Service
    engine: Engine
    watchdog: LoopWatchdog = field(default_factory=LoopWatchdog)
    warming: asyncio.Task[None] | None = None
    sampling: asyncio.Task[None] | None = None
    listen_warm: bool = False

    async def start(self) -> None:
        """Open everything and begin to warm up; the process is alive but not ready until `warming` is done."""
        self.engine.open()
        await self.service.decoders.start()
        self.watchdog.open()
        self.service.lifecycle.advance(Phase.WARMING)
        self.warming = asyncio.create_task(self._warm_up())
        self.sampling = asyncio.create_task(self._sample())
        if self.listen_warm:
            await self.warming

    async def drain(self) -> bool:
        """See `Lifecycle.drain`."""
        settings = self.settings
        return await self.service.lifecycle.drain(settings.drain_lead_s, settings.drain_timeout_s, self._finish)

    async def _finish(self, limit_s: float) -> bool:
        """Answer whatever still waits, in both queues at once."""
        clean = await asyncio.gather(self.service.decoding.batcher.drain(limit_s), self.service.batcher.drain(limit_s))
        return all(clean)

    async def stop(self) -> None:
        """Close everything."""
        for task in (self.warming, self.sampling):
            if task is not None:
                task.cancel()
        self.watchdog.close()
        await self.service.decoders.close()
        await self.engine.close()
        self.service.encoders.shutdown(wait=False)

    async def _sample(self) -> None:
        """Another worker may be asked for the metrics, so each keeps its own states up to date."""
        while True:
            self.service.sample()
            await asyncio.sleep(SAMPLE_S)

    async def _warm_up(self) -> None:
        lifecycle = self.service.lifecycle
        try:
            await _in_daemon(partial(self.service.backend.warm_up, list(self.service.operators.values())))
        except Exception:
            logger.exception("warm-up failed")
            lifecycle.fail("warm-up failed")
            return
        # What lives now lives on. The compiler leaves millions of objects, which each full collection would walk through.
        gc.collect()
        gc.freeze()
        if lifecycle.phase is Phase.WARMING:
            lifecycle.advance(Phase.READY)


def _in_daemon(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` in a thread that the end of the process does not wait for: a compiler cannot be interrupted."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name="warm-up", daemon=True).start()
    return done


def create_app(settings: Settings | None = None, *, backend: Backend | None = None) -> FastAPI:
    """The application. `app.state.runtime` is started and stopped with it; `backend` replaces the one of the settings."""
    settings = settings or Settings()
    known = operators()
    backend = backend or create_backend(settings.backend, settings.share(settings.threads))
    runtime = _runtime(settings, known, backend)
    service = runtime.service

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await runtime.start()
        try:
            yield
        finally:
            await runtime.stop()

    app = FastAPI(title=openapi.TITLE, lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.runtime = runtime
    document = openapi.Document(settings, known)
    app.openapi = document.build  # type: ignore[method-assign]
    endpoints = _work_endpoints(service)
    app.router.routes.extend(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items())
    app.include_router(system_router(service, document.text))
    app.mount("/static", StaticFiles(directory=STATIC))
    for kind in (Problem, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle)
    log = RequestLog(settings.log_level, sys.stderr.buffer)
    app.add_middleware(
        Frame,
        metrics=service.metrics,
        log=log,
        direct=endpoints,
        closing=lambda: service.lifecycle.phase >= Phase.DRAINING,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=["Server-Timing", "X-Request-ID", "X-Backend", "Retry-After", "RateLimit", "RateLimit-Policy", "ETag"],
            max_age=3600,
        )
    return app


def _runtime(settings: Settings, known: Mapping[str, Operator], backend: Backend) -> Runtime:
    metrics = Metrics()
    lifecycle = Lifecycle()
    engine = Engine([backend], on_fatal=lifecycle.fail)
    limits = Limits(
        batch_count=settings.batch_count,
        batch_pixels=settings.batch_pixels,
        max_wait_s=settings.max_wait_ms / 1000,
        queue_limit=settings.share(settings.queue_limit),
    )
    batcher = Batcher(engine, limits, BatchObserver(metrics))
    decoders = DecoderPool(
        settings.share(settings.decoders),
        timeout_s=settings.decode_timeout_s,
        memory_bytes=settings.decode_memory_bytes,
        queue_limit=limits.queue_limit,
    )
    fetcher = None
    if settings.fetch:
        fetcher = Fetcher(
            ports=settings.ports,
            timeout_s=settings.fetch_timeout_s,
            max_hops=settings.fetch_hops,
            max_bytes=settings.max_body_bytes,
        )
    service = Service(
        settings=settings,
        operators=known,
        intake=Intake(settings, fetcher),
        decoders=decoders,
        decoding=Decoding(decoders, limits.queue_limit),
        batcher=batcher,
        door=Door(engine.slots + decoders.size),
        backend=backend,
        ledger=Ledger(settings.inflight_bytes // settings.workers),
        lifecycle=lifecycle,
        metrics=metrics,
        encoders=ThreadPoolExecutor(settings.share(0), thread_name_prefix="encode"),
        keyring=load_keys(settings.keys_file),
        rates=Rates(settings.workers),
    )
    runtime = Runtime(settings, service, engine)
    mark = int(limits.queue_limit * settings.ready_mark)
    lifecycle.checks["queue"] = lambda: f"{batcher.waiting} jobs wait" if batcher.waiting > mark else None
    lifecycle.checks["engine"] = lambda: engine.trouble
    lifecycle.checks["loop"] = runtime.watchdog.trouble
    return runtime


def _work_endpoints(service: Service) -> dict[str, WorkEndpoint]:
    """Every POST endpoint by its path."""
    return {
        **{f"/v1/{path}": operator_endpoint(service, operator) for path, operator in service.operators.items()},
        "/v1/pipelines": pipeline_endpoint(service),
        "/v1/batch": batch_endpoint(service),
    }
