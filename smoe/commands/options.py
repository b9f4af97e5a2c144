"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import click

from functions.scheduling.settings import CHUNK_RANGE
from functions.serving.settings import Rule
from gateway.client.client import GatewayClient
from gateway.client.state import DEFAULT_STATE, read_gateway_address, read_password
from smoe.deployment import DeploymentSettings
from smoe.lifecycle import GatewaySettings

Command = Callable[..., Any]

state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_STATE,
    help="State folder: passwords, logs, pipelines.",
)
gateway_option = click.option(
    "--gateway", "gateway_url", help="Address of the gateway. [default: the one of the state folder]"
)
password_option = click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the gateway's basic-auth password. [default: the one in the state folder]",
)
cpu_period_option = click.option(
    "--cpu-period-ms",
    type=click.FloatRange(1, 1000),
    default=GatewaySettings.cpu_period_ms,
    show_default=True,
    help="CFS period of CPU limits: a call that needs more than its share of one waits for the next.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def chunk_option(what: str, default: int | None) -> Any:
    """``--chunk-tokens``."""
    return click.option("--chunk-tokens", type=click.IntRange(*CHUNK_RANGE), default=default, help=what)


def connect(state: Path, gateway_url: str | None, password_file: Path | None) -> GatewayClient:
    """A client for the options above. Raises StateError."""
    address = gateway_url or read_gateway_address(state)  # first: where no gateway runs, that is what is missing
    password = password_file.read_text().strip() if password_file else read_password(state)
    return GatewayClient(address, password=password)


def of_state(state: Path) -> str:
    """The option that names the state folder; empty where it is the usual one."""
    return "" if state == DEFAULT_STATE else f" --state {state}"


def of_gateway(state: Path, gateway_url: str | None) -> str:
    """The option that leads to the gateway."""
    return f" --gateway {gateway_url}" if gateway_url else of_state(state)


class Tenths(click.ParamType[int]):
    """A share of a GPU, given in tenths."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            tenths = 10 * Decimal(value)
        except ArithmeticError:
            tenths = Decimal(-1)
        if tenths not in range(11):
            self.fail(f"{value!r} is not a share of a GPU in tenths: 0.1, 0.2 … 1, or 0 for none", param, ctx)
        return int(tenths)


CORES = click.FloatRange(min=0.05, max=1000)
"""CPU limit of a function in configured cores, of which each may be a thousandth of a real one (``--cpu-scale``)."""
DAY_MS = 86_400_000
"""Longest target of a text's tokens, in milliseconds."""


_DEFAULTS = DeploymentSettings()
_LIMITS = [
    click.option("--image", default=_DEFAULTS.image, help="Image of every function."),
    click.option(
        "--max-functions",
        type=click.IntRange(min=0),
        default=0,
        help="Most functions the installation allows (OpenFaaS: 15 or 500); 0 = no limit.",
    ),
    click.option(
        "--cpu", "cpu_cores", type=CORES, default=_DEFAULTS.cpu_cores, help="CPU limit of each function in cores."
    ),
    click.option(
        "--segment-cpu", "segment_cpu_cores", type=CORES, help="CPU limit of each segment in cores. [default: --cpu]"
    ),
    click.option(
        "--ingress-cpu",
        "ingress_cpu_cores",
        type=CORES,
        default=_DEFAULTS.ingress_cpu_cores,
        help="CPU limit of the ingress in cores.",
    ),
    click.option(
        "--gpu-share",
        "gpu_tenths",
        type=Tenths(),
        default="0",
        show_default=False,
        help="Share of a GPU of each segment and expert in place of CPU cores: 0.1, 0.2 … 1. [default: none]",
    ),
    click.option(
        "--expert-concurrency",
        type=click.IntRange(1, 1000),
        default=_DEFAULTS.expert_concurrency,
        help="Calls in flight per replica of an expert.",
    ),
    click.option(
        "--ingress-concurrency",
        type=click.IntRange(1, 10_000),
        default=_DEFAULTS.ingress_concurrency,
        help="Requests at once per replica of the ingress; further ones are refused (429).",
    ),
    click.option(
        "--peak-tokens",
        type=click.IntRange(min=1),
        default=_DEFAULTS.peak_tokens,
        help="Tokens at once in one replica: memory is sized for them, further calls are refused (429).",
    ),
    click.option(
        "--kv-tokens",
        type=click.IntRange(min=16),
        help="Decoders: tokens of all texts together whose keys and values an instance keeps; memory is sized for "
        "them, longer texts are refused. [default: the context, at least 8192 and at most 32768]",
    ),
    click.option(
        "--weights-from",
        metavar="ADDRESS",
        callback=lambda _context, _option, address: address and address.rstrip("/"),
        help="Where functions fetch the pipeline's folder from, as s3://bucket/pipelines. [default: their own]",
    ),
]
"""Image, limits and weights of functions."""
_REPLICAS = [
    click.option(
        "--instances",
        type=click.IntRange(1, 64),
        default=_DEFAULTS.instances,
        help="Decoders: replicas of every segment, so many texts' keys and values are apart.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(get_args(Rule)),
        default=_DEFAULTS.schedule,
        help="Decoders: which instances compute prompts and which go on with texts.",
    ),
    click.option(
        "--ttft-ms",
        type=click.FloatRange(1, DAY_MS),
        default=_DEFAULTS.ttft_ms,
        help="deadline, arrow: time to first token to keep, in milliseconds.",
    ),
    click.option(
        "--tpot-ms",
        type=click.FloatRange(0.1, DAY_MS),
        default=_DEFAULTS.tpot_ms,
        help="deadline, arrow: mean time per further token to keep, in milliseconds.",
    ),
    click.option(
        "--prefill-instances",
        type=click.IntRange(1, 63),
        help="Instances that begin with prompts. [default: half of them]",
    ),
    chunk_option(
        "Decoders: most tokens of an iteration with parts of prompts: fewer hold back texts less, more cost a prompt "
        "fewer iterations.",
        default=_DEFAULTS.chunk_tokens,
    ),
    click.option(
        "--ingress-replicas",
        type=click.IntRange(1, 64),
        default=_DEFAULTS.ingress_replicas,
        help="Replicas of the ingress.",
    ),
]
"""How many there are of the ingress and of a decoder's instances, and who computes what of a text."""


def deployment_options(command: Command) -> Command:
    """Options that make up :class:`DeploymentSettings`."""
    # Decorators are applied from the last to the first, --help lists them as applied.
    for option in reversed([*_LIMITS, *_REPLICAS]):
        command = option(command)
    return command
