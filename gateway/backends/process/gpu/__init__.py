"""GPUs of one machine: devices, shares, MPS."""
