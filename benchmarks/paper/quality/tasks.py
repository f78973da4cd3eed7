"""The problems of the quality experiment, and how an answer is read from a text.

*Arithmetic*: 100 expressions a + b·c + d - e·f with a..f uniform on 0..30, drawn by numpy's
`default_rng(42)`. *GSM8K*: 100 problems of the test split, drawn by a generator of the same seed, in the
order of the file. The paper names seed 42 and the numbers, but no generator.

Prompts ask for a last line "Answer: N". A text has an answer only if it ends with "Answer:" and one number
(optionally with thousands separators, a fraction and a full stop). Everything else is no answer, which is
wrong; tables report how often it happens. Numbers are compared as numbers: 18.0 is 18.
"""

from __future__ import annotations

import dataclasses
import json
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
    text: str  # question
    answer: Fraction  # right answer
    expression: str = ""  # of Arithmetic, the question to the arithmetic model


def arithmetic(count: int = COUNT, seed: int = SEED) -> list[Problem]:
    if count < 1:
        raise InputError(f"count: got {count}, expected at least 1")
    problems = [(shown(numbers), value(numbers)) for numbers in expressions(count, seed)]
    return [
        Problem("Arithmetic", i, f"What is {text}?", Fraction(answer), text)
        for i, (text, answer) in enumerate(problems)
    ]


def gsm8k(data: pathlib.Path, count: int = COUNT) -> list[Problem]:
    """Return problems of GSM8K's `test.jsonl` in a folder, also as `gsm8k/test.jsonl`."""
    path = next((p for p in (data / TEST, data / "gsm8k" / TEST) if p.is_file()), data / TEST)
    lines = results.text_of(path).splitlines()
    if not 1 <= count <= len(lines):
        raise InputError(f"count: got {count}, expected 1 to {len(lines)}, the problems of {path}")
    drawn = np.random.default_rng(SEED).permutation(len(lines))[:count]
    problems = []
    for number in sorted(drawn.tolist()):
        content = json.loads(lines[number])
        answer = content["answer"].rpartition("####")[2].strip().replace(",", "")
        problems.append(Problem("GSM8K", number, content["question"], Fraction(answer)))
    return problems


def answer_of(text: str) -> Fraction | None:
    """Return the answer of a text; None if it has none.

    >>> answer_of("so 6*7 is 42.\\nAnswer: 1,042.0")
    Fraction(1042, 1)
    >>> answer_of("Answer: 42 apples") is None
    True
    """
    match = _ANSWER.search(text)
    return None if match is None else Fraction(match[1].replace(",", ""))
