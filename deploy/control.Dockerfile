# Gateway and controller of a cluster; which of both is the container's command (deploy/kubernetes/).
# The gateway's process backend, for one machine, does not run in it: psutil and what functions import are left out.
#
#   docker build -f deploy/control.Dockerfile -t smoe/control .
#
# The policies of rl/ want torch. PIP_OPTIONS may name an index with CPU-only builds of it, which make the image several
# times smaller; --build-arg POLICIES=no leaves it out, and `--policy smoe`, `staffing`, `faasconf` and `last-window`
# with it: `auto` is `hpa` there.

ARG PYTHON_VERSION=3.11
# As in function.Dockerfile: packages without pip, headers, test suites and symbol tables.
FROM python:${PYTHON_VERSION}-slim AS packages
RUN apt-get update -q && apt-get install -y -q --no-install-recommends binutils
COPY deploy/control-requirements.txt deploy/policy-requirements.txt ./
ARG PIP_OPTIONS=""
ARG POLICIES=yes
# Compiled is what the last lines import.
# What is in it is listed in /opt/venv/sbom.json (CycloneDX); Debian's packages are in /var/lib/dpkg/status.
RUN python -m venv /opt/tools && /opt/tools/bin/pip install --no-cache-dir --no-compile -q 'uv>=0.13' \
    && export PATH=/opt/tools/bin:$PATH UV_NO_CACHE=1 \
    && uv venv -q --no-project --python "$(readlink -f "$(command -v python3)")" /opt/venv \
    && uv pip install -q --system-certs --python /opt/venv/bin/python --index-strategy unsafe-best-match ${PIP_OPTIONS} \
        -r control-requirements.txt $(test "${POLICIES}" != yes || echo -r policy-requirements.txt) \
    && uv pip install -q --system-certs --python /opt/tools/bin/python 'cyclonedx-bom>=7' \
    && cyclonedx-py environment --output-reproducible -o /opt/venv/sbom.json /opt/venv/bin/python \
    && cd "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && rm -rf torch/include torch/share torch/test torch/bin/test_* torch/bin/*Test torch/bin/protoc* \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && { test ! -d torch || find torch/lib llvmlite -name '*.so' -exec strip --strip-unneeded {} +; } \
    && { test ! -d torch || /opt/venv/bin/python -c 'import numba, scipy.optimize, sklearn.cluster, torch'; } \
    && /opt/venv/bin/python -c 'import aiohttp, kubernetes, numpy, prometheus_api_client, pyarrow.parquet, pydantic, uvicorn'

FROM python:${PYTHON_VERSION}-slim
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH

RUN useradd --system --uid 12000 --create-home --home-dir /home/app app
WORKDIR /home/app

COPY moe ./moe
COPY platform_words ./platform_words
COPY functions ./functions
COPY gateway ./gateway
COPY autoscaler ./autoscaler
COPY placement ./placement
COPY smoe ./smoe
COPY simulation ./simulation
COPY evaluation ./evaluation
COPY rl ./rl

USER 12000
# Numba keeps what it compiled; the root file system may be read-only, /tmp never is.
ENV NUMBA_CACHE_DIR=/tmp/numba \
    MALLOC_ARENA_MAX=2 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

EXPOSE 8080 8082
CMD ["python", "-m", "gateway", "--help"]
