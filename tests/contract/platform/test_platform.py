"""What every platform promises, run on the fake, the simulator, and the adapters against small servers.

With ``SMOE_TEST_KUBECONFIG=FILE`` on that cluster too, but for what is marked ``breaks``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import pytest
from kubernetes import client

from autoscaler.actuator.actuator import apply
from autoscaler.contract import Burst, Configuration, Decision, PlacedPlatform, Platform
from autoscaler.errors import FunctionGoneError, PlatformError, UnreachableError
from autoscaler.platforms.kubernetes import KubernetesClient, KubernetesPlatform
from autoscaler.platforms.kubernetes.client import api_client
from autoscaler.platforms.openfaas import OpenFaasPlatform
from simulation.engine.requests import draw_requests
from simulation.engine.simulated_platform import SimulatedPlatform
from simulation.engine.simulation import Simulation
from tests.cluster.namespaces import CLUSTER, Namespaces
from tests.contract.platform.server import AUTH, OpenFaas, status
from tests.doubles.fake_platform import FakePlatform
from tests.doubles.kubernetes import running
from tests.doubles.kubernetes.functions import NAMESPACE, put, spec, writes
from tests.unit.autoscaler.builders import configuration
from tests.unit.autoscaler.servers import serve
from tests.unit.simulation.engine.builders import workload

NAMES = ("m", "m-expert-0-0", "m-expert-0-1")
GPU = configuration(2, cpu_cores=0.0, gpu_share=0.3)


@dataclass
class Subject:
    """A platform with three functions at ``configuration()``, and the switches to break it."""

    platform: Platform
    break_function: Callable[[str], None]
    go_down: Callable[[], None]
    changes: Callable[[], int]
    names: tuple[str, ...] = NAMES
    """Functions of the pipeline; the simulator cannot do without segments."""
    place: Callable[[str, str], None] | None = None
    """Give a function an annotation ``smoe.placement``; None where nothing is placed."""


def fake() -> Subject:
    platform = FakePlatform(dict.fromkeys(NAMES, configuration()))
    return Subject(platform, platform.broken.add, lambda: setattr(platform, "down", True), lambda: len(platform.orders))


def openfaas(stack: ExitStack) -> Subject:
    world = OpenFaas({name: status(name) for name in NAMES} | {"x": status("x", labels={"smoe.pipeline": "other"})})
    server = stack.enter_context(serve(world.reply))
    platform = OpenFaasPlatform(server.url, "m", AUTH, timeout_s=2.0)

    def place(name: str, text: str) -> None:
        world.functions[name] = {**status(name), "annotations": {"smoe.placement": text}}

    down = partial(setattr, world, "down", True)
    return Subject(platform, world.broken.add, down, lambda: len(world.writes), place=place)


def kubernetes(stack: ExitStack) -> Subject:
    double = stack.enter_context(running())
    for name in NAMES:
        put(double, spec(name))
    put(double, spec("x", labels={"smoe.pipeline": "other"}))
    api = api_client(client.Configuration(host=double.url))
    stack.callback(api.close)
    asking = KubernetesClient(api, NAMESPACE, timeout_s=5.0, wait=lambda _: None)
    return Subject(
        KubernetesPlatform(asking, "m"),
        lambda name: double.do(lambda: double.api.broken.add(name)),
        lambda: double.set(down=True),
        lambda: len(writes(double)),
        place=partial(_annotate, asking),
    )


def cluster(stack: ExitStack, namespaces: Namespaces) -> Subject:
    asking = stack.enter_context(namespaces.one())
    for name in NAMES:
        asking.deploy(spec(name))
    asking.deploy(spec("x", labels={"smoe.pipeline": "other"}))
    before = asking.writes()
    place = partial(_annotate, asking)
    return Subject(KubernetesPlatform(asking, "m"), _never, _never, lambda: asking.writes() - before, place=place)


def _annotate(asking: KubernetesClient, name: str, text: str) -> None:
    asking.patch_deployment(name, {"metadata": {"annotations": {"smoe.placement": text}}})


def _never(*_: object) -> None:
    raise AssertionError("a cluster is not broken on purpose; mark the test with ``breaks``")


def simulated() -> Subject:
    pipeline = workload((2,), segment_configuration=configuration())
    simulation = Simulation(pipeline, draw_requests(pipeline, [0.0], seed=0), pipeline.initial(configuration()))
    platform = SimulatedPlatform(simulation)
    names = (*NAMES, "m-segment-0", "m-segment-1")
    return Subject(
        platform, platform.broken.add, lambda: setattr(platform, "down", True), lambda: platform.orders, names
    )


@pytest.fixture(params=["fake", "simulated", "openfaas", "kubernetes", *CLUSTER])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "cluster" and request.node.get_closest_marker("breaks"):
        pytest.skip("this needs an API server that fails when it is told to")
    with ExitStack() as stack:
        makers: dict[str, Callable[[], Subject]] = {
            "fake": fake,
            "simulated": simulated,
            "openfaas": lambda: openfaas(stack),
            "kubernetes": lambda: kubernetes(stack),
            "cluster": lambda: cluster(stack, request.getfixturevalue("namespaces")),
        }
        yield makers[request.param]()


def test_lists_the_pipeline_s_functions_with_their_configurations(subject: Subject) -> None:
    assert subject.platform.configurations() == dict.fromkeys(subject.names, configuration())


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(configuration(5), id="replicas"),
        pytest.param(configuration(0), id="to zero"),
        pytest.param(configuration(memory_mb=512), id="memory"),
        pytest.param(configuration(cpu_cores=2.5), id="cores"),
        pytest.param(configuration(concurrency=9), id="concurrency"),
        pytest.param(GPU, id="from CPU to GPU"),
        pytest.param(configuration(3, memory_mb=128, cpu_cores=4.0, concurrency=1), id="everything"),
    ],
)
def test_a_change_shows_in_the_next_list_and_touches_nothing_else(subject: Subject, target: Configuration) -> None:
    subject.platform.apply("m-expert-0-0", configuration(), target)
    others = dict.fromkeys(subject.names, configuration())
    assert subject.platform.configurations() == {**others, "m-expert-0-0": target}


def test_changes_go_back_and_forth(subject: Subject) -> None:
    for before, after in ((configuration(), GPU), (GPU, configuration(4)), (configuration(4), configuration())):
        subject.platform.apply("m", before, after)
        assert subject.platform.configurations()["m"] == after


@pytest.mark.parametrize("subject", ["openfaas", "kubernetes", *CLUSTER], indirect=True)
def test_a_function_that_is_placed_on_several_nodes_has_a_replica_for_each(subject: Subject) -> None:
    assert subject.place is not None and isinstance(subject.platform, PlacedPlatform)
    assert not (subject.platform.configurations() and subject.platform.floors())
    for text, floors in (("a=2,b=1", {"m-expert-0-0": 2}), ("a=3", {}), ("", {})):
        subject.place("m-expert-0-0", text)
        subject.platform.configurations()
        assert subject.platform.floors() == floors


def test_the_same_change_twice_changes_nothing_more(subject: Subject) -> None:
    target = configuration(3, memory_mb=512)
    subject.platform.apply("m", configuration(), target)
    subject.platform.apply("m", configuration(), target)
    assert subject.platform.configurations()["m"] == target


def test_a_function_that_is_not_deployed_is_gone(subject: Subject) -> None:
    for target in (configuration(2), configuration(memory_mb=512)):
        with pytest.raises(FunctionGoneError):
            subject.platform.apply("m-expert-9-9", configuration(), target)


@pytest.mark.breaks
def test_a_change_that_fails_raises_and_leaves_the_function(subject: Subject) -> None:
    subject.break_function("m")
    for target in (configuration(2), configuration(memory_mb=512)):
        with pytest.raises(PlatformError):
            subject.platform.apply("m", configuration(), target)
    assert subject.platform.configurations()["m"] == configuration()


@pytest.mark.slow
@pytest.mark.breaks
def test_a_platform_that_does_not_answer_is_unreachable(subject: Subject) -> None:
    subject.go_down()
    with pytest.raises(PlatformError):
        subject.platform.configurations()


def decision(function: str, target: Configuration, present: Configuration | None = None) -> Decision:
    return Decision(function, function, present or configuration(), target, target, "test")


@pytest.mark.breaks
def test_the_actuator_does_what_it_can_and_the_next_tick_repairs_the_rest(subject: Subject) -> None:
    subject.break_function("m-expert-0-0")
    wanted = {"m-expert-0-0": configuration(3), "m-expert-0-1": configuration(2)}
    first = apply(subject.platform, [decision(name, target) for name, target in wanted.items()])
    assert first.applied == ["m-expert-0-1"] and set(first.failures) == {"m-expert-0-0"}
    present = subject.platform.configurations()
    second = apply(subject.platform, [decision(name, target, present[name]) for name, target in wanted.items()])
    assert second.applied == [] and set(second.failures) == {"m-expert-0-0"}


def test_the_actuator_writes_nothing_when_nothing_differs(subject: Subject) -> None:
    before = subject.changes()
    result = apply(subject.platform, [decision(name, configuration()) for name in NAMES])
    assert result.applied == [] and result.failures == {} and subject.changes() == before


def test_an_unreachable_openfaas_is_named() -> None:
    platform = OpenFaasPlatform("http://127.0.0.1:9", "m", AUTH, timeout_s=0.5)
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9"):
        platform.configurations()


def test_applied_is_only_what_was_seen_to_be_so() -> None:
    """A gateway that clamps replicas, and one that answers 202 to an update and does nothing."""
    world = OpenFaas({name: status(name) for name in NAMES})
    waits: list[float] = []
    with serve(world.reply) as server:
        platform = OpenFaasPlatform(server.url, "m", AUTH)
        world.most_replicas, world.ignores_updates = 5, True
        decisions = [
            decision("m", configuration(8)),
            decision("m-expert-0-0", configuration(2)),
            decision("m-expert-0-1", replace(configuration(), memory_mb=512)),
        ]
        result = apply(platform, decisions, waits.append)
    assert result.applied == ["m-expert-0-0"]
    assert "asked for 8 replicas" in result.failures["m"] and "but it has 5 replicas" in result.failures["m"]
    assert "512 MiB" in result.failures["m-expert-0-1"]
    assert waits == [0.1, 0.4]


def test_standbys_are_brought_about_or_refused_in_words(subject: Subject) -> None:
    before = subject.platform.configurations()
    name = subject.names[1]
    target = replace(before[name], burst=Burst(2, hold_s=3.0))
    try:
        subject.platform.apply(name, before[name], target)
    except PlatformError as error:
        assert f"function {name} cannot have 2 standbys" in str(error)
        assert subject.platform.configurations() == before
    else:
        assert subject.platform.configurations() == {**before, name: target}


def test_a_gateway_that_announces_standbys_brings_them_about() -> None:
    world = OpenFaas({name: status(name) for name in NAMES})
    world.standbys = True
    with serve(world.reply) as server:
        platform = OpenFaasPlatform(server.url, "m", AUTH)
        target = replace(configuration(2, concurrency=7), burst=Burst(2))
        platform.apply(NAMES[1], configuration(), target)
        assert platform.configurations()[NAMES[1]] == target
