"""From a manifest to OpenFaaS function deployments: the one source of ``stack.yml`` and of ``smoe pipeline deploy``.

Memory limits are the smallest step of the paper's memory grid (128 MiB + 64 MiB steps) that holds weights, runtime and
tokens in flight, as Eq. (2) of the sMoE paper asks: ``alpha * memory >= M_e + 2 * D * P``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from functions.scheduling.settings import CHUNK_TOKENS
from moe.grouping import group
from moe.kv_bytes import kv_bytes
from moe.manifest import Manifest, Node
from platform_words.labels import (
    CONTEXT,
    METRICS_LABEL,
    NODES_LABEL,
    PIPELINE_LABEL,
    PROFILE,
    READS_LIVE_SETTINGS,
    RETRY_ATTEMPTS,
    SCALE_MAX,
    SCALE_MIN,
)
from platform_words.memory import (
    FORKED,
    INGRESS_ROWS,
    LIMIT_MIN_MB,
    LIMIT_STEP_MB,
    MIB,
    PEAK_TOKENS,
    SHARE,
    RuntimeMemory,
)
from platform_words.resources import GPU
from smoe import __version__

GPU_PROFILE = "smoe-gpu"
IMAGE = f"smoe/function:{__version__}"
KV_TOKENS = (8192, 32_768)
"""Fewest and most tokens whose keys and values an instance keeps by default: short contexts leave room for several
texts, and long ones, of which few texts make use, reserve no memory for one that does."""
REPLY_S, TEXT_S = 62, 540
"""Longest reply behind of-watchdog, which cuts the connection then: an ingress answers within ``smoe_timeout`` (60 s),
the gateways in front wait longer. A decoder's ingress streams texts for as long as they are written."""
FINISH_S = 30
"""Time to finish what was begun after SIGTERM, without a watchdog."""
SETTLE_S, DRAIN_S = 5, 30
"""How long of-watchdog goes on after SIGTERM, whatever there is to do: until nobody calls a replica that goes any more.
Segments of decoders go on with texts that they keep pages of (``smoe_drain``: 20 s)."""
REQUEST_MILLICORES = 25
"""Below every limit (0.05 of a core at least), so that no live change meets Kubernetes' rule that a pod keeps its class
of service."""


