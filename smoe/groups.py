"""The groups of ``smoe``: commands of one subject under one name."""

from __future__ import annotations

import click

from smoe.lazy import LazyCommand, LazyGroup

PIPELINE = {
    "split": LazyCommand("moe.commands", "split", "turn a checkpoint or preset into a pipeline folder"),
    "inspect": LazyCommand("moe.commands", "inspect_", "show a pipeline folder: tree, sizes, FLOPs"),
    "distil": LazyCommand("moe.distil.commands", "distil", "adapt router and experts to the dense model"),
    "deploy": LazyCommand("smoe.commands.service", "deploy", "deploy a pipeline on a running gateway"),
    "remove": LazyCommand("smoe.commands.service", "remove", "remove a pipeline's functions from a gateway"),
    "stack": LazyCommand("smoe.commands.service", "stack", "print stack.yml for faas-cli, or manifests for kubectl"),
}
PLACEMENT = {
    "plan": LazyCommand(
        "smoe.commands.place", "place_command", "plan which experts go on which machines, from statistics"
    ),
    "migrate": LazyCommand(
        "smoe.commands.migrate", "migrate", "move replicas between machines while the pipeline serves"
    ),
    "rebalance": LazyCommand(
        "smoe.commands.rebalance", "rebalance", "on heterogeneous machines, move experts to where they are called"
    ),
}
EVALUATE = frozenset(
    ("--workloads", "--pipeline", "--policies", "--patterns", "--trace", "--mean-rps", "--seeds", "--slo-ms", "--out",
     "--workers", "--json")
)  # fmt: skip
COMPARE = frozenset(
    ("--workloads", "--pipeline", "--slo-ms", "--policies", "--patterns", "--mean-rps", "--world", "--relative-slo",
     "--seeds", "--out", "--json")
)  # fmt: skip
_RUNS = {
    "Which runs": "--workloads",
    "Length and load": "--mean-rps",
    "Simulated cluster": "--world",
}
_CUSTOM = {"Custom pipeline": "--pipeline"}
EVALUATE_SECTIONS = {**_RUNS, "Files": "--trace", **_CUSTOM, "Part of a trace": "--row", "Folders and output": "--data"}
COMPARE_SECTIONS = {**_RUNS, "Tuning": "--trials", **_CUSTOM, "Folders and output": "--data"}
TRAIN_SECTIONS = {
    "What is scaled": "--workload",
    "What is learnt from, and for how long": "--traces",
    "What is learnt": "--arm",
    "Episodes": "--windows",
    "Updates": "--updates",
    "Networks": "--width",
    "Further settings and output": "--set",
}
TRAIN = frozenset(
    ("--workload", "--pipeline", "--slo-ms", "--profile", "--traces", "--minutes", "--seed", "--windows",
     "--out")
)  # fmt: skip
MEASURE, COMPARE_THEM, LEARN = "Measure and simulate", "Compare policies", "Learn"
LAB = {
    "profile": LazyCommand(
        "smoe.commands.profiling", "profile", "measure a pipeline's functions and fit the latency model", MEASURE
    ),
    "replay": LazyCommand(
        "smoe.commands.replaying",
        "replay",
        "simulate a token trace on a decoder that was profiled, scaled or not",
        MEASURE,
    ),
    "evaluate": LazyCommand(
        "smoe.commands.evaluate",
        "evaluate",
        "compare scaling policies in the simulator, with bound and report",
        COMPARE_THEM,
        essential=EVALUATE,
        sections=EVALUATE_SECTIONS,
    ),
    "compare": LazyCommand(
        "smoe.commands.compare",
        "compare",
        "tune every opponent on validation hours, then compare all on test hours",
        COMPARE_THEM,
        essential=COMPARE,
        sections=COMPARE_SECTIONS,
    ),
    "check-policy": LazyCommand(
        "smoe.commands.check_policy",
        "check_policy",
        "whether a policy of one's own does what the controller expects",
        COMPARE_THEM,
    ),
    "bound": LazyCommand(
        "evaluation.bound.commands", "bound", "the least cost that any policy could have for a trace", COMPARE_THEM
    ),
    "advise": LazyCommand(
        "evaluation.regimes.commands", "advise", "whether scaling pays for a trace, and which way to go", COMPARE_THEM
    ),
    "tune": LazyCommand(
        "evaluation.tuning.commands",
        "tune",
        "search the deployment that a static or HPA baseline is given",
        COMPARE_THEM,
    ),
    "train": LazyCommand(
        "rl.train.commands",
        "train",
        "learn a scaling policy from traces, in the simulator",
        LEARN,
        essential=TRAIN,
        sections=TRAIN_SECTIONS,
    ),
    "train-staffing": LazyCommand(
        "rl.staffing.commands", "train_staffing", "learn capacity and standbys of every expert, in the simulator", LEARN
    ),
    "fine-tune": LazyCommand(
        "rl.train.fine_tuning", "fine_tune", "let a trained agent learn from what a controller logged", LEARN
    ),
    "export-log": LazyCommand(
        "rl.train.log_export", "export_log", "write a controller's log as a Minari data set", LEARN
    ),
    "explain": LazyCommand(
        "rl.agent.commands", "explain", "why the learnt policy decides what it decides in a window", LEARN
    ),
}


@click.group(cls=LazyGroup, lazy=PIPELINE)
def pipeline() -> None:
    """Make a pipeline from a checkpoint, look into it, deploy and remove it."""


@click.group(cls=LazyGroup, lazy=PLACEMENT)
def placement() -> None:
    """Decide which expert runs on which machine, and move experts while the pipeline serves."""


@click.group(cls=LazyGroup, lazy=LAB)
def lab() -> None:
    """Profile a pipeline, simulate it, compare scaling policies with the bound, and learn one."""
