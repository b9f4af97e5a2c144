# Gateway and controller of a cluster; which of both is the container's command (deploy/kubernetes/).
#
#   docker build -f deploy/control.Dockerfile -t smoe/control .

ARG PYTHON_VERSION=3.11
FROM python:${PYTHON_VERSION}-slim

RUN useradd --system --uid 12000 --create-home --home-dir /home/app app
WORKDIR /home/app

COPY deploy/control-requirements.txt ./requirements.txt
ARG PIP_OPTIONS=""
RUN pip install --no-cache-dir ${PIP_OPTIONS} -r requirements.txt

COPY moe ./moe
COPY functions ./functions
COPY gateway ./gateway
COPY autoscaler ./autoscaler
COPY smoe ./smoe

USER app
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

EXPOSE 8080 8082
CMD ["python", "-m", "gateway", "--help"]
