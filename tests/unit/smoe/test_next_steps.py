"""The line on what to do next, at the end of commands: what it names is there, with the options that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from autoscaler import commands as autoscaling
from moe import commands as making
from rl.train import commands as training
from simulation.workloads.custom import CustomPipeline
from smoe.commands import calling, compare, evaluate, lines, profiling, profiling_decoder, service, status, top
from tests.docs.test_pages import command_of, commands_in
from traces import replay_command

OUT, STATE, GATEWAY = Path("out/it"), " --state there", " --gateway http://there:8080"
LINES = {
    "lab evaluate": evaluate.NEXT_STEP,
    "lab compare": compare.next_step(OUT),
    "lab train": training.next_step(OUT),
    "lab train of a custom pipeline": training.next_step(
        OUT, [CustomPipeline("mine", 300.0, "a.parquet", cluster=True)]
    ),
    "lab profile of a decoder": profiling_decoder.next_step(OUT),
    "replay": replay_command.next_step("minilm", STATE),
    "autoscale": autoscaling.next_step("minilm", STATE),
    "down": lines.after_down(STATE),
    "pipeline split": making.after_split(OUT),
    "pipeline inspect": making.after_inspect(OUT),
    "pipeline remove": service.after_remove("minilm", ""),
    "pipeline remove elsewhere": service.after_remove("minilm", GATEWAY),
    "invoke": calling.after_invoke("minilm", STATE),
    "invoke elsewhere": calling.after_invoke("minilm", GATEWAY),
    "logs": calling.after_logs("minilm-expert-0-1", STATE),
    "logs elsewhere": calling.after_logs("minilm-expert-0-1", GATEWAY),
    "status": status.after_status((), ("minilm", "mine"), STATE),
    "status without pipelines": status.after_status((), (), GATEWAY),
    "status of what does not start": status.after_status(("mine", "minilm"), ("minilm",), GATEWAY),
    "top": top.after_top("minilm", False, STATE),
    "top of a controller": top.after_top("minilm", True, GATEWAY),
    "pipeline deploy": service.after_deploy("minilm", STATE),
    "pipeline deploy elsewhere": service.after_deploy("minilm", GATEWAY),
}


def check(line: str) -> None:
    """One line, whose commands take the arguments that it gives them."""
    named = list(commands_in(line))
    assert line.startswith("next: ") and "\n" not in line and named
    for words in named:
        command, given = command_of(words)
        context = click.Context(command)
        _, rest, _ = command.make_parser(context).parse_args(args=list(given))
        assert not rest, f"smoe {' '.join(words)} takes no {rest}"
        assert not any(parameter.required and parameter.opts[0] not in given for parameter in options(command)), words


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_what_to_do_next_names_commands_that_are_there(line: str) -> None:
    check(line)


@pytest.mark.parametrize(("task", "word"), [("embedding", "smoe lab evaluate"), ("causal-lm", "smoe lab replay")])
def test_what_to_do_with_a_profile_goes_by_the_pipelines_task(
    monkeypatch: pytest.MonkeyPatch, task: str, word: str
) -> None:
    manifest = type("Manifest", (), {"task": task})
    monkeypatch.setattr(profiling, "ensure_pipeline", lambda pipeline, folder: (folder / pipeline, manifest))
    line = profiling.next_step(Path("state"), "mine", OUT)
    assert word in line and "state/pipelines/mine" in line
    check(line)


def test_an_actor_of_a_custom_pipeline_is_served_with_the_calls_that_it_learnt_with() -> None:
    line = training.next_step(OUT, [CustomPipeline("mine", 300.0, "a.parquet", 0.5, mean_tokens=24.0)])
    assert "'profile = \"a.parquet\"', 'cpu_scale = 0.5', 'mean_tokens = 24' into settings/smoe.toml" in line
    assert "mean_tokens" not in training.next_step(OUT)


def test_pipelines_that_are_counted_otherwise_are_named() -> None:
    mine = CustomPipeline("mine", 300.0, "a.parquet", 0.5, mean_tokens=24.0)
    strict, other = replace(mine, slo_ms=100.0), CustomPipeline("other", 300.0, "b.parquet", 1.5, mean_tokens=32.0)
    assert " for " not in training.next_step(OUT, [mine, strict])
    line = training.next_step(OUT, [mine, strict, other])
    assert (
        "'mean_tokens = 24' for mine-300ms-0.5 and mine-100ms-0.5, 'profile = \"b.parquet\"', 'cpu_scale = 1.5'" in line
    )
    assert "'mean_tokens = 32' for other-300ms-1.5 into settings/smoe.toml" in line
    check(line)


def test_an_option_that_is_not_there_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        check("next: `smoe top minilm --slo 3` is refused")


@pytest.mark.parametrize("terminal", [False, True])
def test_after_a_command_that_shows_something_it_is_printed_where_a_person_reads_it(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    lines.print_next("next: `smoe top`")
    assert tuple(capsys.readouterr()) == ("", "next: `smoe top`\n" * terminal)
