"""The simulator's speed, and its answers next to an oracle's."""
