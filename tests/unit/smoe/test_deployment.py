"""The deployments of a pipeline and the stack file made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from functions.scheduling.settings import Targets
from functions.serving.settings import (
    FunctionSettings,
    ScheduleSettings,
    SettingsError,
    duration_s,
    schedule_settings,
)
from gateway.backends.kubernetes import objects, pod_spec
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.specs import parse_deployment
from moe.manifest import Manifest, load
from platform_words.labels import NODES_LABEL, SCALE_MIN
from platform_words.memory import CONTAINER, FORKED
from smoe.commands.options import Tenths
from smoe.commands.service import check_schedule, deploy, stack, up
from smoe.deployment import DeploymentSettings, function_deployments, memory_limit_mib, render_stack
from traces.replay import ReplaySettings

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def manifest(minilm_pipeline: Path) -> Manifest:
    return load(minilm_pipeline, verify=False)


def test_every_node_has_one_function_and_the_ingress_comes_first(manifest: Manifest) -> None:
    deployments = function_deployments(manifest)
    nodes = [deployment["envVars"]["smoe_nodes"] for deployment in deployments]
    assert nodes == ["ingress", *(node.id for node in manifest.nodes)]
    assert deployments[0]["service"] == "minilm"


def test_the_ingress_takes_by_default_all_that_a_replay_has_under_way_at_once(manifest: Manifest) -> None:
    """README's replay is of a bursty hour in two minutes: with fewer slots some of its requests were refused."""
    usual, few = (
        int(function_deployments(manifest, settings)[0]["envVars"]["max_inflight"])
        for settings in (DeploymentSettings(), DeploymentSettings(ingress_concurrency=3))
    )
    assert few == 3 and usual >= ReplaySettings("http://gateway.example").connections


def test_an_ingress_that_takes_more_requests_at_once_has_memory_for_them(manifest: Manifest) -> None:
    """MiB beyond an idle ingress's."""
    slots = (64, 128, 512)
    limits = [function_deployments(manifest, DeploymentSettings(ingress_concurrency=one))[0]["limits"] for one in slots]
    memory = [0.9 * int(one["memory"].removesuffix("Mi")) - FORKED.ingress_mb for one in limits]
    assert all(mib >= count for mib, count in zip(memory, slots, strict=True))


@pytest.mark.parametrize("command", [up, deploy, stack])
def test_ingress_concurrency_is_an_option_of_all_that_deploy(command: click.Command) -> None:
    for text in ("0", "-1", "10001", "many", "1.5"):
        refused = CliRunner().invoke(command, ["--ingress-concurrency", text])
        assert refused.exit_code == 2 and "Invalid value for '--ingress-concurrency'" in refused.output
    asked, usual = (command.make_context("up", ["minilm", *more]) for more in (["--ingress-concurrency", "300"], []))
    assert asked.params["ingress_concurrency"] == 300
    assert usual.params["ingress_concurrency"] == DeploymentSettings().ingress_concurrency


def test_grouping_fits_the_community_edition_and_loses_no_node(manifest: Manifest) -> None:
    deployments = function_deployments(manifest, DeploymentSettings(max_functions=15))
    assert len(deployments) == 15
    hosted = [node for deployment in deployments[1:] for node in deployment["envVars"]["smoe_nodes"].split(",")]
    assert sorted(hosted) == sorted(node.id for node in manifest.nodes)
    assert all(len(deployment["labels"]["smoe.nodes"]) <= 63 for deployment in deployments)


def test_a_function_of_many_nodes_counts_those_that_its_label_has_no_room_for(manifest: Manifest) -> None:
    shortened = 0
    for deployment in function_deployments(manifest, DeploymentSettings(max_functions=4))[1:]:
        label = deployment["labels"][NODES_LABEL]
        assert len(label) <= 63
        if "_and_" in label:
            shortened += 1
            first, _, more = label.removesuffix("_more").partition("_and_")
            hosted = deployment["annotations"][NODES_LABEL].split(",")
            assert hosted == deployment["envVars"]["smoe_nodes"].split(",")
            assert first == hosted[0] and int(more) + 1 == len(hosted)
    assert shortened


def test_memory_limit_is_the_smallest_space_point_that_satisfies_eq_2(manifest: Manifest) -> None:
    node = replace(manifest.experts(0)[0], parameter_bytes=10 * 2**20, bytes_in_per_token=512, bytes_out_per_token=512)
    settings = DeploymentSettings(runtime=FORKED, peak_tokens=1024, memory_share=0.5)
    # (64 + 10 + 2 · 1024 · 1024 / MiB) / 0.5 = 152 MiB: above 128, so 192.
    assert memory_limit_mib([node], settings) == 192
    assert [memory_limit_mib([node], settings, kept_mib) for kept_mib in (40, 41)] == [192, 256]


