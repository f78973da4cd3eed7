"""Measure the evidence of `gumbel` with weights: tokens until an agent is found, and the null law.

    python -m benchmarks.accuracy.weighted_evidence --work DIR -o benchmarks/results/weighted_evidence.json

Reads the texts that `benchmarks.accuracy.counting` wrote into DIR, and writes more predictable ones. The
turns of an agent are joined by line breaks, cut to N tokens at a blank, and read like any text.

* found in: the first N of a grid at which a half and nine tenths of the agents are found among six.
* nats: mean of -log p of the agents at the last N, and its share of the entropy of the tokens.
* null: p-values of keys that no text was marked with, in whole texts, `--pairs` pairs of a text and a key.
* tails: p-values of keys against their share by importance sampling, in the first 200 and 1,000 tokens of
  texts. Scores are drawn under no mark and under marks of several strengths in several spans.

Weights: "none" is the evidence without weights; "novelty" needs no model; a name is a language model.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

import iet
from benchmarks.accuracy import counting, surrogate, texts
from benchmarks.recording import columns, exit_code, finish, parser
from iet.audit import score as scoring
from iet.audit.calibration import log_p_of_one
from iet.audit.encode import TokenBatch
from iet.audit.evidence import activity_log_p
from iet.decoding.activity import LEVELS, WeightedBlocks
from iet.errors import InputError
from iet.marks.families import FAMILIES
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

WRITTEN = (
    *("smollm2-apart-T0.4-12x200", "smollm2-apart-T0.6-12x200"),
    *("second-apart-T0.5-12x200", "second-apart-T0.7-12x200", "shipped-apart-T0.5-12x200"),
)
PREDICTABLE = counting.Cell("second", "apart", 0.35, 12, 200)
"""Written here, if its texts are not there."""

CELLS = (*WRITTEN, PREDICTABLE.name)
TAILS_OF = WRITTEN[0], WRITTEN[-1]
MODELS = ("shipped", "second", "smollm2")
WEIGHTS = ("none", "novelty", *MODELS)
AGENTS, LEVEL = 6, 0.01
GRID = tuple(round(32 * 1.12**step) for step in range(27))
"""Tokens of one agent, 609 at most: an agent of four says 600 in a text."""

LEVELS_OF_NULL = (0.01, 0.001, 0.0001)
NULL_KEYS = 60
TAILS = (1e-2, 1e-4, 1e-6, 1e-8)
STRENGTHS, DRAWS = (0.15, 0.3, 0.45, 0.6, 0.75), 600_000

Floats = NDArray[np.float64]


class Reader(surrogate.Reader):
    """A model that reads beginnings of a text at the cost of the text, and a text under many keys once."""

    def predict(self, token_ids: Any, keys: Any, scored: Any, **options: Any) -> Any:
        text = token_ids.tobytes(), scored.tobytes()
        if getattr(self, "_read", None) != text:
            self._read, self._prediction = text, super().predict(token_ids, keys, scored, **options)
        return self._prediction

    def _predictions(self, ids: Any, vocab_size: int) -> Any:
        longest = getattr(self, "_ids", np.zeros(0, np.int64))
        if len(ids) > len(longest) or not np.array_equal(longest[: len(ids)], ids):
            self._ids, self._all = ids.copy(), list(super()._predictions(ids, vocab_size))
        for prediction in self._all:
            rows = len(ids) - prediction.start
            if rows > 0:
                arrays = (value[:rows] for value in prediction[1:])
                yield type(prediction)(prediction.start, *arrays)


def log_p(registry: Registry, weights: str, model: Reader | None, text: str) -> Floats:
    """Return the log p-value of each key of a text, as an audit has it."""
    plan = iet.Auditor(registry, model=model).plan
    (reader,) = plan.readers
    batch = TokenBatch.of(reader.opened.encode(text), None, reader.keys, text)
    with_weights = scoring.evidence_levels
    if weights == "none":
        scoring.evidence_levels = lambda *arguments: None
    try:
        return np.asarray(scoring.score(plan, reader, batch).log_p[0])
    finally:
        scoring.evidence_levels = with_weights


def spoken(written: counting.Written, text: int, agent: int, tokenizer: Any) -> str:
    turns = written.ids[text].reshape(-1, written.turn)
    speakers = written.owners[text].reshape(-1, written.turn)[:, 0]
    said = [tokenizer.decode(turn.tolist()).strip().strip("\ufffd") for turn in turns[speakers == agent]]
    return "\n".join(said)


def of_agents(
    cell: counting.Cell, written: counting.Written, split: str, number: int, model: Any, weights: str
) -> Floats:
    """Return log p [agents, N of the grid]."""
    tokenizer, rows = counting.tokenizer_of(cell.writer), []
    for i in range(number):
        registry = counting.registry_of(tokenizer, cell, split, i)
        for agent in range(counting.AGENTS):
            text, row = spoken(written, i, agent, tokenizer), list[float]()
            starts = registry.open_tokenizer().encode(text).char_starts
            ends = [at for at, character in enumerate(text) if character.isspace()] + [len(text)]
            for count in reversed(GRID):  # so that the model reads the longest first
                limit = len(text) if count >= len(starts) else starts[count]
                part = text[: max([end for end in ends if end <= limit], default=0)]
                row.insert(0, float(log_p(registry, weights, model, part)[agent]))
            rows.append(row)
    return np.array(rows)


def null_keys(tokenizer: Any, name: str, number: int) -> Registry:
    registry = Registry.create(None, tokenizer=tokenizer, scheme=Scheme(family="gumbel"))
    for key in range(NULL_KEYS):
        secret = hashlib.blake2b(f"iet null/{name}/{number}/{key}".encode(), digest_size=32).digest()
        registry.add(f"key {key}", secret=secret)
    return registry


def null(
    cell: counting.Cell, written: counting.Written, number: int, registries: int, model: Any, weights: str
) -> dict[str, int]:
    """Return how many unused keys have p-values at or below each level."""
    tokenizer, counts = counting.tokenizer_of(cell.writer), dict.fromkeys(map(str, LEVELS_OF_NULL), 0)
    for i in range(number):
        text = "\n".join(tokenizer.decode(turn.tolist()) for turn in written.ids[i].reshape(-1, written.turn))
        for r in range(registries):
            registry = null_keys(tokenizer, f"{cell.name}/{i}", r)
            values = log_p(registry, weights, model, text)
            for level in LEVELS_OF_NULL:
                counts[str(level)] += int((values <= math.log(level)).sum())
    return {**counts, "pairs": number * registries * NULL_KEYS}


def tails(levels: Any, rng: np.random.Generator) -> dict[str, float]:
    """Return for each nominal p its share under the null law by importance sampling, over p."""
    blocks = WeightedBlocks.of(levels, np.zeros(1, np.int64), np.array([len(levels)]))
    weights, tokens = levels / LEVELS, len(levels)
    spans = [(k * tokens // parts, (k + 1) * tokens // parts) for parts in (1, 2, 4, 8) for k in range(parts)]
    marks = [(start, end, s) for start, end in spans for s in STRENGTHS]
    draws, found, ratios = DRAWS // (5 * len(marks)), list[Floats](), list[Floats]()
    offsets = {s: np.append(0, np.cumsum(np.log1p(-s * weights))) for s in STRENGTHS}
    for start, end, drawn in [(0, 0, 0.0), *marks] * 5:  # in parts, which take less memory
        scores = rng.exponential(size=(tokens, draws)).astype(np.float32)
        scores[start:end] /= (1 - drawn * weights[start:end, None]).astype(np.float32)
        activity = blocks.log_activity(blocks.sums(scores), FAMILIES["gumbel"])
        found.append(activity_log_p(activity, blocks.number, FAMILIES["gumbel"])[0])
        sums = np.cumsum(np.vstack([np.zeros(draws), scores * weights[:, None]]), axis=0)
        likelihoods = [np.zeros(draws)]
        for low, high, s in marks:
            likelihoods.append(s * (sums[high] - sums[low]) + offsets[s][high] - offsets[s][low])
        ratios.append(math.log(len(likelihoods)) - np.logaddexp.reduce(likelihoods, axis=0))
    log_ratio, values = np.concatenate(ratios), np.concatenate(found)
    return {f"{p:g}": float(np.exp(log_ratio)[values <= math.log(p)].sum() / len(values) / p) for p in TAILS}


def levels_of(registry: Registry, model: Reader | None, text: str) -> Any:
    """Return the weights of a text's tokens, 0 for tokens that are no evidence."""
    plan = iet.Auditor(registry, model=model).plan
    (reader,) = plan.readers
    batch = TokenBatch.of(reader.opened.encode(text), None, reader.keys, text)
    levels = scoring.evidence_levels(batch, reader.keys, scoring.score(plan, reader, batch).predictions)
    assert levels is not None
    return np.where(batch.scored & ~batch.repeated, levels, 0).astype(np.uint8)


