"""The language of the arithmetic model: expressions a+b*c+d-e*f, the steps to their values, and drills.

A text is a question, the steps, and the answer, in characters:

    Q: 12+5*27+8-19*3

    A: Now 50*72=531. Then 91*30 is 750; So 210+531: 741, Next 741+800: 551; So +(551-750)=890. Answer: 98</s>

Numbers in the steps are written from the ones upwards and padded (factors two digits, all else three), so
that a digit depends on digits before it only; the question and the answer are ordinary. The words between
are drawn anew for every text: there a mark can live, while the digits leave nothing to chance.
"""

from __future__ import annotations

import numpy as np

LARGEST = 30
"""Of the six numbers."""

OPENERS = ("First", "Now", "Then", "Next", "So", "Here", "Also", "And", "Well", "Okay", "Thus", "Hence")
EQUALS = ("=", " = ", ": ", " is ")
ENDS = (". ", "; ", ", ", "\n")

Numbers = tuple[int, int, int, int, int, int]


def expressions(count: int, seed: int) -> list[Numbers]:
    """Return the numbers a..f of expressions, each uniform on 0..30."""
    drawn = np.random.default_rng(seed).integers(0, LARGEST + 1, (count, 6))
    return [(a, b, c, d, e, f) for a, b, c, d, e, f in drawn.tolist()]


def shown(numbers: Numbers) -> str:
    a, b, c, d, e, f = numbers
    return f"{a}+{b}*{c}+{d}-{e}*{f}"


def value(numbers: Numbers) -> int:
    a, b, c, d, e, f = numbers
    return a + b * c + d - e * f


def question(expression: str) -> str:
    """Return what the model continues."""
    return f"Q: {expression}\n\nA:"


def solution(numbers: Numbers, rng: np.random.Generator, *, any_order: bool = False) -> str:
    """Return the steps and the answer, words drawn, and with `any_order` the order of the terms, too."""
    a, b, c, d, e, f = numbers
    first, second = b * c, e * f
    products = [_product(b, c, rng), _product(e, f, rng)]
    terms = [a, first, d]
    if any_order:
        rng.shuffle(products)
        terms = rng.permutation(terms).tolist()
    total = terms[0] + terms[1]
    steps = [
        *products,
        _sum(terms[0], terms[1], rng),
        _sum(total, terms[2], rng),
        _difference(total + terms[2], second, rng),
    ]
    return f" {''.join(steps)}Answer: {value(numbers)}"


def drill(rng: np.random.Generator, characters: int) -> str:
    """Return steps that have nothing to do with each other, as many as there is room for."""
    text = ""
    while True:
        kind = rng.random()
        if kind < 0.55:
            step = _product(*_drawn(rng, LARGEST, LARGEST), rng)
        elif kind < 0.8:
            x, y = _drawn(rng, LARGEST, LARGEST**2 + LARGEST)
            step = _sum(*((x, y) if rng.random() < 0.5 else (y, x)), rng)
        else:
            step = _difference(*_drawn(rng, LARGEST**2 + 2 * LARGEST, LARGEST**2), rng)
        if len(text) + len(step) > characters:
            return text
        text += step


def _drawn(rng: np.random.Generator, first: int, second: int) -> tuple[int, int]:
    return int(rng.integers(first + 1)), int(rng.integers(second + 1))


def _product(x: int, y: int, rng: np.random.Generator) -> str:
    return _step(f"{_digits(x, 2)}*{_digits(y, 2)}", x * y, rng)


def _sum(x: int, y: int, rng: np.random.Generator) -> str:
    return _step(f"{_digits(x)}+{_digits(y)}", x + y, rng)


def _difference(x: int, y: int, rng: np.random.Generator) -> str:
    sign, high, low = ("+", x, y) if x >= y else ("-", y, x)
    return _step(f"{sign}({_digits(high)}-{_digits(low)})", high - low, rng)


def _step(left: str, right: int, rng: np.random.Generator) -> str:
    opener, equals, end = (words[rng.integers(len(words))] for words in (OPENERS, EQUALS, ENDS))
    return f"{opener} {left}{equals}{_digits(right)}{end}"


def _digits(number: int, width: int = 3) -> str:
    return f"{number:0{width}}"[::-1]
