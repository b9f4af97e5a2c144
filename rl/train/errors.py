"""What training refuses."""


class TrainingError(Exception):
    """A run cannot begin or go on; the message says what and what is allowed."""
