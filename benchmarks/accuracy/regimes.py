"""Marked texts with the truth about them, in the regimes of the promises about segments.

Every text is put together from turns that `benchmarks.accuracy.texts` made: an own turn is marked under a key
of the registry, a foreign one under a key of another text, unknown to this registry.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy import texts
from iet.demo.conversation import JOINER, Conversation
from iet.kernels import score_tokens
from iet.marks.registry import Registry

Piece = tuple[str, str | None]
"""Words and who wrote them, None: no agent of the registry."""

LONG = 400
"""Tokens of a foreign turn."""


class Case(NamedTuple):
    """A text with the truth about its characters, and the registry that reads it."""

    talk: Conversation
    registry: Registry


class Pool(NamedTuple):
    """The material of a text: the turns of one text, and other texts of its cell."""

    own: texts.Turns
    others: Sequence[texts.Turns]
    draw: random.Random

    def turn(self, number: int, tokens: int) -> Piece:
        """Return an own turn, cut to `tokens`, and its agent."""
        row = self.own.ids[number, :tokens]
        said = texts.turn_text(self.own.cell.model, row.tolist())
        return said, texts.agent_name(self.own.speakers[number])

    def foreign(self, tokens: int = LONG) -> Piece:
        """Return a drawn turn of another text."""
        row = self.draw.choice(self.draw.choice(self.others).ids)[:tokens]
        return texts.turn_text(self.own.cell.model, row.tolist()), None


def plain(tokens: int) -> Callable[[Pool], list[Piece]]:
    """Twelve turns of `tokens` tokens."""
    return lambda pool: [pool.turn(i, tokens) for i in range(texts.TURNS)]


def edited(pool: Pool) -> list[Piece]:
    """Turns of 200 tokens: of ten words one is left out, one is another word, one is said twice.

    What an editor put in counts as the turn's agent's: single words cannot be distinguished.
    """
    pieces = []
    strange = pool.foreign()[0].split()
    for i in range(texts.TURNS):
        words_said, agent = pool.turn(i, 200)
        words = []
        for word in words_said.split(" "):
            draw_value = pool.draw.random()
            words += [] if draw_value < 0.1 else [pool.draw.choice(strange)] if draw_value < 0.2 else [word]
            words += [word] if draw_value > 0.9 else []
        pieces.append((" ".join(words), agent))
    return pieces


def quoted(pool: Pool) -> list[Piece]:
    """Turns of 200 tokens, in the middle of each some 20 to 80 words that an earlier turn holds."""
    pieces = [pool.turn(0, 200)]
    for i in range(1, texts.TURNS):
        turn_words, agent = pool.turn(i, 200)
        source, whose = pool.turn(pool.draw.randrange(i), 200)
        words, from_ = turn_words.split(" "), source.split(" ")
        size = pool.draw.randint(20, 80)
        start = pool.draw.randrange(max(1, len(from_) - size))
        half = len(words) // 2
        pieces.append((" ".join(words[:half]), agent))
        pieces.append((" ".join(from_[start : start + size]), whose))
        pieces.append((" ".join(words[half:]), agent))
    return pieces


def one_turn(pool: Pool) -> list[Piece]:
    """One turn of 100, 200 or 400 tokens somewhere in 8,000 foreign tokens."""
    pieces = [pool.foreign() for _ in range(8000 // LONG)]
    turn = pool.turn(pool.draw.randrange(texts.TURNS), pool.draw.choice((100, 200, 400)))
    pieces.insert(pool.draw.randrange(len(pieces) + 1), turn)
    return pieces


def boilerplate(pool: Pool) -> list[Piece]:
    """Four turns of 200 tokens, each after three copies of one unattributable passage of 300 tokens."""
    passage = pool.foreign(300)
    return [piece for i in range(4) for piece in (passage, passage, passage, pool.turn(i, 200))]


def selected(chunk: int, tokens: int = 192) -> Callable[[Pool], list[Piece]]:
    """Twelve turns of chunks, each the best of eight foreign ones by the sum of its scores under the key."""

    def pieces(pool: Pool) -> list[Piece]:
        keys, ids, turns = pool.own.registry().scoring_keys(), list[int](), list[Piece]()
        for slot in pool.own.speakers:
            first = len(ids)
            for _ in range(tokens // chunk):
                rows = [pool.draw.choice(pool.draw.choice(pool.others).ids) for _ in range(8)]
                starts = [pool.draw.randrange(len(row) - chunk + 1) for row in rows]
                candidates = [row[at : at + chunk].tolist() for row, at in zip(rows, starts, strict=True)]
                key = keys.subset(slice(slot, slot + 1))
                sums = [score_tokens(ids + one, key)[-chunk:].sum() for one in candidates]
                ids += candidates[int(np.argmax(sums))]
            turns.append((texts.turn_text(pool.own.cell.model, ids[first:]), texts.agent_name(slot)))
        return turns

    return pieces


def alternating(turn: int, gap: int) -> Callable[[Pool], list[Piece]]:
    """Twelve turns of `turn` tokens, before each a gap of `gap` unattributable tokens."""
    return lambda pool: [
        piece for i in range(texts.TURNS) for piece in (pool.foreign(gap), pool.turn(i, turn))
    ]


REGIMES: Mapping[str, Callable[[Pool], list[Piece]]] = {
    **{f"turns of {tokens}": plain(tokens) for tokens in texts.TURN_TOKENS},
    "edited": edited,
    "quoted": quoted,
    "one turn in 8,000": one_turn,
    "boilerplate": boilerplate,
    "selected chunks of 16": selected(16),
    "selected chunks of 32": selected(32),
    **{
        f"turns of {turn}, gaps of {gap}": alternating(turn, gap)
        for turn, gap in ((60, 60), (60, 200), (200, 60), (200, 200))
    },
}
"""Name of a regime -> what makes a text of it."""


def cases(found: Sequence[texts.Turns], regime: str, rounds: int = 1) -> Iterator[Case]:
    """Yield `rounds` texts of a regime from each text of a cell. Deterministic."""
    for round_number in range(rounds):
        for own in found:
            draw = random.Random(f"{regime}/{round_number}/{own.cell.name}/{own.seed}")
            pool = Pool(own, [other for other in found if other is not own], draw)
            pieces = REGIMES[regime](pool)
            talk = texts.joined([said for said, _ in pieces], [agent for _, agent in pieces], JOINER)
            yield Case(talk, own.registry())
