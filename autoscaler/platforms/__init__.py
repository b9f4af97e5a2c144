"""Platforms: the only code that changes functions.

Never here: which change to make, and metrics.
"""