@dataclass(frozen=True)
class DeploymentSettings:
    """What a deployment of a pipeline asks of the platform for each function at the start."""

    image: str = IMAGE
    max_functions: int = 0
    """Most functions the installation allows (OpenFaaS: 15, 500); 0 = no limit, one node a function."""
    cpu_cores: float = 1.0
    gpu_tenths: int = 0
    """Tenths of a GPU for each segment and expert, in place of CPU cores (a configuration has one or the other); 0:
    none."""
    segment_cpu_cores: float | None = None
    """Cores of each segment where they are not those of an expert, ``cpu_cores``."""
    ingress_cpu_cores: float = 1.0
    expert_concurrency: int = 8
    segment_concurrency: int = 10
    # `smoe replay` has at most 256 requests under way (--connections), and a bursty hour in two minutes, as in README,
    # does bring hundreds at once: of 64 slots there were too few. Twice 256 leaves room for other callers.
    ingress_concurrency: int = 512
    """Requests at once in one ingress; they wait there for segments and experts, further ones are refused (429)."""
    ingress_passes: int = 0
    """Passes at once in one ingress; requests that wait meanwhile share the next one. 0 = no limit."""
    min_replicas: int = 1
    max_replicas: int = 8
    ingress_replicas: int = 1
    runtime: RuntimeMemory = FORKED
    """Memory of a worker before it holds weights, where these functions will run."""
    gpu_runtime_mib: int = 2048
    """The same with a CUDA context, whose libraries the worker has in memory; an assumption, not measured here."""
    ingress_call_mib: float = 1.0
    """Memory of the ingress for each of ``ingress_concurrency`` requests, where ``peak_tokens`` on their way take no
    more: an ingress beyond its limit is killed with all its requests."""
    peak_tokens: int = PEAK_TOKENS
    """P of Eq. (2): most tokens in flight at once in one replica, which takes no more (``smoe_max_tokens``)."""
    memory_share: float = SHARE
    """alpha of Eq. (2): the part of the limit that may be used."""
    kv_tokens: int | None = None
    """Tokens whose keys and values an instance keeps, of all texts together; None: the context's, within
    ``KV_TOKENS``."""
    kv_mib: int | None = None
    """Memory for them in each worker with segments of a decoder, in place of ``kv_tokens``."""
    instances: int = 1
    """Replicas of every function that serves segments of a decoder: each is part of an instance."""
    schedule: str = "colocated"
    """Which instances prefill and which decode (``smoe_schedule``)."""
    ttft_ms: float = 2000.0
    tpot_ms: float = 150.0
    """The targets that ``arrow`` schedules for."""
    prefill_instances: int | None = None
    """Instances that begin with prefill; None: half of them."""
    chunk_tokens: int = CHUNK_TOKENS
    """Tokens of an iteration with parts of prompts (``smoe_chunk_tokens``)."""
    profiles: str | None = None
    """Folder in which the ingress keeps what instances can do."""
    watchdog: bool = False
    """Whether of-watchdog stands before functions, as in their image: its times are part of the deployment then."""
    weights_from: str | None = None
    """Address under which functions find the pipeline's folder (``s3://bucket/pipelines``); None: in their image or
    a volume."""
    address_template: str = "http://{function}.openfaas-fn:8080"
    """How the ingress finds functions where no replica feed is offered: plain service names in a cluster."""
    extra_environment: Mapping[str, str] = field(default_factory=dict)


def function_deployments(manifest: Manifest, settings: DeploymentSettings | None = None) -> list[dict[str, Any]]:
    """OpenFaaS ``FunctionDeployment`` objects, ingress first, then functions in order of the pass.

    Raises GroupingError if ``max_functions`` is too small for this pipeline.
    """
    settings = settings or DeploymentSettings()
    grouping = group(manifest, settings.max_functions)
    return [
        _ingress(manifest, settings)
        if function.is_ingress
        else _worker(manifest, function.name, [manifest.node(node_id) for node_id in function.nodes], settings)
        for function in grouping.functions
    ]


def _kv_mib(manifest: Manifest, nodes: Sequence[Node], settings: DeploymentSettings) -> int:
    """MiB of keys and values in a worker of ``nodes``: of as many tokens in each of its segments."""
    if settings.kv_mib is not None:
        return settings.kv_mib
    fewest, most = KV_TOKENS
    tokens = settings.kv_tokens or min(most, max(fewest, manifest.architecture["max_positions"]))
    kept_bytes = sum(kv_bytes(manifest, node, tokens) for node in nodes if node.kind == "segment")
    return max(1, math.ceil(kept_bytes / MIB))


def memory_limit_mib(nodes: Sequence[Node], settings: DeploymentSettings, kept_mib: int = 0) -> int:
    """Smallest memory step ``128 + 64 n`` MiB that satisfies Eq. (2) for a worker of ``nodes``, and holds ``kept_mib``
    of keys and values as well."""
    runtime_mib = settings.runtime.of(frozenset(node.kind for node in nodes))
    if settings.gpu_tenths:
        runtime_mib = settings.gpu_runtime_mib
    weights_bytes = sum(node.parameter_bytes for node in nodes)
    bytes_per_token = max(node.bytes_in_per_token + node.bytes_out_per_token for node in nodes)
    used_mib = runtime_mib + weights_bytes / MIB + 2 * bytes_per_token * settings.peak_tokens / MIB
    return _step_mib(used_mib, settings, kept_mib)


