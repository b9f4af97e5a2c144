"""Prism's placement, simulated."""
