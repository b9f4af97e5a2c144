"""What the compiled simulation of one machine works on: the rules, requests on their way, and meters."""

from __future__ import annotations

from typing import NamedTuple

from simulation.arrays import Calls, Floats, Ints, Keys, Marks, Tokens
from simulation.engine.replicas import Rows

START, SEND, RECEIVE, ANSWER, TOKEN = range(5)
"""Places of ``ingress_s [5]``: CPU seconds of the ingress before a request's first call, for sending a call, for taking
its reply, for the answer, and for each token sent or received."""
FIRST, WAITING, COME, INSIDE = range(4)
"""Places in ``line_state [4]``: the item being done, items in the queue, next request to come, requests that the
ingress has and has not answered."""
HEAD_OF, TAIL_OF, SIZE_OF = range(3)
"""Columns of ``queues [nodes, 3]``: who has waited longest, who came last, how many wait."""


class Rules(NamedTuple):
    """What stays as it is: cores of the machine, the ingress's CPU seconds, stages, requests, and resource tables.

    ``start_cores``: what a replica that starts wants. ``slow [requests]``: how many times their seconds a request's
    calls take. ``front_s``: CPU seconds of what lies before the ingress for a request on its way there, and as many on
    its way back; 0: it needs no core. ``overlap [1 up]``: how many times as many CPU seconds calls and the ingress's
    work take while it has at most one request, two, three and so on; the last also for more. ``idle [2, points]``:
    seconds since the last answer, and how many times as many CPU seconds a request takes that comes then.
    ``stages [stages, 2]``: first node of a stage and the one after its last; ``counts [rows, requests]``:
    tokens by ``source[node]``; ``reached [requests]``: when a request comes to the ingress; ``tick_s``: how often the
    kernel looks at limits.
    """

    cores: float
    start_cores: float
    ingress_s: Floats
    front_s: float
    overlap: Floats
    idle: Floats
    keys: Keys
    stages: Ints
    reached: Floats
    counts: Tokens
    slow: Floats
    source: Ints
    rows: Rows
    tick_s: float


class Passes(NamedTuple):
    """Requests on their way. ``behind [nodes, requests]``: who waits behind whom.

    By request: ``stage``, ``out`` (calls without reply), ``scattered`` (when its stage began), ``left`` (when it was
    answered), ``cold`` (how many times its CPU seconds it takes for coming after a pause); ``asked [nodes, requests]``:
    when the ingress began to send a call; ``answered [1]``: when it last answered. ``line``: a ring of what the ingress
    has to do, first come first served, ``line_left[0]`` CPU seconds left of the first. An item is ``2 · (request ·
    (nodes + 1) + node) + reply``; with ``node = nodes`` it is the request's beginning (0) or its answer (1). ``front``,
    ``front_state`` and ``front_left`` are the same of what lies before the ingress; an item is ``2 · request + back``.
    """

    stage: Ints
    out: Ints
    scattered: Floats
    left: Floats
    cold: Floats
    asked: Floats
    answered: Floats
    queues: Ints
    behind: Calls
    line: Ints
    line_state: Ints
    line_left: Floats
    front: Ints
    front_state: Ints
    front_left: Floats


class Meters(NamedTuple):
    """What one window is counted in; ``touched [nodes]``: until when waiting was counted."""

    meter: Floats
    histogram: Ints
    barrier: Ints
    cells: Marks
    bounds: Floats
    touched: Floats
