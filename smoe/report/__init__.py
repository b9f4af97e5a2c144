"""The closing report: figures, one HTML page and one JSON file out of the controller's log and the replay's
request file.

`build` is the door. This room must never measure or decide, and never smooth a number over: what was not measured
stays empty.
"""

from smoe.report.build import ReportError, ReportPaths, build, summary_of
from smoe.report.closing import closing, kept

__all__ = ["ReportError", "ReportPaths", "build", "closing", "kept", "summary_of"]
