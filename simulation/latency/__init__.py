"""How long one call of a node takes, how calls at once share a replica, and how much it scatters.

``contract`` is what everyone speaks (a fitted profile, the roofline), ``roofline`` is the documented extrapolation from
published peaks and bandwidths, ``devices`` holds those numbers with their sources. Never here: queues, replicas, time.
"""
