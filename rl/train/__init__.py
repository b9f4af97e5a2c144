"""Training of the learnt policy in the simulator: which windows are simulated, what is kept, when it is judged.

``settings`` states everything a run is made from, ``rounds`` simulates episodes and learns from them, ``warm_start``
clones a teacher, ``validation`` judges an actor without noise, ``run`` puts them in turn and can go on where it was,
``record`` states what made a file, ``online`` learns from a controller's own log. Never here: the test set, networks,
rewards.
"""
