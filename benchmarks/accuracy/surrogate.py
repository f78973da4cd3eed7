"""Measure what a language model adds to the reading of family `gumbel`, whatever its tokenizer.

    python -m benchmarks.accuracy.surrogate --work DIR -o benchmarks/results/surrogate.json

Reads the texts that `benchmarks.accuracy.counting` wrote into DIR, joined by line breaks and without their
prompts. Readers are no model, the shipped model, the second one of the benchmarks, and SmolLM2-135M-Instruct;
each has a tokenizer of its own.

* nats: mean log-likelihood ratio of a token for its agent. Without a model the best of λ·x + log(1 - λ).
* TokenAcc: in forced choice; coverage: the share of tokens that are attributed at level 0.01.
* tokens/s: of the writer's tokens, by the model and an audit, on one core.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import iet
from benchmarks.accuracy import counting, texts
from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.statistics import summary
from iet.audit.language_model import LanguageModel
from iet.audit.metrics import token_accuracy
from iet.cli.demo import true_labels
from iet.errors import InputError
from iet.marks.registry import Registry

WRITTEN = (
    "smollm2-apart-T0.6-12x200",
    "smollm2-apart-T0.4-12x200",
    "second-apart-T0.5-12x200",
    "second-log-T0.7-12x60",
    "shipped-apart-T0.5-12x200",
)
READERS = ("none", "shipped", "second", "smollm2")
STRENGTHS = np.linspace(0.01, 0.95, 95)


class Reader(LanguageModel):
    """A model that keeps its predictions of the last text, which three readings need."""

    def _predictions(self, ids: Any, vocab_size: int) -> Any:
        text = (ids.tobytes(), vocab_size)
        if getattr(self, "_text", None) != text:
            self._text, self._of_text = text, list(super()._predictions(ids, vocab_size))
        return iter(self._of_text)


def reader(name: str) -> Reader | None:
    sources = {**{name: str(folder) for name, folder in texts.MODELS.items()}, "smollm2": "smollm2"}
    return None if name == "none" else Reader(sources[name])


def measure(
    cell: counting.Cell, written: counting.Written, split: str, model: LanguageModel | None, number: int
) -> dict[str, Any]:
    """Return the figures of a reader on the first `number` texts."""
    tokenizer, rows = counting.tokenizer_of(cell.writer), list[dict[str, float]]()
    for i in tqdm(range(min(number, len(written.ids))), leave=False):
        registry = counting.registry_of(tokenizer, cell, split, i)
        turns = written.ids[i].reshape(cell.turns, -1)
        speakers = written.owners[i].reshape(cell.turns, -1)[:, 0]
        words = [tokenizer.decode(turn.tolist()).strip().strip("\ufffd") for turn in turns]
        talk = texts.joined(words, [texts.agent_name(a) for a in speakers], "\n")
        rows.append(_figures(talk, registry, model))
    return {name: summary([row[name] for row in rows]) for name in rows[0]}


def _figures(talk: Any, registry: Registry, model: LanguageModel | None) -> dict[str, float]:
    encoding = registry.open_tokenizer().encode(talk.text)
    ids, truth, keys = encoding.token_ids, true_labels(talk, registry), registry.scoring_keys()
    scores, (scored, _) = iet.score_tokens(ids, keys), iet.positions(ids, keys)
    written = np.flatnonzero((truth >= 0) & scored)
    own = scores[written, truth[written]].astype(np.float64)
    start = time.perf_counter()
    nats = max(float((s * own + np.log1p(-s)).mean()) for s in STRENGTHS)
    if model is not None:
        spelled = (talk.text, encoding.char_starts)
        ratios = model.predict(ids, keys, scored, spelled=spelled).log_ratios(keys, scores)
        nats = float(ratios[written, truth[written]].mean())
    free = iet.Auditor(registry, model=model).audit(talk.text)
    seconds = time.perf_counter() - start
    forced = iet.Auditor(registry, model=model, allow_unattributed=False).audit(talk.text)
    return {
        "nats": nats,
        "token_accuracy": token_accuracy(truth, np.asarray(forced.token_agents)),
        "coverage": float(free.coverage),
        "tokens_per_second": len(ids) / seconds,
    }


def run(work: pathlib.Path, split: str, number: int, readers: Sequence[str]) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    cells = {cell.name: cell for cell in counting.CELLS}
    models, rows = {name: reader(name) for name in readers}, []
    for name in tqdm(WRITTEN, unit="cell"):
        written = counting.load(work, cells[name], split)
        if written is None:
            raise InputError(
                f"{work}: got no {split} texts of {name}; benchmarks.accuracy.counting writes them"
            )
        none = None
        for of_reader, model in models.items():
            figures = measure(cells[name], written, split, model, number)
            none = none or figures["nats"][0]
            row = {**dataclasses.asdict(cells[name]), "entropy": written.entropy, "reader": of_reader}
            rows.append({**row, **figures, "over_none": figures["nats"][0] / none})
    return rows


def markdown(rows: Sequence[dict[str, Any]], number: int) -> str:
    formats = {
        "writer": "{writer}",
        "prompts hold": "{prompts}",
        "T": "{temperature:g}",
        "entropy": "{entropy:.2f}",
        "turns": "{turns} x {tokens}",
        "read with": "{reader}",
        "nats a token": "{nats[0]:.4f}",
        "over no model": "{over_none:.2f}",
        "TokenAcc": "{token_accuracy[0]:.3f} ({token_accuracy[1]:.3f}, {token_accuracy[2]:.3f})",
        "coverage": "{coverage[0]:.3f}",
        "tokens/s": "{tokens_per_second[0]:,.0f}",
    }
    return f"{number} texts a row\n\n{columns(rows, formats)}"


def main() -> None:
    line = parser("benchmarks.accuracy.surrogate", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(counting.SPLITS), default="evaluation")
    line.add_argument("--texts", type=int, default=12, help="of a cell")
    line.add_argument("--readers", nargs="+", choices=READERS, default=READERS)
    options = line.parse_args()
    rows = run(options.work, options.split, options.texts, options.readers)
    content = {"texts": options.texts, "rows": rows}
    finish(line, options, content, markdown(rows, options.texts), packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
