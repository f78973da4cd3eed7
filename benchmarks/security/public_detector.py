"""Attacks on the public detector with 10,000 questions (`iet serve --public`).

    python -m benchmarks.security.public_detector --work DIR -o benchmarks/results/public_detector.json

All answers come from `iet.service.detection.detect`, the function that answers public questions; the control
gets the log p-value of an audit instead. Attackers change whole words of texts of the shipped model (family
`gumbel`, n = 4, temperature 1, two agents) and draw new words from its tokenizer.

**Forging.** *Without marked text*: draw texts until the answer is better than `not_found`, then climb. With
p-values: replace one word at a time and keep what lowers the p-value. *With one marked text* of 400 tokens:
replace its words by new ones, one at a time, and keep what leaves the answer `found`, until none is left.
*Without a detector*: join parts of the marked text in another order (`benchmarks.security.framing`).

**Removing.** Words of a marked text are replaced by others. *Without a detector*: at random or evenly spread
positions. *With the detector*: the number of replacements is bisected; then one is undone, or two become
another one, if the answer stays `not_found`. *With p-values*: the same, but the words whose replacement
raises the p-value most come first.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.accuracy import texts
from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.security.framing import LEVEL, Forger, index_of
from benchmarks.security.writing import TOKENS, team, written
from iet.audit.attribution import evidence_of
from iet.audit.auditor import Auditor
from iet.audit.calibration import power, power_table
from iet.service.detection import FOUND_LEVEL, MIN_TOKENS, UNCLEAR_LEVEL, detect

SCHEME, QUESTIONS = "gumbel n=4", 10_000
FORGED, FEWEST_WORDS = 250, 220
"""Words of a forged text; number of words from which a marked text is used: a new word is one token."""

ENTROPIES = (0.2, 0.5, 1.0, 3.0)
"""Nats per token for which the length of an honest text is simulated."""

LOOSE_LEVELS = (1e-4, 1e-2)
"""Levels of an audit's kind, for comparison."""

TIERS = {"found": -2.0, "unclear": -1.0, "not_found": 0.0}
Words = list[str]
Ask = Callable[[Words], float]
"""Answer to a text: a number that an attacker wants to be low, 0 if the text looks unmarked."""


class OutOfQuestions(Exception):
    """The attacker has asked all questions."""


class Oracle:
    """Answers questions in one of three ways, and counts them.

    Args:
        auditor: the detector's keys.
        kind: "public", "loose" (three results at `LOOSE_LEVELS`) or "p-value".
        max_questions: maximum number of questions.
    """

    def __init__(self, auditor: Auditor, kind: str, max_questions: int = QUESTIONS) -> None:
        self._auditor, self._kind, self._max_questions = auditor, kind, max_questions
        self.questions, self.answers = 0, Counter[float]()

    def __call__(self, words: Words) -> float:
        """Return the answer to a text."""
        if self.questions == self._max_questions:
            raise OutOfQuestions
        self.questions += 1
        value = self._answer("".join(words))
        if self._kind != "p-value":
            self.answers[value] += 1
        return value

    @property
    def goal(self) -> float:
        """The answer, or a higher one, at which a forgery succeeds."""
        return math.log(FOUND_LEVEL) if self._kind == "p-value" else TIERS["found"]

    def is_removed(self, words: Words) -> bool:
        """Ask, and return whether the text passes for unmarked."""
        return self(words) > (math.log(UNCLEAR_LEVEL) if self._kind == "p-value" else TIERS["unclear"])

    def _answer(self, text: str) -> float:
        if self._kind == "public":
            return TIERS[detect(self._auditor, text)["result"]]
        value = log_p(self._auditor, text)
        if self._kind == "p-value":
            return value
        return -float(sum(value <= math.log(level) for level in LOOSE_LEVELS))


