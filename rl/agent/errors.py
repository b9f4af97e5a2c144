"""What networks and their files refuse: one error with a sentence."""


class NetworkError(Exception):
    """A network cannot be built, loaded, or used on this pipeline; the message states what is allowed."""
