# Two images from one source tree: `gateway` (HTTP API, dispatcher and migrations, without torch) and `worker`.
#   docker build --target gateway -t lethe-gateway .
#   docker build --target worker  -t lethe-worker  .

# The base image of all stages. Pin it by digest with --build-arg (see "Base images" in docs/operating.md).
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# PYTHONSAFEPATH: the health checks run `python -c` in the data folder and must not import what lies there.
FROM ${PYTHON_IMAGE} AS base
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1 \
    PATH=/opt/lethe/bin:$PATH

FROM base AS source
WORKDIR /source
RUN python -m venv /opt/lethe
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY sdk ./sdk
COPY migrations ./migrations
COPY app ./app
COPY worker ./worker

FROM source AS gateway-build
RUN --mount=type=cache,target=/root/.cache/pip pip install -c constraints.txt ./sdk '.[s3,tracing]'

FROM source AS worker-build
RUN --mount=type=cache,target=/root/.cache/pip pip install -c constraints.txt ./sdk '.[worker,s3,tracing]'

FROM base AS runtime
# The user id is fixed so that key files and volumes can be owned by it.
RUN groupadd --gid 10001 lethe \
    && useradd --uid 10001 --gid lethe --home-dir /var/lib/lethe --shell /usr/sbin/nologin lethe \
    && install -d -o lethe -g lethe -m 0700 /var/lib/lethe /var/lib/lethe/storage /var/lib/lethe-log
ENV LETHE_DATA_DIR=/var/lib/lethe
WORKDIR /var/lib/lethe
USER 10001:10001
ENTRYPOINT ["lethe"]

FROM runtime AS worker
COPY --from=worker-build /opt/lethe /opt/lethe
# The container stops with its worker, so the check only asks whether the worker reaches what it depends on.
HEALTHCHECK --interval=30s --timeout=20s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from app.services import Services; from app.core.settings import load_settings; s = Services(load_settings()); s.database.check(); s.redis.ping(); s.storage.check()"]
CMD ["worker"]

# The last stage is what a build without --target produces.
FROM runtime AS gateway
COPY --from=gateway-build /opt/lethe /opt/lethe
ENV LETHE_HOST=0.0.0.0 \
    LETHE_PORT=8420
EXPOSE 8420
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8420/healthz', timeout=4)"]
CMD ["gateway"]
