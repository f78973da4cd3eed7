"""The report in the terms of W3C PROV, as PROV-JSON (https://www.w3.org/submissions/prov-json/).

Entities are the text, a collection, and its segments. Agents are the writers and the auditor. A writing
activity, associated with an agent, generated each attributed segment. A writing was informed by the previous
one if the report has that transition. Unattributed segments have no agent: PROV has no term for "perhaps", so
best guesses are omitted.
"""

from __future__ import annotations

import collections
import hashlib
from typing import TYPE_CHECKING, Any

from iet.decoding.transitions import Transition
from iet.report.segments import Segment, extent

if TYPE_CHECKING:
    from iet.report.model import Report

NAMESPACE = "urn:uuid:21076bcc-3ac3-468e-9080-8f3f0d553473#implicit-execution-tracing/prov/v1/"
"""docs/internals/signing.md says why it is not a web address."""


def document(report: Report) -> dict[str, Any]:
    """Return the PROV-JSON document as a dict. Deterministic, O(S).

    Args:
        report: on a text or on token ids; positions are then tokens.
    """
    from iet import __version__

    text: dict[str, Any] = {"prov:type": {"$": "prov:Collection", "type": "prov:QUALIFIED_NAME"}}
    if report.text is not None:
        text["iet:sha256"] = hashlib.sha256(report.text.encode()).hexdigest()
        text["iet:characters"] = len(report.text)
    wrote = sorted({s.agent for s in report.segments if s.agent is not None}, key=report.agents.index)
    names = {agent: f"iet:agent-{report.agents.index(agent)}" for agent in wrote}
    software = {"$": "prov:SoftwareAgent", "type": "prov:QUALIFIED_NAME"}
    content: dict[str, dict[str, Any]] = {
        "prefix": {"iet": NAMESPACE},
        "entity": {"iet:text": text},
        "agent": {
            "iet:auditor": {
                "prov:type": software,
                "prov:label": f"iet {__version__}",
                "iet:decoder": report.decoder,
                "iet:level": report.level,
                "iet:registryDigest": report.registry_digest,
                "iet:profiles": [profile.digest for profile in report.profiles],
            },
            **{name: {"prov:type": software, "prov:label": agent} for agent, name in names.items()},
        },
        "activity": {"iet:audit": {"prov:label": "attribution from the text alone"}},
        "used": {"_:audited": {"prov:activity": "iet:audit", "prov:entity": "iet:text"}},
        "wasAssociatedWith": {"_:auditor": {"prov:activity": "iet:audit", "prov:agent": "iet:auditor"}},
        "hadMember": {},
        "wasAttributedTo": {},
        "wasGeneratedBy": {},
        "wasInformedBy": {},
    }
    passages = collections.deque(report.transitions.observed)
    in_characters = len(report.profiles) > 1  # unit of the starts of these passages
    previous: int | None = None
    for i, segment in enumerate(report.segments):
        entity, writing = f"iet:segment-{i}", f"iet:writing-{i}"
        content["entity"][entity] = _described(report.redact_guesses(segment))
        content["hadMember"][f"_:member-{i}"] = {"prov:collection": "iet:text", "prov:entity": entity}
        if segment.agent is None:
            continue
        agent = names[segment.agent]
        content["activity"][writing] = {}
        content["wasGeneratedBy"][f"_:generated-{i}"] = {"prov:entity": entity, "prov:activity": writing}
        content["wasAssociatedWith"][f"_:writer-{i}"] = {"prov:activity": writing, "prov:agent": agent}
        content["wasAttributedTo"][f"_:attributed-{i}"] = {"prov:entity": entity, "prov:agent": agent}
        # A passage may start before its first attributed segment.
        start = extent(segment)[0] if in_characters or segment.start is None else segment.start
        passage: Transition | None = None
        while passages and passages[0].start <= start:
            passage = passages.popleft()
        if previous is not None and passage is not None and passage.target == segment.agent:
            content["wasInformedBy"][f"_:passage-{i}"] = {
                "prov:informed": writing,
                "prov:informant": f"iet:writing-{previous}",
                "iet:confidence": passage.confidence,
            }
        previous = i
    return {name: records for name, records in content.items() if records}


def _described(segment: Segment) -> dict[str, Any]:
    start, end = extent(segment)
    fields = {
        "iet:start": start,
        "iet:end": end,
        "iet:unit": "token" if segment.char_start is None else "character",
        "iet:logP": segment.log_p,
        "iet:posterior": segment.posterior,
        "iet:share": segment.share,
        "iet:published": segment.published,
        "iet:quoted": True if segment.quoted else None,
        "iet:shareLow": None if segment.share_interval is None else segment.share_interval[0],
        "iet:shareHigh": None if segment.share_interval is None else segment.share_interval[1],
        "iet:error": segment.error,
        "iet:leftOut": True if segment.left_out else None,
    }
    return {name: value for name, value in fields.items() if value is not None}
