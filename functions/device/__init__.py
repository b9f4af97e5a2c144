"""Weights on a device: CUDA calls, lent regions, leases."""
