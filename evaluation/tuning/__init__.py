"""Searches for the configurations that static and threshold baselines are given: each is tuned before it is compared.

A search looks at a profiling window only, never at what a policy is tested on, and records every trial.
"""