def _step_mib(used_mib: float, settings: DeploymentSettings, kept_mib: int = 0) -> int:
    """The smallest step of which, without ``kept_mib``, ``memory_share`` holds ``used_mib``."""
    above = used_mib / settings.memory_share + kept_mib - LIMIT_MIN_MB
    return LIMIT_MIN_MB + LIMIT_STEP_MB * max(0, math.ceil(above / LIMIT_STEP_MB))


def render_stack(
    manifest: Manifest, settings: DeploymentSettings | None = None, gateway: str = "http://127.0.0.1:8080"
) -> str:
    """The text of ``stack.yml`` for ``faas-cli deploy -f``."""
    functions = {}
    for deployment in function_deployments(manifest, settings):
        functions[deployment["service"]] = {
            "image": deployment["image"],
            "skip_build": True,
            "environment": deployment["envVars"],
            "labels": deployment["labels"],
            "annotations": {**deployment["annotations"], **_gpu_profile(deployment)},
            "limits": deployment["limits"],
            "requests": deployment["requests"],
            "readonly_root_filesystem": deployment["readOnlyRootFilesystem"],
        }
    stack = {
        "version": "1.0",
        "provider": {"name": "openfaas", "gateway": gateway},
        "functions": functions,
    }
    head = (
        f"# Pipeline {manifest.name}: {len(functions)} functions. "
        "Rendered by `smoe pipeline stack`; do not edit by hand.\n"
        "# Deploy: faas-cli deploy -f stack.yml\n"
    )
    if any(GPU in function["limits"] for function in functions.values()):
        head += (
            f"# faas-cli passes limits of memory and CPU on, not {GPU}: on OpenFaaS the Profile {GPU_PROFILE} and the\n"
            "# controller set GPU shares; for this project's gateway use `smoe pipeline deploy`.\n"
        )
    return head + yaml.safe_dump(stack, sort_keys=False, width=110)


def _gpu_profile(deployment: Mapping[str, Any]) -> dict[str, str]:
    """The annotation by which OpenFaaS gives a function GPU nodes (deploy/openfaas/gpu-profile.yaml)."""
    return {PROFILE: GPU_PROFILE} if GPU in deployment["limits"] else {}


def _base(
    manifest: Manifest,
    name: str,
    nodes: str,
    concurrency: int,
    cores: float,
    memory_mib: int,
    settings: DeploymentSettings,
) -> dict[str, Any]:
    environment = {
        "smoe_pipeline": manifest.name if not settings.weights_from else f"{settings.weights_from}/{manifest.name}",
        "smoe_nodes": nodes,
        "max_inflight": str(concurrency),
        "smoe_max_tokens": str(settings.peak_tokens),
        **_times(manifest, nodes, settings),
        **settings.extra_environment,
    }
    if settings.max_functions:
        environment["smoe_max_functions"] = str(settings.max_functions)
    resources = {"memory": f"{memory_mib}Mi"}
    if settings.gpu_tenths and nodes != "ingress":
        resources[GPU] = str(settings.gpu_tenths)
    else:
        resources["cpu"] = f"{round(cores * 1000)}m"
    return {
        "service": name,
        "image": settings.image,
        "envVars": environment,
        "labels": {
            PIPELINE_LABEL: manifest.name,
            SCALE_MIN: str(settings.min_replicas),
            SCALE_MAX: str(settings.max_replicas),
        },
        "annotations": {RETRY_ATTEMPTS: "3", READS_LIVE_SETTINGS: "true"},
        "limits": resources,
        "requests": {"memory": f"{memory_mib}Mi", "cpu": f"{REQUEST_MILLICORES}m"},
        "readOnlyRootFilesystem": True,
    }


