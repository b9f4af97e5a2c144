"""The ``smoe`` command. Sub-commands are thin: they read options, build objects, run, and translate errors."""

from __future__ import annotations

import sys

import click

from smoe import __version__
from smoe.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "run": LazyCommand(
        "smoe.commands.demo", "run", "the main job: pipeline, bursty trace, controller, live view, report"
    ),
    "split": LazyCommand("moe.commands", "split", "turn a checkpoint or preset into a pipeline folder"),
    "inspect": LazyCommand("moe.commands", "inspect_", "show a pipeline folder: tree, sizes, FLOPs"),
    "distil": LazyCommand("moe.distil.commands", "distil", "adapt router and experts to the dense model"),
    "up": LazyCommand("smoe.commands.service", "up", "start the gateway and deploy a pipeline"),
    "down": LazyCommand("smoe.commands.service", "down", "stop the gateway and every function"),
    "status": LazyCommand("smoe.commands.service", "status", "functions, replicas, limits, usage"),
    "deploy": LazyCommand("smoe.commands.service", "deploy", "deploy a pipeline on a running gateway"),
    "remove": LazyCommand("smoe.commands.service", "remove", "remove a pipeline's functions from a gateway"),
    "invoke": LazyCommand("smoe.commands.service", "invoke", "send text to a pipeline and print the answer"),
    "logs": LazyCommand("smoe.commands.service", "logs", "show or follow a function's log"),
    "stack": LazyCommand("smoe.commands.service", "stack", "print stack.yml for faas-cli, or manifests for kubectl"),
    "autoscale": LazyCommand("autoscaler.commands", "autoscale", "run the controller against a gateway"),
    "top": LazyCommand("smoe.commands.top", "top", "live view of a running pipeline"),
    "profile": LazyCommand(
        "smoe.commands.profiling", "profile", "measure a pipeline's functions and fit the latency model"
    ),
    "evaluate": LazyCommand(
        "smoe.commands.evaluate", "evaluate", "compare scaling policies in the simulator, with bound and report"
    ),
    "train": LazyCommand("rl.train.commands", "train", "learn a scaling policy from traces, in the simulator"),
    "fine-tune": LazyCommand(
        "rl.train.fine_tuning", "fine_tune", "let a trained agent learn from what a controller logged"
    ),
    "explain": LazyCommand("rl.agent.commands", "explain", "why the learnt policy decides what it decides in a window"),
    "bound": LazyCommand("evaluation.bound.commands", "bound", "the least cost that any policy could have for a trace"),
    "tune": LazyCommand(
        "evaluation.tuning.commands", "tune", "search the deployment that a static or HPA baseline is given"
    ),
    "place": LazyCommand(
        "smoe.commands.place", "place_command", "plan which experts go on which nodes, from statistics"
    ),
    "migrate": LazyCommand("smoe.commands.migrate", "migrate", "move replicas between nodes while the pipeline serves"),
    "rebalance": LazyCommand(
        "smoe.commands.rebalance", "rebalance", "on unlike nodes, move experts to where they are called, at intervals"
    ),
    "replay": LazyCommand("traces.commands", "replay", "replay a trace against a function, open loop"),
    "traces": LazyCommand("traces.commands", "traces", "list, fetch, describe and clip traces"),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `smoe run`, or step by step: `smoe up`, `smoe invoke 'some text'`, `smoe top`, `smoe down`.",
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
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def _is_ours(error: Exception) -> bool:
    """Errors that carry a sentence for people: those of our own trees, and files that are not there."""
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
    return type(error).__module__.startswith(rooms) or isinstance(error, FileNotFoundError | PermissionError)


if __name__ == "__main__":
    main()
