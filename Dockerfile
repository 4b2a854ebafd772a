# Targets: cpu (default), cuda, load. Build the service with
#   docker build --target cpu -t visionbatch:cpu .
# and start it with
#   docker run --rm --shm-size 1g -p 127.0.0.1:8000:8000 -e VISION_ALLOW_ANONYMOUS=true visionbatch:cpu
# It listens on every address inside the container, so it wants to be told that nobody needs a key (as above, behind
# a loopback port or a gateway) or which keys there are (VISION_KEYS_FILE).

FROM python:3.13-slim AS dependencies
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_REQUIRE_HASHES=1 PIP_ONLY_BINARY=:all:
RUN python3 -m venv /opt/venv
COPY requirements.lock .
RUN /opt/venv/bin/pip install --quiet -r requirements.lock

FROM dependencies AS dependencies-cuda
COPY requirements-cuda.lock .
RUN /opt/venv/bin/pip install --quiet -r requirements-cuda.lock

FROM dependencies AS dependencies-load
COPY requirements-dev.lock .
RUN /opt/venv/bin/pip install --quiet -r requirements-dev.lock

FROM python:3.13-slim AS base
RUN groupadd --gid 10001 vision \
    && useradd --uid 10001 --gid vision --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin vision \
    && install --directory --owner vision --group vision /var/cache/visionbatch
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /srv/visionbatch

FROM base AS service
COPY app app
COPY cuda_ops cuda_ops
# Numba's cache is keyed by the sources' times, and an image that has been pulled keeps them to the second only.
RUN find app cuda_ops -type f -exec sh -c 'for file; do touch --date="@$(stat --format=%Y "$file")" "$file"; done' sh {} +
ENV NUMBA_CACHE_DIR=/var/cache/visionbatch VISION_HOST=0.0.0.0
USER vision
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["python3", "-m", "app", "health"]
CMD ["python3", "-m", "app"]

FROM service AS cuda
# The driver comes with the host: run with --gpus all.
ENV VISION_BACKEND=cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=dependencies-cuda /opt/venv /opt/venv
# No device is there while building: what can be compiled now is the CPU's half, kept for VISION_BACKEND=cpu.
RUN VISION_BACKEND=cpu python3 -m app warm

FROM base AS load
COPY --from=dependencies-load /opt/venv /opt/venv
COPY locustfiles locustfiles
USER vision
EXPOSE 8089
ENTRYPOINT ["locust"]

FROM service AS cpu
ENV VISION_BACKEND=cpu
COPY --from=dependencies /opt/venv /opt/venv
RUN python3 -m app warm
