"""DDPG on stable-baselines3 for pipelines of any size (sMoE paper, section 4.4, Eq. (13) and (14)).

The library keeps what it does well: target networks, optimisers, learning rates, loggers, the checkpoint format.
Ours are the parts that a window of a pipeline asks for: networks over a graph instead of a vector, a buffer of whole
windows, returns to a window's end, exploration on Φ, and a loader that never unpickles.

Never here: features, rewards, the simulator, the choice of clips (:mod:`rl.train`).
"""
