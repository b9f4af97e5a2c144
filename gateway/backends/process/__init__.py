"""The process backend: replicas are processes forked from a warm parent, on one machine.

It starts, limits, counts, drains and ends replicas and knows nothing of what they compute: images are entries of a
table given as a setting. It must never import ``functions``, ``moe`` or torch, and nothing it starts may outlive it.
The warm parent lives in this package too, so importing the package loads nothing of the gateway's side.
"""
