"""What Kubernetes' network policies let through, from their documentation (kubernetes.io, Network Policies), and a
cluster as ``deploy/`` and the gateway make it, with the edges that its flags, variables and scrape jobs need."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.specs import parse_deployment
from moe.manifest import load
from smoe.deployment import DeploymentSettings, function_deployments

DEPLOY = Path(__file__).parents[3] / "deploy"
HOME, FUNCTIONS, FURTHER = "openfaas", "openfaas-fn", "team-a"
NAMESPACES: dict[str, dict[str, str]] = {
    **{name: {} for name in (HOME, FUNCTIONS, FURTHER, "kube-system", "strangers")},
    "monitoring": {"smoe.prometheus": "reads"},
}
API_PORTS = (443, 6443, 16443)
"""A managed API server's; that of kubeadm, kind and k3s; that of MicroK8s."""
KUBELET = 10250

Object = dict[str, Any]


class End(NamedTuple):
    """A pod, or an address outside (``namespace`` empty): API server, node, the world."""

    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    ports: dict[str, int] = {}
    calls: tuple[str, ...] = ()
    """Addresses that its flags and variables name."""
    address: str = "203.0.113.9"


class Edge(NamedTuple):
    source: End
    target: End
    port: int
    protocol: str = "TCP"

    def __str__(self) -> str:
        return f"{self.source.name} → {self.target.name}:{self.port}/{self.protocol}"


API, NODE, WORLD = End("API server"), End("node", address="10.0.0.7"), End("world", address="198.51.100.1")


# which edges policies let through


