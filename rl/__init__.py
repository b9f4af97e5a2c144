"""Offline learning of the scaling policy: profiles, latency models, simulator, environment, agent.

``latency`` states how long a call takes, ``routing`` where tokens go, ``workload`` joins both with a pipeline and its
SLO, ``sim`` simulates requests through it. Everything random takes a seed. This room must never hold a copy of the
controller's state or decision code (it runs the real one), and never pass simulated numbers off as measured ones.
"""