@pytest.mark.parametrize("tokens", [1, 1000, 100_000])
def test_functions_take_as_many_tokens_as_their_memory_is_sized_for(manifest: Manifest, tokens: int) -> None:
    settings = DeploymentSettings(peak_tokens=tokens)
    for deployment in function_deployments(manifest, settings):
        assert deployment["envVars"]["smoe_max_tokens"] == str(tokens)
    segment = function_deployments(manifest, settings)[1]
    node = manifest.segments[0]
    needed_mib = (node.parameter_bytes + 2 * tokens * (node.bytes_in_per_token + node.bytes_out_per_token)) / 2**20
    limit_mib = int(segment["limits"]["memory"].removesuffix("Mi"))
    assert 0 <= 0.9 * limit_mib - FORKED.segment_mb - needed_mib < 64 or limit_mib == 128


def test_tokens_at_once_and_with_them_the_memory_are_an_option_of_all_that_deploy(manifest: Manifest) -> None:
    for command in (up, deploy, stack):
        asked = command.make_context("up", ["minilm", "--peak-tokens", "40000"]).params["peak_tokens"]
        few, many = (function_deployments(manifest, DeploymentSettings(peak_tokens=one)) for one in (8192, asked))
        for one, other in zip(few, many, strict=True):
            assert int(one["limits"]["memory"][:-2]) < int(other["limits"]["memory"][:-2])


