"""Documents that share a template: how many are found under keys that had no part in it.

    python -m benchmarks.accuracy.templates --data PATH --work DIR -o benchmarks/results/templates.json

For each text of a cell, 160 documents carry one template, a stretch of a public corpus of 600 tokens, each
with a stretch of its own of 100 to 300 tokens, and are audited by `iet.bulk.files.audit_files` with and
without `templates`. In twelve of them a turn of 200 tokens of the text's agents stands in its place. Under
the text's registry those should be found; under registries of strangers nothing should, but for the level.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import texts, unmarked
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import summary
from iet.audit.auditor import Auditor
from iet.audit.evidence import benjamini_hochberg
from iet.bulk.files import audit_files
from iet.bulk.summary import Summary
from iet.marks.registry import Registry

DOCUMENTS, TEMPLATE_TOKENS, OWN_TOKENS, TURN_TOKENS = 160, 600, (100, 300), 200
CELLS = (texts.Cell("shipped", 1.0, 6, "fourier"), texts.Cell("shipped", 0.7, 6, "gumbel"))
LEVEL, FDR, SHARED_BY = 0.01, 0.05, 5
WAYS = {"no": None, "yes": SHARED_BY}
"""Is the first pass made -> `templates`."""


def documents(turns: texts.Turns, passages: Iterator[str]) -> tuple[list[str], NDArray[np.bool_]]:
    """Return documents under one template, and in which of them agents wrote."""
    draw, model = random.Random(f"templates {turns.seed}"), turns.cell.model
    template = _cut(model, next(passages), TEMPLATE_TOKENS)
    own = [_cut(model, next(passages), draw.randint(*OWN_TOKENS)) for _ in range(DOCUMENTS)]
    places = sorted(draw.sample(range(DOCUMENTS), len(turns.ids)))
    for place, turn in zip(places, turns.strings(TURN_TOKENS), strict=True):
        own[place] = turn
    return [f"{template}\n\n{text}" for text in own], np.isin(np.arange(DOCUMENTS), places)


def stretches(corpus: Sequence[unmarked.Unmarked], model: str) -> Iterator[str]:
    """Yield unmarked texts that are long enough for a template, in an order that is drawn."""
    for text in random.Random(f"templates {model}").sample(corpus, len(corpus)):
        if text.kind not in ("pieces", "twice") and len(text.text) >= 6 * TEMPLATE_TOKENS:
            yield text.text


def _cut(model: str, text: str, tokens: int) -> str:
    reader = texts.tokenizer(model)
    return reader.decode(reader.encode(text).token_ids[:tokens].tolist()).strip()


def audited(registry: Registry, path: pathlib.Path, templates: int | None) -> tuple[NDArray[Any], Summary]:
    """Return log p of each document, and the summary."""
    with tempfile.TemporaryDirectory() as folder:
        told = audit_files(Auditor(registry, "cusum"), [path], folder, templates=templates)
        found = pq.read_table(pathlib.Path(folder) / "documents-000000-000000.parquet")
        return found.column("log_p").to_numpy(), told


def measure(turns: texts.Turns, passages: Iterator[str], strangers: int) -> dict[str, dict[str, float]]:
    """Return the figures of one text's documents each way."""
    written, marked = documents(turns, passages)
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "documents.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in written), encoding="utf-8")
        for name, templates in WAYS.items():
            log_p, told = audited(turns.registry(), path, templates)
            others = [audited(turns.strangers(i), path, templates)[0] for i in range(strangers)]
            hits = np.array([(each <= np.log(LEVEL)).mean() for each in others])
            reported = benjamini_hochberg(log_p, FDR)
            figures[name] = {
                "written": float((log_p[marked] <= np.log(LEVEL)).mean()),
                "beside": float((log_p[~marked] <= np.log(LEVEL)).mean()),
                "strangers": float(hits.mean()),
                "highest": float(hits.max(initial=0)),
                "reported of strangers": float(
                    np.mean([benjamini_hochberg(each, FDR).sum() for each in others])
                ),
                "false discoveries": float((reported & ~marked).sum() / max(1, reported.sum())),
                "template": told.template_share or 0.0,
            }
    return figures


def run(
    work: pathlib.Path, corpus: Sequence[unmarked.Unmarked], split: str, limit: int | None, strangers: int
) -> list[dict[str, Any]]:
    rows = []
    for cell in CELLS:
        passages = stretches(corpus, cell.model)
        found = [
            measure(turns, passages, strangers)
            for turns in tqdm(texts.load(work, cell, split)[:limit], desc=cell.name)
        ]
        for way in WAYS if found else ():
            each = {name: [row[way][name] for row in found] for name in found[0][way]}
            row: dict[str, Any] = {name: summary(values) for name, values in each.items()}
            row["highest"] = max(each["highest"])
            rows.append({"cell": dataclasses.asdict(cell), "first pass": way, "templates": len(found), **row})
    return rows


def markdown(rows: Sequence[dict[str, Any]], strangers: int) -> str:
    formats = {
        **{"model": "{model}", "family": "{family}", "T": "{temperature}", "templates": "{templates}"},
        **{"first pass": "{first pass}", "tokens no evidence": "{template[0]:.3f}"},
        "found, of those that agents wrote in": INTERVAL.format("written"),
        "found, of the others": INTERVAL.format("beside"),
        "false discoveries": INTERVAL.format("false discoveries"),
        "found by strangers": INTERVAL.replace("3f", "4f").format("strangers"),
        "highest of a registry": "{highest:.3f}",
        "discoveries of strangers": INTERVAL.replace("3f", "2f").format("reported of strangers"),
    }
    return "\n\n".join(
        [
            f"{DOCUMENTS} documents under each template, {strangers} registries of strangers; found at level"
            f" {LEVEL}, discoveries at a rate of {FDR} (means over templates, 95 % intervals).",
            columns([{**row["cell"], **row} for row in rows], formats),
        ]
    )


def main() -> None:
    line = parser("benchmarks.accuracy.templates", __doc__)
    line.add_argument("--data", type=pathlib.Path, required=True, help="folder of the public data")
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(texts.SPLITS), default="evaluation")
    line.add_argument("--texts", type=int, help="of each cell (default: all)")
    line.add_argument("--strangers", type=int, default=40, help="registries (default: 40)")
    given = line.parse_args()
    rows = run(given.work, unmarked.texts(given.data), given.split, given.texts, given.strangers)
    finish(line, given, {"rows": rows}, markdown(rows, given.strangers))


if __name__ == "__main__":
    sys.exit(exit_code(main))
