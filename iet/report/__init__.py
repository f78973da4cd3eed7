"""The result of an audit, and its forms."""

from iet.report.model import REPORT_SCHEMA, Report
from iet.report.segments import LEFT_OUT, Segment, SessionFinding, Sessions, Span, Trace

__all__ = ["LEFT_OUT", "REPORT_SCHEMA", "Report", "Segment", "SessionFinding", "Sessions", "Span", "Trace"]
