"""Worker processes: the warm parent that forks them, what a child runs, their channel, standbys, and the guardian.

``launcher`` is the gateway's entry to all of it; ``parent``, ``child`` and ``guardian`` run in other processes. Those
must never import the gateway's side (its event loop, HTTP, settings), start threads before a fork, or outlive the
gateway.
"""
