"""GPUs of one machine: found by NVML, booked in tenths (seats), shared among replicas through MPS.

It must never load CUDA in the gateway's process or change a device's mode, and a daemon that it started ends with the
gateway. Without a GPU everything here is empty and harmless.
"""
