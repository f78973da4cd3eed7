"""Undo wrapping, quoting and typography in copied texts.

Only the copy is needed. Each step has a name, and none changes a letter or a digit.
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
"""The shortest and the longest line of wrapped text, in characters."""

_LONG = 0.6
"""Share of the long lines (at least this share of the width) that must end as wrapping ends a line.

Shorter lines are headings, list items and ends of paragraphs, with no empty line after them in a PDF's text.
"""

_SLACK = 0.15
"""Share of the width that may stay empty although the next word would fit: letters have different widths."""


@dataclasses.dataclass(frozen=True, eq=False)
class Restored:
    """A text as it may have been before it was copied.

    Attributes:
        text: the restored text.
        places: int64 [len(text) + 1], position of each character in the text as given; the last entry is the
            end.
        steps: names of the steps that changed the text, in order.
    """

    text: str
    places: Int64s
    steps: tuple[str, ...] = ()

    def replaced(self, step: str, pattern: re.Pattern[str], by: Callable[[re.Match[str]], str]) -> Restored:
        """Return the text with every match replaced, or itself if that changes nothing."""
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
        open_spans = np.zeros(len(self.places), np.int64)
        open_spans[starts] += 1
        open_spans[ends] -= 1
        # New characters get the position of the first character that they replace.
        times = 1 - np.cumsum(open_spans)
        times[starts] = lengths
        steps = self.steps if step in self.steps else (*self.steps, step)
        return Restored("".join([*texts, self.text[last:]]), np.repeat(self.places, times), steps)


MOST_WAYS = 4
"""As given, without layout, without typography, and without both."""


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
    original = Restored(text, np.arange(len(text) + 1, dtype=np.int64))
    layout = _layout(original)
    ways = [original]
    for candidate in (layout, _typography(original), _typography(layout)):
        if all(candidate.text != way.text for way in ways):
            ways.append(candidate)
    return ways


def _layout(original: Restored) -> Restored:
    text_now = original
    for step in (_unescape, _dereference, _unfence, _unquote, _unindent, _unwrap):
        text_now = step(text_now)
    return text_now


_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?)')
_JSON_ENDS = re.compile(r'\A\s*"|"\s*\Z')


def _unescape(text_now: Restored) -> Restored:
    stripped = text_now.text.strip()
    is_quoted = len(stripped) > 2 and stripped[0] == stripped[-1] == '"' and "\n" not in stripped
    if not is_quoted and ("\n" in stripped or "\\n" not in stripped):
        return text_now
    if is_quoted:
        try:
            json.loads(stripped)
        except ValueError:
            return text_now
        text_now = text_now.replaced("json", _JSON_ENDS, lambda match: "")
    inner = text_now.replaced("json", _ESCAPE, lambda match: str(json.loads(f'"{match[0]}"')))
    try:
        inner.text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return text_now
    return inner


_REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|mdash|ndash|hellip|[lr][sd]quo|#39|#x27|#\d{2,5});")


def _dereference(text_now: Restored) -> Restored:
    return text_now.replaced("html", _REFERENCE, lambda match: html.unescape(match[0]))


_FENCES = re.compile(r"\A\s*(```+|~~~+)[^\n`]*\n|\n(```+|~~~+)\s*\Z")


def _unfence(text_now: Restored) -> Restored:
    fences = [match[1] or match[2] for match in _FENCES.finditer(text_now.text)]
    if len(fences) != 2 or fences[0] != fences[1]:
        return text_now
    return text_now.replaced("fence", _FENCES, lambda match: "")


_DEPTH = 8  # of quotations in quotations
_QUOTED = re.compile(r"^>[ \t]?", re.MULTILINE)


def _unquote(text_now: Restored) -> Restored:
    for _ in range(_DEPTH):
        lines = [line for line in text_now.text.splitlines() if line.strip()]
        if not lines or not all(line.startswith(">") for line in lines):
            break
        text_now = text_now.replaced("quoted", _QUOTED, lambda match: "")
    return text_now


def _unindent(text_now: Restored) -> Restored:
    lines = [line for line in text_now.text.splitlines() if line.strip()]
    indents = [re.match(r"[ \t]*", line) for line in lines]
    widths = [len(ways[0]) for ways in indents if ways]
    narrowest = min(widths, default=0)
    if narrowest < 2 or len(lines) < 2:
        return text_now
    return text_now.replaced(
        "indented", re.compile(rf"^[ \t]{{{narrowest}}}", re.MULTILINE), lambda match: ""
    )


_BREAK = re.compile(r"(?<=\S)(?:(?<=[a-z])(?P<hyphen>-)(?=[ \t]*\r?\n[ \t]*[a-z]))?[ \t]*\r?\n[ \t]*(?=\S)")
_WORD = re.compile(r"\S+")
_ITEM = re.compile(r"(?:[-*+•◦▪#|>]|\d{1,3}[.)])[ \t]|```|~~~|\|")


def _unwrap(text_now: Restored) -> Restored:
    text, breaks, longest = text_now.text, list[tuple[int, int]](), 0
    for match in _BREAK.finditer(text):
        width = max(match.start(), match.end("hyphen")) - text.rfind("\n", 0, match.start()) - 1
        longest = max(longest, width)
        word = _WORD.match(text, match.end())
        assert word is not None
        if not _ITEM.match(text, match.end()):
            breaks.append((match.start(), width + 1 + len(word[0])))
    narrowest = longest * (1 - _SLACK)
    full = {position for position, with_next_word in breaks if with_next_word > narrowest}
    longer = sum(with_next_word > _LONG * longest for _, with_next_word in breaks)
    if not (WIDTHS[0] <= longest <= WIDTHS[1] and len(full) >= _LONG * longer):
        return text_now

    def joined(match: re.Match[str]) -> str:
        if match.start() not in full:
            return match[0]
        # A word that was divided shows nothing but its hyphen: "well-known" at a break loses its own as well.
        return "" if match["hyphen"] else " "

    return text_now.replaced("wrapped", _BREAK, joined)


_TYPOGRAPHY = {
    **dict.fromkeys("“”„‟", '"'),
    **dict.fromkeys("‘’‚‛", "'"),
    **dict.fromkeys("\u00a0\u202f\u2007\u2009", " "),
    "…": "...",
    **dict.fromkeys("–‑‐", "-"),
    **{"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"},
}
_TYPOGRAPHIC = re.compile("|".join([r"^(?P<indent>[ \t]*)[•◦▪‣●][ \t]", *_TYPOGRAPHY]), re.MULTILINE)


def _typography(text_now: Restored) -> Restored:
    def plain(match: re.Match[str]) -> str:
        indent = match["indent"]
        return _TYPOGRAPHY[match[0]] if indent is None else f"{indent}- "

    return text_now.replaced("typography", _TYPOGRAPHIC, plain)
