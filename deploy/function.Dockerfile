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

# Packages are installed in a stage of their own, which leaves behind what no function needs: pip, headers, test programs
# and test suites of the packages, symbol tables (a third of the image together).
FROM python:${PYTHON_VERSION}-slim AS packages
RUN apt-get update -q && apt-get install -y -q --no-install-recommends binutils
COPY deploy/function-requirements.txt ./requirements.txt
ARG PIP_OPTIONS=""
ARG STORE_PACKAGES=""
# Compiled is what the last lines import, and so what a function runs: most of torch is neither.
# What is in it is listed in /opt/venv/sbom.json (CycloneDX); Debian's packages are in /var/lib/dpkg/status.
RUN python -m venv /opt/tools && /opt/tools/bin/pip install --no-cache-dir --no-compile -q 'uv>=0.13' \
    && export PATH=/opt/tools/bin:$PATH UV_NO_CACHE=1 \
    && uv venv -q --no-project --python "$(readlink -f "$(command -v python3)")" /opt/venv \
    && uv pip install -q --system-certs --python /opt/venv/bin/python --index-strategy unsafe-best-match ${PIP_OPTIONS} \
        -r requirements.txt ${STORE_PACKAGES} \
    && uv pip install -q --system-certs --python /opt/tools/bin/python 'cyclonedx-bom>=7' \
    && cyclonedx-py environment --output-reproducible -o /opt/venv/sbom.json /opt/venv/bin/python \
    && cd "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && rm -rf torch/include torch/share torch/test torch/bin/test_* torch/bin/*Test torch/bin/protoc* \
    && find sympy numba numpy networkx -type d -name tests -prune -exec rm -rf {} + \
    && find torch/lib llvmlite -name '*.so' -exec strip --strip-unneeded {} + \
    && /opt/venv/bin/python -c 'import click, flask, fsspec, httptools, jsonschema, networkx, numba, numpy, orjson, prometheus_client' \
    && /opt/venv/bin/python -c 'import rich.console, safetensors.torch, sympy, tokenizers, torch.export, uvloop, waitress, xxhash'

FROM python:${PYTHON_VERSION}-slim
COPY --from=watchdog /fwatchdog /usr/bin/fwatchdog
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH

RUN useradd --system --uid 12000 --create-home --home-dir /home/app app
WORKDIR /home/app

COPY moe ./moe
COPY functions ./functions
COPY platform_words ./platform_words
ARG PIPELINES=deploy/pipelines
COPY ${PIPELINES} /var/smoe/pipelines

# app by its number, which a cluster that asks for `runAsNonRoot` can check.
USER 12000
# What numba compiled and other libraries keep; the root file system is read-only in a pipeline's pods, /tmp never is.
ENV NUMBA_CACHE_DIR=/tmp/numba \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
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
    write_timeout=62s \
    exec_timeout=62s \
    prefix_logs=false

EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=2s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/_/health', timeout=1)"]
CMD ["fwatchdog"]
