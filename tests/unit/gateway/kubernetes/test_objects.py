"""Functions as Kubernetes objects: what OpenFaaS's users expect, GPU shares, and the way back."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.api import Object
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import FunctionSpec, InvalidSpecError
from tests.doubles.kubernetes.fixtures import environment
from tests.doubles.kubernetes.functions import spec
from tests.parameters import examples

SETTINGS = KubernetesSettings()


def deployment(
    function: FunctionSpec, settings: KubernetesSettings = SETTINGS, pull: frozenset[str] = frozenset()
) -> Any:
    return objects.deployment(function, settings, pull)


def container(document: Object) -> Any:
    return document["spec"]["template"]["spec"]["containers"][0]


def test_names_labels_probes_and_mounts_are_those_of_openfaas() -> None:
    made = deployment(spec("figlet", labels={"team": "a"}, secrets=("key",), read_only_root_filesystem=True))
    template = made["spec"]["template"]
    assert made["metadata"]["name"] == container(made)["name"] == "figlet"
    assert made["spec"]["selector"] == {"matchLabels": {"faas_function": "figlet"}}
    assert template["metadata"]["labels"] == {"team": "a", "faas_function": "figlet"}
    assert template["metadata"]["annotations"]["prometheus.io.scrape"] == "false"
    assert container(made)["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container(made)[probe]["httpGet"] == {"path": "/_/health", "port": "http"}
    mounts = {mount["mountPath"] for mount in container(made)["volumeMounts"]}
    assert {"/var/openfaas/secrets", "/tmp"} <= mounts
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "replicas" not in made["spec"]


def test_a_function_that_answers_late_for_half_a_minute_is_not_restarted() -> None:
    """At 0.05 of a core the answer to a probe waits behind calls: OpenFaaS's 1 s, three times, ended busy functions."""
    made = container(deployment(spec("f")))
    alive, ready = made["livenessProbe"], made["readinessProbe"]
    assert alive["timeoutSeconds"] >= 5 and alive["periodSeconds"] * (alive["failureThreshold"] - 1) >= 30
    assert ready["timeoutSeconds"] >= 5 and ready["periodSeconds"] == 2
    patient = container(deployment(spec("f", annotations={"com.openfaas.health.http.timeoutSeconds": "9s"})))
    assert patient["livenessProbe"]["timeoutSeconds"] == 9


def test_the_service_points_at_the_functions_pods_and_goes_with_the_deployment() -> None:
    made = objects.service(spec("f"), {"metadata": {"uid": "u"}}, SETTINGS)
    assert made["spec"]["selector"] == {"faas_function": "f"} and made["spec"]["type"] == "ClusterIP"
    assert made["spec"]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP", "targetPort": "http"}]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_a_share_of_a_gpu_is_so_many_tenths_and_two_variables_of_mps() -> None:
    made = deployment(
        spec("f", limits={"memory": "1Gi", "nvidia.com/gpu": "3"}, requests={}), KubernetesSettings(gpu_memory_mb=81920)
    )
    assert container(made)["resources"]["limits"]["nvidia.com/gpu"] == "3"
    assert environment(made)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert environment(made)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=24576M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environment(deployment(spec("f")))


def test_annotations_of_openfaas_set_the_probes() -> None:
    annotations = {"com.openfaas.ready.http.path": "/_/ready", "com.openfaas.ready.http.failureThreshold": "30"}
    probe = container(deployment(spec("f", annotations=annotations)))["readinessProbe"]
    assert (probe["httpGet"]["path"], probe["failureThreshold"], probe["periodSeconds"]) == ("/_/ready", 30, 2)


def test_a_function_of_the_contract_starts_when_its_weights_are_there() -> None:
    probe = container(deployment(spec("f")))["startupProbe"]
    assert probe["httpGet"] == {"path": "/_/ready", "port": "http"}
    assert "startupProbe" not in container(deployment(spec("f", annotations={})))


