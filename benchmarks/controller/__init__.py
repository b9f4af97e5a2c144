"""The controller's time per tick, on doubles and on a cluster."""
