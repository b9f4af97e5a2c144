"""OpenFaaS's REST API on one machine (or, by another backend, in any cluster): front door and control API.

The core speaks HTTP and forwards calls; a backend starts, stops, limits and counts replicas. Neither has any idea of
experts, layers or policies, and this room imports no other.
"""

__version__ = "0.2.0"
