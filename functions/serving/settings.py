"""Settings of a function, read once from its environment (the OpenFaaS way)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, cast, get_args

from functions.scheduling.settings import CHUNK_RANGE, CHUNK_TOKENS, ArrowSettings, SchedulingError, Targets
from platform_words.liveness import DEFAULT_S
from platform_words.memory import PEAK_TOKENS

Dispatch = Literal["auto", "least-loaded", "local-first", "round-robin", "random", "token-balanced", "aebs"]
Engine = Literal["torch", "numpy"]
Gate = Literal["attention", "experts"]
Rule = Literal["colocated", "deadline", "arrow", "minimal-load", "round-robin"]
Transfer = Literal["direct", "two-phase", "adaptive"]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0, "": 1.0}


MPS_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MPS_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", MPS_PERCENTAGE, MPS_MEMORY)
"""What CUDA reads when a process first uses it; with them a platform binds a replica to its share of a GPU."""
_MPS_MEMORY = re.compile(r"[\w-]+=\d+(\.\d+)?[KMG]B?(,[\w-]+=\d+(\.\d+)?[KMG]B?)*", re.IGNORECASE)


class SettingsError(ValueError):
    """A setting is missing or has a value that is not allowed; the sentence names key, value and rule."""


@dataclass(frozen=True)
class DeviceSettings:
    """Where segments and experts compute (``smoe_device``)."""

    kind: Literal["cpu", "cuda"] = "cpu"
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of the ``DEVICE_VARIABLES`` that are set."""
    deadline_s: float = 10.0
    """A call that takes longer on the GPU means that the GPU hangs (``smoe_device_timeout``)."""


@dataclass(frozen=True)
class ScheduleSettings:
    """Which instances of a decoder prefill and which decode (docs/decisions/0017-arrow.md)."""

    rule: Rule = "colocated"
    """``smoe_schedule``. ``colocated``: a text stays where its prompt is computed. ``deadline``: no roles, what is due
    first is computed first. ``minimal-load``, ``round-robin``:
    roles that never change."""
    targets: Targets = field(default_factory=lambda: Targets(2.0, 0.15))
    """``smoe_ttft``, ``smoe_tpot``."""
    prefill: int = 1
    """Instances that begin with prefill (``smoe_prefill_instances``)."""
    profiles: Path | None = None
    """Folder in which what instances can do is kept between starts (``smoe_profiles``)."""
    arrow: ArrowSettings = field(default_factory=ArrowSettings)
    """``smoe_arrow``: ``name=value`` separated by commas, names as in ArrowSettings."""
    drain_s: float = 20.0
    """How long texts of an instance that is scaled away go on there (``smoe_drain``)."""
    chunk_tokens: int = CHUNK_TOKENS
    """Tokens of an iteration with parts of prompts (``smoe_chunk_tokens``)."""


@dataclass(frozen=True)
class FunctionSettings:
    """What a function needs to know. Field names follow the environment variables."""

    pipeline_dir: Path
    nodes: tuple[str, ...]
    pipeline_address: str | None = None
    """Where the pipeline's folder is fetched from (``smoe_pipeline`` with ``://``) in place of ``pipeline_dir``."""
    weights_cache: Path | None = None
    """Folder that keeps what was fetched, shared by the replicas of a machine (``smoe_weights_cache``)."""
    port: int = 8080
    max_inflight: int = 0
    max_tokens: int = PEAK_TOKENS
    """Tokens of all calls under way, for which this worker's memory is sized (``smoe_max_tokens``; 0: no limit)."""
    max_connections: int = 1024
    """Connections open at once (``smoe_max_connections``; 0: a third of the files that may be open, as in any case)."""
    read_timeout_s: float = 60.0
    """Until the body of a request has come (``read_timeout``)."""
    write_timeout_s: float = 30.0
    idle_s: float = 5.0
    """Containers: after SIGTERM the function stays until no call has come for this long (``smoe_quiet``)."""
    max_functions: int = 0
    live_settings: Path | None = None
    live_period_s: float = 0.0
    """How often the live settings are looked at without a signal (``smoe_live_period``); 0 = never."""
    feed_url: str | None = None
    feed_token_file: Path | None = None
    caller_key_file: Path | None = None
    """File with the key that callers of this worker show (``smoe_caller_key_file``); None: anybody may call."""
    namespace: str = "openfaas-fn"
    """Namespace of this pipeline's functions in the feed: its own (``OPENFAAS_NAMESPACE``)."""
    address_template: str | None = None
    timeout_s: float = 60.0
    """Time a request may take when it does not say (``smoe_timeout``)."""
    silence_s: float = DEFAULT_S
    """A call goes on to another replica once the machine of this one has been silent for so long (``smoe_silence``; 0:
    never)."""
    queue_limit: int = 1000
    """Calls that may wait at the ingress for a slot of one function (``smoe_queue_limit``)."""
    weights_dir: Path | None = None
    """Memory folder of this replica's node: weights are mapped from there where they are (``smoe_weights_dir``)."""
    max_passes: int = 0
    """Passes of the ingress at once; requests beyond are packed together (``smoe_max_passes``; 0: no limit)."""
    node: str = ""
    """Machine of this replica (``smoe_machine``); empty if not set."""
    device: DeviceSettings = DeviceSettings()
    engine: Engine = "torch"
    """What computes (``smoe_engine``); ``numpy``: experts in float32 without torch, of which a container holds a copy
    of its own. The default of ``functions.app``."""
    dispatch: Dispatch = "auto"
    """How the ingress chooses replicas (``smoe_dispatch``). ``auto``: ``aebs`` for a layer whose experts have replicas
    on several nodes, ``least-loaded`` otherwise."""
    transfer: Transfer = "direct"
    """How tokens get to experts on other nodes (``smoe_transfer``)."""
    gate: Gate = "attention"
    """Who computes the router (``smoe_gate``): the segment before a layer's experts, or each function that serves some
    of them. All functions of a pipeline must agree."""
    kv_mb: int = 64
    """MiB of keys and values that a worker with segments of a decoder keeps at most (``smoe_kv_mb``)."""
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    statistics_window_s: float = 300.0
    """Time that the ingress's statistics cover (``smoe_statistics_window``)."""

    def caller_key(self) -> str:
        """The key of ``caller_key_file``, empty without one. Raises SettingsError."""
        try:
            return self.caller_key_file.read_text().strip() if self.caller_key_file else ""
        except OSError as error:
            raise SettingsError(f"smoe_caller_key_file cannot be read: {error}") from error

    @property
    def is_ingress(self) -> bool:
        return self.nodes == ("ingress",)


