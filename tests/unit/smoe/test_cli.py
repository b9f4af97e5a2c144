"""The command line before any command runs."""

from __future__ import annotations

import os
import re
import sys
import threading
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from smoe import lazy
from smoe.cli import ALIASES, AUTOSCALE, COMMANDS, cli, main
from smoe.lazy import LazyCommand, LazyGroup, folded


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page_worth_reading(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 4


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["invok"], "'invoke'"), (["lab", "evalute"], "'evaluate'"), (["trian"], "'train'"), (["xyzzy"], "")],
)
def test_a_command_that_is_spelt_nearly_right_is_suggested(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2 and f"No such command '{words[-1]}'" in result.output
    assert (f"(Did you mean {meant}" in result.output) if meant else "Did you mean" not in result.output


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["up", "--cpu"], id="a range"),
        pytest.param(["autoscale", "--interval"], id="a range of seconds"),
        pytest.param(["replay", "minilm", "--max-rps"], id="no upper bound"),
        pytest.param(["traces", "describe", "x.csv", "--start-s"], id="in a group that is not lazy"),
        pytest.param(["lab", "explain", "--at"], id="any number"),
        pytest.param(["lab", "train-staffing", "--mean-rps", "1"], id="one of two"),
        pytest.param(["lab", "profile", "--out", "x", "--shares"], id="a comma list"),
    ],
)
def test_no_command_takes_a_number_that_is_not_finite(words: list[str]) -> None:
    result = CliRunner().invoke(cli, [*words, "nan"])
    assert result.exit_code == 2 and f"Invalid value for '{words[-1 - words[-1].isdigit()]}'" in result.output, result


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        (["evaluate", "--policies", "static"], "smoe.commands.evaluate.run_all"),
        (["compare", "--policies", "static"], "smoe.commands.compare.run_all"),
        (["bound", "--trace", "made-bursty-hour", "--workload", "bert-4"], "evaluation.bound.commands.bound_rows"),
        (
            ["tune", "--policy", "tuned-hpa", "--trace", "made-bursty-hour", "--workload", "bert-4"],
            "evaluation.tuning.commands._searched",
        ),
    ],
)
def test_results_that_cannot_be_written_end_a_command_before_it_simulates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], begin: str
) -> None:
    monkeypatch.setattr(begin, lambda *_, **__: pytest.fail("simulated"))
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, ["lab", *words, "--out", str(tmp_path / "file" / "out" / "x")])
    assert isinstance(result.exception, FileExistsError | NotADirectoryError), result.output
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK | os.X_OK)  # root may write everywhere
    result = CliRunner().invoke(cli, ["lab", *words, "--out", str(tmp_path / "new" / "x")])
    assert isinstance(result.exception, PermissionError) and str(tmp_path / "new") in str(result.exception)


def test_a_missing_optional_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    group = LazyGroup("lab", lazy={"learn": LazyCommand("gymnasium", "nothing", "-")})
    result = CliRunner().invoke(group, ["learn"])
    assert result.exit_code == 2
    assert "lab learn needs gymnasium" in result.output and "'WHEEL[rl]'" in result.output


class Screen(StringIO):
    """A terminal, or a pipe; ``written`` is set by the first words."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.written = terminal, threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_a_command_that_is_slow_to_load_shows_so_on_a_terminal_and_takes_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy, "SIGN_AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stderr", screen := Screen(True))
    with lazy._sign("loading x"):
        assert screen.written.wait(60)
    assert screen.getvalue() == "loading x\r         \r"


def test_off_a_terminal_loading_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "SIGN_AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stderr", screen := Screen(False))
    with lazy._sign("loading x"):
        assert not screen.written.wait(0.2)


@pytest.mark.parametrize("name", ALIASES)
def test_a_former_name_still_runs_its_command_and_is_in_no_help(name: str) -> None:
    former = CliRunner().invoke(cli, [name, "--help"])
    today = CliRunner().invoke(cli, [*ALIASES[name], "--help"])
    assert former.exit_code == today.exit_code == 0
    assert former.output.partition("\n\n")[2] == today.output.partition("\n\n")[2]
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert not any(line.split()[:1] == [name] for line in shown.splitlines())


def test_autoscale_shows_the_options_that_matter_and_all_of_them_on_request() -> None:
    short, whole = (CliRunner().invoke(cli, ["autoscale", flag]).output for flag in ("--help", "--help-all"))
    assert all(f"{option} " in short for option in AUTOSCALE)
    assert "--unschedulable-wait" in whole and "--unschedulable-wait" not in short


@pytest.mark.parametrize(
    ("words", "least"),
    [
        *(
            (words, 6)
            for words in (["autoscale"], ["replay"], ["lab", "evaluate"], ["lab", "compare"], ["lab", "train"])
        ),
        (["up"], 4),
    ],
)
def test_every_option_stands_once_and_below_a_heading_of_its_own(words: list[str], least: int) -> None:
    shown = CliRunner().invoke(cli, [*words, "--help-all"], terminal_width=200).output
    sections = re.findall(r"^(\S.*):\n((?:  .*\n)+)", shown.replace("\n\n", "\n"), re.MULTILINE)
    flags = [flag for _, rows in sections for flag in re.findall(r"^  (?:-h, )?(--[a-z-]+)", rows, re.MULTILINE)]
    command: click.Command | None = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    assert flags == [*(option.opts[0] for option in options), "--help"]
    assert len(sections) >= least and "Options" not in dict(sections)
    assert max(rows.count("\n  -") for _, rows in sections) <= 14


def test_a_heading_before_an_option_that_is_not_there_is_refused() -> None:
    command = click.Command("cook", params=[click.Option(["--salt"]), click.Option(["--heat"])])
    for sections in ({"Stove": "--fire"}, {"Stove": "--heat", "Pot": "--salt"}):
        with pytest.raises(ValueError, match="of cook"):
            folded(command, frozenset(), sections)


def test_a_settings_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    settings = tmp_path / "controller.toml"
    settings.write_text(f'interval = "nonsense"\nstate = "{tmp_path}"\ngateway = "http://127.0.0.1:1"\n')
    refused = CliRunner().invoke(cli, ["autoscale", "--settings", str(settings)])
    assert "nonsense" in refused.output
    overruled = CliRunner().invoke(cli, ["autoscale", "--settings", str(settings), "--interval", "wrong"])
    assert "'wrong'" in overruled.output


def test_a_settings_key_that_is_no_option_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    settings = tmp_path / "controller.toml"
    settings.write_text("intervall = 5\n")
    result = CliRunner().invoke(cli, ["autoscale", "--settings", str(settings)])
    assert result.exit_code == 2
    assert "'intervall' is no option" in result.output and "slo-ms" in result.output


@pytest.mark.parametrize("kind", ["file", "missing"])
def test_a_state_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    above = tmp_path / "above"
    above.write_text("") if kind == "file" else above.symlink_to(tmp_path / "nowhere" / "deeper")
    monkeypatch.setattr(sys, "argv", ["smoe", "up", "--state", str(above / "state")])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr().err
    assert (ended.value.code, shown.count("\n"), shown.startswith(f"Error: {above}")) == (1, 1, True), shown
