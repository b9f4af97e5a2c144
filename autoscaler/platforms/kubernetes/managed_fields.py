"""``managedFields``, which nobody here reads, taken out of the JSON of an API server before it is parsed.

They are half of an object's bytes and two thirds of the time to parse it: many small objects, one in another.
"""

from __future__ import annotations

_BEGIN = b',"managedFields":['
_END = b']},"spec":'
"""They are the last of ``metadata``, which ``spec`` follows, in the order in which an API server writes its structs."""


def without_managed_fields(text: bytes) -> bytes:
    """JSON of objects without their managed fields; as it was where they stand in another order than the API server's.

    Quotes within strings are escaped, so ``_BEGIN`` can only be a key, and the bracket of ``_END`` only one that ends
    an array. There are no arrays in the fields themselves, so with no bracket between the two it ends theirs; one that
    stands in a name there leaves the text as it was.
    """
    parts, end = [], 0
    while (begin := text.find(_BEGIN, end)) >= 0:
        parts.append(text[end:begin])
        first = begin + len(_BEGIN)
        end = text.find(b"]", first)
        if end < 0 or not text.startswith(_END, end) or text.find(b"[", first, end) >= 0:
            return text
        end += 1
    return b"".join((*parts, text[end:])) if parts else text