def test_secrets_for_pulling_images_are_not_mounted() -> None:
    pod = deployment(spec("f", secrets=("key", "registry")), pull=frozenset({"registry"}))["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["volumes"][0]["projected"]["sources"] == [{"secret": {"name": "key"}}]


def test_constraints_choose_nodes() -> None:
    made = deployment(spec("f", constraints=("gpu=h200", "zone == a")))
    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h200", "zone": "a"}


def test_a_function_that_reads_live_settings_has_them_in_a_file_and_not_in_its_environment() -> None:
    informed, other = deployment(spec("f")), deployment(spec("f", annotations={}))
    assert "max_inflight" not in environment(informed)
    assert environment(informed)["smoe_live_settings"] == "/etc/smoe/live/settings.json"
    assert informed["spec"]["template"]["metadata"]["annotations"]["smoe.settings"] == '{"max_inflight":4}'
    assert environment(other)["max_inflight"] == "4" and "smoe_live_settings" not in environment(other)


def test_feed_and_pipelines_are_mounted_where_a_cluster_offers_them() -> None:
    settings = KubernetesSettings(
        feed_url="http://gateway/system/replicas", feed_secret="feed", pipelines_claim="models"
    )
    made = deployment(spec("f", env_vars={"smoe_pipeline": "m", "smoe_nodes": "ingress"}), settings)
    assert environment(made)["smoe_feed_token_file"] == "/var/openfaas/feed/feed-token"
    assert environment(made)["smoe_pipelines_dir"] == "/var/smoe/pipelines"
    names = {volume["name"] for volume in made["spec"]["template"]["spec"]["volumes"]}
    assert {"replica-feed", "pipelines"} <= names


@pytest.mark.parametrize("env_vars", [{"smoe_pipeline": "m", "smoe_nodes": "expert-0-0"}, {"smoe_nodes": "ingress"}])
def test_who_is_no_ingress_does_not_get_the_feed_that_holds_all_namespaces_keys(env_vars: dict[str, str]) -> None:
    settings = KubernetesSettings(feed_url="http://g/", feed_secret="feed")
    made = deployment(spec("f", env_vars=env_vars), settings)
    assert not [name for name in environment(made) if name.startswith("smoe_feed")]
    assert "feed" not in str(made["spec"]["template"]["spec"].get("volumes", ""))


def test_functions_of_this_package_alone_are_given_the_feed_and_the_key_of_callers() -> None:
    settings = KubernetesSettings(feed_url="http://g/", feed_secret="feed", caller_secret="callers")
    made = deployment(spec("f", env_vars={"smoe_pipeline": "m", "smoe_nodes": "ingress"}), settings)
    pod = made["spec"]["template"]["spec"]
    assert environment(made)["smoe_caller_key_file"] == "/var/openfaas/caller/caller-key"
    assert {"name": "caller-key", "secret": {"secretName": "callers"}} in pod["volumes"]
    other = deployment(spec("f", env_vars={}), settings)
    assert not [name for name in environment(other) if name.startswith(("smoe_feed", "smoe_caller"))]
    assert not {"replica-feed", "caller-key"} & {one["name"] for one in other["spec"]["template"]["spec"]["volumes"]}
    kept = deployment(spec("f", env_vars={"smoe_pipeline": "m", "smoe_caller_key_file": "/etc/other"}), settings)
    assert environment(kept)["smoe_caller_key_file"] == "/var/openfaas/caller/caller-key"


def test_a_pod_has_time_to_answer_what_it_has_begun() -> None:
    pod = deployment(spec("f", env_vars={"write_timeout": "2m"}))["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 128
    assert pod["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 3}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limits": {"nvidia.com/gpu": "11"}}, "a GPU is shared in 10 tenths"),
        ({"limits": {"nvidia.com/gpu": "0.5"}}, "a whole number of tenths"),
        ({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}, "requests.cpu is 2, above its limit of 1"),
        ({"constraints": ("node",)}, "takes the form key=value"),
        ({"env_vars": {"port": "1"}}, r"envVars\.port is set by this gateway"),
        ({"annotations": {"com.openfaas.health.http.periodSeconds": "soon"}}, "no duration"),
        ({"env_vars": {"write_timeout": "long"}}, "envVars.write_timeout"),
        ({"env_vars": {"healthcheck_interval": "long"}}, "envVars.healthcheck_interval"),
    ],
)
def test_what_no_cluster_could_run_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpecError, match=sentence):
        objects.check(spec("f", **changes))


