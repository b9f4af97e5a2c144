"""The closed loop: policies on a live pipeline, turn by turn."""
