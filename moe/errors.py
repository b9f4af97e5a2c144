"""Errors this room raises on purpose.

MoeError
├── ManifestError        a pipeline folder is damaged or not a pipeline
├── CheckpointError      a source checkpoint is missing, damaged or of a kind that is not supported
├── GroupingError        the nodes do not fit the number of functions asked for
├── ProgramInputError    tensors given to a node are not what the node takes
├── CacheMissError       a call goes on with a text whose keys and values are not here
├── CacheFullError       a text's keys and values do not fit into the pages that are free
└── TextError            a text cannot become tokens (empty, too long, no tokenizer)

Every message is a sentence that names what, where, and what is allowed.
"""

from __future__ import annotations


class MoeError(Exception):
    """Base of all errors of this room."""


class ManifestError(MoeError):
    """A pipeline folder is damaged, or is not a pipeline folder at all."""


class CheckpointError(MoeError):
    """A source checkpoint is missing, damaged, or uses something that is not supported."""


class GroupingError(MoeError):
    """The pipeline's nodes do not fit the number of functions asked for."""


class ProgramInputError(MoeError):
    """Tensors given to a node have a wrong name, shape, dtype or value."""


class CacheMissError(MoeError):
    """Keys and values that a call goes on from are not here: the text has to be computed from its beginning."""


class CacheFullError(MoeError):
    """Too few pages are free for the keys and values of a call's texts."""


class TextError(MoeError):
    """A text cannot become tokens: it is empty or too long, or the pipeline has no tokenizer."""
