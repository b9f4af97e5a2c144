"""The ingress: HTTP API of the model, and the driver of a pass over segments and experts.

The only function that knows the topology. It holds no weights and computes nothing but the weighted sum of
expert outputs.
"""
