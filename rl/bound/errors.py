"""What no bound is known for."""


class BoundError(ValueError):
    """A workload whose simulation may do better than the bound's argument allows; the sentence says why."""
