"""One frozen `Settings`, read from VISION_* variables; every field is bounded, described and carries its unit."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 1024 * 1024
COMMAS: dict[str, JsonValue] = {"unit": "comma-separated"}


def _number(default: float, unit: str, low: float, high: float, text: str) -> Any:
    return Field(default, description=text, ge=low, le=high, json_schema_extra={"unit": unit})


def _limit(default: float, unit: str, low: float, high: float, text: str) -> Any:
    """A number that clients can hit: /v1/limits publishes it."""
    return Field(default, description=text, ge=low, le=high, json_schema_extra={"unit": unit, "published": True})


def _choice(default: Any, unit: str, text: str) -> Any:
    return Field(default, description=text, json_schema_extra={"unit": unit})


class Settings(BaseSettings):
    """The whole configuration of the service; `python -m app --print-config` prints it."""

    model_config = SettingsConfigDict(env_prefix="VISION_", frozen=True, extra="ignore", validate_default=True)

    host: str = _choice("127.0.0.1", "address", "Listen here; beyond loopback needs keys_file or allow_anonymous.")
    port: int = _number(8000, "port", 0, 65535, "TCP port to listen on; 0 takes a free one.")
    workers: int = _number(1, "processes", 1, 256, "Processes on the port; limits, threads, decoders are divided.")
    backend: Literal["auto", "cpu", "cuda"] = _choice("auto", "name", "Where operators run; auto prefers a CUDA device.")
    threads: int = _number(0, "threads", 0, 1024, "Compute threads of the CPU backend in all; 0 means one a core.")
    decoders: int = _number(0, "processes", 0, 256, "Decoder processes in all; 0 means one a core.")
    allow_anonymous: bool = _choice(False, "yes/no", "Listen beyond loopback although no keys are configured.")
    keys_file: str = _choice("", "path", "File of hashed API keys; empty turns keys off.")
    cors_origins: str = _choice("", "origins", "Origins browsers may call from, comma-separated; * is any, empty none.")
    log_level: Literal["debug", "info", "warning", "error"] = _choice("info", "level", "Least severity that is logged.")

    max_body_bytes: int = _limit(20 * MIB, "bytes", 1024, 1024 * MIB, "Largest raw or multipart body.")
    max_json_bytes: int = _limit(28 * MIB, "bytes", 1024, 1536 * MIB, "Largest JSON body.")
    max_pixels: int = _limit(40_000_000, "pixels", 1, 1 << 31, "Most pixels of one image.")
    max_side: int = _limit(16_384, "pixels", 1, 1 << 20, "Longest side of one image.")
    max_frames: int = _limit(1000, "frames", 1, 1_000_000, "Most frames of one image; only the first is used.")
    max_images: int = _limit(16, "images", 1, 1024, "Most images of one batch request.")
    max_batch_pixels: int = _limit(80_000_000, "pixels", 1, 1 << 34, "Most pixels of one batch request, in all.")
    max_steps: int = _limit(8, "steps", 1, 64, "Most steps of one pipeline.")
    max_parts: int = _limit(20, "parts", 1, 1024, "Most parts of one multipart body.")
    receive_timeout_s: float = _limit(15.0, "seconds", 0.1, 3600, "Longest time to receive one request.")
    min_receive_rate: int = _limit(32_000, "bytes/second", 0, 1 << 30, "Least rate at which a body must arrive.")
    send_timeout_s: float = _limit(30.0, "seconds", 0.1, 3600, "Longest time a client may leave its answer unread.")
    max_header_bytes: int = _limit(16_384, "bytes", 1024, 1 << 20, "Most bytes of a request's line and headers.")
    max_connections: int = _limit(4096, "connections", 1, 1_000_000, "Most open connections, in all.")
    keep_alive_s: float = _limit(75.0, "seconds", 1, 3600, "How long a connection may idle between requests.")
    deadline_ms: int = _limit(10_000, "milliseconds", 1, 600_000, "Default of X-Deadline-Ms, and the most it may ask.")
    queue_limit: int = _limit(0, "jobs", 0, 1_000_000, "Most jobs that wait, in all; 0 means 8 launches a worker.")

    rate_per_s: float = _limit(0.0, "requests/second", 0, 1_000_000, "Rate of one client without a key; 0 for none.")
    rate_burst: int = _limit(20, "requests", 1, 1_000_000, "Requests of one client without a key at once.")
    fetch: bool = _choice(False, "yes/no", "Fetch images that are given by URL.")
    fetch_ports: str = Field("443", pattern=r"^\d{1,5}(,\d{1,5})*$", description="Ports that URLs may name.", json_schema_extra=COMMAS)
    fetch_timeout_s: float = _limit(5.0, "seconds", 0.1, 600, "Longest time to fetch an image by its URL.")
    fetch_hops: int = _limit(3, "redirects", 0, 20, "Most redirects that are followed.")

    batch_count: int = _number(32, "jobs", 1, 4096, "Most jobs of one launch.")
    batch_pixels: int = _number(64_000_000, "pixels", 1, 1 << 34, "Pixel target of a launch; a larger job goes alone.")
    max_wait_ms: float = _number(0.0, "milliseconds", 0, 1000, "How long an idle executor waits for more jobs.")
    inflight_bytes: int = _number(0, "bytes", 0, 1 << 44, "Most bytes of bodies and pixels in flight; 0 derives it.")
    ready_mark: float = _number(0.9, "share", 0.01, 1, "Share of the queue above which /readyz says no.")
    decode_timeout_s: float = _number(5.0, "seconds", 0.05, 600, "Longest decode before its process is killed.")
    decode_memory_bytes: int = _number(1536 * MIB, "bytes", 64 * MIB, 1 << 40, "Memory one decoder process may take.")
    drain_lead_s: float = _number(2.0, "seconds", 0, 600, "From SIGTERM: unready, but new work is still taken.")
    drain_timeout_s: float = _number(30.0, "seconds", 0.1, 3600, "From SIGTERM to the end of the process, at most.")

    @model_validator(mode="after")
    def _derived(self) -> Self:
        # Past the freeze on purpose: whoever reads a setting must see the number that holds, not the wish to derive it.
        if not self.queue_limit:
            self.__dict__["queue_limit"] = 8 * self.batch_count * self.workers
        if not self.inflight_bytes:
            self.__dict__["inflight_bytes"] = max(2048 * MIB, 512 * MIB * self.workers)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [sentence for wrong, sentence in self._contradictions() if wrong]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Settings that cannot both hold, each pair with what follows from it."""
        largest = self.max_json_bytes + self.max_pixels * 3
        yield (
            self.exposed and not (self.keys_file or self.allow_anonymous),
            f"VISION_HOST={self.host} can be reached by others, but no API keys are configured: set VISION_KEYS_FILE, "
            "or VISION_ALLOW_ANONYMOUS=true where something in front of the service checks who calls",
        )
        yield (
            self.queue_limit < self.batch_count * self.workers,
            f"VISION_QUEUE_LIMIT={self.queue_limit} is below VISION_BATCH_COUNT={self.batch_count} times "
            f"VISION_WORKERS={self.workers}: no launch could ever be full",
        )
        yield (
            self.queue_limit < self.max_images * self.workers,
            f"VISION_QUEUE_LIMIT={self.queue_limit} is below VISION_MAX_IMAGES={self.max_images} times "
            f"VISION_WORKERS={self.workers}: a full batch request would always be refused",
        )
        yield (
            self.max_pixels > self.max_side**2,
            f"VISION_MAX_PIXELS={self.max_pixels} cannot be reached with VISION_MAX_SIDE={self.max_side}",
        )
        yield (
            self.max_batch_pixels < self.max_pixels,
            f"VISION_MAX_BATCH_PIXELS={self.max_batch_pixels} is below VISION_MAX_PIXELS={self.max_pixels}: an image "
            "that is allowed alone would be refused in a batch",
        )
        yield (
            self.max_json_bytes * 3 < self.max_body_bytes * 4,
            f"VISION_MAX_JSON_BYTES={self.max_json_bytes} is below 4/3 of VISION_MAX_BODY_BYTES={self.max_body_bytes}: "
            "an image that is allowed as a raw body would be refused as base64",
        )
        yield (
            self.inflight_bytes < largest * self.workers,
            f"VISION_INFLIGHT_BYTES={self.inflight_bytes} is below what one request of VISION_MAX_JSON_BYTES and "
            f"VISION_MAX_PIXELS takes, {largest} bytes, times VISION_WORKERS={self.workers}: it could never be let in",
        )
        yield (
            self.decode_memory_bytes < self.max_pixels * 4,
            f"VISION_DECODE_MEMORY_BYTES={self.decode_memory_bytes} is below four bytes for each of "
            f"VISION_MAX_PIXELS={self.max_pixels}: the largest image could not be decoded",
        )
        yield (
            self.max_wait_ms >= self.deadline_ms,
            f"VISION_MAX_WAIT_MS={self.max_wait_ms} is not below VISION_DEADLINE_MS={self.deadline_ms}: "
            "a lone request would always miss its deadline",
        )
        yield (
            self.drain_lead_s >= self.drain_timeout_s,
            f"VISION_DRAIN_LEAD_S={self.drain_lead_s} is not below VISION_DRAIN_TIMEOUT_S={self.drain_timeout_s}: "
            "no time is left to finish work",
        )

    @property
    def exposed(self) -> bool:
        """Whether `host` can be reached from other machines."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"

    @property
    def ports(self) -> frozenset[int]:
        """`fetch_ports` as numbers."""
        return frozenset(int(port) for port in self.fetch_ports.split(","))

    def share(self, total: int) -> int:
        """This process's part, at least 1, of a count that all workers share; a total of 0 stands for one a core."""
        return max(1, (total or available_cores()) // self.workers)


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(settings: Settings) -> list[dict[str, Any]]:
    """Every field as {name, variable, value, unit, description, published}, in the order of declaration."""
    rows = []
    for name, field in Settings.model_fields.items():
        extra: Any = field.json_schema_extra
        rows.append(
            {
                "name": name,
                "variable": f"VISION_{name.upper()}",
                "value": getattr(settings, name),
                "unit": extra["unit"],
                "published": extra.get("published", False),
                "description": field.description,
            }
        )
    return rows
