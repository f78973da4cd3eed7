"""The problems that strategies solve, and how an answer is read off a text.

*Arithmetic*: 100 expressions a + b·c + d - e·f with a..f uniform on 0..30, drawn by numpy's
`default_rng(42)`. *GSM8K*: 100 problems of the test split, drawn by a generator of the same seed without
replacement, in the order of the file. The paper names seed 42 and the numbers, but no generator.

*What counts as an answer.* Prompts ask for a last line "Answer: N". An answer is there only if the text ends
with "Answer:" and one number: a minus or none, digits (in threes between commas, or without commas), a
fraction or none, and at most one full stop behind it; blanks may follow. No currency, no unit, no formatting.
All else is no answer, which is wrong, and tables say how often it happens. Numbers are compared as numbers:
18.0 is 18.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from fractions import Fraction

import numpy as np

from benchmarks.lm.arithmetic import expressions, shown, value
from benchmarks.paper import results
from iet.errors import InputError

COUNT, SEED = 100, 42
TEST = "test.jsonl"

_ANSWER = re.compile(r"Answer:\s*(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\.?\s*\Z", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Problem:
    task: str  # "Arithmetic" or "GSM8K"
    number: int  # of the expression, or of the line in the file, from 0
    text: str  # the question as agents get it
    answer: Fraction  # the right number
    expression: str = ""  # for Arithmetic the bare expression, which the arithmetic model is asked with


def arithmetic(count: int = COUNT, seed: int = SEED) -> list[Problem]:
    if count < 1:
        raise InputError(f"count: got {count}, expected at least 1")
    return [
        Problem(
            "Arithmetic", i, f"What is {shown(numbers)}?", Fraction(value(numbers)), expression=shown(numbers)
        )
        for i, numbers in enumerate(expressions(count, seed))
    ]


def gsm8k(data: str | os.PathLike[str], count: int = COUNT) -> list[Problem]:
    """Return problems of GSM8K's `test.jsonl`, or that in a folder (also as `gsm8k/`); see above."""
    path = pathlib.Path(data)
    if path.is_dir():
        path = next((p for p in (path / TEST, path / "gsm8k" / TEST) if p.is_file()), path / TEST)
    lines = results.text_of(path).splitlines()
    if not 1 <= count <= len(lines):
        raise InputError(f"count: got {count}, expected 1 to {len(lines)}, the problems of {path}")
    drawn = np.random.default_rng(SEED).permutation(len(lines))[:count]
    return [_gsm8k(path, number, lines[number]) for number in sorted(drawn.tolist())]


def _gsm8k(path: pathlib.Path, number: int, line: str) -> Problem:
    try:
        found = json.loads(line)
        text, solution = found["question"], found["answer"]
        _, mark, last = solution.rpartition("####")
        if not mark:
            raise ValueError("no '####' before the answer")
        return Problem("GSM8K", number, text, Fraction(last.strip().replace(",", "")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}, line {number + 1}: got {line[:60]!r}, expected question and answer ({error!r})"
        ) from None


def answer_of(text: str) -> Fraction | None:
    """Return the number that a text ends with, None where it gives none; see above.

    >>> answer_of("so 6*7 is 42.\\nAnswer: 1,042.0")
    Fraction(1042, 1)
    >>> answer_of("Answer: 42 apples") is None
    True
    """
    found = _ANSWER.search(text)
    return None if found is None else Fraction(found[1].replace(",", ""))
