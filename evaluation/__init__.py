"""Judging policies in the simulator: a lower bound of cost, tuned deployments, and comparisons with intervals.

Never here: learning, networks, rewards, and whatever talks to a running gateway.
"""
