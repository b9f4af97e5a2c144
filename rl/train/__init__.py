"""Training of the learnt policy in the simulator: which windows are played, what is kept, when it is judged.

``settings`` says everything a run is made from, ``rounds`` plays episodes and learns from them, ``warm_start`` clones a
teacher, ``validation`` judges an actor without noise, ``run`` puts them in turn and can go on where it was, ``record``
says what made a file, ``online`` learns from a controller's own log. Never here: the test set, networks, rewards.
"""