def test_keys_and_values_are_sized_in_tokens_within_bounds_unless_asked_for(manifest: Manifest) -> None:
    def kept_mib(context: int, *arguments: str) -> int:
        asked = deploy.make_context("deploy", ["x", *arguments]).params["kv_tokens"]
        decoder = replace(manifest, task="causal-lm", architecture={**manifest.architecture, "max_positions": context})
        segment = function_deployments(decoder, DeploymentSettings(kv_tokens=asked))[1]
        return int(segment["envVars"]["smoe_kv_mb"])

    token_bytes = 2 * 384 * 4
    for context, tokens in ((512, 8192), (10_000, 10_000), (131_072, 32_768)):
        assert kept_mib(context) == -(-token_bytes * tokens // 2**20)
    assert kept_mib(512, "--kv-tokens", "100000") == -(-token_bytes * 100_000 // 2**20)


def test_a_replica_that_shares_no_libraries_gets_memory_for_its_own(manifest: Manifest) -> None:
    """Working sets of replicas on a kubelet in MiB: a limit below them ends a replica before it is ready."""
    working_set = {"ingress": 254, "segment": 184, "expert": 58}
    for deployment in function_deployments(manifest, DeploymentSettings(runtime=CONTAINER)):
        kind = deployment["envVars"]["smoe_nodes"].partition("-")[0]
        assert 0.9 * int(deployment["limits"]["memory"].removesuffix("Mi")) > working_set[kind]


def test_no_limit_equals_a_request_so_that_pods_keep_their_class_of_service(manifest: Manifest) -> None:
    """Kubernetes refuses to resize a pod into or out of the class Guaranteed: the change would be a roll-out."""
    for deployment in function_deployments(manifest, DeploymentSettings(cpu_cores=0.05, ingress_cpu_cores=0.05)):
        cpu, least = (int(deployment[kind]["cpu"].removesuffix("m")) for kind in ("limits", "requests"))
        assert 0 < least < cpu == 50


def test_a_pod_of_a_pipeline_writes_to_tmp_and_the_cache_of_weights_alone(manifest: Manifest) -> None:
    """The watchdog keeps its lock in /tmp and ends where it cannot write there."""
    cluster = KubernetesSettings(
        feed_url="http://g/", feed_secret="f", caller_secret="c", pipelines_claim="p", weights_cache="/w"
    )
    for one in function_deployments(manifest):
        pod = objects.deployment(parse_deployment(one), cluster, frozenset())["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        writable = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if not mount["readOnly"]}
        assert writable == {"temp": "/tmp", "weights-cache": "/var/smoe/cache"}
        assert {"name": "temp", "emptyDir": {}} in pod["volumes"]


def test_the_committed_stack_file_is_current(manifest: Manifest) -> None:
    settings = DeploymentSettings(runtime=CONTAINER, watchdog=True)
    assert (ROOT / "stack.yml").read_text() == render_stack(manifest, settings)


def test_behind_a_watchdog_a_reply_may_take_as_long_as_the_ingress_gives_a_request(manifest: Manifest) -> None:
    """It cuts the connection ``write_timeout`` after a request's head; OpenFaaS's gateway in front waits longer."""
    values = yaml.safe_load((ROOT / "deploy" / "openfaas" / "values.yaml").read_text())
    request_s = FunctionSettings(Path(), ()).timeout_s
    for one in function_deployments(manifest, DeploymentSettings(watchdog=True)):
        seconds = seconds_of(one)
        assert request_s < seconds["write_timeout"] < duration_s("", values["gateway"]["upstreamTimeout"])
        assert seconds["exec_timeout"] == seconds["write_timeout"]
        assert seconds["healthcheck_interval"] <= 5  # a pod that is scaled away keeps its memory for as long
        assert_time_to_end(one)


def test_behind_a_watchdog_texts_are_streamed_and_instances_drained(manifest: Manifest) -> None:
    decoder = replace(manifest, task="causal-lm", architecture={**manifest.architecture, "max_positions": 512})
    deployments = function_deployments(decoder, DeploymentSettings(watchdog=True))
    ingress, *workers = map(seconds_of, deployments)
    assert ingress["write_timeout"] == ingress["exec_timeout"] >= 500
    stays = {one["healthcheck_interval"] for one in workers[: len(decoder.segments)]}
    assert min(stays) > ScheduleSettings().drain_s > workers[-1]["healthcheck_interval"]
    for one in deployments:
        assert_time_to_end(one)


def test_without_a_watchdog_none_of_its_times_are_set(manifest: Manifest) -> None:
    for one in function_deployments(manifest):
        assert seconds_of(one) == {"write_timeout": 30}


def assert_time_to_end(deployment: dict[str, Any]) -> None:
    """A call that comes at the end of of-watchdog's interval is answered before Kubernetes ends the pod."""
    seconds, grace_s = seconds_of(deployment), pod_spec.grace_s(parse_deployment(deployment))
    assert grace_s >= pod_spec.SETTLE_S + seconds["healthcheck_interval"] + seconds["write_timeout"]


def seconds_of(deployment: dict[str, Any]) -> dict[str, float]:
    """A deployment's times of the watchdog."""
    names = ("write_timeout", "exec_timeout", "healthcheck_interval")
    return {name: duration_s(name, text) for name, text in deployment["envVars"].items() if name in names}


def test_a_stack_file_for_what_is_no_address_is_refused() -> None:
    refused = CliRunner().invoke(stack, ["minilm", "--gateway", "notaurl"])
    assert refused.exit_code == 2 and "'notaurl' is no http or https address" in refused.output


def test_the_stack_file_holds_what_faas_cli_needs(manifest: Manifest) -> None:
    stack = yaml.safe_load(render_stack(manifest, gateway="http://gateway.example:8080"))
    assert stack["version"] == "1.0"
    assert stack["provider"] == {"name": "openfaas", "gateway": "http://gateway.example:8080"}
    for function in stack["functions"].values():
        assert function["image"] and set(function["limits"]) == {"memory", "cpu"}
        assert function["readonly_root_filesystem"] is True
        assert all(isinstance(value, str) for value in function["labels"].values())


def test_a_gpu_share_takes_the_place_of_cores_in_segments_and_experts(manifest: Manifest) -> None:
    ingress, *workers = function_deployments(manifest, DeploymentSettings(gpu_tenths=3))
    assert set(ingress["limits"]) == {"memory", "cpu"}
    for worker in workers:
        assert set(worker["limits"]) == {"memory", "nvidia.com/gpu"}
        assert worker["limits"]["nvidia.com/gpu"] == "3"
        assert int(worker["limits"]["memory"].removesuffix("Mi")) > 2048


def test_a_decoder_s_workers_on_a_gpu_get_no_memory_for_keys_and_values(manifest: Manifest) -> None:
    of_encoder, of_decoder = (
        function_deployments(replace(manifest, task=task), DeploymentSettings(gpu_tenths=3, kv_mib=4096))  # type: ignore[arg-type]
        for task in (manifest.task, "causal-lm")
    )
    for encoder, decoder in zip(of_encoder[1:], of_decoder[1:], strict=True):
        assert decoder["limits"] == encoder["limits"] and "smoe_kv_mb" not in decoder["envVars"]


def test_a_stack_file_with_gpu_shares_names_the_profile_because_faas_cli_drops_the_limit(manifest: Manifest) -> None:
    text = render_stack(manifest, DeploymentSettings(gpu_tenths=1))
    functions = yaml.safe_load(text)["functions"]
    profiles = {name: function["annotations"].get("com.openfaas.profile") for name, function in functions.items()}
    assert profiles.pop("minilm") is None
    assert set(profiles.values()) == {"smoe-gpu"}
    assert "# faas-cli passes limits of memory and CPU on" in text


@pytest.mark.parametrize(("text", "tenths"), [("0.1", 1), ("1", 10), ("0", 0), (".30", 3)])
def test_shares_are_given_in_tenths(text: str, tenths: int) -> None:
    assert Tenths().convert(text, None, None) == tenths


@pytest.mark.parametrize("text", ["0.15", "1.1", "-0.1", "much", "nan", "1e999999999", ""])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"not a share of a GPU in tenths"):
        Tenths().convert(text, None, None)


def test_a_decoder_s_segments_get_instances_and_its_ingress_the_schedule(manifest: Manifest) -> None:
    decoder = replace(manifest, task="causal-lm")
    settings = DeploymentSettings(instances=4, schedule="arrow", ttft_ms=900, tpot_ms=40, profiles="/p")
    ingress, *others = function_deployments(decoder, settings)
    environment = {name: value for name, value in ingress["envVars"].items() if name.startswith("smoe_")}
    wanted = {
        "smoe_schedule": "arrow",
        "smoe_ttft": "900ms",
        "smoe_tpot": "40ms",
        "smoe_prefill_instances": "2",
        "smoe_profiles": "/p",
    }
    assert wanted.items() <= environment.items()
    assert schedule_settings(environment).targets == Targets(0.9, 0.04)
    replicas = {one["envVars"]["smoe_nodes"]: one["labels"][SCALE_MIN] for one in others}
    assert {replicas[node.id] for node in decoder.nodes if node.kind == "segment"} == {"4"}
    assert {replicas[node.id] for node in decoder.nodes if node.kind == "expert"} == {"1"}


@pytest.mark.parametrize("target_ms", [0.1, 1_234_567.0, 86_400_000.0])
def test_an_ingress_reads_every_target_that_the_options_take(manifest: Manifest, target_ms: float) -> None:
    settings = DeploymentSettings(instances=2, schedule="arrow", ttft_ms=target_ms, tpot_ms=target_ms)
    ingress, *_ = function_deployments(replace(manifest, task="causal-lm"), settings)
    targets = schedule_settings(ingress["envVars"]).targets
    assert (targets.ttft_s, targets.tpot_s) == pytest.approx((target_ms / 1000, target_ms / 1000), rel=1e-12)


@pytest.mark.parametrize("option", ["--ttft-ms", "--tpot-ms"])
def test_a_target_without_an_end_is_refused(option: str) -> None:
    with pytest.raises(click.BadParameter, match="not in the range"):
        deploy.make_context("deploy", ["x", option, "inf"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--schedule", "arrow"], "an instance for each phase"),
        (["--instances", "2", "--schedule", "round-robin", "--prefill-instances", "2"], "leaves one"),
        (["--instances", "2", "--prefill-instances", "1"], "goes with --schedule"),
    ],
)
def test_instances_that_cannot_be_scheduled_are_refused(manifest: Manifest, options: list[str], why: str) -> None:
    taken = deploy.make_context("deploy", ["x", *options]).params
    with pytest.raises(click.UsageError, match=why):
        check_schedule(replace(manifest, task="causal-lm"), taken)
    with pytest.raises(click.UsageError, match="are for decoders"):
        check_schedule(manifest, {**taken, "instances": 2})


@pytest.mark.parametrize("schedule", ["colocated", "arrow"])
def test_the_ingress_of_a_decoder_gets_the_tokens_of_an_iteration(manifest: Manifest, schedule: str) -> None:
    decoder = replace(manifest, task="causal-lm")
    settings = DeploymentSettings(instances=2, schedule=schedule, chunk_tokens=64)
    ingress, *others = function_deployments(decoder, settings)
    assert schedule_settings(ingress["envVars"]).chunk_tokens == 64
    assert not any("smoe_chunk_tokens" in one["envVars"] for one in [*others, *function_deployments(manifest)])
    taken = deploy.make_context("deploy", ["x", "--chunk-tokens", "64"]).params
    check_schedule(decoder, taken)
    with pytest.raises(click.UsageError, match="--chunk-tokens are for decoders"):
        check_schedule(manifest, taken)


@pytest.mark.parametrize("tokens", ["0", "15", "1025"])
def test_an_iteration_of_too_few_or_too_many_tokens_is_refused(tokens: str) -> None:
    with pytest.raises(SettingsError, match=rf"smoe_chunk_tokens is {tokens}; it takes 16 to 1024 tokens"):
        schedule_settings({"smoe_chunk_tokens": tokens})
    with pytest.raises(click.BadParameter, match="not in the range"):
        deploy.make_context("deploy", ["x", "--chunk-tokens", tokens])


def test_a_stack_for_openfaas_names_no_key_of_callers(manifest: Manifest) -> None:
    assert "caller" not in render_stack(manifest)
