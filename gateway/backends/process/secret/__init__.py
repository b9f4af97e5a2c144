"""Secrets as files that only a function's workers read."""
