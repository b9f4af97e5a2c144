"""RLScale-Bench's protocol on the staffing policy: learnt against a calibrated rule, with equal budgets, on the pattern
that each was made for and on others (arXiv 2605.26418)."""
