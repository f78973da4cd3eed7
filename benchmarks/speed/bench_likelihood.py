"""Time reading with a language model, beside the model alone and beside embedding every row of its logits.

    python -m benchmarks.speed.bench_likelihood -o benchmarks/results/likelihood.json

One thread; the shipped model writes the text and reads it. What a key costs more is mostly the score of the
likeliest tokens at every place; the other way to the same ratios is one `embed_` of each row of logits for
each key and a sum over the vocabulary, which is timed for four keys, with the logits already there.
"""

from __future__ import annotations

import os
from typing import Any

if __name__ == "__main__":  # before anything starts threads
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np
import torch
from numpy.typing import NDArray

import iet
from benchmarks.recording import columns, command, environment, parser, write
from benchmarks.speed.texts import AGENTS, marked_text, team
from iet.audit.language_model import LanguageModel
from iet.cli import bench
from iet.errors import IetError
from iet.marks.keys import KeyTable
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer

KEYS = (4, 16, 64, 256)
TOLERANCE = 1e-4


def logits_of(reader: LanguageModel, ids: NDArray[np.int64], vocab_size: int) -> NDArray[np.float32]:
    """The model's logits [T - 1, V], in the windows of the reader."""
    pieces = reader.logits(ids, vocab_size)
    return np.concatenate([piece.float().numpy() for _, piece in pieces])


def embedded(logits: NDArray[np.float32], ids: NDArray[np.int64], keys: KeyTable) -> NDArray[np.float64]:
    """log Z [T - 1, K] by embedding every row, for n = 2 and temperature 1."""
    ratios = np.empty((len(logits), len(keys)))
    plain = _log_sums(logits.copy())
    for key in range(len(keys)):
        marked = logits.copy()
        iet.embed_(marked, ids[:-1, None], np.full(len(marked), key), keys)
        ratios[:, key] = _log_sums(marked) - plain
    return ratios


def _log_sums(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    highest = logits.max(axis=1, keepdims=True)
    logits -= highest
    np.exp(logits, out=logits)
    return np.asarray(np.log(logits.sum(axis=1)) + highest[:, 0])


def validate(model: Any, ids: NDArray[np.int64], keys: KeyTable) -> None:
    """Compare ratios of a text that repeats nothing, so that the model alone predicts it, with embedding.

    Raises:
        IetError: they differ.
    """
    _, first = np.unique(ids, return_index=True)
    ids = ids[np.sort(first)][:400]
    vocab_size = keys.profile.vocab_size
    reader = LanguageModel(model, temperature=1.0, top=vocab_size)
    scores, (scored, _) = iet.score_tokens(ids, keys), iet.positions(ids, keys)
    found = reader.log_ratios(ids, keys, scores, scored)
    at_chance = float(np.exp(keys.profile.family.log_mgf(keys.profile.scheme.kappa)))
    tilts = found.share * np.exp(embedded(logits_of(reader, ids, vocab_size), ids, keys))
    expected = keys.profile.scheme.kappa * scores[1:] - np.log(tilts + (1 - found.share) * at_chance)
    worst = float(np.abs(np.where(scored[1:, None], expected - found.values[1:], 0)).max())
    if not worst < TOLERANCE:
        raise IetError(f"log-likelihood ratios differ from those of embedding by {worst:.2g}")


def measure(text: str, rounds: int) -> list[dict[str, object]]:
    """Median milliseconds per 1,000 tokens."""
    registry = team((*AGENTS, *(f"agent {i}" for i in range(len(AGENTS), max(KEYS)))))
    small = team()
    ids = Tokenizer(DEMO_SOURCE).encode(text).token_ids
    reader = LanguageModel(DEMO_SOURCE)
    table_of = {count: registry.scoring_keys().subset(slice(0, count)) for count in KEYS}
    validate(DEMO_SOURCE, ids, table_of[4])
    scored, _ = iet.positions(ids, registry)
    scores = iet.score_tokens(ids, registry)
    vocab_size = registry.profile.vocab_size
    logits = logits_of(reader, ids, vocab_size)
    auditors = {
        "audit, 6 agents": iet.Auditor(small),
        "audit with model, 6 agents": iet.Auditor(small, model=reader),
    }
    calls: dict[str, Any] = {
        "the model alone": lambda: sum(1 for _ in reader.logits(ids, vocab_size)),
        **{
            f"log_ratios, {count} keys": lambda count=count: reader.log_ratios(
                ids, table_of[count], scores[:, :count], scored
            )
            for count in KEYS
        },
        "embedding the logits, 4 keys": lambda: embedded(logits, ids, table_of[4]),
        **{what: lambda reader=auditor: reader.audit(text) for what, auditor in auditors.items()},
    }
    samples = bench.interleaved({what: bench.timed(call) for what, call in calls.items()}, rounds)
    alone = samples["the model alone"]
    return [
        {
            "what": what,
            "tokens": len(ids),
            "milliseconds": bench.spread(seconds).median * 1e6 / len(ids),
            "over_model": bench.ratio(seconds, alone).median,
        }
        for what, seconds in samples.items()
    ]


def main() -> None:
    line = parser("benchmarks.speed.bench_likelihood", __doc__)
    line.add_argument("--tokens", type=int, default=2_400, help="of the text, at least")
    line.add_argument("--rounds", type=int, default=7)
    given = line.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {
        "command": command(line, given),
        "environment": environment("torch", "transformers"),
        "rows": measure(marked_text(team(), given.tokens), given.rounds),
    }
    formats = {"what": "{what}", "ms per 1,000 tokens": "{milliseconds:.3f}"}
    formats["over the model alone"] = "{over_model:.3f}"
    write(given.output, content, columns(content["rows"], formats))


if __name__ == "__main__":
    main()
