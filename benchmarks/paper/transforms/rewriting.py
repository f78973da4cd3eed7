"""Transformations that write words: translation, unmarked turns, word edits, quotation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.transforms.altered import (
    Altered,
    Piece,
    Spanned,
    Writer,
    altered,
    drawn_count,
    parts_of,
    sentences_of,
    share_between,
    tokens_of,
    touched,
    writer_label,
)
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

Translate = Callable[[list[str]], Sequence[str]]
"""Sentences of one language to as many of another, e.g. a `translators.Translator`."""


def regenerated(
    log: Log,
    rng: np.random.Generator,
    *,
    regenerate: Callable[[Log, int], str],
    share: float = 0.1,
    writer: Writer = "agent",
) -> Altered:
    """Replace a share of the turns by unmarked ones; the figure `regenerated` is the share of turns.

    ⌊share·turns + u⌋ turns are drawn, so that the share holds on average over logs. In the paper the truth
    about such a segment stays its agent, so that a reader who finds nobody there is wrong; it is so by
    default.
    """
    share_between("share", share)
    writer_label(writer, 0)
    if not isinstance(log, Log):
        raise InputError(f"log: got {type(log).__name__}, expected a Log: only its turns can be regenerated")
    count = drawn_count(share, len(log.turns), rng)
    drawn = {int(i) for i in rng.choice(len(log.turns), count, replace=False)} if count else set()
    pieces: list[Piece] = []
    for number, (joiner, text, agent) in enumerate(parts_of(log)):
        if number not in drawn:
            pieces.append(Piece(joiner + text, agent))
            continue
        found = regenerate(log, number)
        if not isinstance(found, str):
            raise InputError(f"regenerate: got {type(found).__name__} for turn {number}, expected str")
        label = writer_label(writer, agent)
        pieces += [Piece(joiner, label), Piece(found, label, True)]
    return altered(pieces, {"regenerated": count / max(1, len(log.turns))})


def back_translated(
    source: Spanned, rng: np.random.Generator, *, forth: Translate, back: Translate, longest: int = 64
) -> Altered:
    """Translate every sentence into another language and back; what comes back is its agent's.

    Sentence by sentence within turns, so that the truth stays exact; blanks between sentences stay, and so
    does what has no letter in it. All sentences of the text are translated in one call each way. Those of
    more than `longest` words are divided, because translators lose the rest of long ones; one whose
    translation is empty stays as it is. The figure `rewritten` is the share of sentences that came back
    different.
    """
    if longest < 1:
        raise InputError(f"longest: got {longest!r}, expected at least 1")
    parts = parts_of(source)
    places = [_translatable(text, longest) for _, text, _ in parts]
    sentences = [text[s:e] for (_, text, _), found in zip(parts, places, strict=True) for s, e in found]
    returned = iter(_translated("back", back, _translated("forth", forth, sentences)))
    pieces, different = [], 0
    for (joiner, text, agent), found in zip(parts, places, strict=True):
        pieces.append(Piece(joiner, agent))
        position = 0
        for start, end in found:
            sentence = next(returned).strip() or text[start:end]
            changed = sentence != text[start:end]
            different += changed
            pieces += [Piece(text[position:start], agent), Piece(sentence, agent, changed)]
            position = end
        pieces.append(Piece(text[position:], agent))
    return altered(pieces, {"rewritten": different / max(1, len(sentences))})


def _translatable(text: str, longest: int) -> list[tuple[int, int]]:
    found = []
    for start, end in sentences_of(text):
        words = [match.span() for match in re.finditer(r"\S+", text[start:end])]
        for first in range(0, len(words), longest):
            chunk = words[first : first + longest]
            found.append((start + chunk[0][0], start + chunk[-1][1]))
    return [(s, e) for s, e in found if any(c.isalpha() for c in text[s:e])]


def _translated(name: str, translate: Translate, sentences: list[str]) -> list[str]:
    if not sentences:
        return []
    found = list(translate(sentences))
    if len(found) != len(sentences):
        raise InputError(f"{name}: got {len(found)} sentences, expected {len(sentences)}")
    return found


EDITS = ("delete", "replace", "swap", "insert")
"""What can happen to a word."""

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def edited(
    source: Spanned,
    rng: np.random.Generator,
    *,
    rate: float,
    edits: Sequence[str] = EDITS,
    writer: Writer = "agent",
) -> Altered:
    """Edit ⌊rate·words + u⌋ words that are drawn at random, each in a way that is drawn too.

    A word is deleted with the space before it, replaced by a word of the text, swapped with the next word of
    its turn (the last word with nothing), or followed by an inserted word of the text. Words of the text are
    drawn uniformly from its different words. Punctuation, blanks between other words and the borders of
    turns stay. `writer` owns replaced and inserted words; the others keep their agent. The figure `edited` is
    the share of words.
    """
    share_between("rate", rate)
    writer_label(writer, 0)
    if not edits or not set(edits) <= set(EDITS):
        raise InputError(f"edits: got {tuple(edits)}, expected some of {EDITS}")
    parts = parts_of(source)
    found = [[match.span() for match in _WORD.finditer(text)] for _, text, _ in parts]
    vocabulary = list(dict.fromkeys(_WORD.findall(source.text)))
    words = sum(map(len, found))
    count = drawn_count(rate, words, rng)
    chosen = np.sort(rng.choice(words, count, replace=False)) if count else np.zeros(0, np.int64)
    kinds = rng.integers(len(edits), size=count)
    others = rng.integers(max(1, len(vocabulary)), size=count)
    plan = {
        int(i): (edits[int(kind)], vocabulary[int(other)])
        for i, kind, other in zip(chosen, kinds, others, strict=True)
    }
    pieces: list[Piece] = []
    first = 0
    for (joiner, text, agent), places in zip(parts, found, strict=True):
        here = {i - first: plan[i] for i in range(first, first + len(places)) if i in plan}
        pieces.append(Piece(joiner, agent))
        pieces += _edited_turn(text, places, here, agent, writer_label(writer, agent))
        first += len(places)
    return altered(pieces, {"edited": count / max(1, words)})


def _edited_turn(
    text: str, places: list[tuple[int, int]], plan: dict[int, tuple[str, str]], agent: int, writer: int
) -> list[Piece]:
    slots = [[Piece(text[start:end], agent)] for start, end in places]
    for i, (edit, word) in plan.items():
        if edit == "delete":
            slots[i] = []
        elif edit == "replace":
            slots[i] = [Piece(word, writer, True)]
        elif edit == "insert":
            slots[i] = [*slots[i], Piece(" " + word, writer, True)]
        elif i + 1 < len(slots):
            slots[i], slots[i + 1] = slots[i + 1], slots[i]
    pieces, position = [], 0
    for (start, end), slot in zip(places, slots, strict=True):
        gap = text[position:start]
        pieces += [Piece(gap.removesuffix(" ") if not slot else gap, agent), *slot]
        position = end
    return [*pieces, Piece(text[position:], agent)]


def quoting(
    source: Spanned,
    rng: np.random.Generator,
    *,
    share: float = 0.25,
    least_words: int = 4,
    tokenizer: Tokenizer | None = None,
) -> Altered:
    """Let turns quote a sentence of another agent's earlier turn, verbatim and in quotation marks.

    The quotation stands before a sentence of the turn, or at its end. By truth it is the quoting agent's, who
    says it; by its marks it reads as the quoted agent's, so at most 1 - `quoted` of the tokens can be right.
    `share` of the turns quote, as far as there is something to quote. The figures are `quoted`, the share of
    tokens of the text that are quoted (with the quotation marks), and `quotations`; `new` has their places.
    """
    share_between("share", share)
    if least_words < 1:
        raise InputError(f"least_words: got {least_words!r}, expected at least 1")
    parts = parts_of(source)
    sentences = [
        [text[s:e] for s, e in sentences_of(text) if len(_WORD.findall(text[s:e])) >= least_words]
        for _, text, _ in parts
    ]
    earlier = [
        [j for j in range(i) if parts[j].agent != part.agent and sentences[j]] for i, part in enumerate(parts)
    ]
    able = [i for i, turns in enumerate(earlier) if turns]
    count = min(len(able), drawn_count(share, len(parts), rng))
    drawn = {int(i) for i in rng.choice(able, count, replace=False)} if count else set()
    pieces: list[Piece] = []
    for i, (joiner, text, agent) in enumerate(parts):
        if i not in drawn:
            pieces.append(Piece(joiner + text, agent))
            continue
        quoted = sentences[int(rng.choice(earlier[i]))]
        sentence = f'"{quoted[int(rng.integers(len(quoted)))]}"'
        at = int(rng.choice([*(start for start, _ in sentences_of(text)), len(text)]))
        # Quotation marks count as quoted, the blank that separates the quotation does not.
        end = [Piece(" ", agent)] if text else []
        middle = [Piece(sentence, agent, True)]
        middle = [*end, *middle] if at == len(text) else [*middle, *end]
        pieces += [Piece(joiner + text[:at], agent), *middle, Piece(text[at:], agent)]
    found = altered(pieces)
    tokens = tokens_of(found.text, tokenizer)
    figures = {"quoted": touched(tokens, found.new) / max(1, len(tokens)), "quotations": float(count)}
    return Altered(found.text, found.spans, found.new, figures)
