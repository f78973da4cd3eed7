"""Test whether choosing chunks keeps the distribution of text: χ² against a source that is known exactly.

Chunks of a Markov chain of words, and texts of eight words, are counted. Each draw has a key of its own, the
key of a session.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from tqdm import tqdm

from benchmarks.accuracy import texts
from benchmarks.recording import columns
from benchmarks.statistics import chi_square
from iet.generation import selection
from iet.generation.selection import TextChooser
from iet.generation.sessions import keys_of_rows
from iet.kernels import score_tokens
from iet.marks.registry import Registry

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SIMULATED = 63
"""Simulated keys of a choice. The choice is exact for any number, and fewer take less time."""

BEFORE = " the small answer of the"
"""Text before every chunk: its last three tokens are the context of the first token."""

CHAIN = (" water", " budget", " library", " number", " report", " people")
"""Words of one token. A word is followed by one of the next three, in a circle."""

SHARES = (0.85, 0.1, 0.05)
"""Probabilities of the three."""

DRAFTS, CHUNK, LAST = 4, 4, 4
"""Drafts of a choice, their tokens, and the words of a chunk that are counted, from its end."""

MIN_EXPECTED = 10.0
"""Draws in a cell of χ²; rarer outcomes share one."""

SHORT = (" class", " school", " house", " teacher", " water", " budget", " library", " number")
LONG: tuple[tuple[str, str], ...] = ((" coun", "cil"), (" mark", "et"), (" let", "ter"), (" st", "ation"))
LONG += ((" fore", "st"), (" sum", "mer"), (" w", "inter"), (" se", "ed"))
"""Words of one token and of two: each word of a text is one of a pair, with equal probability."""

TREE, PLAIN = "TextChooser", "argmax log F(S)/n"
Choice = Callable[[str, Sequence[str]], int]
"""(session, drafts) -> index of the chosen one."""


def choices(registry: Registry) -> dict[str, Choice]:
    """Return rules that choose among drafts, each draw with the keys of its own session."""
    agent, reader = registry.names()[0], registry.open_tokenizer()

    def by_tree(session: str, options: Sequence[str]) -> int:
        return TextChooser(registry, agent, session).choose(BEFORE, options, [1.0] * len(options)).index

    def by_sums(session: str, options: Sequence[str]) -> int:
        table, (row,) = keys_of_rows(registry, registry.marking_keys(), [0], [session])
        keys, counts = table.subset(np.array([row])), np.array([options.count(text) for text in options])
        scores = [score_tokens(reader.encode(BEFORE + text).token_ids, keys) for text in options]
        sums = np.array([of_draft[-CHUNK:].sum(dtype=np.float64) for of_draft in scores])
        return int(np.argmax(np.log(special.gammainc(CHUNK, sums)) / counts))

    return {TREE: by_tree, PLAIN: by_sums}


def chunks(choice: Choice, length: int, draws: int, seed: int) -> tuple[Floats, Ints]:
    """Return probabilities and counts of chosen chunks: of their last words and the word before these."""
    rng, words = np.random.default_rng(seed), len(CHAIN)
    counts = np.zeros((words, len(SHARES) ** LAST), dtype=np.int64)
    powers = len(SHARES) ** np.arange(LAST)[::-1]
    for draw in range(draws):
        steps = rng.choice(len(SHARES), (DRAFTS, length), p=SHARES)
        numbers = np.cumsum(steps + 1, axis=1) % words
        options = ["".join(CHAIN[word] for word in row) for row in numbers]
        chosen = choice(f"{seed} {draw}", options)
        first = 0 if length == LAST else numbers[chosen, -LAST - 1]
        counts[first, steps[chosen, -LAST:] @ powers] += 1
    step = np.sum([share * np.roll(np.eye(words), i + 1, axis=1) for i, share in enumerate(SHARES)], axis=0)
    first_word = np.linalg.matrix_power(step, length - LAST)[0]
    last = np.array([math.prod(path) for path in itertools.product(SHARES, repeat=LAST)])
    return np.outer(first_word, last).ravel(), counts.ravel()


def eight_words(registry: Registry, drafts: int, is_cut: bool, draws: int, seed: int) -> tuple[Floats, Ints]:
    """Return probabilities and counts of texts of eight words, written chunk by chunk.

    Args:
        drafts: number of drafts of a chunk; one draft leaves no choice.
        is_cut: whether drafts end before their last blank.
    """
    rng, size = np.random.default_rng(seed), len(SHORT)
    counts = np.zeros(2**size, dtype=np.int64)
    for draw in range(draws):
        chooser = TextChooser(registry, registry.names()[0], f"{seed} {draw}")
        text, is_long, pending = BEFORE, list[bool](), False  # pending: the last word lacks its second token
        while len(is_long) - pending < size:
            candidates = []
            for _ in range(drafts):
                words = [*is_long, *(rng.random(CHUNK) < 0.5).tolist()]
                candidates.append(_draft(words, len(is_long), pending, is_cut))
            options = [option for option, _, _ in candidates]
            chosen = chooser.choose(text, options, [1.0] * drafts).index if drafts > 1 else 0
            option, is_long, pending = candidates[chosen]
            text += option
        counts[int("".join(map(str, map(int, is_long[:size]))), 2)] += 1
    return np.full(2**size, 0.5**size), counts


def _draft(words: list[bool], num_words: int, pending: bool, is_cut: bool) -> tuple[str, list[bool], bool]:
    """Return a draft of `CHUNK` tokens, the words of the text after it, and whether the last one is partial.

    Args:
        words: whether each word is long, of those in the text and of enough others.
        num_words: in the text.
        pending: whether the last of them lacks its second token.
    """
    tokens = [LONG[(num_words - 1) % len(LONG)][1]] if pending else []
    for number in range(num_words, len(words)):
        pair = number % len(SHORT)
        tokens += LONG[pair] if words[number] else (SHORT[pair],)
    draft = tokens[:CHUNK]
    count = num_words + sum(token.startswith(" ") for token in draft)
    if is_cut:
        return "".join(draft).rpartition(" ")[0], words[: count - 1], False
    return "".join(draft), words[:count], words[count - 1] and draft[-1].startswith(" ")


def exactness(draws: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return χ² of chosen chunks and texts against the distribution of the drafts.

    Args:
        draws: of all chunks together; of each kind of text a thirtieth.
        seed: of the drafts and the sessions.
    """
    selection._SIMULATED, simulated = SIMULATED, selection._SIMULATED
    registry = texts.keys("shipped", "gumbel", seed, 1)
    rules = choices(registry)
    cases: list[tuple[str, str, float, Any]] = [
        (f"chunks of {length} tokens", rule, share, (chunks, rules[rule], length))
        for rule, length, share in ((TREE, CHUNK, 0.6), (PLAIN, CHUNK, 0.2), (TREE, 3 * CHUNK, 0.1))
    ]
    for rule, drafts, is_cut in (
        (f"{TREE}, not cut", DRAFTS, False),
        (f"{TREE}, cut at the last blank", DRAFTS, True),
        ("one draft, cut at the last blank", 1, True),
    ):
        cases.append((f"texts of {len(SHORT)} words", rule, 1 / 30, (eight_words, registry, drafts, is_cut)))
    rows = []
    for number, (case, rule, share, (measure, *arguments)) in enumerate(tqdm(cases, desc="exactness")):
        probabilities, counts = measure(*arguments, round(draws * share), seed + number)
        rows.append({"case": case, "rule": rule, **tested(probabilities, counts)})
    selection._SIMULATED = simulated
    return rows


