"""Placement: which replica of which expert sits on which node.

Two systems and their peers. *Janus* (:mod:`~placement.janus`): like nodes, replicas by popularity, placed so
that experts activated by the same tokens lie apart. *Prism* (:mod:`~placement.prism`): heterogeneous nodes with
their own requests, as many of them as possible served by local replicas; migration when it pays. Pure: arrays in,
arrays out. Nothing here may read files, clocks or the network, move a weight or change a replica.
"""
