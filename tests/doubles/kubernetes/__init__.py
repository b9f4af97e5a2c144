"""A Kubernetes API server in memory, with the controllers and the kubelet that the gateway and the controller rely on.

It speaks HTTP on 127.0.0.1 and answers as a real API server of 1.36 did where that was recorded: resource versions, 409
on stale ones, server-side apply with field managers, watches with bookmarks and 410, subresources ``scale``, ``resize``
and ``log``, and the refusals of ``pods/resize``, quotas and nodes. What it knows of objects is only what these two
clients use; a call outside that subset is answered 404 or 400, never guessed.
"""

from tests.doubles.kubernetes.cluster import Cluster, Node
from tests.doubles.kubernetes.running import running

__all__ = ["Cluster", "Node", "running"]
