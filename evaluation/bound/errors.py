"""What no bound is known for."""


class BoundError(ValueError):
    """Windows that a policy may serve for less than their bounds add up to; the message states why."""
