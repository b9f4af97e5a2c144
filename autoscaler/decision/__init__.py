"""Limits on what a policy desires: what it may bring about. Pure functions of values and ``now_s``.

Never here: desires of its own, network, files, clock. Each limit that is hit is reported in words.
"""
