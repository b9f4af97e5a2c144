"""What several rooms' tests share: the default pipeline, split once for a whole test run, and a real cluster."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

if TYPE_CHECKING:
    from tests.cluster.namespaces import Namespaces

settings.register_profile("untimed", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=15)
settings.load_profile("untimed")  # a busy machine is no failure
# In every worker Hypothesis would parse the whole tree, to draw one of its thousands of constants now and then:
# too seldom, among so few examples, for one that matters to come up.
pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: providers._local_constants)
sys.dont_write_bytecode = False  # otherwise every worker and every process of a test compiles the tree again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as `make` does: there is a worker for every core
MOST_WORKERS = 4
ALL_SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)
FIRST = (
    "integration/test_end_to_end.py",
    "unit/evaluation/bound/test_bounds.py",
    "unit/evaluation/bound/test_measured_machine.py",
    "integration/test_live_scaling.py",
    "unit/simulation/engine/test_machines.py",
    "unit/placement/test_capped.py",
    "cluster/test_on_a_named_cluster.py",
    "unit/simulation/profiles/test_command.py",
    "integration/test_wheel.py",
    "notebooks/test_notebooks.py",
    "notebooks/test_results_for_figures.py",
)
"""Files that take longest, so that no worker ends with one of them, and files that make numba compile what others need
too: next to one that waits for processes, so that two workers do not compile the same at the same time."""
ROOMS = (
    ("unit/moe/", "unit/functions/", "unit/rl/agent/test_dagnn.py"),
    ("unit/rl/",),
    ("unit/gateway/",),
    ("unit/evaluation/",),
    ("unit/simulation/",),
    ("unit/autoscaler/",),
    ("unit/smoe/",),
    ("unit/placement/",),
    ("unit/deploy/",),
    ("unit/traces/",),
    ("notebooks/",),
    ("docs/",),
    ("contract/", "cluster/", "integration/"),
)
"""Beginnings of paths whose tests share a worker where slow ones are left out, as they import the same packages (the
first: transformers and torch-geometric) and use the same fixtures; the longest first."""


def pytest_configure(config: pytest.Config) -> None:
    """Fewer examples of each property where slow tests are left out; Schemathesis, which takes a second to import, only
    where they are not."""
    if "not slow" in config.option.markexpr:
        settings.load_profile("quick")
    else:
        config.pluginmanager.import_plugin("schemathesis.pytest.plugin")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure is named when it happens: the summary of a run that takes long, or is stopped, is not there yet."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        words = crash.message if crash is not None else report.longreprtext
        print(f"\n{report.when} failed: {report.nodeid} ({words.splitlines()[0][:200] if words else ''})", flush=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose tests are all slow are not imported where slow tests are left out: what they need (OpenAI's client,
    Schemathesis, which makes its requests when it is imported) takes seconds in every worker."""
    if "not slow" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return True if ALL_SLOW.search(collection_path.read_text()) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported lives as long as the worker: the garbage collector, which would look through a million objects
    again and again, starts after it and leaves it out."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Cores for a run of everything, and one more with the slow tests, many of which wait for what they started; none
    beside this process where files are named, as starting one takes longer."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    return min(len(os.sched_getaffinity(0)) + ("not slow" not in config.option.markexpr), MOST_WORKERS)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """A worker takes a room of ``ROOMS`` at a time where slow tests are left out, otherwise a file."""
    if "not slow" not in config.option.markexpr or config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByRoom(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return str(_room(nodeid.removeprefix("tests/")))

    return ByRoom(config, log)


@cache
def _room(path: str) -> int:
    """Place in ``ROOMS`` of a path below this folder (of a file of one not listed: the last)."""
    fitting = {len(start): place for place, room in enumerate(ROOMS) for start in room if path.startswith(start)}
    return fitting[max(fitting)] if fitting else len(ROOMS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with ``FIRST``, or with the first of ``ROOMS``; ``--dist loadfile --no-loadscope-reorder`` keeps this
    order."""
    here = Path(__file__).parent
    if "not slow" in config.option.markexpr:
        items.sort(key=lambda item: _room(item.path.relative_to(here).as_posix()))
        return
    rank = {here / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(FIRST)))


class _Hurried:
    """``asyncio`` as uvicorn's server sees it: it looks every 0.1 s whether it is to end, and closing takes another
    0.1 s, which together are ten times as long as most tests with a server."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@pytest.fixture(scope="session", autouse=True)
def _servers_begin_and_end_at_once() -> Iterator[None]:
    """Gateways and doubles in this process; whoever needs uvicorn has imported it by now. Loggers are set up once for
    all servers, as it takes longer than the rest of a start."""
    if "uvicorn" not in sys.modules:
        yield
        return
    import uvicorn.server

    uvicorn.Config(None, access_log=False, log_level="warning")  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvicorn.Config, "configure_logging", lambda config: None)
        patched.setattr(uvicorn.server, "asyncio", _Hurried())
        yield


@pytest.fixture(scope="session")
def minilm_pipeline(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Folder of the default pipeline, real weights and adapter."""
    from smoe.pipelines import ensure_pipeline

    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with FileLock(shared / "minilm.lock"):
        folder, _ = ensure_pipeline("minilm", shared / "pipelines")
    return folder


@pytest.fixture(scope="session")
def namespaces() -> Iterator[Namespaces]:
    """Of the cluster that ``SMOE_TEST_KUBECONFIG`` names."""
    from tests.cluster.namespaces import KUBECONFIG, namespaces_of

    with namespaces_of(Path(KUBECONFIG)) as found:
        yield found
