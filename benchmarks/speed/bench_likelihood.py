"""Time reading with a language model, beside the model alone and beside embedding every row of its logits.

    python -m benchmarks.speed.bench_likelihood -o benchmarks/results/likelihood.json

One thread; the shipped model writes the text and reads it. What a key costs more is mostly the score of the
likeliest tokens at every place; the other way to the same ratios is one `embed_` of each row of logits for
each key and a sum over the vocabulary, which is timed for four keys, with the logits already there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":  # before anything starts threads
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import numpy as np
import torch
from numpy.typing import NDArray

import iet
from benchmarks import timing
from benchmarks.speed import texts
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.speed.texts import AGENTS, marked_text, team
from iet.audit.language_model import LanguageModel
from iet.errors import IetError
from iet.marks.keys import KeyTable
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer

KEYS = (4, 16, 64, 256)
FLOOR = "the model alone"
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
    """Compare ratios of a text that repeats nothing, so that the model alone predicts it, with embedding."""
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


def likelihood_suite(text: str, rounds: int) -> Suite:
    """Read a text with the model, for more and more keys."""
    team_of_all = team((*AGENTS, *(f"agent {i}" for i in range(len(AGENTS), max(KEYS)))))
    small, ids = team(), Tokenizer(DEMO_SOURCE).encode(text).token_ids
    reader, vocab_size = LanguageModel(DEMO_SOURCE), team_of_all.profile.vocab_size
    table_of = {count: team_of_all.scoring_keys().subset(slice(0, count)) for count in KEYS}
    scored, _ = iet.positions(ids, team_of_all)
    scores = iet.score_tokens(ids, team_of_all)
    logits = logits_of(reader, ids, vocab_size)

    def ratios(count: int) -> object:
        return reader.log_ratios(ids, table_of[count], scores[:, :count], scored)

    calls: dict[str, Any] = {
        FLOOR: lambda: sum(1 for _ in reader.logits(ids, vocab_size)),
        **{f"log_ratios, {count} keys": functools.partial(ratios, count) for count in KEYS},
        "embedding the logits, 4 keys": lambda: embedded(logits, ids, table_of[4]),
        "audit, 6 agents": functools.partial(iet.Auditor(small).audit, text),
        "audit with model, 6 agents": functools.partial(iet.Auditor(small, model=reader).audit, text),
    }
    contestants = {
        what: Contestant(timing.timed(call), "floor" if what == FLOOR else "ours", len(ids) / 1000)
        for what, call in calls.items()
    }
    check = functools.partial(validate, DEMO_SOURCE, ids, table_of[4])
    return Suite(f"T = {len(ids)}, n = 2", "ms per 1,000 tokens", contestants, (FLOOR,), check, rounds)


def suites(quick: bool) -> list[Suite]:
    torch.set_num_threads(1)
    return [
        likelihood_suite(texts.text()[:1500], 2) if quick else likelihood_suite(marked_text(team(), 2_400), 7)
    ]


def bench_likelihood(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_likelihood", __doc__, suites, ("torch", "transformers"))
