"""Names and amounts of resources: CPU, memory, GPUs, MPS, and Kubernetes' quantities."""

from __future__ import annotations

import re
from fractions import Fraction

RESIZED = ("cpu", "memory")
"""Resources that a running pod can be given more or less of."""
GPU = "nvidia.com/gpu"
GPU_TENTHS = 10
"""Devices that one GPU is divided into (MPS): a share of 0.3 is ``nvidia.com/gpu: 3``."""
GPU_RESOURCES = (GPU, "amd.com/gpu", "intel.com/gpu")
RESOURCES = ("memory", "cpu", *GPU_RESOURCES)
MPS_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MPS_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"

_QUANTITY = re.compile(
    r"([+-]?)(\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:([eE][+-]?\d{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?",
    re.ASCII,
)
_BINARY = {name: 1024**power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


class QuantityError(ValueError):
    """Not a Kubernetes quantity."""


def parse_quantity(text: str) -> Fraction:
    """The exact value of a Kubernetes quantity (``128Mi``, ``500m``, ``1.5``, ``2e3``), so ``0.1`` is a tenth.

    Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/. Raises QuantityError.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise QuantityError(f"{text[:40]!r} is not a Kubernetes quantity such as 128Mi, 1Gi, 500m, 1.5 or 2e3")
    sign, digits, exponent, suffix = match.groups()
    value = Fraction(digits if not digits.endswith(".") else digits + "0")
    if exponent:
        value *= Fraction(10) ** int(exponent[1:])
    elif suffix in _BINARY:
        value *= _BINARY[suffix]
    elif suffix:
        value *= Fraction(10) ** _DECIMAL[suffix]
    return -value if sign == "-" else value


def same_quantity(first: str, second: str) -> bool:
    """Whether both are the same amount (``1`` and ``1000m`` are). Raises QuantityError."""
    return first == second or parse_quantity(first) == parse_quantity(second)
