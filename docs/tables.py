"""Tables of the pages that the code holds already: settings, metrics, columns, features. The site has them in place of
the line that names them; ``python -m docs.tables NAME`` prints one, without a name their names."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path

import click
import pyarrow as pa

from autoscaler import logger
from autoscaler.commands import autoscale
from autoscaler.contract import (
    Burst,
    Configuration,
    Cost,
    Decision,
    GenerationObservation,
    LayerObservation,
    NodeObservation,
    Observation,
    TickReport,
)
from autoscaler.options import docstrings
from autoscaler.settings import ControllerSettings
from gateway.main import main as gateway
from rl.env import PipelineEnv
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Feature
from rl.staffing.features import ARRIVAL_FEATURES, STANDBY_FEATURES
from simulation.profiles.fit.rows import Row as ProfileRow
from smoe.cli import cli

ROOT = Path(__file__).resolve().parents[1]
Row = Sequence[str]
MARK = re.compile(r"^(?:Table|Rules and settings): `python -m docs\.tables ([a-z-]+)`$", re.MULTILINE)
"""The line of a page that a table takes the place of."""
METRICS = {
    "ingress": ("functions.serving.metric_names",),
    "generation": ("functions.serving.generation_metric_names",),
    "gateway": ("gateway.metric_names",),
    "controller": ("autoscaler.exposition", "autoscaler.platforms.kubernetes.metrics"),
}
"""Modules whose constants are names of metrics, each with type, labels and meaning as its docstring."""
COMMANDS = {
    "gateway": ["gateway"],
    "lab-train": ["lab", "train"],
    "lab-evaluate": ["lab", "evaluate"],
    "lab-profile": ["lab", "profile"],
}
POLICIES = {
    "hpa": "autoscaler.policy.hpa:HpaSettings",
    "vpa": "autoscaler.policy.vpa:VpaSettings",
    "kpa": "autoscaler.policy.kpa:KpaSettings",
    "keda": "autoscaler.policy.keda:KedaSettings",
    "keda-trigger": "autoscaler.policy.keda:Trigger",
    "apa": "autoscaler.policy.apa:ApaSettings",
    "slo-aware": "autoscaler.policy.slo_aware:SloAwareSettings",
    "elasticmoe": "autoscaler.policy.token_load:TokenLoadSettings",
    "elasticmoe-class": "autoscaler.policy.token_load:LoadClass",
    "janus": "autoscaler.policy.janus:JanusSettings",
    "janus-decoder": "autoscaler.policy.janus_decoder:JanusDecoderSettings",
    "attainment": "autoscaler.policy.attainment:AttainmentSettings",
    "last-window": "evaluation.bound.last_window:MakingSettings",
    "smoe": "rl.agent.policy:MakingSettings",
    "reward": "rl.reward:RewardSettings",
}
ELSEWHERE = frozenset({"min_replicas", "max_replicas", "kinds", "triggers", "classes", "slo_s", "ttft_s", "tpot_s"})
"""Settings of policies that the controller's own settings give."""


def filled(page: str) -> str:
    """The page with its tables."""
    return MARK.sub(lambda match: rendered(match[1]), page)


def rendered(name: str) -> str:
    """The table, after the rules of a policy of ``autoscaler``, which its module states."""
    module = POLICIES.get(name, "").partition(":")[0]
    rules = inspect.getdoc(importlib.import_module(module)) if module.startswith("autoscaler.policy") else None
    if rules is None or "-" in name.removeprefix("slo-"):
        return markdown(*TABLES[name]())
    paragraphs = re.sub(r":\w+:`(.*?)`", r"`\1`", rules.replace("``", "`").replace(' "ElasticMoE"', " *ElasticMoE*"))
    return paragraphs + "\n\n" + markdown(*TABLES[name]())


