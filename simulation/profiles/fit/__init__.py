"""A latency model fitted to a measured profile, its errors, and its pictures."""
