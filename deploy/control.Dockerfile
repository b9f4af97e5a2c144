# Gateway and controller of a cluster; which of both is the container's command (deploy/kubernetes/).
#
#   docker build -f deploy/control.Dockerfile -t smoe/control .
#
# The learnt policies want torch. PIP_OPTIONS may name an index with CPU-only builds of it, which make the image several
# times smaller; --build-arg POLICIES=no leaves it out, and `--policy smoe`, `faasconf` and `last-window` with it.

ARG PYTHON_VERSION=3.11
FROM python:${PYTHON_VERSION}-slim

RUN useradd --system --uid 12000 --create-home --home-dir /home/app app
WORKDIR /home/app

COPY deploy/control-requirements.txt ./requirements.txt
ARG PIP_OPTIONS=""
RUN pip install --no-cache-dir ${PIP_OPTIONS} -r requirements.txt

COPY deploy/policy-requirements.txt ./policy-requirements.txt
ARG POLICIES=yes
RUN if [ "${POLICIES}" = yes ]; then pip install --no-cache-dir ${PIP_OPTIONS} -r policy-requirements.txt; fi

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

USER app
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

EXPOSE 8080 8082
CMD ["python", "-m", "gateway", "--help"]
