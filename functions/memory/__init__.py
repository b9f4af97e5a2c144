"""The memory of a node: weights that outlive workers, owned by a manager (ElasticMoE's HMM, arXiv 2510.02613, 4.4).

A *region* is one weights file of a pipeline, whole and read-only in the node's memory folder (tmpfs). Workers map it
and own nothing; the manager fills it from a peer node's memory or, once, from disk. Paper → here: ``disk-copy`` and
``p2p-copy`` are :mod:`functions.memory.sources`, ``zero-copy`` is mapping the region's file, or its one copy on a GPU
(:mod:`functions.memory.device_regions`, :mod:`functions.memory.lending`), the plan of a move is
:mod:`functions.memory.move_plan`. ``vpage-remap`` has no counterpart: every expert is a function with a mapping of its
own. This room must never decide where replicas go, and never write into a region that is whole.
"""
