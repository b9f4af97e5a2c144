"""Applies decisions: plans the differences, calls the platform, and looks whether they came about.

Never here: how many of anything.
"""
