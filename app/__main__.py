"""The command line: `python -m app` serves; `health`, `warm`, `openapi` and `key` are for operators, builds and CI."""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import ValidationError

from app.settings import Settings, describe

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app", description="Classical computer vision over HTTP.")
    parser.add_argument("command", nargs="?", default="serve", choices=("serve", "health", "warm", "openapi", "key"))
    parser.add_argument("name", nargs="?", default="", help="for `key`: whom the key is for")
    parser.add_argument("--print-config", action="store_true", help="print every setting and its value, then exit")
    parser.add_argument("--workers", type=int, help="processes that share the port (VISION_WORKERS)")
    chosen = parser.parse_args(arguments)
    given = {} if chosen.workers is None else {"workers": chosen.workers}
    if chosen.command != "serve":
        given["allow_anonymous"] = True  # nothing listens
    try:
        settings = Settings(**given)
    except ValidationError as error:
        _print_errors(error)
        return USAGE_ERROR
    if chosen.print_config:
        sys.stdout.write(orjson.dumps(describe(settings), option=orjson.OPT_INDENT_2).decode() + "\n")
        return 0
    if chosen.command == "key":
        return key(chosen.name)
    command = {"serve": serve, "health": health, "warm": warm, "openapi": openapi}[chosen.command]
    return command(settings)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean drain."""
    if settings.workers == 1:
        from app.main import create_app
        from app.server import serve_one

        return serve_one(settings, create_app)
    with tempfile.TemporaryDirectory(prefix="visionbatch-metrics-") as folder:
        # Read by prometheus_client when it is imported: in the workers, and nowhere before.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        from app.main import create_app
        from app.workers import serve_many

        return serve_many(settings, create_app, Path(folder))


def health(settings: Settings) -> int:
    """0 when the running service is ready, else 1: for a container's health check."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - replaced, not bound
    connection = http.client.HTTPConnection(host, settings.port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        sys.stdout.write(answer.read().decode() + "\n")
        return 0 if answer.status == 200 else 1
    except OSError as error:
        sys.stdout.write(f"no answer from {host}:{settings.port}: {error}\n")
        return 1
    finally:
        connection.close()


def key(name: str) -> int:
    """Make an API key: the key for its user on standard error, its entry for the keys file on standard output."""
    from app.keys import make_key

    try:
        secret, entry = make_key(name)
    except ValidationError:
        sys.stderr.write("name the key: python -m app key NAME, with letters, digits, '.', '_' and '-'\n")
        return USAGE_ERROR
    sys.stderr.write(f"the key, shown this once: {secret}\nits entry in the list `keys` of VISION_KEYS_FILE:\n")
    sys.stdout.write(entry + "\n")
    return 0


def warm(settings: Settings) -> int:
    """Compile every kernel into the cache, so that the next start is quick."""
    from cuda_ops import create_backend, operators

    backend = create_backend(settings.backend, settings.share(settings.threads))
    backend.warm_up(list(operators().values()))
    backend.close()
    sys.stdout.write(f"{len(operators())} operators are compiled for the {backend.name} backend\n")
    return 0


def openapi(settings: Settings) -> int:
    """Write the OpenAPI document to standard output."""
    from app.openapi import Document
    from cuda_ops import operators

    document = Document(settings, operators()).build()
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
    return 0


def _print_errors(error: ValidationError) -> None:
    for item in error.errors(include_url=False):
        name = "".join(f"VISION_{part}".upper() + ": " for part in item["loc"][:1])
        sys.stderr.write(f"visionbatch does not start: {name}{item['msg'].removeprefix('Value error, ')}\n")


if __name__ == "__main__":
    sys.exit(main())
