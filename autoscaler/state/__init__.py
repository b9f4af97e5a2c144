"""From readings to observations: the paper's state features (section 4.2), all of them, with units.

Pure functions of values. Never here: network, files, clock, names of metrics (the monitor's), judgement about scale.
"""
