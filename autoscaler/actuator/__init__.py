"""Applies decisions: plans the differences and calls the platform. How many of anything is not decided here."""
