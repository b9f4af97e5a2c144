"""The simulator: requests through a pipeline of functions, at the speed of arithmetic, while configurations change.

A pass visits segments and layers in order, so nodes are simulated stage by stage and exactly, with no global event list
(``kernel``). ``Simulation`` holds the state between windows, ``SimulatedPlatform`` and ``SimulatedMetrics`` are the
controller's two contracts on it, ``simulate_policy`` runs the real loop on a simulated clock. The rules are in
``docs/simulator.md``. Never here: copies of state or decision code, policies, rewards, prices.
"""
