"""The table of bulk audits for the docs."""

from __future__ import annotations

import json
import pathlib

from benchmarks.recording import columns

UNREAD = "audit, posterior, no word known"
"""An audit by a tokenizer that has read nothing before."""


def bulk(results: pathlib.Path) -> str:
    """Return what audits of many documents cost over tokenizing them."""
    content = json.loads((results / "bulk.json").read_text(encoding="utf-8"))
    over = {
        "what": "{what}",
        "documents a second": "{documents_per_second:,.0f}",
        "over `encode_batch`": "{over_encode_batch[median]:.2f} x",
        "over one worker": "{times_one_worker[median]:.2f} x",
        "peak MB": "{peak_mb:,.0f}",
    }
    caption = (
        f"{content['documents']:,} agent logs of 1,000 tokens under {content['keys']} keys, from JSON lines"
        " to tables, over the tokenizer's own call on the same documents:"
    )
    link = "[benchmarks/results/bulk.md](benchmarks/results/bulk.md)"
    return "\n\n".join([caption, columns(content["results"], over), f"Measured: {link}."])
