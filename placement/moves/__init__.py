"""Live scaling of a running pipeline (ElasticMoE's coordinator, arXiv 2510.02613, sections 4.3 and 5).

Plans a change of replicas or placement, has the nodes' weights managers bring what is missing, then orders the change
from the gateway, whose backend does the switchover: a new replica is ready, traffic moves, the old one finishes what it
has and goes. This room must never decide that a change is wanted, and never take a replica away before another serves.
"""
