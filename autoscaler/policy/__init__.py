"""Policies: pure functions from observations to desired configurations. What a policy remembers is handed in and
returned.

Never here: network, files, clock, and limits of the installation (those are the decision's).
"""
