"""What can be wrong with an evaluation that is asked for."""


class EvaluationError(ValueError):
    """A setting, a trace or a calibration that nothing can be measured with; the message states why."""
