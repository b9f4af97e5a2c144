"""The model room: checkpoints become pipelines, and pipelines compute.

Holds model families as functions of tensors, dense-to-MoE conversion, the split into one weights file per
node, the manifest that describes a pipeline, and the whole model in one process as the reference. It must
never speak HTTP, know of replicas, functions' addresses or scaling, or import another room. Transformers is an
oracle: tests compare with it and `smoe pipeline distil` measures against it; nothing that serves imports it.
"""
