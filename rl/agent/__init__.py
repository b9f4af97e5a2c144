"""The learnt policy: DAGNN, layer-wise pointer network, SISO scores over Φ, learnt by DDPG (sMoE paper, section 4).

``contract`` states what the parts hand each other. Networks need torch alone; only ``ddpg`` and what trains need
stable-baselines3 and Gymnasium, so that a controller runs a policy without them. Never here: features of a window
(:mod:`rl.features`), rewards (:mod:`rl.reward`), the simulator.
"""