def duration_s(key: str, text: str) -> float:
    """Seconds of ``30``, ``30s``, ``1m30s`` or ``500ms``. Raises SettingsError."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise SettingsError(f"{key} is {text!r}; it takes seconds or a duration such as 30s, 1m30s, 500ms")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def from_environment(environ: Mapping[str, str], *, later: bool = False) -> FunctionSettings:
    """Read and check. ``later``: the pipeline's folder need not be there yet. Raises SettingsError."""
    folder, address = _pipeline(environ, later)
    live = environ.get("smoe_live_settings")
    token, key = environ.get("smoe_feed_token_file"), environ.get("smoe_caller_key_file")
    return FunctionSettings(
        pipeline_dir=folder,
        nodes=_node_ids(environ),
        pipeline_address=address,
        weights_cache=Path(cache) if (cache := environ.get("smoe_weights_cache")) else None,
        port=_whole(environ, "port", 8080),
        max_inflight=_whole(environ, "max_inflight", 0),
        max_tokens=_whole(environ, "smoe_max_tokens", PEAK_TOKENS),
        max_connections=_whole(environ, "smoe_max_connections", 1024),
        read_timeout_s=duration_s("read_timeout", environ.get("read_timeout", "60s")),
        write_timeout_s=duration_s("write_timeout", environ.get("write_timeout", "30s")),
        idle_s=duration_s("smoe_quiet", environ.get("smoe_quiet", "5s")),
        max_functions=_whole(environ, "smoe_max_functions", 0),
        live_settings=Path(live) if live else None,
        live_period_s=duration_s("smoe_live_period", environ.get("smoe_live_period", "0s")),
        feed_url=environ.get("smoe_feed_url") or None,
        feed_token_file=Path(token) if token else None,
        caller_key_file=Path(key) if key else None,
        namespace=environ.get("OPENFAAS_NAMESPACE") or "openfaas-fn",
        address_template=environ.get("smoe_address_template") or None,
        timeout_s=duration_s("smoe_timeout", environ.get("smoe_timeout", "60s")),
        silence_s=duration_s("smoe_silence", environ.get("smoe_silence", "3s")),
        queue_limit=_whole(environ, "smoe_queue_limit", 1000),
        max_passes=_whole(environ, "smoe_max_passes", 0),
        weights_dir=Path(environ["smoe_weights_dir"]) if environ.get("smoe_weights_dir") else None,
        node=environ.get("smoe_machine", "").strip(),
        device=device_settings(environ),
        engine=cast(Engine, _choice(environ, "smoe_engine", get_args(Engine))),
        dispatch=cast(Dispatch, _choice(environ, "smoe_dispatch", get_args(Dispatch))),
        transfer=cast(Transfer, _choice(environ, "smoe_transfer", get_args(Transfer))),
        gate=cast(Gate, _choice(environ, "smoe_gate", get_args(Gate))),
        kv_mb=_whole(environ, "smoe_kv_mb", 64),
        schedule=schedule_settings(environ),
        statistics_window_s=_window_s(environ),
    )


def _pipeline(environ: Mapping[str, str], later: bool) -> tuple[Path, str | None]:
    """The pipeline's folder, and its address where it has one instead. Raises SettingsError."""
    name = environ.get("smoe_pipeline", "")
    if not name:
        raise SettingsError(
            "smoe_pipeline is not set; it names a pipeline folder, or a pipeline under smoe_pipelines_dir"
        )
    folder = Path(name)
    address = name if "://" in name else None
    if not folder.is_absolute():
        folder = Path(environ.get("smoe_pipelines_dir", ".")) / folder
    # A folder that another container fills first, or a pipeline that managers send, is looked at when it is there.
    if address is None and not later and not (folder / "pipeline.json").is_file():
        raise SettingsError(f"smoe_pipeline is {name!r}, but {folder / 'pipeline.json'} does not exist")
    return folder, address


