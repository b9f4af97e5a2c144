"""Offline learning of the scaling policy: profiles, simulator, environment, agent.

Nothing is in this room yet; it is filled by the simulator and learnt-policy work. Only entry points may join it with
``autoscaler``.
"""
