"""Live scaling without downtime."""