def tested(probabilities: Floats, counts: Ints) -> dict[str, Any]:
    """Return χ² of counts, and their total variation with that of draws from the distribution itself."""
    draws = int(counts.sum())
    is_common = probabilities * draws >= MIN_EXPECTED
    seen, expected = (np.append(of[is_common], of[~is_common].sum()) for of in (counts, probabilities))
    if expected[-1] * draws < MIN_EXPECTED and len(expected) > 1:  # too little for a cell of its own
        seen, expected = seen[:-1], expected[:-1] / expected[:-1].sum()
    statistic, freedom, p = chi_square(seen, expected)
    return {
        "draws": draws,
        "freedom": freedom,
        "z": (statistic - freedom) / math.sqrt(2 * freedom) if freedom else None,
        "p": p if freedom else None,
        "total_variation": float(np.abs(counts / draws - probabilities).sum() / 2),
        "of_exact_draws": float(np.sqrt(probabilities * (1 - probabilities) / draws / (2 * math.pi)).sum()),
    }


def markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of χ² with what it means, as sections."""
    formats = {"drafts": "{case}", "rule": "{rule}", "draws": "{draws:,}", "dof": "{freedom}"}
    formats |= {"z of χ²": "{z:+.1f}", "p": "{p:.1e}", "total variation": "{total_variation:.4f}"}
    formats |= {"of exact draws": "{of_exact_draws:.4f}"}
    shares = ", ".join(map(str, SHARES))
    return [
        f"**Exactness**: {DRAFTS} drafts from a known source, each choice with a new key, χ² against the"
        f" source; z is (χ² - dof)/√(2·dof). In the Markov chain of words of one token, the next word has"
        f" probabilities {shares}. Of chunks of {3 * CHUNK} tokens the last {LAST} words are counted. Texts"
        f" of {len(SHORT)} words are written in chunks of {CHUNK} tokens, and each word has one or two"
        f" tokens with equal probability. The last column is the mean total variation of draws from the"
        f" source itself. `TextChooser` ranks among {SIMULATED} simulated keys here.",
        columns(rows, formats),
        f"F is the distribution of a sum S of {CHUNK} scores, n the number of equal drafts. The rule {PLAIN}"
        " ignores that drafts share tokens, and is biased. In longer drafts of few words, two branches often"
        " hold the same pair of context and token, which `TextChooser` leaves out of the choice. A cut at the"
        " last blank keeps a word only if the draft goes on after it, which short words allow more often. So"
        " even one draft is biased.",
    ]
