"""The least cost that any policy could have had: a valid lower bound per window, and a feasible oracle next to it.

Computes only. It must never call the oracle optimal, and never take a bound of one meter, mode or SLO for another's:
``docs/bound.md`` has the argument for validity.
"""
