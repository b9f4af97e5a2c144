"""The simulated world: workloads, latency models, measured profiles of machines, and the engine that runs requests
through a pipeline while its configurations change.

Nothing here is learnt, and no policy or reward lives here. The controller's own state, decision and loop code runs
inside the simulator; this room must never hold a copy of it, and never report a simulated number as a measured one.
"""
