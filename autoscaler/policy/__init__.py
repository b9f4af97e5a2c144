"""Policies: pure functions from observations to wishes. What a policy remembers is handed in and returned."""
