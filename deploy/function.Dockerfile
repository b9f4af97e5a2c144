# A function of a pipeline: of-watchdog (http mode) in front of functions/app.py.
#
#   docker build -f deploy/function.Dockerfile -t smoe/function .
#
# Which node it serves is set when it is deployed (smoe_pipeline, smoe_nodes; see functions/serving/settings.py).
# Weights: mount the folder of pipelines read-only at /var/smoe/pipelines, or bake one in:
#
#   docker build -f deploy/function.Dockerfile --build-arg PIPELINES=.smoe/pipelines -t smoe/function .
#
# or let functions fetch theirs from an object store (smoe_pipeline=s3://bucket/pipelines/NAME, smoe_weights_cache): the
# store's package is named when the image is built:
#
#   docker build -f deploy/function.Dockerfile --build-arg STORE_PACKAGES=s3fs -t smoe/function .

# PIP_OPTIONS may name an index with CPU-only builds of torch, which make the image several times smaller.

ARG WATCHDOG_IMAGE=ghcr.io/openfaas/of-watchdog:0.11.6
ARG PYTHON_VERSION=3.11

FROM ${WATCHDOG_IMAGE} AS watchdog

FROM python:${PYTHON_VERSION}-slim
COPY --from=watchdog /fwatchdog /usr/bin/fwatchdog

RUN useradd --system --uid 12000 --create-home --home-dir /home/app app
WORKDIR /home/app

COPY deploy/function-requirements.txt ./requirements.txt
ARG PIP_OPTIONS=""
ARG STORE_PACKAGES=""
RUN pip install --no-cache-dir ${PIP_OPTIONS} -r requirements.txt ${STORE_PACKAGES} \
    && cd "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && rm -rf torch/include torch/share torch/test

COPY moe ./moe
COPY functions ./functions
COPY platform_words ./platform_words
ARG PIPELINES=deploy/pipelines
COPY ${PIPELINES} /var/smoe/pipelines

USER app
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 \
    MALLOC_ARENA_MAX=2 \
    TOKENIZERS_PARALLELISM=false \
    mode=http \
    fprocess="python -m functions.app" \
    upstream_url=http://127.0.0.1:5000 \
    smoe_upstream_port=5000 \
    smoe_pipelines_dir=/var/smoe/pipelines \
    ready_path=/_/ready \
    read_timeout=60s \
    write_timeout=60s \
    exec_timeout=60s \
    prefix_logs=false

EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=2s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/_/health', timeout=1)"]
CMD ["fwatchdog"]
