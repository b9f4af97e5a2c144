"""Evaluation: policies side by side on the same arrivals with the same routing, in the simulator.

Runs the controller's own loop, limits and cost meters; everything in a result is simulated and marked so. It must never
choose a policy's settings from test clips, and never call a policy's cost optimal: the bound stands next to it.
"""
