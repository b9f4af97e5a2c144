"""How close and how fast the lower bound is."""
