"""Text generation on several instances, event by event: chunked prefill, batched decode, transfer of keys and values.

All times are modelled (:class:`simulation.generation.hardware.Hardware`), none is measured.
"""
