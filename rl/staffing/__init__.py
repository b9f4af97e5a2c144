"""The learnt staffing policy: DAGNN and pointer decide how much capacity every expert has, and when it may sleep.

An action is eight numbers of every expert (:mod:`rl.staffing.action`): for how much of its load replicas run, whether
they sleep between requests, how many standbys wait, by which rule requests activate them and for how long, and how much
of λ a plan may use. The planner of :mod:`evaluation.bound.last_window` turns them into configurations of Φ.
The actor is learnt by DDPG
(:mod:`rl.staffing.ddpg`) and starts as the tuned rule, so that what it learns is what the rule lacks.
"""
