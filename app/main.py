"""The only wiring: settings -> a FastAPI application with everything behind it. Nothing else imports this module."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

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
from app.runtime import Runtime
from app.service import Service
from app.settings import Settings
from app.system import STATIC, system_router
from app.telemetry import BatchObserver, Metrics, RequestLog
from cuda_ops import Backend, Operator, create_backend, operators


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
    app.openapi = document.build  # type: ignore[method-assign]  # how FastAPI wants it done
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
