"""Settings of the Kubernetes backend, with units in the names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gateway.contract import DEFAULT_NAMESPACE


@dataclass(frozen=True)
class KubernetesSettings:
    """Settings of the Kubernetes backend; everything has a default."""

    namespace: str = DEFAULT_NAMESPACE
    """Where the functions are in the cluster; it exists already. OpenFaaS's clients know it as openfaas-fn."""
    all_namespaces: bool = False
    """Functions may also be in every other namespace that is annotated ``openfaas=1``; needs the right to list them."""
    kubeconfig: Path | None = None
    """Without it: the pod's service account, or, outside a cluster, what ``kubectl`` would use."""
    function_port: int = 8080
    """Port that functions listen on; OpenFaaS's images take 8080."""
    image_pull_policy: str = "Always"
    """When nodes pull images. The default is OpenFaaS's; ``IfNotPresent`` starts faster."""
    run_as_user: int | None = None
    """User id of every function. NVIDIA's MPS wants one and the same for all that share a GPU."""
    gpu_memory_mb: int | None = None
    """MiB of a GPU; a function with n of 10 tenths may pin n/10 of it. None sets no memory limit."""
    feed_url: str | None = None
    """Address of this gateway's ``/system/replicas`` as functions see it."""
    feed_secret: str | None = None
    """Secret in the functions' namespace with the key ``feed-token``; needed where ``feed_url`` is given."""
    caller_secret: str | None = None
    """Secret of each functions' namespace, made where it is missing, with the key that functions of this package take
    calls with. None: they take anybody's."""
    pipelines_claim: str | None = None
    """Persistent volume claim with the folder of pipelines, mounted read-only where ``smoe_pipeline`` is set."""
    weights_cache: str | None = None
    """Folder of every node that keeps weights fetched from object stores, mounted where ``smoe_pipeline`` is set."""
    lost_s: int = 30
    """Replicas of a node that Kubernetes takes for lost are replaced after so many seconds; its own default is 300."""
    standby_cpu: str = "10m"
    """CPU request of a standby, where its function requests more. Health probes have to be answered with it."""
    standby_held_s: float = 5.0
    """A standby that was released keeps its request for as long, to answer the calls that it still has."""
    standby_others_s: float = 60.0
    """One that was not activated by this gateway keeps a larger request for as long."""
    gpu_host_ipc: bool = False
    """Whether functions with a GPU share the node's IPC namespace, as GKE's MPS wants."""
    request_timeout_s: float = 10.0
    tries: int = 4
    """Tries of a call that the API server did not answer, or answered 409, 429 or 5xx."""
    first_wait_s: float = 0.2
    """Wait before the second try; it doubles each time."""
    watch_s: float = 30.0
    """How long one watch is asked to last: a connection that died in silence is noticed ``request_timeout_s`` later."""
    page_objects: int = 500
    resync_s: float = 30.0
    """Live limits and settings are compared again at least this often."""
    usage_interval_s: float = 15.0
    """Period of ``metrics.k8s.io``."""

    def shaping(self) -> str:
        """A digest of what shapes the templates of functions besides their own specs."""
        names = (
            *("function_port", "image_pull_policy", "run_as_user", "gpu_memory_mb", "feed_url", "feed_secret"),
            *("caller_secret", "pipelines_claim", "weights_cache", "gpu_host_ipc", "lost_s"),
        )
        text = repr([(name, getattr(self, name)) for name in names])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
