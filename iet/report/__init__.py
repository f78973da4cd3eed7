"""What an audit found: the report, and how it is shown."""

from iet.report.model import REPORT_SCHEMA, Report, Segment, Span

__all__ = ["REPORT_SCHEMA", "Report", "Segment", "Span"]
