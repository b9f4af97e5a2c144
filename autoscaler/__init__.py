"""The controller: reads metrics, decides each function's configuration, applies it.

``state``, ``policy`` and ``decision`` compute only (no network, files, clock, environment); ``monitor`` reads,
``actuator`` and ``platform`` change. It never imports serving code, entry points or learning code.
"""
