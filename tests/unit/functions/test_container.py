"""The container's files name what the functions need, and nothing is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def requirements() -> dict[str, str]:
    lines = (ROOT / "deploy/function-requirements.txt").read_text().splitlines()
    requirements = (re.fullmatch(r"([a-z-]+)(.*)", line) for line in lines if line and not line.startswith("#"))
    return {match[1]: match[2] for match in requirements if match}


def test_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, version in requirements().items():
        assert f"{name}{version}" in project


@pytest.mark.slow
def test_every_imported_package_is_listed() -> None:
    code = (
        "import sys; before = set(sys.modules); import functions.app, functions.worker;"
        "print(*{n.split('.')[0] for n in set(sys.modules) - before if 'site-packages' in "
        "(getattr(sys.modules[n], '__file__', None) or '')})"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    closure = subprocess.run(
        [sys.executable, "-c", CLOSURE, *requirements()], capture_output=True, text=True, check=True
    )
    allowed = set(closure.stdout.split())
    allowed.add("pynvml")  # torch imports it where it is installed
    missing = {n for n in imported.stdout.split() if n not in allowed and not n.startswith("__")}
    assert missing == set()


CLOSURE = """
import re, sys
from importlib import metadata
todo, seen = sys.argv[1:], set()
while todo:
    name = todo.pop().lower().replace("_", "-")
    if name in seen:
        continue
    seen.add(name)
    try:
        todo += [re.match(r"[A-Za-z0-9._-]+", r)[0] for r in metadata.requires(name) or [] if "extra ==" not in r]
    except metadata.PackageNotFoundError:
        pass
tops = metadata.packages_distributions()
print(*(top for top, dists in tops.items() if any(d.lower().replace("_", "-") in seen for d in dists)))
"""


def test_the_image_runs_as_another_user_than_root_behind_the_watchdog() -> None:
    lines = (ROOT / "deploy/function.Dockerfile").read_text().splitlines()
    assert lines.index("USER 12000") < lines.index('CMD ["fwatchdog"]')
    assert any("of-watchdog" in line and line.startswith("ARG") for line in lines)
    for source in (line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line):
        assert source.startswith("${") or (ROOT / source).exists()
