"""What an audit found: the report, and how it is shown."""

from iet.report.model import LEFT_OUT, REPORT_SCHEMA, Report, Segment, Span, Trace

__all__ = ["LEFT_OUT", "REPORT_SCHEMA", "Report", "Segment", "Span", "Trace"]
