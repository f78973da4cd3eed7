"""Marked text, made without a model, and what an audit says about it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import iet
from iet.marks.registry import Registry
from iet.report import Report
from tests.support.teams import WORD_TOKENIZER, WORDS, team

DECODERS = ("posterior", "cusum", "window")


def write(
    registry: Registry,
    turns: Sequence[tuple[str | None, int]],
    seed: int = 0,
    *,
    ids: Sequence[int] = range(1, WORDS),
    flat: bool = False,
    epochs: Sequence[int] = (),
) -> list[int]:
    """Sample from `ids`, turn by turn, as a model with mild preferences would (`flat`: without any).

    The text begins with n - 1 unmarked ids, the first turn's context. `epochs` are those of the turns' keys;
    the default is each agent's latest.
    """
    draw, allowed, profile = np.random.default_rng(seed), np.asarray(ids), registry.profile
    context, size = profile.scheme.n_gram - 1, profile.vocab_size
    sequence = allowed[draw.integers(0, len(allowed), context)].tolist()
    table = registry.scoring_keys()
    of = {key: row for row, key in enumerate(zip(table.owners.tolist(), table.epochs.tolist(), strict=True))}
    for (agent, tokens), epoch in zip(turns, [*epochs, *[None] * len(turns)], strict=False):
        latest = 0 if agent is None else registry.keys(agent)[-1].epoch
        slot = -1 if agent is None else of[registry.slot(agent), latest if epoch is None else epoch]
        slots = np.array([slot], np.int32)  # as native code reads it: a conversion for each token costs
        keyed = profile.family.chooses and agent is not None  # the mark is the noise
        for _ in range(tokens):
            logits = np.zeros((1, size)) if flat else draw.normal(size=(1, size))
            logits = logits.astype(np.float32)
            iet.embed_(logits, [sequence[-context:]], slots, table)
            noise = np.zeros(size) if keyed else draw.gumbel(size=size)
            sequence.append(int(allowed[(logits[0] + noise)[allowed].argmax()]))
    return sequence


def write_flat(
    registry: Registry, agents: Sequence[str], tokens: int, seeds: Sequence[int], ids: Sequence[int]
) -> list[list[int]]:
    """Return `write(..., flat=True)` of one turn for each agent and its seed, in one batch."""
    draws = {seed: np.random.default_rng(seed) for seed in seeds}
    allowed, profile, table = np.asarray(ids), registry.profile, registry.marking_keys()
    context = profile.scheme.n_gram - 1
    starts = {seed: allowed[draw.integers(0, len(allowed), context)] for seed, draw in draws.items()}
    sequences = [starts[seed].tolist() for seed in seeds]
    slots = [registry.slot(agent) for agent in agents]
    for _ in range(tokens):
        logits = np.zeros((len(seeds), profile.vocab_size), np.float32)
        iet.embed_(logits, [text[-context:] for text in sequences], slots, table)
        if not profile.family.chooses:
            noise = {seed: draw.gumbel(size=profile.vocab_size) for seed, draw in draws.items()}
            logits = logits + [noise[seed] for seed in seeds]
        for text, best in zip(sequences, logits[:, allowed].argmax(axis=1).tolist(), strict=True):
            text.append(int(allowed[best]))
    return sequences


def spell(ids: Sequence[int]) -> str:
    """The text that `WORD_TOKENIZER` reads as these ids."""
    return " ".join(f"w{i}" for i in ids)


TEAM = team()
TURNS = (("planner", 150), ("critic", 150), (None, 200), ("writer", 150))
IDS = write(TEAM, TURNS)
TEXT = spell(IDS)


def reader(registry: Registry = TEAM, decoder: str = "posterior", **options: Any) -> iet.Auditor:
    """An auditor that is handed its tokenizer, which is not in a file."""
    return iet.Auditor(registry, decoder, tokenizer=options.pop("tokenizer", WORD_TOKENIZER), **options)


def agents_of(report: Report) -> list[str | None]:
    return [segment.agent for segment in report.segments]


def assert_tiles(report: Report, text: str) -> None:
    """Segments cover tokens and characters, and the runs of characters cover the text, all without gaps."""
    at = 0
    for start, end, _ in report.char_agents:
        assert (start, end > start) == (at, True)
        at = end
    assert at == len(text)
    agents = [agent for _, _, agent in report.char_agents]
    assert all(a != b for a, b in itertools.pairwise(agents))
    token = char = 0
    for segment in report.segments:
        assert (segment.start, segment.char_start) == (token, char)
        assert segment.end > segment.start
        assert segment.char_end is not None
        assert segment.char_end >= char
        token, char = segment.end, segment.char_end
    assert token == report.tokens == len(report.token_agents)
    assert char == (len(text) if report.segments else 0)
