"""Kubernetes manifests of a pipeline for `kubectl apply -f`: the objects that the gateway's Kubernetes backend writes.

For clusters where nothing of this project runs yet, or where manifests live in a repository: a gateway that comes later
knows these functions as its own, and the controller scales them either way.
"""

from __future__ import annotations

from typing import Any

import yaml

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import DEFAULT_NAMESPACE
from gateway.specs import parse_deployment, scale_bounds
from moe.manifest import Manifest
from smoe.deployment import DeploymentSettings, function_deployments


def render_manifests(
    manifest: Manifest,
    settings: DeploymentSettings,
    cluster: KubernetesSettings,
    namespace: str = DEFAULT_NAMESPACE,
) -> str:
    """One Deployment and one Service a function, ingress first, as a YAML stream. ``namespace`` is what gateways call
    the one of ``cluster``: an ingress takes from their feed what is in it. Raises GroupingError and
    ``gateway.contract.InvalidSpecError``."""
    documents = []
    for deployment in function_deployments(manifest, settings):
        spec = parse_deployment({**deployment, "namespace": namespace})
        objects.check(spec)
        made = objects.deployment(spec, cluster, frozenset())
        made["spec"]["replicas"] = scale_bounds(spec)[0]
        documents += [made, objects.service(spec, None, cluster)]
    head = (
        f"# Pipeline {manifest.name}: {len(documents) // 2} functions. "
        "Rendered by `smoe pipeline stack --target kubernetes`; do not edit by hand.\n"
        "# Deploy: kubectl apply --server-side -f FILE\n"
    )
    return head + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """Without anchors: the same labels in several places are written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
