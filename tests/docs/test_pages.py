"""Pages against the tree: links lead somewhere, commands and modules that are named exist, every option has help."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from docs.tables import MARK, TABLES, filled, options
from smoe.cli import COMMANDS, cli
from smoe.groups import LAB, PIPELINE, PLACEMENT

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for room in ("docs", "deploy", "notebooks", "traces") for page in (ROOT / room).rglob("*.md")),
]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in sorted(PAGES)}
GROUPS = {"pipeline": PIPELINE, "placement": PLACEMENT, "lab": LAB}
PATHS = [
    *((name,) for name in COMMANDS if name not in GROUPS),
    *((group, name) for group, commands in GROUPS.items() for name in commands),
]
"""Every command by its full name."""
EVERY_PAGE = pytest.mark.parametrize("name", TEXTS)


def anchors(text: str) -> set[str]:
    """Headings as anchors, by GitHub's rule."""
    titles = (re.sub(r"[`*]", "", title).strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def commands_in(text: str) -> Iterator[list[str]]:
    """Words of every ``smoe …`` that starts a line of a block or stands between backquotes, without remarks."""
    joined = text.replace("\\\n", " ")
    for found in re.findall(r"(?:^|`)smoe ([a-z]+\b[^`\n]*)", joined, re.MULTILINE):
        words = re.split(r"\s#| > | \| |;|…| = ", found)[0]
        yield shlex.split(words)


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words call, and its arguments."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        subcommand = command.get_command(click.Context(command), words[0])
        assert subcommand is not None, f"there is no command {words[0]}"
        command, words = subcommand, words[1:]
    return command, words


@EVERY_PAGE
def test_links_lead_to_files_and_headings_that_are_there(name: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[name]):
        if link.startswith("http"):
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), f"{link} is not there"
        assert not heading or heading in anchors(target.read_text()), f"{link}: no such heading"


@EVERY_PAGE
def test_modules_that_are_to_be_run_exist(name: str) -> None:
    for module in re.findall(r"python -m ([a-z_]+(?:\.[a-z_]+)*)", TEXTS[name]):
        beside = ROOT.joinpath(*module.split("."))
        assert beside.with_suffix(".py").is_file() or importlib.util.find_spec(module) is not None, module


@pytest.mark.slow
def test_the_page_of_benchmarks_has_a_row_for_each_and_no_other() -> None:
    runnable = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    runnable |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    rows = {command.split(".")[1]: shows for command, shows, _ in TABLES["benchmarks"]()[1]}
    assert set(rows) == runnable and all(shows.endswith((".", "?")) for shows in rows.values())
    simulated = re.findall(
        r"`(\w+)`", TEXTS["docs/benchmarks.md"].partition("are *simulated*")[0].rpartition("\n\n")[2]
    )
    assert set(simulated) <= runnable


def test_every_command_is_in_some_page() -> None:
    named = {tuple(words[: len(path)]) for text in TEXTS.values() for words in commands_in(text) for path in PATHS}
    assert set(PATHS) <= named


def test_tables_of_options_have_the_defaults_of_the_commands() -> None:
    rows = {names: default for names, default, _ in options(["gateway"])[1]}
    assert (rows["--port"], rows["--host"], rows["--async-queue"]) == ("`8080`", "`127.0.0.1`", "`1000`")
    assert (rows["--basic-auth, --no-basic-auth"], rows["--all-namespaces"]) == ("on", "–")


def test_every_table_made_from_the_code_has_its_place_in_one_page() -> None:
    named = [table for text in TEXTS.values() for table in MARK.findall(text)]
    assert sorted(named) == sorted(TABLES)
    page = filled("Rules and settings: `python -m docs.tables kpa`\n")
    assert page.startswith("Knative's pod autoscaler")
    assert "\n\n| setting | default | meaning |\n| --- | --- | --- |\n| `metric` | `concurrency` |" in page


@pytest.mark.slow
@EVERY_PAGE
def test_options_of_commands_in_pages_exist(name: str) -> None:
    for words in commands_in(TEXTS[name]):
        command, given = command_of(words)
        options = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        for word in given:
            if re.match(r"--[a-z]|-[a-z]", word):
                assert word.partition("=")[0] in {*options, "--help"}, f"smoe {' '.join(words)}: no option {word}"


@EVERY_PAGE
def test_values_of_options_in_pages_are_allowed(name: str) -> None:
    for words in commands_in(TEXTS[name]):
        command, given = command_of(words)
        kinds = {flag: option.type for option in command.params for flag in option.opts if not option_is_flag(option)}
        for flag, value in pairwise(given):
            kind = kinds.get(flag)
            if (
                isinstance(kind, click.IntRange | click.FloatRange | click.Choice)
                and not value.isupper()
                and value[:2] != "--"
            ):
                assert kind.convert(value, None, None) is not None  # raises BadParameter, which says what is allowed


def option_is_flag(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and option.is_flag


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_says_what_it_is(name: str) -> None:
    waiting = [command_of([name])[0]]
    for command in waiting:
        waiting += command.commands.values() if isinstance(command, click.Group) else ()
        assert command.help
        for option in command.params:
            assert not isinstance(option, click.Option) or (option.help and option.help.endswith((".", "]"))), option