def log_p(auditor: Auditor, text: str) -> float:
    """Return the log p-value of a whole text, as an audit reports it."""
    return float(np.nanmin(evidence_of(auditor.plan, text, auditor.plan.encode([text])[0])[0]))


class Attacker:
    """Draws words and texts."""

    def __init__(self, vocabulary: Sequence[str], seed: int) -> None:
        self._vocabulary, self.rng = vocabulary, np.random.default_rng(seed)

    def words(self, count: int) -> Words:
        """Return new words, each with the blank before it."""
        return [self._vocabulary[i] for i in self.rng.integers(0, len(self._vocabulary), count)]

    def climb(self, ask: Oracle) -> Words | None:
        """Return a text that reaches the goal: new texts while the answer is 0, then changes of one word."""
        text = self.words(FORGED)
        best = ask(text)
        while best > ask.goal:
            if best == 0:
                changed = self.words(FORGED)
            else:
                changed = list(text)
                changed[int(self.rng.integers(FORGED))] = self.words(1)[0]
            value = ask(changed)
            if value <= best:
                text, best = changed, value
        return text

    def exchange(self, ask: Oracle, start: Words) -> Words:
        """Return a text of new words alone, made from a marked text one word at a time.

        The answer stays at the goal: a change is kept only if it does. Half of the tries replace a word of
        the marked text, the others replace a new word by another, which lets the evidence move to the new
        words.
        """
        length = max(FORGED, len(start))
        text, new = start + self.words(length - len(start)), self.words(length)
        order = self.rng.permutation(len(start)).tolist()
        low, high = 0, len(order)
        while high - low > 1:
            middle = (low + high) // 2
            changed = [new[i] if i in order[:middle] else text[i] for i in range(length)]
            low, high = (middle, high) if ask(changed) <= ask.goal else (low, middle)
        text = [new[i] if i in order[:low] else text[i] for i in range(length)]
        marked = order[low:]
        while marked:
            changed, is_marked = list(text), self.rng.random() < 0.5
            position = int(self.rng.choice(marked) if is_marked else self.rng.integers(length))
            changed[position] = self.words(1)[0]
            if ask(changed) <= ask.goal:
                text = changed
                if position in marked:
                    marked.remove(position)
        return text


def forge(auditor: Auditor, kind: str, attacker: Attacker, start: Words | None) -> dict[str, Any]:
    """Return what one attack comes to."""
    ask = Oracle(auditor, kind)
    try:
        text = None
        if start is not None and ask(start) <= ask.goal:
            text = attacker.exchange(ask, start)
        text = text or attacker.climb(ask)
    except OutOfQuestions:
        text = None
    answers = {name: ask.answers[value] for name, value in TIERS.items()} if ask.answers else {}
    return {"succeeded": text is not None, "questions": ask.questions, **answers}


def remove(
    auditor: Auditor, kind: str, attacker: Attacker, words: Words, max_questions: int = QUESTIONS
) -> dict[str, float]:
    """Return the share of words that an attacker replaces until the text passes for unmarked."""
    ask, order = Oracle(auditor, kind, max_questions), attacker.rng.permutation(len(words)).tolist()
    new = attacker.words(len(words))

    def replaced(positions: Sequence[int]) -> Words:
        text = list(words)
        for position in positions:
            text[position] = new[position]
        return text

    if kind == "p-value":
        alone = {position: ask(replaced([position])) for position in order}
        order.sort(key=lambda position: -alone[position])
    low, high = 0, len(order)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ask.is_removed(replaced(order[:middle])) else (middle, high)
    positions, bisected = order[:high], high
    with contextlib.suppress(OutOfQuestions):
        while len(positions) > 2:
            unused = np.setdiff1d(np.arange(len(words)), positions)
            dropped = attacker.rng.choice(len(positions), 2, replace=False)
            tried = np.delete(
                positions, dropped if len(unused) and attacker.rng.random() < 0.5 else dropped[:1]
            )
            if len(tried) == len(positions) - 2:  # one for two
                tried = np.append(tried, attacker.rng.choice(unused))
            if ask.is_removed(replaced(tried.tolist())):
                positions = tried.tolist()
    return {"bisected": bisected / len(words), "replaced": len(positions) / len(words)}


