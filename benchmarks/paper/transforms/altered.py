"""A text after an alteration, with the truth about each of its characters."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.conversations.logs import Log
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

NOBODY = -1
"""Label of characters that no agent wrote."""

Writer = Literal["agent", "nobody"]
"""To whom the characters belong that a transformation writes into an agent's turn.

"agent" is the truth as in the paper: the segment stays the agent's, whatever happened to its words. "nobody"
is the truth of who held the pen.
"""

Span = tuple[int, int, int]


class Spanned(Protocol):
    """A text and the truth about it: a `Log`, or what a transformation returned."""

    @property
    def text(self) -> str:
        """What an auditor gets."""
        ...

    @property
    def spans(self) -> tuple[Span, ...]:
        """Characters `[start, end)` and agent, tiling the text."""
        ...


class Piece(NamedTuple):
    """Consecutive characters of one writer; `new` where the transformation brought them."""

    text: str
    agent: int
    new: bool = False


class Part(NamedTuple):
    """A turn: what joins it to the turn before it, and its words."""

    joiner: str
    text: str
    agent: int


@dataclasses.dataclass(frozen=True)
class Altered:
    text: str  # all that an auditor gets
    # Characters `[start, end)` and agent, -1 = nobody. They tile the text; neighbours differ.
    spans: tuple[Span, ...]
    # Characters `[start, end)` that are not the source's: written, copied or brought by the transformation,
    # whomever the truth gives them to
    new: tuple[tuple[int, int], ...] = ()
    # What else the transformation says about itself, shares and counts
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = [0, *(end for _, end, _ in self.spans)]
        if [start for start, _, _ in self.spans] != bounds[:-1] or bounds[-1] != len(self.text):
            raise InputError(f"spans: got {self.spans}, expected a tiling of {len(self.text)} characters")

    def edges(self, agents: int) -> NDArray[np.float64]:
        """Return the adjacency matrix [n, n] of this text: 1 where j's characters follow those of another i.

        As in `iet.decoding.transitions`, there is no passage across characters of nobody.
        """
        matrix = np.zeros((agents, agents))
        for (_, _, before), (_, _, after) in itertools.pairwise(self.spans):
            if before != after and NOBODY not in (before, after):
                matrix[before, after] = 1.0
        return matrix


def altered(pieces: Iterable[Piece], figures: Mapping[str, float] | None = None) -> Altered:
    """Return the text of the pieces; neighbours of the same agent become one span."""
    kept = [piece for piece in pieces if piece.text]
    spans: list[Span] = []
    new: list[tuple[int, int]] = []
    start = 0
    for text, agent, is_new in kept:
        end = start + len(text)
        if spans and spans[-1][2] == agent:
            spans[-1] = (spans[-1][0], end, agent)
        else:
            spans.append((start, end, agent))
        if is_new and new and new[-1][1] == start:
            new[-1] = (new[-1][0], end)
        elif is_new:
            new.append((start, end))
        start = end
    return Altered("".join(piece.text for piece in kept), tuple(spans), tuple(new), figures or {})


def parts_of(source: Spanned) -> list[Part]:
    """Return the turns of a text.

    Those of a `Log` are its turns. In an altered text they are its spans, and the blanks at the beginning of
    a span are its joiner.
    """
    if isinstance(source, Log):
        joiners = ["", *[source.setting.joiner] * (len(source.turns) - 1)]
        return [Part(j, turn.text, turn.agent) for j, turn in zip(joiners, source.turns, strict=False)]
    found = []
    for start, end, agent in source.spans:
        whole = source.text[start:end]
        words = whole.lstrip() if start else whole
        found.append(Part(whole[: len(whole) - len(words)], words, agent))
    return found


def pieces_between(source: Spanned, start: int, end: int) -> list[Piece]:
    """Return the characters `[start, end)` of a text with their agents."""
    return [
        Piece(source.text[max(start, s) : min(end, e)], agent)
        for s, e, agent in source.spans
        if s < end and e > start
    ]


def writer_label(writer: Writer, agent: int) -> int:
    """Return the label of new characters in an agent's turn."""
    if writer not in ("agent", "nobody"):
        raise InputError(f'writer: got {writer!r}, expected "agent" or "nobody"')
    return agent if writer == "agent" else NOBODY


_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def tokens_of(text: str, tokenizer: Tokenizer | None = None) -> NDArray[np.int64]:
    """Return the characters `[start, end)` of every token, int64 [T, 2].

    Without a tokenizer a token is a word (letters, digits and underscores) or any other visible character.
    """
    if tokenizer is not None:
        encoding = tokenizer.encode(text)
        return encoding.characters(range(len(encoding.token_ids)))
    found = [match.span() for match in _WORD_OR_MARK.finditer(text)]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def touched(tokens: NDArray[np.int64], places: Sequence[tuple[int, int]]) -> int:
    """Return how many of the tokens share a character with one of the places, which do not overlap."""
    if not len(tokens) or not places:
        return 0
    starts, ends = np.array(sorted(places), dtype=np.int64).T
    # The first place that ends behind a token's start must begin before the token's end.
    first = np.searchsorted(ends, tokens[:, 0], side="right")
    begin = np.append(starts, np.iinfo(np.int64).max)[first]
    return int((begin < tokens[:, 1]).sum())


_SENTENCE = re.compile(
    # As little as possible of a line, up to marks that end a sentence (in front of a blank, unless they are
    # full-width) or to the end of the line.
    r"\S[^\n]*?(?:[.!?…]+[\"'”’)\]]*(?=\s|\Z)|[。！？]+[”’」』）]*|(?=[^\S\n]*(?:\n|\Z)))"
)


def sentences_of(text: str) -> list[tuple[int, int]]:
    """Return the characters `[start, end)` of the sentences; only blanks lie between them.

    A sentence ends with `.`, `!`, `?` or `…` before a blank (abbreviations are not known), with their
    full-width forms, or with its line.
    """
    return [match.span() for match in _SENTENCE.finditer(text)]


def share_between(name: str, value: float) -> float:
    if not 0 <= value <= 1:  # also refuses NaN
        raise InputError(f"{name}: got {value!r}, expected 0 to 1")
    return float(value)


def drawn_count(share: float, of: int, rng: np.random.Generator) -> int:
    """Return how many of `of` things are drawn so that `share` of them are, on average, exactly.

    ⌊share·of + u⌋ with u uniform in [0, 1): over many texts the rounding cancels.
    """
    return min(of, int(share * of + rng.random()))
