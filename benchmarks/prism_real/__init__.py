"""Prism on a real pipeline over emulated machines."""
