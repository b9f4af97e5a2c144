"""Stored profiles, the bundled ones, and the latency model that the simulator takes from them."""
