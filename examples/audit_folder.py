"""Audit a folder of texts: write tables, and a page for each document to inspect.

Run `python examples/audit_folder.py` (it needs the extra `bulk`). Marked agents write four short texts.
The audit then prints a line for each text: its p-value, how much of it is attributed, and the agents. If an
agent is found but part of the text is unattributed, it also writes a page for a browser. Everything is in the
folder audit-folder/.

With texts and a registry of your own: `python examples/audit_folder.py TEXTS/ team.json OUT/`. Millions of
texts are for `iet audit TEXTS/ -r team.json -o OUT/ --workers 16`: the same tables
(docs/guides/audit_many.md).
"""

from __future__ import annotations

import pathlib
import sys

import pyarrow.dataset

import iet
from iet.bulk.files import audit_files
from iet.demo.conversation import converse, load_model


def write_texts(folder: pathlib.Path, tokens: int = 200) -> tuple[pathlib.Path, pathlib.Path]:
    """Write texts of marked agents (None: unmarked) and their registry, as an example."""
    texts, registry_path = folder / "texts", folder / "team.json"
    texts.mkdir(parents=True)
    registry = iet.Registry.create(registry_path, tokenizer="iet:demo")
    for agent in ("planner", "critic", "engineer"):
        registry.add(agent)
    writers = {
        "plan": ["planner"],
        "review": ["critic", "planner"],
        "inserted": ["engineer", None],
        "human": [None],
    }
    all_turns = [agent for agents in writers.values() for agent in agents]
    talk = converse(*load_model(), registry, [all_turns], turn_tokens=(tokens, tokens))  # all in one batch
    turns = iter(talk.spans)
    for name, agents in writers.items():
        spans = [next(turns) for _ in agents]
        text = talk.text[spans[0].start : spans[-1].end]
        (texts / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
    return texts, registry_path


def main(texts: pathlib.Path, registry_path: pathlib.Path, out: pathlib.Path) -> dict[str, list[str]]:
    auditor = iet.Auditor(iet.Registry.load(registry_path))
    print("\n".join(audit_files(auditor, [texts], out / "tables").lines()))

    # The tables: a row for each document, and one for each segment.
    tables = sorted((out / "tables").glob("documents-*.parquet"))
    documents = pyarrow.dataset.dataset(tables).to_table().sort_by("log_p").to_pylist()
    for row in documents:
        who = ", ".join(row["found"]) or "no agent"
        print(f"log p {row['log_p']:7.1f}  {row['coverage']:4.0%}  {pathlib.Path(row['file']).name}: {who}")

    # Some of many documents have a low p-value by chance: at most 1 % of these discoveries.
    discoveries = iet.evidence.benjamini_hochberg([row["log_p"] for row in documents], level=0.01)
    for row, is_discovery in zip(documents, discoveries, strict=True):
        if is_discovery and row["coverage"] < 0.9:
            file = pathlib.Path(row["file"])
            auditor.audit(file.read_bytes().decode()).to_html(out / f"{file.stem}.html")
            print(f"open {out / file.stem}.html")
    return {pathlib.Path(row["file"]).stem: row["found"] for row in documents}


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(*map(pathlib.Path, sys.argv[1:]))
    else:
        folder = pathlib.Path("audit-folder")
        if folder.exists():
            sys.exit(f"{folder} exists: remove it, or pass TEXTS/ team.json OUT/")
        main(*write_texts(folder), folder)