def markdown(head: Row, rows: Iterable[Row]) -> str:
    """A table with one line a row; the first cell is code."""
    lines = [head, ["---"] * len(head), *([f"`{row[0]}`", *row[1:]] for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def benchmarks() -> tuple[Row, list[Row]]:
    """Every module or package that is run, by the first sentence of its docstring, with its page of results."""
    rows = []
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        words = ast.get_docstring(ast.parse(text := path.read_text())) or ""
        if path.stem == "__main__" or (
            '"__main__"' in text and (path.parent.name == "benchmarks" or "python -m" in words)
        ):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
            shows = " ".join(words.split("\n\n")[0].split())
            shows = re.sub(r":? ``python -m .*?``( \(root\))?\.?", r"\1.", shows).replace("?.", "?").replace("..", ".")
            place = f"results/{name.split('.')[1].replace('_', '-')}/README.md"
            rows.append(
                [f"python -m {name}", shows, f"[numbers]({place})" if (ROOT / "docs" / place).exists() else "–"]
            )
    return ("command", "what it shows", "results"), rows


def controller() -> tuple[Row, list[Row]]:
    """Settings of the controller with their flags."""
    flags = {option.name: "/".join((*option.opts, *option.secondary_opts)) for option in autoscale.params}
    flags["password"] = flags["password_file"]
    rows = [
        [name, f"`{flags[name]}`" if name in flags else "–", default, meaning]
        for name, default, meaning in _settings(ControllerSettings)
    ]
    return ("setting", "flag", "default", "meaning"), rows


def options(words: Sequence[str]) -> tuple[Row, list[Row]]:
    """Options of a command: of ``python -m gateway`` or of ``smoe …``."""
    command: click.Command = gateway if list(words) == ["gateway"] else cli
    for word in words if command is cli else ():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word) or cli
    rows = []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden and option.help:
            names = ", ".join((*option.opts, *option.secondary_opts))
            rows.append([names, _shown(option), option.help])
    return ("option", "default", "meaning"), rows


def _shown(option: click.Option) -> str:
    """The default of an option in code, ``–`` for none, and where its help states it in words."""
    if option.is_flag:
        return "on" if option.default is True else "–"
    given = (
        isinstance(option.default, str | int | float | Path) and str(option.default) and "[default" not in option.help
    )
    return f"`{option.default}`" if given else "–"


def policy(name: str) -> tuple[Row, list[Row]]:
    """A policy's own settings."""
    module, _, kind = POLICIES[name].partition(":")
    rows = [row for row in _settings(getattr(importlib.import_module(module), kind)) if row[0] not in ELSEWHERE]
    return ("setting", "default", "meaning"), rows


def _settings(kind: type) -> list[Row]:
    meanings = docstrings(kind)
    return [[entry.name, _default(entry), _sentence(meanings.get(entry.name, ""))] for entry in fields(kind)]  # type: ignore[arg-type]


def _default(entry: Field[object]) -> str:
    given = entry.default is not MISSING and entry.default is not None and entry.default != ""
    return f"`{entry.default}`" if given else "–"


def metrics(name: str) -> tuple[Row, list[Row]]:
    """Name, type, labels and meaning of each metric."""
    rows = []
    for module in METRICS[name]:
        for metric, text in constants(module):
            kind, labels, meaning = re.fullmatch(r"(\w+)(?: \{(.*?)\})?: (.*)", text).groups("")  # type: ignore[union-attr]
            codes = ", ".join(f"`{label.strip(chr(96))}`" for label in labels.split(", ")) if labels else "–"
            rows.append([metric, kind.lower(), codes, _sentence(meaning[0].upper() + meaning[1:])])
    return ("name", "type", "labels", "meaning"), rows


def constants(module: str) -> list[tuple[str, str]]:
    """(value, docstring) of every text in capitals of a module that begins with a metric's type."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    pairs = []
    for entry, text in itertools.pairwise(body):
        match entry, text:
            case ast.Assign(value=ast.Constant(value=str(value))), ast.Expr(value=ast.Constant(value=str(words))):
                if re.match(r"(Counter|Gauge|Histogram|Untyped)\b", words):
                    pairs.append((value, " ".join(words.replace("``", "`").split())))
    return pairs


def features(of: tuple[Feature, ...]) -> tuple[Row, list[Row]]:
    """Numbers of a state by index; flags are the last ones."""
    rows = []
    for index, feature in enumerate(of):
        span = f"{feature.low:g} … {feature.high:g}" + (" log" if feature.log else "")
        flag = f"`{feature.flag}`" if feature.flag else "–"
        rows.append([str(index), f"`{feature.name}`", feature.meaning, feature.unit, span, flag])
    return ("index", "name", "meaning", "unit", "range", "flag"), rows


def arguments() -> tuple[Row, list[Row]]:
    """Arguments of the Gymnasium environment, by its docstring."""
    meanings = dict(re.findall(r"^``(\w+)``: (.*)$", inspect.getdoc(PipelineEnv.__init__) or "", re.MULTILINE))
    rows = [
        [name, f"`{one.default!r}`".replace("'", '"'), _sentence(meanings[name].replace("``", "`"))]
        for name, one in inspect.signature(PipelineEnv).parameters.items()
    ]
    return ("argument", "default", "meaning"), rows


def columns(schema: pa.Schema, meanings: Mapping[str, str]) -> tuple[Row, list[Row]]:
    """Columns of one kind of the logger's files; a configuration's columns of one side are one row."""
    rows = []
    for entry in schema:
        kind = "list<string>" if pa.types.is_list(entry.type) else "struct" if pa.types.is_struct(entry.type) else ""
        rows.append([entry.name, kind or str(entry.type), _sentence(meanings.get(entry.name, ""))])
    return ("column", "type", "meaning"), rows


def _described(*kinds: type) -> dict[str, str]:
    return {name: text for kind in kinds for name, text in docstrings(kind).items()}


def _prefixed(prefix: str, *kinds: type) -> dict[str, str]:
    return {f"{prefix}_{name}": text for name, text in _described(*kinds).items()}


_COSTS = _prefixed("cost", Cost)
_WINDOWS = {
    **_described(Observation, Configuration, NodeObservation), **_prefixed("layer", LayerObservation), **_COSTS,
}  # fmt: skip
_SLO = {"slo_s": "Target of the P95; null without one."}
_CHANGE = {
    "changes": "Whether decision and present differ.",
    "applied": "The platform took the change and was seen to have it.",
    "failure": "Why a change failed; null otherwise.",
}
_ARRIVALS = {
    column: f"{name} over the window's requests of tokens per second within {look_back_s:g} s before each."
    for column, (look_back_s, name) in logger.ARRIVALS.items()
}
_PIPELINE = {
    **_SLO, **_described(TickReport, Observation), **_prefixed("generation", GenerationObservation),
    **_ARRIVALS, **_COSTS,
}  # fmt: skip
_SIDES = {"present": "Before", "wish": "Desired", "target": "What the limits left of it"}
_DECISIONS = {
    **_described(TickReport, Observation, NodeObservation, Decision),
    **_CHANGE,
    **{
        f"{side}_{name}": f"{words}: {text}"
        for side, words in _SIDES.items()
        for name, text in docstrings(Configuration).items()
    },
}


def _sentence(text: str) -> str:
    """With a full stop and without roles; ``–`` for none."""
    text = re.sub(r":\w+:`(.*?)`", r"`\1`", text)
    return text + ("" if text.endswith((".", "]", ".)")) else ".") if text else "–"


TABLES: dict[str, Callable[[], tuple[Row, list[Row]]]] = {
    "benchmarks": benchmarks,
    "controller": controller,
    **{f"options-{name}": (lambda words=words: options(words)) for name, words in COMMANDS.items()},  # type: ignore[misc]
    **{name: (lambda name=name: policy(name)) for name in POLICIES},  # type: ignore[misc]
    **{f"metrics-{name}": (lambda name=name: metrics(name)) for name in METRICS},  # type: ignore[misc]
    "log-windows": lambda: columns(logger.WINDOWS, _WINDOWS),
    "log-pipeline": lambda: columns(logger.PIPELINE, _PIPELINE),
    "log-decisions": lambda: columns(logger.DECISIONS, _DECISIONS),
    "profile-columns": lambda: (("column", "meaning"), [(name, text) for name, text in docstrings(ProfileRow).items()]),
    "features-node": lambda: features(NODE_FEATURES),
    "features-pipeline": lambda: features(PIPELINE_FEATURES),
    "features-staffing-node": lambda: features(STANDBY_FEATURES),
    "features-staffing-pipeline": lambda: features(ARRIVAL_FEATURES),
    "environment": arguments,
    "burst": lambda: (("setting", "default", "meaning"), _settings(Burst)),
}

if __name__ == "__main__":
    names = sys.argv[1:]
    if not names or not set(names) <= set(TABLES):
        sys.exit(f"say one of: {', '.join(TABLES)}")
    for each in names:
        sys.stdout.write(rendered(each) + "\n")
