"""The policy of docs/own-policy.md, as its reader would run it, and what its helper makes of a rule."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscaler.contract import Configuration
from autoscaler.own_policy import TEMPLATE, PerFunctionPolicy, Rule
from smoe.cli import cli
from tests.unit.autoscaler.builders import NOW_S, configuration, observation

PAGE = Path(__file__).parents[3] / "docs" / "own-policy.md"
EXPERT = "m-expert-0-0"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(TEMPLATE)
    monkeypatch.chdir(tmp_path)
    # folders of policies that other tests loaded stay on the path
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not Path(folder, "mine.py").exists()])
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["lab", *arguments])
    return result.exit_code, result.output + str(result.exception or "")


def evaluated(policies: str) -> tuple[int, str]:
    quick = ("--seeds", "0", "--seconds", "300", "--no-bound", "--workers", "1", "--out", "out", "--json")
    return run("evaluate", "--policies", policies, *quick)


def test_the_page_shows_the_policy_that_is_written_to_begin_with() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None and code.group(1) == TEMPLATE


@pytest.mark.slow
def test_the_pages_policy_runs_next_to_built_in_ones_in_the_simulator(mine: Path) -> None:
    code, printed = evaluated("static,mine.py:make")
    assert code == 0, printed
    assert '"policy":"mine.py:make"' in printed


@pytest.mark.slow
def test_a_policy_that_fails_in_every_window_ends_the_command_with_the_reason(mine: Path) -> None:
    (mine / "failing.py").write_text(
        "class Failing:\n"
        "    name = 'failing'\n"
        "    def propose(self, observation, now_s, memory):\n"
        "        raise KeyError('mean_s')\n"
        "def make(making):\n"
        "    return Failing()\n"
    )
    code, printed = evaluated("static,failing.py:make")
    assert code == 1 and "failing.py:make failed in every window (KeyError: 'mean_s')" in printed
    report = (mine / "out" / "results.md").read_text()
    assert re.search(r"failing\.py:make failed in (\d+) of \1 windows \(KeyError: 'mean_s'\)", report)
    assert "static failed" not in report


@pytest.mark.slow
def test_a_policy_that_refuses_its_settings_is_left_out_and_ends_the_command_with_the_reason(mine: Path) -> None:
    (mine / "refusing.py").write_text(
        "from autoscaler.errors import SettingsError\ndef make(making):\n    raise SettingsError('it needs a target')\n"
    )
    code, printed = evaluated("static,refusing.py:make")
    assert code == 1 and "refusing.py:make was left out, as bert-4: it needs a target" in printed
    assert '"policy":"static"' in printed


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("other.py:make", "No such file"),
        ("mine.py:nothing", "no attribute 'nothing'"),
        ("broken.py:make", "ZeroDivisionError"),
        ("mine:make", "No module named 'mine'; the file here is named mine.py:make"),
    ],
)
def test_a_policy_that_cannot_be_loaded_ends_the_command_with_the_reason(mine: Path, policy: str, reason: str) -> None:
    (mine / "broken.py").write_text("1 / 0\n")
    code, printed = evaluated(policy)
    assert code != 0
    assert "cannot be loaded" in printed
    assert reason in printed


def asked(rule: Rule, **measured: object) -> tuple[dict[str, Configuration], dict[str, str]]:
    policy = PerFunctionPolicy(rule, frozenset(("expert",)), 1, 6)
    view = observation({"expert-0-0": {"configuration": configuration(3), **measured}})
    proposal = policy.propose(view, NOW_S, None)
    return dict(proposal.desired), dict(proposal.reasons)


@pytest.mark.parametrize(("wanted", "replicas"), [(0.0, 1), (1.2, 2), (3.0, 3), (3.0000000001, 3), (99.0, 6)])
def test_a_rules_number_is_rounded_up_within_the_bounds(wanted: float, replicas: int) -> None:
    desired, reasons = asked(lambda row, window: wanted)
    assert desired[EXPERT] == configuration(replicas)
    assert reasons[EXPERT] == f"<lambda> {wanted:.3g}"


def test_a_rule_may_give_a_whole_configuration_or_hold_the_function() -> None:
    other = configuration(2, cpu_cores=0.5)
    assert asked(lambda row, window: other)[0][EXPERT] == other
    assert asked(lambda row, window: None) == ({}, dict.fromkeys(asked(lambda row, window: None)[1], "no data"))
    assert EXPERT not in asked(lambda row, window: 1.0, configuration=None)[0]


COUNTS = """
from autoscaler.own_policy import per_function
asked = []
def growing(row, window):
    asked.append(row)
    return len(asked)
make = per_function(growing)
"""
OTHER_FORM = """
class Odd:
    name = "odd"
    def propose(self, observation, now_s, memory):
        return {}
def make(making):
    return Odd()
"""
NO_FUNCTION = """
from autoscaler.contract import Configuration, Proposal
class Odd:
    name = "odd"
    def propose(self, observation, now_s, memory):
        return Proposal({"x": Configuration(256, 1.0, 0.0, 1, 1)}, {"x": "why"})
def make(making):
    return Odd()
"""
WRONG = {
    "the page's": (TEMPLATE, ""),
    "takes None for 0": (TEMPLATE.replace("return None  #", "return 0  #"), "WRONG  takes None for not known"),
    "raises": (TEMPLATE.replace("/ 2", "/ (row.in_flight and 0)"), "ZeroDivisionError"),
    "remembers by itself": (COUNTS, "WRONG  answers the same"),
    "gives another form": (OTHER_FORM, "a Proposal was expected, not dict"),
    "names no function": (NO_FUNCTION, "there is no function 'x'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRONG)
def test_what_a_policy_does_wrong_is_named(mine: Path, kind: str) -> None:
    code, wrong = WRONG[kind]
    (mine / "mine.py").write_text(code)
    status, printed = run("check-policy", "mine.py:make")
    assert (status, "WRONG" in printed) == ((1, True) if wrong else (0, False)), printed
    assert wrong in printed


@pytest.mark.slow
def test_a_policy_to_begin_with_is_written_and_does_what_is_expected(mine: Path) -> None:
    (mine / "mine.py").unlink()
    status, printed = run("check-policy", "--new", "mine.py:make")
    assert status == 0 and "next: " in printed, printed
    assert (mine / "mine.py").read_text() == TEMPLATE


def test_a_policy_to_begin_with_never_replaces_a_file(mine: Path) -> None:
    (mine / "mine.py").write_text("mine = 1\n")
    code, printed = run("check-policy", "--new", "mine.py:make")
    assert code == 2 and "is there already" in printed
    assert (mine / "mine.py").read_text() == "mine = 1\n"
    assert run("check-policy", "--new", "pack.mine:make")[0] == 2


def test_a_policy_may_import_what_lies_next_to_its_file(mine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "neighbour.py").write_text("CALLS = 2\n")
    (folder / "own.py").write_text("import neighbour\n")
    code, printed = evaluated("elsewhere/own.py:make")
    assert code != 0 and "no attribute 'make'" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["hpa", "vpa", "kpa", "keda", "apa", "slo-aware", "elasticmoe", "last-window", "staffing"]
)
def test_built_in_policies_do_what_the_controller_expects(name: str) -> None:
    status, printed = run("check-policy", name)
    assert status == 0, printed
