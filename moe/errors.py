"""Errors this room raises on purpose.

MoeError
├── ManifestError        a pipeline folder is damaged or not a pipeline
├── CheckpointError      a source checkpoint is missing, damaged or of a kind that is not supported
├── GroupingError        the nodes do not fit the number of functions asked for
├── ProgramInputError    tensors given to a node are not what the node takes
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


class TextError(MoeError):
    """A text cannot become tokens: it is empty or too long, or the pipeline has no tokenizer."""
