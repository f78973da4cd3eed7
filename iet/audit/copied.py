"""Texts as they were before they were copied: what wrapping, quoting and typography did is undone.

Nothing but the copy is needed. Each step is named, and none changes a letter or a digit.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Callable

import numpy as np

from iet.native.arrays import Int64s

WIDTHS = (40, 132)
"""Between which numbers of characters text is wrapped."""

_LONG = 0.6
"""The share of the longer lines (of this share of the width) that must end where wrapping ends a line.

Shorter ones are headings, items of lists and ends of paragraphs, which have no empty line behind them in the
text of a PDF.
"""

_SLACK = 0.15
"""How much of the width a line may lack that the next word would have fitted in: letters of type differ."""


@dataclasses.dataclass(frozen=True, eq=False)
class Restored:
    """A text as it may have been before it was copied.

    Attributes:
        text: with what was undone.
        places: int64 [len(text) + 1], where its characters stand in the text as given; the last entry is the
            end.
        steps: names of what was undone, in order.
    """

    text: str
    places: Int64s
    steps: tuple[str, ...] = ()

    def replaced(self, step: str, pattern: re.Pattern[str], by: Callable[[re.Match[str]], str]) -> Restored:
        """Return the text with every match replaced, or itself where that changes nothing."""
        texts, starts, ends, lengths, last = list[str](), list[int](), list[int](), list[int](), 0
        for match in pattern.finditer(self.text):
            new = by(match)
            if new != match[0]:
                starts.append(match.start())
                ends.append(match.end())
                lengths.append(len(new))
                texts += self.text[last : starts[-1]], new
                last = ends[-1]
        if not texts:
            return self
        within = np.zeros(len(self.places), np.int64)
        within[starts] += 1
        within[ends] -= 1
        # What is new stands where the first of what it replaces stood.
        times = 1 - np.cumsum(within)
        times[starts] = lengths
        steps = self.steps if step in self.steps else (*self.steps, step)
        return Restored("".join([*texts, self.text[last:]]), np.repeat(self.places, times), steps)


MOST_WAYS = 4
"""As given, with layout, with typography, and with both undone."""


def restored(text: str) -> list[Restored]:
    """Return the ways to read a copied text: as given, and with layout, typography, or both undone.

    Undone of the layout, in this order: the escapes of a JSON string ("json"), HTML's character references
    ("html"), a fence round everything ("fence"), quotation marks or spaces before every line ("quoted",
    "indented"), and line breaks with hyphens where lines were wrapped ("wrapped"). Of the typography: curly
    quotation marks, spaces that do not break, ellipses, short dashes, bullets, ligatures ("typography").

    Returns:
        the text as given first, then one to three others whose text is another.

    Deterministic. O(characters) time and memory.
    """
    given = Restored(text, np.arange(len(text) + 1, dtype=np.int64))
    layout = _layout(given)
    found = [given]
    for each in (layout, _typography(given), _typography(layout)):
        if all(each.text != other.text for other in found):
            found.append(each)
    return found


def _layout(given: Restored) -> Restored:
    now = given
    for step in (_unescape, _dereference, _unfence, _unquote, _unindent, _unwrap):
        now = step(now)
    return now


_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?)')
_JSON_ENDS = re.compile(r'\A\s*"|"\s*\Z')


def _unescape(now: Restored) -> Restored:
    stripped = now.text.strip()
    whole = len(stripped) > 2 and stripped[0] == stripped[-1] == '"' and "\n" not in stripped
    if not whole and ("\n" in stripped or "\\n" not in stripped):
        return now
    if whole:
        try:
            json.loads(stripped)
        except ValueError:
            return now
        now = now.replaced("json", _JSON_ENDS, lambda match: "")
    inner = now.replaced("json", _ESCAPE, lambda match: str(json.loads(f'"{match[0]}"')))
    try:
        inner.text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return now
    return inner


_REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|mdash|ndash|hellip|[lr][sd]quo|#39|#x27|#\d{2,5});")


def _dereference(now: Restored) -> Restored:
    return now.replaced("html", _REFERENCE, lambda match: html.unescape(match[0]))


_FENCES = re.compile(r"\A\s*(```+|~~~+)[^\n`]*\n|\n(```+|~~~+)\s*\Z")


def _unfence(now: Restored) -> Restored:
    fences = [match[1] or match[2] for match in _FENCES.finditer(now.text)]
    if len(fences) != 2 or fences[0] != fences[1]:
        return now
    return now.replaced("fence", _FENCES, lambda match: "")


_DEPTH = 8  # of quotations in quotations
_QUOTED = re.compile(r"^>[ \t]?", re.MULTILINE)


def _unquote(now: Restored) -> Restored:
    for _ in range(_DEPTH):
        lines = [line for line in now.text.splitlines() if line.strip()]
        if not lines or not all(line.startswith(">") for line in lines):
            break
        now = now.replaced("quoted", _QUOTED, lambda match: "")
    return now


def _unindent(now: Restored) -> Restored:
    lines = [line for line in now.text.splitlines() if line.strip()]
    indents = [re.match(r"[ \t]*", line) for line in lines]
    widths = [len(found[0]) for found in indents if found]
    least = min(widths, default=0)
    if least < 2 or len(lines) < 2:
        return now
    return now.replaced("indented", re.compile(rf"^[ \t]{{{least}}}", re.MULTILINE), lambda match: "")


_BREAK = re.compile(r"(?<=\S)(?:(?<=[a-z])(?P<hyphen>-)(?=[ \t]*\r?\n[ \t]*[a-z]))?[ \t]*\r?\n[ \t]*(?=\S)")
_WORD = re.compile(r"\S+")
_ITEM = re.compile(r"(?:[-*+•◦▪#|>]|\d{1,3}[.)])[ \t]|```|~~~|\|")


def _unwrap(now: Restored) -> Restored:
    text, breaks, longest = now.text, list[tuple[int, int]](), 0
    for match in _BREAK.finditer(text):
        width = max(match.start(), match.end("hyphen")) - text.rfind("\n", 0, match.start()) - 1
        longest = max(longest, width)
        word = _WORD.match(text, match.end())
        assert word is not None
        if not _ITEM.match(text, match.end()):
            breaks.append((match.start(), width + 1 + len(word[0])))
    least = longest * (1 - _SLACK)
    full = {place for place, with_next_word in breaks if with_next_word > least}
    longer = sum(with_next_word > _LONG * longest for _, with_next_word in breaks)
    if not (WIDTHS[0] <= longest <= WIDTHS[1] and len(full) >= _LONG * longer):
        return now

    def joined(match: re.Match[str]) -> str:
        if match.start() not in full:
            return match[0]
        # A word that was divided shows nothing but its hyphen: "well-known" at a break loses its own as well.
        return "" if match["hyphen"] else " "

    return now.replaced("wrapped", _BREAK, joined)


_TYPOGRAPHY = {
    **dict.fromkeys("“”„‟", '"'),
    **dict.fromkeys("‘’‚‛", "'"),
    **dict.fromkeys("\u00a0\u202f\u2007\u2009", " "),
    "…": "...",
    **dict.fromkeys("–‑‐", "-"),
    **{"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"},
}
_TYPOGRAPHIC = re.compile("|".join([r"^(?P<indent>[ \t]*)[•◦▪‣●][ \t]", *_TYPOGRAPHY]), re.MULTILINE)


def _typography(now: Restored) -> Restored:
    def plain(match: re.Match[str]) -> str:
        indent = match["indent"]
        return _TYPOGRAPHY[match[0]] if indent is None else f"{indent}- "

    return now.replaced("typography", _TYPOGRAPHIC, plain)
