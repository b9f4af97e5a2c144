"""The ``smoe`` command. Sub-commands are thin: they read options, build objects, run, and translate errors."""

from __future__ import annotations

import errno
import os
import sys

import click

from smoe import __version__
from smoe.lazy import LazyCommand, LazyGroup

EVERY_DAY, GROUPS = "Every day", "Groups (smoe GROUP --help)"

AUTOSCALE = frozenset(
    ("--gateway", "--policy", "--policy-settings", "--interval", "--slo-ms", "--prometheus", "--budget",
     "--dry-run", "--json")
)  # fmt: skip
AUTOSCALE_SECTIONS = {
    "Pipeline and gateway": "--state",
    "Policy": "--policy",
    "Windows and targets": "--interval",
    "What it may change": "--dry-run",
    "Kubernetes": "--platform",
    "What it writes": "--log-dir",
}
UP = frozenset(
    ("--state", "--port", "--cpu-scale", "--foreground", "--cpu", "--segment-cpu", "--ingress-cpu", "--instances")
)
UP_SECTIONS = {"Gateway": "--state", "Functions": "--image", "Replicas and schedule": "--instances"}
REPLAY = frozenset(
    ("--gateway", "--state", "--trace", "--start-s", "--duration-s", "--speed", "--max-rps", "--slo-ms", "--seed",
     "--out", "--json")
)  # fmt: skip
REPLAY_SECTIONS = {
    "Gateway": "--gateway",
    "Trace": "--trace",
    "Texts": "--texts",
    "Decoders": "--send",
    "Sending": "--slo-ms",
    "What it writes": "--out",
}
COMMANDS = {
    "run": LazyCommand(
        "smoe.commands.demo", "run", "the main job: pipeline, bursty trace, controller, live view, report", EVERY_DAY
    ),
    "demo": LazyCommand("smoe.commands.demo", "demo", "the main job in short: a minute, no options needed", EVERY_DAY),
    "up": LazyCommand(
        "smoe.commands.service", "up", "start the gateway and deploy a pipeline", EVERY_DAY, UP, UP_SECTIONS
    ),
    "down": LazyCommand("smoe.commands.service", "down", "stop the gateway and every function", EVERY_DAY),
    "status": LazyCommand("smoe.commands.status", "status", "functions, replicas, limits, usage", EVERY_DAY),
    "invoke": LazyCommand("smoe.commands.calling", "invoke", "send text to a pipeline and print the answer", EVERY_DAY),
    "chat": LazyCommand("smoe.commands.chat", "chat", "talk to a decoder in the terminal", EVERY_DAY),
    "top": LazyCommand("smoe.commands.top", "top", "live view of a running pipeline", EVERY_DAY),
    "logs": LazyCommand("smoe.commands.calling", "logs", "show or follow a function's log", EVERY_DAY),
    "autoscale": LazyCommand(
        "autoscaler.commands",
        "autoscale",
        "run the controller against a gateway",
        EVERY_DAY,
        AUTOSCALE,
        AUTOSCALE_SECTIONS,
    ),
    "replay": LazyCommand(
        "traces.commands",
        "replay",
        "replay a trace against a pipeline, open loop",
        EVERY_DAY,
        REPLAY,
        REPLAY_SECTIONS,
    ),
    "pipeline": LazyCommand(
        "smoe.groups", "pipeline", "make, look at, deploy and remove pipelines: split, inspect, deploy, …", GROUPS
    ),
    "placement": LazyCommand(
        "smoe.groups", "placement", "which expert runs on which machine: plan, migrate, rebalance", GROUPS
    ),
    "lab": LazyCommand(
        "smoe.groups", "lab", "profile, simulate, compare and learn policies: profile, evaluate, train, …", GROUPS
    ),
    "traces": LazyCommand("traces.commands", "traces", "list, fetch, describe and clip traces", GROUPS),
}
ALIASES = {
    **{name: ("pipeline", name) for name in ("split", "inspect", "distil", "deploy", "remove", "stack")},
    **{"place": ("placement", "plan"), "migrate": ("placement", "migrate"), "rebalance": ("placement", "rebalance")},
    **{name: ("lab", name) for name in ("profile", "evaluate", "bound", "tune", "train", "fine-tune", "explain")},
}
"""Names of releases before 0.1.0 that still work."""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
    epilog="Start with `smoe run`, or step by step: `smoe up`, `smoe invoke 'some text'`, `smoe top`, `smoe down`. "
    "Pages that texts name (docs/…) are in the source tree, and installed in share/doc/smoe/ of Python's environment.",
)
@click.version_option(__version__, prog_name="smoe")
def cli() -> None:
    """Serve a Mixture-of-Experts model as a pipeline of OpenFaaS functions and scale every expert by itself."""


def main() -> None:
    """Entry point: errors with a sentence become one line on stderr and exit status 1."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("stopped", err=True)
        sys.exit(130)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Exception as error:
        if not _is_ours(error):
            raise
        click.echo(f"Error: {_sentence(error)}", err=True)
        sys.exit(1)


def _is_ours(error: Exception) -> bool:
    """Errors that carry a sentence for people: those of our own trees, and those of the file system about a path."""
    rooms = (
        "smoe.",
        "moe.",
        "traces.",
        "autoscaler.",
        "gateway.",
        "functions.",
        "placement.",
        "simulation.",
        "evaluation.",
        "rl.",
    )
    return type(error).__module__.startswith(rooms) or _of_path(error)


def _of_path(error: Exception) -> bool:
    return isinstance(error, OSError) and (error.filename is not None or error.errno == errno.ENOSPC)


def _sentence(error: Exception) -> str:
    """A file system's error without its number: the path first, then what is wrong with it."""
    if isinstance(error, OSError) and _of_path(error):
        path = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{path}{(error.strerror or type(error).__name__).lower()}"
    return str(error)


if __name__ == "__main__":
    main()
