"""Request traces: read the public ones, pick hours by pattern, scale them, and replay them against a function.

One type, :class:`traces.model.Trace`, carries arrivals between the readers (`formats`), the pickers (`clips`,
`traffic`), scaling (`scale`) and the open-loop client (`replay`). Everything random takes a seed.

This room must never pass synthetic arrivals off as measured ones (those are called *synthetic* in their
source), never guess at a damaged file (a :class:`traces.errors.TraceError` names file, line and rule), and never
import another room.
"""