def blind(auditor: Auditor, attacker: Attacker, words: Words, share: float, *, even: bool) -> bool:
    """Return whether a text passes for unmarked after a share of its words was replaced.

    The positions are random, or evenly spread if `even`.
    """
    text, new, count = list(words), attacker.words(len(words)), round(share * len(words))
    positions = attacker.rng.permutation(len(words))[:count]
    if even:
        positions = np.arange(count) * len(words) // count
    for position in positions.tolist():
        text[position] = new[position]
    return Oracle(auditor, "public").is_removed(text)


def run(work: pathlib.Path, tries: int) -> dict[str, Any]:
    tokenizer = texts.tokenizer("shipped")
    decoded = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
    vocabulary = [token for token in decoded if re.fullmatch(" [a-z]{2,}", token)]
    registry = team(SCHEME)
    published, later = written(work, SCHEME, 2 * TOKENS * tries)
    auditor = Auditor(registry, level=UNCLEAR_LEVEL)
    divided = [re.findall(r"\s*\S+", tokenizer.decode(ids.tolist())) for ids in published]
    long = [i for i, words in enumerate(divided) if len(words) >= FEWEST_WORDS][:tries]
    spelled, published = [divided[i] for i in long], published[long]
    forging = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        guarded = Auditor(registry, published=index_of(folder, registry, published))
        for knows, kind, reader in (
            ("nothing", "public", auditor),
            ("nothing", "loose", auditor),
            ("nothing", "p-value", auditor),
            ("a marked text", "public", auditor),
            ("a marked text, which is in the index", "public", guarded),
        ):
            starts = [None] * tries if knows == "nothing" else spelled
            rows = [
                forge(reader, kind, Attacker(vocabulary, seed), starts[seed])
                for seed in tqdm(range(tries), desc=f"{knows}, {kind}")
            ]
            forging.append(_forging_row(knows, kind, rows))
        for knows, reader in (("a marked text", auditor), ("a marked text, which is in the index", guarded)):
            rows = []
            for seed in range(tries):
                ids = Forger([published[seed].tolist()], registry.profile.scheme.n_gram, seed).write(FORGED)
                result = detect(reader, tokenizer.decode(ids))["result"]
                rows.append({"succeeded": result == "found", "questions": 0})
            forging.append(_forging_row(knows, "none", rows))
    removing = [
        remove(auditor, kind, Attacker(vocabulary, seed), spelled[seed]) | {"kind": kind}
        for kind in ("public", "p-value")
        for seed in tqdm(range(tries), desc=f"removing, {kind}")
    ]
    shares = [round(0.02 * step, 2) for step in range(1, 46)]
    passes = {
        name: {
            share: statistics.mean(
                blind(auditor, Attacker(vocabulary, seed), words, share, even=even)
                for seed, words in enumerate(spelled)
            )
            for share in shares
        }
        for name, even in (("random", False), ("even", True))
    }
    results_by_length = {
        f"{tokens} tokens": Counter(
            detect(auditor, tokenizer.decode(ids[:tokens].tolist()))["result"]
            for ids in later
            if len(tokenizer.encode(tokenizer.decode(ids[:tokens].tolist())).token_ids) >= MIN_TOKENS
        )
        for tokens in (210, 400)
    }
    return {
        "levels": {"found": FOUND_LEVEL, "unclear": UNCLEAR_LEVEL},
        "tries": tries,
        "forging": forging,
        "removing": {
            **{
                kind: {
                    name: statistics.median(float(row[name]) for row in removing if row["kind"] == kind)
                    for name in ("bisected", "replaced")
                }
                for kind in ("public", "p-value")
            },
            **{name: min(share for share in shares if rates[share] == 1) for name, rates in passes.items()},
        },
        "honest": results_by_length,
        "power": [
            power_table(power(ENTROPIES, (0.8,), (1, 6, 100), level=level)) for level in (FOUND_LEVEL, LEVEL)
        ],
    }


