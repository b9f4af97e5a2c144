"""CPU and memory limits and use, by cgroups."""