def selected(selector: Object, labels: dict[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for one in selector.get("matchExpressions", ()):
        value, operator = labels.get(one["key"]), one["operator"]
        assert operator in ("Exists", "DoesNotExist", "In", "NotIn"), operator
        if operator in ("Exists", "In") and value is None:
            return False
        if operator == "DoesNotExist" and value is not None:
            return False
        if operator in ("In", "NotIn") and (value in one["values"]) != (operator == "In"):
            return False
    return True


def _peer(peer: Object, end: End, own: str) -> bool:
    if "ipBlock" in peer:  # those of pods are not known beforehand, so no policy here is to rest on them
        block, address = peer["ipBlock"], ipaddress.ip_address(end.address)
        outside = any(address in ipaddress.ip_network(one) for one in block.get("except", ()))
        return not end.namespace and address in ipaddress.ip_network(block["cidr"]) and not outside
    if not end.namespace:
        return False
    if "namespaceSelector" in peer:
        there = {**NAMESPACES[end.namespace], "kubernetes.io/metadata.name": end.namespace}
        if not selected(peer["namespaceSelector"], there):
            return False
    elif end.namespace != own:
        return False
    return selected(peer.get("podSelector", {}), end.labels)


def _through(policies: list[Object], direction: str, end: End, other: End, port: int, protocol: str) -> bool:
    chosen = [
        one
        for one in policies
        if one["metadata"]["namespace"] == end.namespace
        and direction in one["spec"]["policyTypes"]
        and selected(one["spec"]["podSelector"], end.labels)
    ]
    key, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    return not chosen or any(
        (not rule.get("ports") or any((one["port"], one["protocol"]) == (port, protocol) for one in rule["ports"]))
        and (not rule.get(peers) or any(_peer(peer, other, end.namespace) for peer in rule[peers]))
        for one in chosen
        for rule in one["spec"].get(key, ())
    )


def allowed(policies: list[Object], edge: Edge) -> bool:
    """Whether both sides let the edge through."""
    source, target, port, protocol = edge
    return _through(policies, "Egress", source, target, port, protocol) and _through(
        policies, "Ingress", target, source, port, protocol
    )


# the cluster


def shipped() -> list[Object]:
    """All objects of the kustomization, of a further namespace and of NATS."""
    files = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    files += ["function-namespace.yaml", "components/nats/nats.yaml"]
    return [one for file in files for one in yaml.safe_load_all((DEPLOY / file).read_text())]


def of_kind(found: list[Object], *kinds: str) -> list[Object]:
    return [one for one in found if one["kind"] in kinds]


def _end(workload: Object) -> End:
    meta, template = workload["metadata"], workload["spec"]["template"]
    containers = template["spec"]["containers"]
    said = [text for one in containers for text in one.get("args", ())]
    said += [variable.get("value") or "" for one in containers for variable in one.get("env", ())]
    if meta["name"] == "gateway":
        said += re.findall(r"value: (--\S+)", (DEPLOY / "components/nats/kustomization.yaml").read_text())
    return End(
        meta["name"],
        meta["namespace"],
        template["metadata"]["labels"],
        {port["name"]: port["containerPort"] for one in containers for port in one.get("ports", ())},
        tuple(address for text in said for address in re.findall(r"\w+://([\w.-]+:\d+)", text)),
    )


def functions_of(folder: Path, namespace: str) -> tuple[list[End], list[Object]]:
    """Pods of a pipeline, its ingress first, and one that is no pipeline's; and their Services."""
    args = _gateway_flags()
    settings = KubernetesSettings(
        namespace=namespace, feed_url=args["--feed-url"], feed_secret="smoe-feed", caller_secret="smoe-caller"
    )
    deployments = function_deployments(load(folder, verify=False), DeploymentSettings())
    deployments.append({"service": "command", "image": "a/b", "envProcess": "cat"})
    specs = [parse_deployment(one) for one in deployments]
    ends = [_end(objects.deployment(one, settings, frozenset())) for one in specs]
    return ends, [objects.service(one, None, settings) for one in specs]


def _gateway_flags() -> dict[str, str]:
    (gateway,) = (one for one in of_kind(shipped(), "Deployment") if one["metadata"]["name"] == "gateway")
    args = gateway["spec"]["template"]["spec"]["containers"][0]["args"]
    return dict(one.split("=", 1) for one in args if "=" in one)


class World:
    """Everything that there is, by name; functions of the further namespace as ``NAME@team-a``."""

    def __init__(self, folder: Path) -> None:
        found = shipped()
        self.policies = of_kind(found, "NetworkPolicy")
        self.programs = [_end(one) for one in of_kind(found, "Deployment", "StatefulSet")]
        self.services = of_kind(found, "Service")
        self.functions: dict[str, list[End]] = {}
        for namespace in (FUNCTIONS, FURTHER):
            self.functions[namespace], services = functions_of(folder, namespace)
            self.services += services
        self.others = [
            End("dns", "kube-system", {"k8s-app": "kube-dns"}),
            End("grafana", "monitoring", {"app": "grafana"}),
            End("stranger", "strangers", {"app": "gateway", "faas_function": "x", "smoe.pipeline": "tiny"}),
            End("neighbour", HOME, {"app": "something"}),
        ]
        everything = [*self.programs, *self.functions[FUNCTIONS], *self.others, API, NODE, WORLD]
        self.by_name = {end.name: end for end in everything}
        self.by_name |= {f"{end.name}@{FURTHER}": end for end in self.functions[FURTHER]}

    @property
    def pods(self) -> list[End]:
        return [*self.programs, *self.functions[FUNCTIONS], *self.functions[FURTHER]]

    def behind(self, address: str) -> Iterator[tuple[End, int]]:
        """Pods and their ports behind the Service at ``NAME.NAMESPACE:PORT``."""
        host, _, port = address.partition(":")
        name, namespace = host.split(".")[:2]
        (service,) = (one for one in self.services if key_of(one) == (name, namespace))
        (target,) = (one["targetPort"] for one in service["spec"]["ports"] if one["port"] == int(port))
        for pod in self.pods:
            if pod.namespace == namespace and service["spec"]["selector"].items() <= pod.labels.items():
                yield pod, pod.ports[target]

    def needed(self) -> list[Edge]:
        """What flags, variables, scrape jobs, pipelines and rights need."""
        edges = [Edge(pod, *there) for pod in self.pods for address in pod.calls for there in self.behind(address)]
        edges += [Edge(pod, self.by_name["dns"], 53, protocol) for pod in self.pods for protocol in ("UDP", "TCP")]
        edges += self._scraped()
        for functions in self.functions.values():
            edges += [Edge(self.by_name["gateway"], one, one.ports["http"]) for one in functions]
            *pipeline, command = functions
            assert "smoe.pipeline" not in command.labels
            workers = [one for one in pipeline if one.labels["smoe.nodes"] != "ingress"]
            relays = [one for one in workers if one.labels["smoe.nodes"].startswith("segment")]
            edges += [Edge(pipeline[0], one, one.ports["http"]) for one in workers]
            edges += [Edge(one, other, other.ports["http"]) for one in relays for other in workers]
        edges += [Edge(WORLD, *there) for there in self.behind(f"gateway.{HOME}:8080")]
        edges += [Edge(self.by_name["grafana"], *there) for there in self.behind(f"prometheus.{HOME}:9090")]
        asking = [self.by_name[name] for name in ("gateway", "smoe-controller", "prometheus")]
        edges += [Edge(one, API, port) for one in asking for port in API_PORTS]
        return [*edges, Edge(self.by_name["gateway"], WORLD, 8443)]

    def _scraped(self) -> Iterator[Edge]:
        """By ``prometheus.yml``: pods by what relabelling keeps, and nodes."""
        prometheus = self.by_name["prometheus"]
        for job in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]:
            (discovery,) = job["kubernetes_sd_configs"]
            if discovery["role"] == "node":
                yield Edge(prometheus, NODE, KUBELET)
                continue
            namespaces = {*discovery["namespaces"]["names"]}
            namespaces |= {FURTHER} if FUNCTIONS in namespaces else set()  # as the file says of further ones
            for pod in self.pods:
                for name, port in pod.ports.items():
                    if pod.namespace in namespaces and _kept(job["relabel_configs"], pod, name):
                        yield Edge(prometheus, pod, port)


def _kept(rules: list[Object], pod: End, port: str) -> bool:
    meta = {f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', key)}": one for key, one in pod.labels.items()}
    meta["__meta_kubernetes_pod_container_port_name"] = port
    keeps = (rule for rule in rules if rule.get("action") == "keep")
    return all(re.fullmatch(rule["regex"], meta.get(rule["source_labels"][0], "")) for rule in keeps)


def key_of(one: Object) -> tuple[str, str]:
    return one["metadata"]["name"], one["metadata"]["namespace"]
