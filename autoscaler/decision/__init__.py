"""Limits on wishes: what a policy may bring about. Pure functions of values and ``now_s``."""
