"""Model families as plain functions of tensors: what a segment and an expert of each family compute.

Every family turns a node's tensors into a callable over packed batches: texts are concatenated along the
token axis, linear layers see all tokens at once, attention sees each text alone. Nothing here knows of files,
manifests on disk, HTTP, or how a checkpoint names its tensors.
"""
