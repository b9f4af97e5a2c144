"""The live terminal view: layers × experts as a heat map of load, replicas, latency against the SLO, cost, decisions.

`render` is a pure function of a `ViewState`; `live` keeps it on the screen, or prints one plain line per window
where there is no terminal. This room must never measure, decide or change anything: it shows what it is given.
"""
