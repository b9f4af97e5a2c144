"""Scaling policies on a running decoder."""
