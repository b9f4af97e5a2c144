"""Whether a guarded policy is ever worse than HPA: ``python -m benchmarks.guard``."""
