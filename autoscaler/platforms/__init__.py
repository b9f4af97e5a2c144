"""Platforms: the only code that changes functions, and its stand-in for tests.

Never here: which change to make, and metrics.
"""