def _times(manifest: Manifest, nodes: str, settings: DeploymentSettings) -> dict[str, str]:
    """How long a function may take. of-watchdog knows one time (``write_timeout``) for a reply and for the end of those
    under way after SIGTERM, by default waits as long before it ends, and gives calls up after ``exec_timeout``."""
    if not settings.watchdog:
        return {"write_timeout": f"{FINISH_S}s"}
    texts = manifest.task == "causal-lm"
    reply_s = TEXT_S if texts and nodes == "ingress" else REPLY_S
    stays_s = DRAIN_S if texts and "segment-" in nodes else SETTLE_S
    return {
        "write_timeout": f"{reply_s}s",
        "exec_timeout": f"{reply_s}s",
        "healthcheck_interval": f"{stays_s}s",
    }


def _ingress(manifest: Manifest, settings: DeploymentSettings) -> dict[str, Any]:
    concurrency, cores = settings.ingress_concurrency, settings.ingress_cpu_cores
    row_bytes = max(node.bytes_in_per_token for node in manifest.nodes if node.kind == "expert")
    passes_mib = settings.peak_tokens * INGRESS_ROWS * row_bytes / MIB
    calls_mib = max(settings.ingress_call_mib * concurrency, passes_mib)
    memory_mib = _step_mib(settings.runtime.ingress_mb + calls_mib, settings)
    deployment = _base(manifest, manifest.name, "ingress", concurrency, cores, memory_mib, settings)
    deployment["envVars"]["smoe_address_template"] = settings.address_template
    if settings.schedule != "colocated" and manifest.task == "causal-lm":
        deployment["envVars"] |= _schedule(settings)
    if settings.ingress_passes:
        deployment["envVars"]["smoe_max_passes"] = str(settings.ingress_passes)
    if manifest.task == "causal-lm":
        deployment["envVars"]["smoe_chunk_tokens"] = str(settings.chunk_tokens)
        deployment["annotations"][CONTEXT] = str(manifest.architecture["max_positions"])
    deployment["labels"] |= {
        NODES_LABEL: "ingress",
        METRICS_LABEL: "true",
        SCALE_MIN: str(settings.ingress_replicas),
    }
    return deployment


def _schedule(settings: DeploymentSettings) -> dict[str, str]:
    profiles = {"smoe_profiles": settings.profiles} if settings.profiles else {}
    return {
        "smoe_schedule": settings.schedule,
        "smoe_ttft": f"{settings.ttft_ms:.10g}ms",
        "smoe_tpot": f"{settings.tpot_ms:.10g}ms",
        "smoe_prefill_instances": str(settings.prefill_instances or max(1, settings.instances // 2)),
        **profiles,
    }


def _worker(manifest: Manifest, name: str, nodes: list[Node], settings: DeploymentSettings) -> dict[str, Any]:
    only_experts = all(node.kind == "expert" for node in nodes)
    concurrency = settings.expert_concurrency if only_experts else settings.segment_concurrency
    # A GPU's worker keeps none: its memory would be sized for pages that it never has.
    keeps = manifest.task == "causal-lm" and not settings.gpu_tenths and any(node.kind == "segment" for node in nodes)
    kept_mib = _kv_mib(manifest, nodes, settings) if keeps else 0
    memory_mib = memory_limit_mib(nodes, settings, kept_mib)
    cores = settings.cpu_cores if only_experts else settings.segment_cpu_cores or settings.cpu_cores
    ids = [node.id for node in nodes]
    deployment = _base(manifest, name, ",".join(ids), concurrency, cores, memory_mib, settings)
    if keeps:
        deployment["envVars"]["smoe_kv_mb"] = str(kept_mib)
        deployment["labels"] |= {
            SCALE_MIN: str(max(settings.min_replicas, settings.instances)),
            SCALE_MAX: str(max(settings.max_replicas, settings.instances)),
        }
    label = "_".join(ids)
    if len(label) > 63:  # Kubernetes' limit for label values
        deployment["annotations"][NODES_LABEL] = ",".join(ids)
        label = f"{ids[0]}_and_{len(ids) - 1}_more"
    deployment["labels"][NODES_LABEL] = label
    return deployment
