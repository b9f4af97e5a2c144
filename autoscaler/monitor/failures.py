"""Why a metrics source did not answer, in few words."""

from __future__ import annotations

import requests

from autoscaler.errors import without_password

MOST = 160


def in_few_words(error: Exception) -> str:
    """The kind of error and the begin of its text, without a password that an address in it holds. The kind alone
    where the text is of retries and objects, or of what a password with a / is taken for."""
    kind = type(error).__name__
    if isinstance(error, (requests.ConnectionError, requests.exceptions.InvalidURL)):
        return kind
    return f"{kind}: {without_password(str(error))[:MOST]}"
