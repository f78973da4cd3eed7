"""How much text a finding needs, what to expect, and how often findings are false (`iet calibrate`)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from iet.audit.auditor import Auditor
from iet.audit.corpus import CORPUS_ENDS, corpus_files, read_corpus
from iet.audit.evidence import activity_log_p
from iet.audit.power_curves import Entropy, Expected, advice, entropy_of, plan, plan_table, t_quantile
from iet.audit.simulation import FREE_FIRST, FREE_RATE, MOST_NATS, NATIVE, MarkName, Method
from iet.audit.simulation import marked_scores as marked_scores
from iet.decoding import log_activity
from iet.decoding.activity import BLOCK
from iet.errors import InputError, check_number
from iet.marks.derivation import usable
from iet.marks.families import FAMILIES
from iet.marks.registry import Registry
from iet.marks.scheme import Profile
from iet.native.arrays import Float64s
from iet.report import Report

__all__ = [
    "CORPUS_ENDS",
    "Entropy",
    "Expected",
    "Null",
    "Power",
    "advice",
    "corpus_files",
    "entropy_of",
    "null",
    "null_table",
    "plan",
    "plan_table",
    "power",
    "power_table",
    "read_corpus",
]

LEVELS = (1e-2, 1e-3, 1e-4)
"""The levels at which `null` counts."""

ENTROPIES = (0.25, 0.5, 1.0, 2.0, 3.0)
KAPPAS = (0.4, 0.8, 1.6)
KEYS = (1, 6, 100, 10_000)
SHORT_TEXT = 200
"""Tokens from which on the European code of practice asks free text to be marked."""

SHORTEST = 2 * BLOCK
"""Number of tokens from which `power` searches."""

# ---------------------------------------------------------------- power


@dataclasses.dataclass(frozen=True)
class Power:
    """How many tokens of one agent are needed to find it.

    Attributes:
        family: a key of `iet.marks.families.FAMILIES`.
        kappa: κ; 1 in family "gumbel".
        entropy: mean nats per token of the distribution that tokens are drawn from.
        level: the level that the agent is found at.
        share: share of the texts of that length that the agent is found in.
        most: maximum number of tokens that was tried.
        tokens: number of agents in the registry -> number of tokens; None: more than `most`.
        in_short: number of agents -> share of texts of `SHORT_TEXT` tokens that it is found in.
        method: how the text is marked.
        generated: tokens that the model generates for each token of the text.
    """

    family: str
    kappa: float
    entropy: float
    level: float
    share: float
    most: int
    tokens: dict[int, int | None]
    in_short: dict[int, float]
    method: Method = NATIVE
    generated: float = 1.0


def power(
    entropies: Sequence[float] = ENTROPIES,
    kappas: Sequence[float] = KAPPAS,
    keys: Sequence[int] = KEYS,
    *,
    level: float = 0.01,
    share: float = 0.9,
    most: int = 20_000,
    texts: int = 400,
    draws: int = 1 << 16,
    seed: int = 0,
    mark: MarkName = "native",
    candidates: int = 8,
    chunk_tokens: int = 16,
    progress: Callable[[str], object] = lambda _: None,
) -> list[Power]:
    """Return how many tokens one agent must have written to be found, by simulation of scores.

    Text is taken as a mixture, as language models write it at low temperature: a share H / 2.5 of its tokens
    is drawn from distributions of 2.5 nats, the others are certain and carry no mark. Above 2.5 nats all are
    drawn from distributions of H nats. `benchmarks/results/power.md` compares this with texts of the shipped
    model. As in `Auditor`, the agent is found if the p-value of its key (`iet.evidence.activity_log_p`),
    corrected for the number of keys, is at most `level`. All tokens are the agent's, and no
    pair repeats. In family "gumbel" the first 8 tokens and 5 % of the others are free, as engines leave them
    by default (`iet.FreeTokens`), except with `select`.

    Args:
        entropies: H in nats per token, above 0, at most 5.5.
        kappas: κ of the families that have one; "gumbel" has none, and one row.
        keys: numbers of agents in the registry.
        level: 0 < level < 1.
        share: share of the texts that it has to be found in, 0 < share < 1.
        most: maximum number of tokens to try.
        texts: number of texts simulated for each length, at least 1.
        draws: number of scores that the texts are drawn from, a multiple of 16.
        seed: of every draw, an int of at least 0.
        mark: "native", by the engine; "select" or "walk", by `iet.generation.hosted`, in "gumbel" alone.
        candidates, chunk_tokens: m, 2 to 128, and L, 1 to 4096, of "select".
        progress: called with a line before each family, κ and entropy.

    Raises:
        InputError: a number is out of range.

    Deterministic. Some seconds per row; longer for many candidates or long chunks.
    """
    method = Method(mark, candidates, chunk_tokens)
    check_number("seed", seed, 0)
    for name, value in (("level", level), ("share", share)):
        if not 0 < value < 1:
            raise InputError(f"{name}: got {value!r}, expected a number between 0 and 1")
    if texts < 1 or draws < 16 or draws % 16:
        raise InputError(f"texts, draws: got {texts}, {draws}, expected at least 1 and a multiple of 16")
    for name, values in (
        ("entropies", entropies),
        ("kappas", kappas),
        ("keys", keys),
    ):
        if not len(values) or not all(0 < value < 1e9 for value in values):
            raise InputError(f"{name}: got {values!r}, expected numbers above 0")
    if max(entropies) > MOST_NATS:
        raise InputError(f"entropies: got {max(entropies)!r}, expected at most {MOST_NATS} nats")
    rows = []
    laws = {name: FAMILIES[name] for name in method.families}
    strengths = {name: (law.kappa,) if law.chooses else kappas for name, law in laws.items()}
    for family, kappa in ((name, kappa) for name in strengths for kappa in strengths[name]):
        for entropy in entropies:
            progress(f"{family}, κ {kappa:g}, {entropy:g} nats")
            rng = np.random.default_rng(
                [seed, FAMILIES[family].code, round(1e6 * kappa), round(1e6 * entropy)]
            )
            text = _Text(method, family, kappa, entropy, rng, draws)
            bounds = {count: log_p_of_one(level, count) for count in keys}
            tokens = {
                count: _tokens_needed(text, bound, share, most, texts) for count, bound in bounds.items()
            }
            short = text.log_p(SHORT_TEXT, texts)
            in_short = {count: float((short <= bound).mean()) for count, bound in bounds.items()}
            figures = (tokens, in_short, method, method.generated(entropy))
            rows.append(Power(family, kappa, entropy, level, share, most, *figures))
    return rows


def power_table(rows: Sequence[Power]) -> str:
    """Return the rows as a Markdown table, with a line above that says what it shows."""
    keys, row = list(rows[0].tokens), rows[0]
    is_hosted = row.method.mark != "native"
    lines = [
        f"Tokens of one agent after which it is found in {row.share:.0%} of texts at level {row.level:g},"
        " by the number of agents in the registry; and the share of texts of"
        f" {SHORT_TEXT} tokens in which it is found, in the same order."
        + is_hosted
        * f" Mark: {row.method}; price: tokens generated per token of text.",
        "",
        "| family, κ | nats per token | "
        + " | ".join(f"{count:,} agent{'s' * (count > 1)}" for count in keys)
        + f" | found in {SHORT_TEXT} tokens |"
        + is_hosted * " price |",
        "|" + " --- |" * (3 + len(keys) + is_hosted),
    ]
    for row in rows:
        cells = [tokens_needed(count, row.most) for count in row.tokens.values()]
        cells.append(" · ".join(f"{share:.0%}" for share in row.in_short.values()))
        cells += [f"{row.generated:.3g}"] * is_hosted
        lines.append(f"| {family_name(row)} | {row.entropy:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def family_name(row: Power) -> str:
    """Return the family and κ of a row as the tables show them."""
    return row.family if FAMILIES[row.family].chooses else f"{row.family}, {row.kappa:g}"


def tokens_needed(count: int | None, most: int) -> str:
    """Return a number of tokens as the tables show it."""
    if count is None:
        return f"> {most:,}"
    return f"≤ {count:,}" if count == SHORTEST else f"{count:,}"


def log_p_of_one(level: float, keys: int) -> float:
    """Return the log p-value of one key at which the text's, 1 - (1 - p)^K, reaches a level."""
    return math.log(-math.expm1(math.log1p(-level) / keys))