def measure(
    cell: counting.Cell, written: counting.Written, options: argparse.Namespace, weights: str
) -> dict[str, Any]:
    model = None
    if weights in MODELS:
        source = "smollm2" if weights == "smollm2" else str(texts.MODELS[weights])
        model = Reader(source)
    of_text = of_agents(cell, written, options.split, options.texts, model, weights)
    found = of_text <= log_p_of_one(LEVEL, AGENTS)
    shares = found.mean(axis=0)
    row: dict[str, Any] = {
        "agents": len(found),
        "half": first(shares >= 0.5),
        "nine_tenths": first(shares >= 0.9),
        "nats": float(-of_text[:, -1].mean()),
        "found": shares.tolist(),
    }
    per_text = NULL_KEYS * min(options.texts, 4) * len(options.cells)
    registries = -(-options.pairs // per_text)
    row["null"] = null(cell, written, min(options.texts, 4), registries, model, weights)
    if weights in ("none", "novelty", "smollm2") and cell.name in TAILS_OF:
        row["tails"] = {}
        tokenizer, rng = counting.tokenizer_of(cell.writer), np.random.default_rng(1)
        text = "\n".join(tokenizer.decode(turn.tolist()) for turn in written.ids[0].reshape(-1, written.turn))
        registry = null_keys(tokenizer, cell.name, 0)
        levels = levels_of(registry, model, text)
        if weights == "none":
            levels[levels > 0] = LEVELS
        for tokens in (200, 1000):
            row["tails"][str(tokens)] = tails(levels[:tokens], rng)
    return row


def first(reached: Any) -> int | None:
    return GRID[int(np.argmax(reached))] if reached.any() else None


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    cells = {cell.name: cell for cell in (*counting.CELLS, PREDICTABLE)}
    rows = []
    for name in tqdm(options.cells, unit="cell"):
        written = counting.load(options.work, cells[name], options.split)
        if written is None and name == PREDICTABLE.name:
            writer = counting.WRITERS[PREDICTABLE.writer](PREDICTABLE.temperature)
            written = counting.write(writer, PREDICTABLE, options.split, options.texts)
            counting.save(options.work, PREDICTABLE, options.split, written)
        if written is None:
            missing = f"got no {options.split} texts of {name}; benchmarks.accuracy.counting writes them"
            raise InputError(f"{options.work}: {missing}")
        for weights in tqdm(options.weights, leave=False):
            figures = measure(cells[name], written, options, weights)
            rows.append(
                {**dataclasses.asdict(cells[name]), "entropy": written.entropy, "weights": weights, **figures}
            )
    return rows


def markdown(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> str:
    def shown(count: int | None) -> str:
        return f"> {GRID[-1]}" if count is None else str(count)

    found = [
        {
            **row,
            "half": shown(row["half"]),
            "nine_tenths": shown(row["nine_tenths"]),
            "used": row["nats"] / GRID[-1] / row["entropy"],
        }
        for row in rows
    ]
    formats = {
        "writer": "{writer}",
        "T": "{temperature:g}",
        "entropy": "{entropy:.2f}",
        "weights": "{weights}",
        "agents": "{agents}",
        "half found in": "{half}",
        "nine tenths": "{nine_tenths}",
        "nats": "{nats:.1f}",
        "of the entropy": "{used:.3f}",
    }
    parts = [columns(found, formats)]
    totals = []
    for weights in options.weights:
        nulls = [row["null"] for row in rows if row["weights"] == weights]
        pairs = sum(one["pairs"] for one in nulls)
        shares = {f"p{level}": sum(one[str(level)] for one in nulls) / pairs for level in LEVELS_OF_NULL}
        totals.append({"weights": weights, "pairs": pairs, **shares})
    null_formats = {"weights": "{weights}", "pairs": "{pairs:,}"}
    null_formats |= {f"share at {level:g}": f"{{p{level}:.5f}}" for level in LEVELS_OF_NULL}
    renamed = [{k.replace("p0.", "p0_"): v for k, v in row.items()} for row in totals]
    null_formats = {k: v.replace("{p0.", "{p0_") for k, v in null_formats.items()}
    parts += ["Null: keys that no text was marked with.", columns(renamed, null_formats)]
    tail_rows = [
        {**row, "tokens": tokens, **{f"t{i}": values[f"{p:g}"] for i, p in enumerate(TAILS)}}
        for row in rows
        for tokens, values in row.get("tails", {}).items()
    ]
    tail_formats = {
        "writer": "{writer}",
        "T": "{temperature:g}",
        "weights": "{weights}",
        "tokens": "{tokens}",
    }
    tail_formats |= {f"p = {p:g}": f"{{t{i}:.2f}}" for i, p in enumerate(TAILS)}
    parts += ["Tails: the share of unmarked scores at p, over p.", columns(tail_rows, tail_formats)]
    return "\n\n".join(parts)


def main() -> None:
    line = parser("benchmarks.accuracy.weighted_evidence", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(counting.SPLITS), default="evaluation")
    line.add_argument("--texts", type=int, default=12, help="of a cell")
    line.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS)
    line.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    line.add_argument("--pairs", type=int, default=1_000_000, help="of the null, for each kind of weights")
    options = line.parse_args()
    rows = run(options)
    content = {"texts": options.texts, "split": options.split, "rows": rows}
    finish(line, options, content, markdown(rows, options), packages=("torch", "transformers"))


if __name__ == "__main__":
    sys.exit(exit_code(main))
