"""A segment: the non-MoE part before a layer of experts, or the head."""
