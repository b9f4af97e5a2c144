"""Limits on wishes: what a policy may bring about. Pure functions of values and ``now_s``.

Never here: wishes of its own, network, files, clock. Each limit that is hit is told in words.
"""
