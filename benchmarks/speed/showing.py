"""The table of bulk audits for the docs."""

from __future__ import annotations

import json
import pathlib

from benchmarks.recording import columns

UNREAD = "audit, posterior, no word known"
"""An audit by a tokenizer that has read nothing before."""


def bulk(results: pathlib.Path) -> str:
    """Return what audits of many documents cost over tokenizing them, and beside engines' detectors."""
    content = json.loads((results / "bulk.json").read_text(encoding="utf-8"))
    over = {
        "what": "{what}",
        "documents a second": "{documents_per_second:,.0f}",
        "over `encode_batch`": "{over_encode_batch[median]:.2f} x",
        "over one worker": "{times_one_worker[median]:.2f} x",
        "peak MB": "{peak_mb:,.0f}",
    }
    before = (
        f"{content['documents']:,} agent logs of 1,000 tokens under {content['keys']} keys, from JSON lines"
        " to tables, beside the tokenizer's own call on the same documents:"
    )
    between = (
        f"Reading what engines mark, in µs for one of {content['detector_documents']} of these documents and"
        f" one of {content['detector_keys']} keys, from ids on; the engine's detector reads one document and"
        " one key at a time:"
    )
    beside = [
        ("detector", "{what}"),
        ("µs", "{detector_microseconds[median]:,.0f}"),
        ("scores alone", "{scores_microseconds[median]:.1f}"),
        ("so many times", "{over_scores[median]:,.0f} x"),
        ("audit (`cusum`)", "{audit_microseconds[median]:.1f}"),
        ("so many times", "{over_audit[median]:,.0f} x"),
    ]
    parts = [before, columns(content["results"], over), between, columns(content["detectors"], beside)]
    return "\n\n".join(
        [*parts, f"`{content['command']}`: [benchmarks/results/bulk.md](benchmarks/results/bulk.md)."]
    )
