"""The odds that a turn begins at each token, from the line breaks and sentence ends before it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from iet.errors import InputError, check_number
from iet.native.arrays import Float64s, Int64s

BREAK_ODDS: Mapping[str, float] = {"paragraph": 20.0, "line": 10.0, "sentence": 3.0}
"""Kind of break -> how much likelier a turn begins there than elsewhere.

Guessed, not fitted; docs/how/decoding.md says what they gain and cost.
"""

_CLOSERS = r"[\"'”’»)\]」』）]*"
_BREAK = re.compile(
    rf"([.!?…]{_CLOSERS}(?=\s)|[。！？]{_CLOSERS})\s*|\s+"
)  # linear: no part can begin inside


def check_break_odds(odds: bool | Mapping[str, float]) -> dict[str, float] | None:
    """Return the odds of every kind: `BREAK_ODDS` for True, 1 for kinds missing in a mapping, None for False.

    Raises:
        InputError: a kind is unknown, or its odds are not a number from 1e-3 to 1e6.
    """
    if odds is False or odds is None:
        return None
    if odds is True:
        return dict(BREAK_ODDS)
    if not isinstance(odds, Mapping):
        raise InputError(f"break_odds: got {odds!r:.80}, expected True, False or a mapping of odds")
    for kind, value in odds.items():
        if kind not in BREAK_ODDS:
            raise InputError(f"break_odds: got {kind!r}, expected some of {list(BREAK_ODDS)}")
        check_number(f"break_odds[{kind!r}]", value, 1e-3, 10**6, integer=False)
    return {kind: float(odds.get(kind, 1.0)) for kind in BREAK_ODDS}


def break_odds(text: str, starts: Int64s, odds: Mapping[str, float] = BREAK_ODDS) -> Float64s:
    """Return how much likelier a turn begins at each token than at one inside a sentence.

    A break is white space that holds two line breaks ("paragraph") or one ("line"), or the white space after
    a full stop, question or exclamation mark ("sentence"; marks of Chinese and Japanese need no space). It
    gives its odds to one token: the first that starts in the break or right after it, since the white space
    between two turns may belong to the second. If one token holds all of the break and more, none gets them.

    Args:
        text: any length.
        starts: [T], the characters at which the tokens start, ascending.
        odds: of every kind of break.

    Returns:
        [T] float64, the option `break_odds` of the decoder "posterior". Linear in the text. Deterministic.

    >>> break_odds("One. Two three.\\n\\nFour", np.array([0, 3, 5, 9, 14, 15, 17])).tolist()
    [1.0, 1.0, 3.0, 1.0, 1.0, 20.0, 1.0]
    """
    found = np.ones(len(starts))
    kinds = [odds["sentence"], odds["line"], odds["paragraph"]]
    begins, ends, values = [], [], []
    for match in _BREAK.finditer(text):
        lines = min(2, match[0].count("\n"))
        if lines or match[1]:
            begins.append(max(match.start(), match.end(1)))  # end(1) is -1 without a mark
            ends.append(match.end())
            values.append(kinds[lines])
    at = np.searchsorted(starts, np.array(begins, np.int64))
    inside = at < len(starts)
    inside[inside] = starts[at[inside]] <= np.array(ends, np.int64)[inside]
    found[at[inside]] = np.array(values, np.float64)[inside]
    return found