def test_a_name_that_no_service_may_have_is_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidSpecError, match="7b begins with a digit"):
        objects.check(spec("7b"))


def test_names_of_volumes_are_such_as_kubernetes_takes_however_long_a_function_s_is() -> None:
    for length in range(1, 64):
        pod = deployment(spec("f" * length, secrets=("key",)))["spec"]["template"]["spec"]
        for volume in pod["volumes"]:
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", volume["name"]), volume["name"]


texts = st.dictionaries(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), st.text(max_size=8), max_size=3)
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.sampled_from(["1", "2", "500m", "1Gi"])
)


@settings(max_examples=examples(50), deadline=None)
@given(texts, texts, texts, amounts, st.integers(0, 99), st.lists(st.sampled_from(["a", "b"]), unique=True))
def test_a_function_is_read_back_as_it_was_deployed(
    labels: Any, annotations: Any, env: Any, limits: Any, inflight: int, secrets: list[str]
) -> None:
    function = spec(
        "f",
        labels=labels,
        annotations=annotations,
        env_vars={**env, "max_inflight": str(inflight)},
        limits=limits,
        secrets=tuple(secrets),
    )
    assert objects.spec_of(deployment(function)) == function


def test_deployments_of_others_are_no_functions_of_this_gateway() -> None:
    assert objects.spec_of({"metadata": {"name": "x", "annotations": {"smoe.function": "{"}}}) is None
    assert objects.spec_of({"metadata": {"name": "x"}}) is None


@pytest.mark.parametrize(
    ("changes", "possible"),
    [
        pytest.param({"limits": {"memory": "512Mi", "cpu": "2"}}, True, id="more"),
        pytest.param({"env_vars": {"max_inflight": "9", "smoe_pipeline": "m"}}, True, id="concurrency"),
        pytest.param({"labels": {"x": "y"}}, True, id="labels"),
        pytest.param({"env_vars": {"smoe_pipeline": "other"}}, False, id="environment"),
        pytest.param({"image": "smoe/function:2"}, False, id="image"),
        pytest.param({"limits": {"memory": "256Mi"}}, False, id="a limit goes"),
        pytest.param({"limits": {"memory": "256Mi", "nvidia.com/gpu": "1"}}, False, id="to a GPU"),
        pytest.param({"limits": {"memory": "256Mi", "cpu": "50m"}}, False, id="other class of service"),
    ],
)
def test_what_a_live_pod_can_become(changes: dict[str, Any], possible: bool) -> None:
    assert objects.only_live_differs(spec("f"), spec("f", **changes)) is possible


def test_concurrency_restarts_a_function_that_reads_only_its_environment() -> None:
    before = spec("f", annotations={})
    assert not objects.only_live_differs(before, replace(before, env_vars={**before.env_vars, "max_inflight": "9"}))


def test_a_functions_pod_has_no_account_s_token_and_gains_no_rights() -> None:
    made = deployment(spec("f", read_only_root_filesystem=True))
    pod = made["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    security = container(made)["securityContext"]
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_a_function_has_its_image_s_user_unless_the_gateway_was_given_one() -> None:
    assert "runAsUser" not in container(deployment(spec("f")))["securityContext"]
    security = container(deployment(spec("f"), KubernetesSettings(run_as_user=12000)))["securityContext"]
    assert (security["runAsUser"], security["runAsNonRoot"]) == (12000, True)
