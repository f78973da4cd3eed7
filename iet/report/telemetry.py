"""Turn a report into OpenTelemetry events: one `gen_ai.evaluation.result` for each segment.

Names with `gen_ai.` come from OpenTelemetry's semantic conventions for generative AI, which are in
development. `emit` passes the events to OpenTelemetry's API (extra `telemetry`). The attributes need no
OpenTelemetry: you can pass them to your own logger or span. Telemetry can be changed on its way; for evidence
sign the report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from iet.errors import missing
from iet.report.segments import Segment, extent
from iet.report.wording import p_value

if TYPE_CHECKING:
    from iet.report.model import Report

EVENT = "gen_ai.evaluation.result"
EVALUATION = "iet.attribution"


def events(report: Report, response_id: str | None = None) -> list[dict[str, Any]]:
    """Return the attributes of one event for each segment that was read; values are str, int or float.

    Args:
        report: on a text or on token ids.
        response_id: `gen_ai.response.id` of the response that was audited.

    Returns:
        Attributes. The score is the segment's mean posterior, if its decoder has one. The label is
        "attributed", "quoted" or "unattributed"; only an attributed segment names an agent.
    """
    about: dict[str, Any] = {
        "gen_ai.evaluation.name": EVALUATION,
        "gen_ai.response.id": response_id,
        "iet.registry_digest": report.registry_digest,
        "iet.level": report.level,
    }
    if report.text is not None:
        about["iet.text_sha256"] = hashlib.sha256(report.text.encode()).hexdigest()
    attributes = []
    for segment in report.segments:
        if segment.left_out:
            continue
        segment = report.redact_guesses(segment)
        values = {
            **about,
            "gen_ai.agent.id": segment.agent,
            "gen_ai.agent.name": segment.agent,
            "gen_ai.evaluation.score.value": segment.posterior,
            "gen_ai.evaluation.score.label": segment.called if segment.agent is None else "attributed",
            "gen_ai.evaluation.explanation": _explanation(report, segment),
            "iet.char_start": segment.char_start,
            "iet.char_end": segment.char_end,
            "iet.token_start": segment.start,
            "iet.token_end": segment.end,
            "iet.log_p": segment.log_p,
            "iet.error": segment.error,
            "iet.share": segment.share,
            "iet.published": segment.published,
            "iet.share_low": None if segment.share_interval is None else segment.share_interval[0],
            "iet.share_high": None if segment.share_interval is None else segment.share_interval[1],
        }
        attributes.append({name: value for name, value in values.items() if value is not None})
    return attributes


def emit(events: Iterable[Mapping[str, Any]], logger: Any = None) -> int:
    """Emit events as OpenTelemetry log records in the current context, and return their number.

    Args:
        events: attributes, as `events` above or `ClaimReport.events` return them.
        logger: of `opentelemetry._logs`. None: the logger of the process's provider; without a provider
            the records are dropped.

    Raises:
        BackendUnavailable: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry._logs import LogRecord, get_logger
    except ImportError as error:
        raise missing(f"events need {error.name}", "telemetry") from None
    chosen = get_logger("iet") if logger is None else logger
    records = [LogRecord(event_name=EVENT, attributes=dict(attributes)) for attributes in events]
    for record in records:
        chosen.emit(record)
    return len(records)


def _explanation(report: Report, segment: Segment) -> str:
    start, end = extent(segment)
    span = f"{'tokens' if report.text is None else 'characters'} {start} to {end}"
    error = "" if segment.error is None else f"error {segment.error:.2g}, "
    evidence = f"{error}p alone {p_value(segment.log_p)}"
    if segment.agent is None:
        guess = "" if segment.best_guess is None else f"; best guess {segment.best_guess}"
        if segment.quoted:
            return f"{span} are quoted: {segment.published:.0%} of it was published before ({evidence})"
        return f"{span} are unattributed at level {report.level:g}{guess} ({evidence})"
    return f"{segment.agent} wrote in {span} ({evidence})"
