"""Errors of calls between functions.

CallError                 a call that did not end in an answer; ``status`` is what the client of the pipeline gets
├── BadInputError         400: the input breaks a rule, which the message names
├── TooLargeError         413: more tokens than the memory of a function is sized for
├── OverloadedError       429: more work than slots and queue hold
├── NoReplicaError        503: no ready replica until the deadline
│   └── NotDeployedError  503: a function of the pipeline is not there; another ingress would say the same
├── DeadlineError         504: the time of the request is spent
├── NotServedError        501: this deployment cannot do what is asked for
├── NodeFailedError       502: the platform failed more often than the call may be repeated
└── NodeRefusedError      as the node: a node answered with a 4xx, which is never repeated
KvError                   a replica that keeps keys and values cannot go on; seen by the generation loop alone
├── KvLostError           it is gone, or they are: the texts are computed again
└── KvFullError           it has too few free pages
"""

from __future__ import annotations


class CallError(Exception):
    """Base. ``code`` is the word in the JSON error, ``platform`` whether the platform and not the request failed."""

    status = 500
    code = "internal"
    platform = True


class BadInputError(CallError):
    status = 400
    code = "bad_input"
    platform = False


class TooLargeError(CallError):
    status = 413
    code = "too_many_tokens"
    platform = False


class OverloadedError(CallError):
    status = 429
    code = "overloaded"


class NoReplicaError(CallError):
    status = 503
    code = "no_replica"


class NotDeployedError(NoReplicaError):
    code = "not_deployed"
    platform = False


class DeadlineError(CallError):
    status = 504
    code = "deadline_exceeded"


class NotServedError(CallError):
    status = 501
    code = "not_served"
    platform = False


class NodeFailedError(CallError):
    status = 502
    code = "node_failed"


class NodeRefusedError(CallError):
    code = "node_refused"
    platform = False

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class KvError(Exception):
    """Base."""


class KvLostError(KvError):
    """The replica or what it kept is gone."""


class KvFullError(KvError):
    """Too few pages are free."""