def _node_ids(environ: Mapping[str, str]) -> tuple[str, ...]:
    nodes = tuple(node.strip() for node in environ.get("smoe_nodes", "").split(",") if node.strip())
    if not nodes or ("ingress" in nodes and len(nodes) > 1):
        raise SettingsError("smoe_nodes takes node ids separated by commas, or the one word ingress")
    return nodes


def _window_s(environ: Mapping[str, str]) -> float:
    window_s = duration_s("smoe_statistics_window", environ.get("smoe_statistics_window", "300s"))
    if not 1 <= window_s <= 86_400:
        raise SettingsError(f"smoe_statistics_window is {window_s:g} s; it takes 1s to 24h")
    return window_s


def schedule_settings(environ: Mapping[str, str]) -> ScheduleSettings:
    """What concerns the scheduler of a decoder's instances. Raises SettingsError."""
    text = environ.get("smoe_arrow", "").strip()
    pairs = [part.partition("=")[::2] for part in text.split(",") if part.strip()]
    names = {one.name for one in fields(ArrowSettings)}
    try:
        values = {name.strip(): float(value) for name, value in pairs}
        if unknown := values.keys() - names:
            raise SchedulingError(f"{sorted(unknown)[0]!r} is none of {', '.join(sorted(names))}")
        arrow = ArrowSettings(**values)
        targets = Targets(
            duration_s("smoe_ttft", environ.get("smoe_ttft", "2s")),
            duration_s("smoe_tpot", environ.get("smoe_tpot", "150ms")),
        )
    except SettingsError:
        raise
    except SchedulingError as error:
        raise SettingsError(f"smoe_arrow, smoe_ttft and smoe_tpot: {error}") from None
    except ValueError:
        raise SettingsError(f"smoe_arrow is {text[:80]!r}; it takes name=number separated by commas") from None
    prefill = _whole(environ, "smoe_prefill_instances", 1)
    if prefill < 1:
        raise SettingsError("smoe_prefill_instances is 0; at least one instance begins with prefill")
    folder = environ.get("smoe_profiles")
    rule = cast(Rule, _choice(environ, "smoe_schedule", get_args(Rule)))
    drain_s = duration_s("smoe_drain", environ.get("smoe_drain", "20s"))
    chunk_tokens = _whole(environ, "smoe_chunk_tokens", CHUNK_TOKENS)
    fewest, most = CHUNK_RANGE
    if not fewest <= chunk_tokens <= most:
        raise SettingsError(f"smoe_chunk_tokens is {chunk_tokens}; it takes {fewest} to {most} tokens of an iteration")
    return ScheduleSettings(rule, targets, prefill, Path(folder) if folder else None, arrow, drain_s, chunk_tokens)


def device_settings(environ: Mapping[str, str]) -> DeviceSettings:
    """``smoe_device`` where it is given; else the GPU where the platform gave a share of one, else the host.

    Raises SettingsError.
    """
    given = {key: environ[key].strip() for key in DEVICE_VARIABLES if environ.get(key, "").strip()}
    kind = environ.get("smoe_device", "").strip() or ("cuda" if MPS_PERCENTAGE in given else "cpu")
    if kind == "cpu":
        return DeviceSettings()
    if kind != "cuda":
        raise SettingsError(f"smoe_device is {kind[:40]!r}; it takes cpu or cuda")
    share, memory = given.get(MPS_PERCENTAGE, "100"), given.get(MPS_MEMORY, "0=1G")
    if not re.fullmatch(r"\d+(\.\d+)?", share, re.ASCII) or not 0 < float(share) <= 100:
        raise SettingsError(f"{MPS_PERCENTAGE} is {share[:40]!r}; it takes a number above 0, at most 100")
    if not _MPS_MEMORY.fullmatch(memory):
        raise SettingsError(f"{MPS_MEMORY} is {memory[:40]!r}; it takes DEVICE=SIZE such as 0=8192M")
    deadline_s = duration_s("smoe_device_timeout", environ.get("smoe_device_timeout", "10s"))
    if deadline_s <= 0:
        raise SettingsError("smoe_device_timeout is 0; it takes the seconds after which a GPU counts as hung")
    return DeviceSettings("cuda", given, deadline_s)


def _choice(environ: Mapping[str, str], key: str, allowed: tuple[str, ...]) -> str:
    """One of ``allowed``, the first where nothing is set."""
    text = environ.get(key, "").strip() or allowed[0]
    if text not in allowed:
        raise SettingsError(f"{key} is {text!r}; it takes {', '.join(allowed[:-1])} or {allowed[-1]}")
    return text


def _whole(environ: Mapping[str, str], key: str, default: int) -> int:
    text = environ.get(key, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise SettingsError(f"{key} is {text!r}; it takes a whole number of 0 or more")
    return int(text)