class _Text:
    """Simulated texts of one agent."""

    def __init__(
        self, method: Method, family: str, kappa: float, entropy: float, rng: np.random.Generator, draws: int
    ) -> None:
        self._method, self._law, self._rng = method, FAMILIES[family], rng
        self._pool = functools.cache(functools.partial(method.scores, family, kappa, entropy, rng, draws))

    def log_p(self, tokens: int, texts: int) -> Float64s:
        """Return the log p-values of the key that wrote texts of `tokens` tokens, [texts]."""
        chunk = self._method.chunk(tokens)
        pool = self._pool(chunk)
        chunks = pool[self._rng.integers(0, len(pool), (-(-tokens // chunk), texts))]
        scores = chunks.swapaxes(1, 2).reshape(-1, texts)[:tokens]
        if self._law.chooses and self._method.mark != "select":
            is_free = self._rng.random(scores.shape) < FREE_RATE
            is_free[:FREE_FIRST] = True
            scores = np.where(is_free, self._law.draw(self._rng, scores.shape, 0.0), scores)
        edges = np.arange(0, tokens, BLOCK)
        counts = np.diff(np.append(edges, tokens)).astype(np.float64)
        sums = np.add.reduceat(scores, edges, axis=0)
        return activity_log_p(log_activity(sums, counts, self._law), tokens, self._law)


def _tokens_needed(text: _Text, bound: float, share: float, most: int, texts: int) -> int | None:
    count = SHORTEST
    while count <= most:
        rounded = -(-count // BLOCK) * BLOCK
        if (text.log_p(rounded, texts) <= bound).mean() >= share:
            return rounded
        count = max(count + BLOCK, int(count * 1.12))
    return None


# ---------------------------------------------------------------- null


@dataclasses.dataclass(frozen=True)
class Null:
    """The false-positive rate on text without a mark.

    Attributes:
        texts: number of texts.
        registries: number of registries of drawn keys that each text was audited with.
        agents: number of keys in each registry.
        levels: level -> (share of pairs with a found agent, its 95 % interval (low, high), share of pairs
            with an attributed segment).
        lowest: natural log of the lowest p-value of all.
    """

    texts: int
    registries: int
    agents: int
    levels: dict[float, tuple[float, float, float, float]]
    lowest: float


def null(
    registry: Registry,
    texts: Iterator[str],
    *,
    profile: str | None = None,
    tokenizer: Any = None,
    registries: int = 20,
    seed: int = 0,
    progress: Callable[[str], object] = lambda _: None,
) -> Null:
    """Audit unmarked text under registries of drawn keys, and count how often an agent is found.

    Every text is audited under `registries` registries of its own, each with as many keys as `registry` and
    the same profile, so that some dozens of texts are enough. Intervals take texts as the independent units.

    Args:
        registry: gives the profile and the number of keys (of all epochs); its own keys are not used.
        texts: unmarked, not empty.
        profile, tokenizer: as in `Auditor`.
        registries: number of registries for each text, 1 to 100,000.
        seed: of their keys, an int of at least 0.
        progress: called with a line after each text.

    Raises:
        InputError: no text.

    Deterministic.
    """
    check_number("registries", registries, 1, 100_000)
    check_number("seed", seed, 0)
    agents = len(registry.scoring_keys(profile))
    chosen = registry.get_profile(profile)
    opened = registry.open_tokenizer(profile, tokenizer)
    in_texts, in_segments = list[list[float]](), list[list[float]]()
    for number, text in enumerate(texts, 1):
        ids = opened.encode(text).token_ids
        reports = []
        for drawn in range(registries):
            # Draw other keys for each text: texts share pairs, so one key is lucky, or not, in all of them.
            keys = _drawn(chosen, opened, agents, f"{seed}/{number}/{drawn}")
            reports.append(Auditor(keys, level=0.999).audit(token_ids=ids))
        in_texts.append([report.log_p for report in reports])
        in_segments.append([_lowest_attributed(report) for report in reports])
        progress(f"{number} texts")
    if not in_texts:
        raise InputError("texts: got none, expected at least one unmarked text")
    log_p, segments = np.array(in_texts), np.array(in_segments)
    levels = {}
    for level in LEVELS:
        hits = (log_p <= math.log(level)).mean(axis=1)
        low, high = clustered_interval(hits, registries, seed)
        share = float((segments <= math.log(level)).mean())
        levels[level] = (float(hits.mean()), low, high, share)
    return Null(len(log_p), registries, agents, levels, float(log_p.min()))


def _lowest_attributed(report: Report) -> float:
    """Return the log of the lowest level at which some segment of the report is attributed; 0 if none is."""
    sure = [
        max(report.evidence[s.agent], math.log(max(s.error or 0.0, 1e-12)))
        for s in report.segments
        if s.agent is not None
    ]
    return min(sure, default=0.0)


def null_table(result: Null) -> str:
    """Return the rates as a Markdown table, with a line above that says what it shows."""
    lines = [
        f"{result.texts:,} texts, each under {result.registries} registries of {result.agents} drawn keys;"
        f" lowest p-value 10^{result.lowest / math.log(10):.1f}",
        "",
        "| level | an agent is found in | 95 % interval | a segment is attributed in |",
        "| --- | --- | --- | --- |",
    ]
    for level, (rate, low, high, segments) in result.levels.items():
        lines.append(f"| {level:g} | {rate:.5f} | {low:.5f} to {high:.5f} | {segments:.5f} |")
    return "\n".join(lines)


def clustered_interval(
    hits: Float64s, pairs_each: int, seed: int = 0, draws: int = 2000
) -> tuple[float, float]:
    """Return the 95 % interval of a rate from its share in each text [N]: texts are the independent units.

    Bootstrap over texts, widened by the ratio of Student's t to the normal law, since a few texts spread
    less than all texts do. If fewer than five of the `each` x N pairs hit, or N is below five: Wilson's
    interval for the share of texts with a hit. The rate is at most that share, and at least it over `each`.
    """
    if hits.sum() * pairs_each < 5 or len(hits) < 5:
        low, high = _wilson(int((hits > 0).sum()), len(hits))
        return low / pairs_each, high
    rng = np.random.default_rng(seed)
    means = np.array([hits[rng.integers(0, len(hits), len(hits))].mean() for _ in range(draws)])
    low, high = np.quantile(means, (0.025, 0.975))
    mean, free = float(hits.mean()), len(hits) - 1
    wider = math.sqrt(len(hits) / free) * t_quantile(free) / t_quantile(1 << 40)
    return max(0.0, mean - wider * (mean - float(low))), min(1.0, mean + wider * (float(high) - mean))


def _wilson(hits: int, count: int) -> tuple[float, float]:
    z = 1.959964
    centre = (hits + z * z / 2) / (count + z * z)
    spread = z / (count + z * z) * math.sqrt(hits * (count - hits) / count + z * z / 4)
    return max(0.0, centre - spread), min(1.0, centre + spread)


def _drawn(profile: Profile, tokenizer: Any, agents: int, label: str) -> Registry:
    registry = Registry.create(
        None,
        tokenizer=tokenizer,
        vocab_size=profile.vocab_size,
        scheme=profile.scheme,
        unmarked_ids=profile.unmarked_ids,
    )
    for agent in range(agents):
        for number in range(64):  # for some V no key is usable; the auditor then raises
            name = f"iet calibrate/{label}/{agent}/{number}"
            secret = hashlib.blake2b(name.encode(), digest_size=32).digest()
            if usable(profile, secret):
                break
        registry.add(f"decoy-{agent + 1}", secret=secret)
    return registry
