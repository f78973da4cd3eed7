"""Transformations that take, move or surround words, and write none: truncation, pasting, shuffling."""

from __future__ import annotations

import itertools
import re
from typing import Literal

import numpy as np

from benchmarks.paper.transforms.altered import (
    NOBODY,
    Altered,
    Piece,
    Spanned,
    altered,
    parts_of,
    pieces_between,
    sentences_of,
    share_between,
    tokens_of,
)
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer


def unchanged(source: Spanned, rng: np.random.Generator) -> Altered:
    return altered(pieces_between(source, 0, len(source.text)))


def truncated(
    source: Spanned,
    rng: np.random.Generator,
    *,
    keep: float,
    per: Literal["text", "turn"] = "text",
    tokenizer: Tokenizer | None = None,
) -> Altered:
    """Keep the first ⌊keep·T⌋ tokens of the text, or of every turn; the figure `kept` is the share of tokens.

    The paper says neither what it counts nor where it cuts, and its ROUGE-L (0.944 and 0.854) fits both. Cut
    once, the text loses its last turns; cut in every turn, it keeps all agents and all hand-overs.
    """
    share_between("keep", keep)
    if per not in ("turn", "text"):
        raise InputError(f'per: got {per!r}, expected "text" or "turn"')
    if per == "text":
        end, kept, total = _cut(source.text, keep, tokenizer)
        return altered(pieces_between(source, 0, end), {"kept": kept / total if total else 1.0})
    pieces, kept_tokens, tokens = [], 0, 0
    for joiner, text, agent in parts_of(source):
        end, kept, total = _cut(text, keep, tokenizer)
        pieces.append(Piece(joiner + text[:end], agent))
        kept_tokens, tokens = kept_tokens + kept, tokens + total
    return altered(pieces, {"kept": kept_tokens / tokens if tokens else 1.0})


def _cut(text: str, keep: float, tokenizer: Tokenizer | None) -> tuple[int, int, int]:
    """Return the characters kept, the tokens kept and the tokens there."""
    tokens = tokens_of(text, tokenizer)
    kept = int(keep * len(tokens) + 1e-9)  # 0.9 of 10 is 9
    if kept == len(tokens):
        return len(text), kept, kept
    return (int(tokens[kept - 1, 1]) if kept else 0), kept, len(tokens)


def pasted(
    source: Spanned,
    rng: np.random.Generator,
    *,
    human: str,
    share: float = 0.5,
    around: float = 1.0,
    place: Literal["before", "behind", "around"] = "around",
    joiner: str = "\n\n",
) -> Altered:
    """Paste a part of the text into a text of people, which is nobody's.

    The part begins at a word drawn at random and is cut at a blank, and so is what is taken of the human text
    and, for "around", where that is divided; the agents' part and the joiners next to it are not altered
    otherwise. The figure `human` is nobody's share of the characters.

    Args:
        share: of the characters that are pasted.
        around: characters of human text for each pasted character.
        place: where the human text stands: before the agents' part, behind it, or on both sides of it.
    """
    share_between("share", share)
    if not (np.isfinite(around) and around >= 0):
        raise InputError(f"around: got {around!r}, expected at least 0")
    if place not in ("before", "behind", "around"):
        raise InputError(f'place: got {place!r}, expected "before", "behind" or "around"')
    start, end = _window(source.text, int(share * len(source.text) + 1e-9), rng)
    needed = int(around * (end - start))
    if len(human) < needed:
        raise InputError(f"human: got {len(human)} characters, expected at least {needed}")
    taken = slice(*_window(human, needed, rng))
    words = human[taken]
    if place == "around":
        blanks = [match.start() for match in re.finditer(r"\s+", words)]
        middle = blanks[int(rng.integers(len(blanks)))] if blanks else len(words)
    else:
        middle = len(words) if place == "before" else 0
    before, behind = words[:middle].strip(), words[middle:].strip()
    pieces = [
        Piece(before + joiner if before else "", NOBODY, True),
        *pieces_between(source, start, end),
        Piece(joiner + behind if behind else "", NOBODY, True),
    ]
    found = altered(pieces)
    nobody = sum(e - s for s, e, agent in found.spans if agent == NOBODY)
    return Altered(found.text, found.spans, found.new, {"human": nobody / max(1, len(found.text))})


def _window(text: str, length: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return up to `length` characters `[start, end)` from the beginning of a word to the end of one."""
    starts = np.array([match.start() for match in re.finditer(r"\S+", text)], dtype=np.int64)
    possible = starts[starts + length <= len(text)]
    if length >= len(text) or not len(possible):
        return 0, min(length, len(text))
    start = int(rng.choice(possible))
    end = start + length
    if end < len(text) and not text[end].isspace():  # back to the end of a word, if one ends here at all
        blanks = re.search(r"\s+\S*\Z", text[start:end])
        end = start + blanks.start() if blanks else end
    return start, end


_PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*\n\s*")


def paragraphs_of(text: str) -> list[tuple[int, int]]:
    """Return the characters `[start, end)` of the paragraphs, which blank lines separate.

    A text without a blank line consists of its sentences.
    """
    breaks = [match.span() for match in _PARAGRAPH_BREAK.finditer(text) if match.end() < len(text)]
    if not breaks:
        return sentences_of(text)
    starts = [0, *(end for _, end in breaks)]
    return [(s, e) for s, e in zip(starts, [*(b for b, _ in breaks), len(text)], strict=True) if e > s]


def shuffled(source: Spanned, rng: np.random.Generator) -> Altered:
    """Put the paragraphs of the text in another order, drawn uniformly.

    See `paragraphs_of`. What separated them stays where it was, and belongs to the paragraph after it.
    Each character of a paragraph keeps its agent. `Altered.edges` has the transitions of the new order. The
    figures are `paragraphs` (how many) and `moved` (the share of those behind another paragraph than before).
    """
    text = source.text
    places = paragraphs_of(text)
    if not places:
        return unchanged(source, rng)
    order = [int(i) for i in rng.permutation(len(places))]
    gaps = [text[before[1] : after[0]] for before, after in itertools.pairwise(places)]
    pieces = pieces_between(source, 0, places[0][0])
    for position, number in enumerate(order):
        paragraph = pieces_between(source, *places[number])
        if position:
            pieces.append(Piece(gaps[position - 1], paragraph[0].agent))
        pieces += paragraph
    pieces += pieces_between(source, places[-1][1], len(text))
    moved = [number != before + 1 for before, number in zip([-1, *order], order, strict=False)]
    return altered(pieces, {"paragraphs": len(places), "moved": float(np.mean(moved))})
