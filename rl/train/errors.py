"""What training refuses."""


class TrainingError(Exception):
    """A run cannot begin or go on; the message states what and what is allowed."""