def _forging_row(knows: str, kind: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    questions = sorted(row["questions"] if row["succeeded"] else math.inf for row in rows)
    median = questions[(len(rows) - 1) // 2]
    answers = Counter[str]()
    for row in rows:
        answers.update({name: row.get(name, 0) for name in TIERS})
    return {
        "knows": knows,
        "detector": kind,
        "tries": len(rows),
        "succeeded": sum(row["succeeded"] for row in rows),
        "median": None if math.isinf(median) else median,
        "asked": sum(row["questions"] for row in rows),
        "answers": dict(answers),
        "bits": None if not answers.total() else _entropy(answers),
    }


def _entropy(counts: Counter[str]) -> float:
    """Return the entropy of the answers in bits, the upper bound of what a question reveals."""
    shares = np.array([count for count in counts.values() if count]) / counts.total()
    return abs(float((shares * np.log2(shares)).sum()))


DETECTORS = {
    "public": "this one",
    "loose": f"three results at levels {LOOSE_LEVELS[0]:g} and {LOOSE_LEVELS[1]:g}",
    "p-value": "an audit's p-value",
    "none": "none",
}


def markdown(results: dict[str, Any]) -> str:
    rows = [
        {**row, "detector": DETECTORS[row["detector"]], "median": row["median"] if row["succeeded"] else None}
        for row in results["forging"]
    ]
    attack = {
        "the attacker has": "{knows}",
        "detector asked": "{detector}",
        "tries": "{tries}",
        "forgeries found": "{succeeded}",
        "questions, median": "{median:,}",
        "questions asked in all": "{asked:,}",
        "answers `found`": "{answers[found]:,}",
        "`unclear`": "{answers[unclear]:,}",
        "bits a question": "{bits:.3f}",
    }
    removing = [
        {"attacker": name, **removed}
        for name, removed in (
            ("without a detector, random positions", {"replaced": results["removing"]["random"]}),
            ("without a detector, evenly spread", {"replaced": results["removing"]["even"]}),
            ("this detector", results["removing"]["public"]),
            ("an audit's p-value", results["removing"]["p-value"]),
        )
    ]
    removal = {
        "attacker": "{attacker}",
        "words replaced after bisection": "{bisected:.0%}",
        f"after {QUESTIONS:,} questions": "{replaced:.0%}",
    }
    honest = [{"length": name, **counts} for name, counts in results["honest"].items()]
    honest_columns = {"length": "{length}", **{name: f"{{{name}}}" for name in TIERS}}
    return "\n\n".join(
        [
            f"Levels of the detector: `found` {FOUND_LEVEL:g}, `unclear` {UNCLEAR_LEVEL:g}.",
            f"**Forging** {FORGED} new words that the detector calls `found`, with at most {QUESTIONS:,}"
            " questions. The median counts failed tries as the longest. Bits are the entropy of the answers,"
            " the most that a question can reveal.",
            columns(rows, attack),
            "With the index nearly all answers `unclear` come from the number of tokens that are evidence,"
            " which depends on no key.",
            "**Removing** the mark from texts of 400 tokens: median share of words that are replaced until"
            " the answer is `not_found`; without a detector the share from which on all texts pass.",
            columns(removing, removal),
            "**Marked texts** that others wrote: results by length.",
            columns(honest, honest_columns),
            *results["power"],
        ]
    )


def main() -> None:
    line = parser("benchmarks.security.public_detector", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--tries", type=int, default=6, help="of each attack (default: 6)")
    options = line.parse_args()
    results = run(options.work, options.tries)
    finish(line, options, results, markdown(results))


if __name__ == "__main__":
    sys.exit(exit_code(main))
