"""Importing this loads what ingresses need once replicas are on several nodes: for the warm parent of such a gateway.

Else every ingress that runs or starts would load it while it serves, in the midst of the first move to another node.
"""

from __future__ import annotations

import logging

from functions.ingress.routes import maker

log = logging.getLogger(__name__)

try:
    maker("aebs")
except Exception as error:  # Numba is missing, or has no place for its cache; ingresses say so themselves
    log.debug("the compiled rules of dispatch are not loaded ahead: %s", error)
