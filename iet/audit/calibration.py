"""How much text a finding needs, and how often it would be wrong on text of one's own (`iet calibrate`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.audit.auditor import Auditor
from iet.audit.evidence import activity_log_p
from iet.decoding import log_activity
from iet.decoding.activity import BLOCK
from iet.errors import InputError
from iet.marks.keys import usable
from iet.marks.registry import Registry
from iet.marks.scheme import FAMILIES, Profile

__all__ = ["Null", "Power", "null", "null_table", "power", "power_table", "read_corpus"]

LEVELS = (1e-2, 1e-3, 1e-4)
"""What `null` counts at."""

ENTROPIES = (0.25, 0.5, 1.0, 2.0, 3.0)
KAPPAS = (0.4, 0.8, 1.6)
KEYS = (1, 6, 100, 10_000)
UNCERTAIN_NATS = 2.5
SHORTEST = 2 * BLOCK
"""Tokens at which `power` begins to look."""

_CANDIDATES = 256
Floats = NDArray[np.float64]


# ---------------------------------------------------------------- power


@dataclasses.dataclass(frozen=True)
class Power:
    """How many tokens of one agent are needed to find it.

    Attributes:
        family: "fourier" or "gumbel".
        kappa: κ; 1 in family "gumbel".
        entropy: mean nats per token of the distribution that is drawn from.
        level: of the finding.
        share: of texts of that length in which the agent is found.
        most: tokens that were tried at most.
        tokens: number of keys in the registry -> tokens, None: more than `most`.
    """

    family: str
    kappa: float
    entropy: float
    level: float
    share: float
    most: int
    tokens: dict[int, int | None]


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
    progress: Callable[[str], object] = lambda _: None,
) -> list[Power]:
    """Return how many tokens one agent must have written to be found, by simulation of scores.

    Text is taken as a mixture: a share H / 2.5 of its tokens is drawn from distributions of 2.5 nats (all of
    it, of H nats, where H is more), the rest is certain and carries no mark. So it is in text of language
    models at low temperature; how well it meets the shipped model's is in `benchmarks/results/power.md`. The
    finding is that of `Auditor`: the p-value of the agent's key (`iet.evidence.activity_log_p`), corrected
    for the number of keys, is at most `level`. All tokens are the agent's, no pair repeats.

    Args:
        entropies: H in nats per token, above 0.
        kappas: κ of family "fourier"; a row of "gumbel", which has none, comes last.
        keys: sizes of the registry.
        level: 0 < level < 1.
        share: in so many texts it is found, 0 < share < 1.
        most: tokens at most.
        texts: simulated for each length, at least 1.
        draws: scores from which their tokens are taken, a multiple of 16.
        seed: of every draw.
        progress: called with a line before each row.

    Raises:
        InputError: a number is out of range.

    Deterministic. Some seconds per row.
    """
    for name, value in (("level", level), ("share", share)):
        if not 0 < value < 1:
            raise InputError(f"{name}: got {value!r}, expected a number between 0 and 1")
    if texts < 1 or draws < 16 or draws % 16:
        raise InputError(f"texts, draws: got {texts}, {draws}, expected at least 1 and a multiple of 16")
    for name, values in (("entropies", entropies), ("kappas", kappas), ("keys", keys)):
        if not len(values) or not all(0 < value < 1e9 for value in values):
            raise InputError(f"{name}: got {values!r}, expected numbers above 0")
    rows = []
    for family, kappa in [*(("fourier", kappa) for kappa in kappas), ("gumbel", 1.0)]:
        for entropy in entropies:
            progress(f"{family}, κ {kappa:g}, {entropy:g} nats")
            rng = np.random.default_rng(
                [seed, FAMILIES[family].code, round(1e6 * kappa), round(1e6 * entropy)]
            )
            pool = marked_scores(family, kappa, entropy, rng, draws)
            found = {
                count: _tokens_needed(pool, family, count, level, share, most, texts, rng) for count in keys
            }
            rows.append(Power(family, kappa, entropy, level, share, most, found))
    return rows


def power_table(rows: Sequence[Power]) -> str:
    """Return the rows as a Markdown table, under a line that says of what."""
    keys, row = list(rows[0].tokens), rows[0]
    lines = [
        f"Tokens of one agent after which it is found in {row.share:.0%} of texts at level {row.level:g},"
        " by the number of keys in the registry.",
        "",
        "| family, κ | nats per token | "
        + " | ".join(f"{count:,} key{'s' * (count > 1)}" for count in keys)
        + " |",
        "|" + " --- |" * (2 + len(keys)),
    ]
    for row in rows:
        name = row.family if row.family == "gumbel" else f"{row.family}, {row.kappa:g}"
        cells = [tokens_needed(count, row.most) for count in row.tokens.values()]
        lines.append(f"| {name} | {row.entropy:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tokens_needed(count: int | None, most: int) -> str:
    """Return a number of tokens as the tables have it."""
    if count is None:
        return f"> {most:,}"
    return f"≤ {count:,}" if count == SHORTEST else f"{count:,}"


def marked_scores(
    family: str, kappa: float, entropy: float, rng: np.random.Generator, draws: int = 1 << 16
) -> Floats:
    """Return scores of tokens drawn with a mark, [draws], in text of `entropy` nats (see `power`)."""
    nats = max(entropy, UNCERTAIN_NATS)
    uncertain = rng.random(draws) < entropy / nats
    logits = _slope(nats, rng) * rng.normal(size=(draws // 16, _CANDIDATES))
    logits = np.repeat(logits, 16, axis=0)
    if family == "gumbel":
        certain = rng.exponential(size=draws)
        noise = rng.random((draws, _CANDIDATES))
        chosen = (logits - np.log(-np.log(noise))).argmax(axis=1)
        scores = -np.log1p(-noise[np.arange(draws), chosen])
    else:
        scores_of = np.cos(2 * np.pi * rng.random((draws, _CANDIDATES)))
        certain = np.cos(2 * np.pi * rng.random(draws))
        noise = -np.log(-np.log(rng.random((draws, _CANDIDATES))))
        chosen = (logits + kappa * scores_of + noise).argmax(axis=1)
        scores = scores_of[np.arange(draws), chosen]
    return np.where(uncertain, scores, certain)


def _slope(nats: float, rng: np.random.Generator) -> float:
    """Return s for which softmax(s·z), z standard normal, has `nats` on average."""
    z = rng.normal(size=(400, _CANDIDATES))
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        log_q = middle * z - np.log(np.exp(middle * z).sum(axis=1, keepdims=True))
        low, high = (middle, high) if -(np.exp(log_q) * log_q).sum(axis=1).mean() > nats else (low, middle)
    return low


def log_p_of_one(level: float, keys: int) -> float:
    """Return the log p-value of one key at which the text's, 1 - (1 - p)^K, reaches a level."""
    return math.log(-math.expm1(math.log1p(-level) / keys))


def _tokens_needed(
    pool: Floats,
    family: str,
    keys: int,
    level: float,
    share: float,
    most: int,
    texts: int,
    rng: np.random.Generator,
) -> int | None:
    bound = log_p_of_one(level, keys)
    count = SHORTEST
    while count <= most:
        blocks = -(-count // BLOCK)
        counts = np.full(blocks, float(BLOCK))
        scores = pool[rng.integers(0, len(pool), (blocks * BLOCK, texts))]
        sums = scores.reshape(blocks, BLOCK, texts).sum(axis=1)
        log_p = activity_log_p(log_activity(sums, counts, FAMILIES[family]), blocks * BLOCK, FAMILIES[family])
        if (log_p <= bound).mean() >= share:
            return blocks * BLOCK
        count = max(count + BLOCK, int(count * 1.12))
    return None


# ---------------------------------------------------------------- null


@dataclasses.dataclass(frozen=True)
class Null:
    """How often text without a mark was read as marked.

    Attributes:
        texts: how many were audited.
        registries: how many registries of drawn keys read each.
        agents: keys in each.
        levels: level -> (share of pairs in which an agent is found, its 95 % interval (low, high), share in
            which a segment is attributed).
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
    """Audit unmarked text under registries of drawn keys, and count what is found though nothing is there.

    Every text is read by `registries` registries of its own with as many keys as `registry` under the same
    profile, so that even some dozens of texts tell something. Intervals treat the texts as the independent
    units.

    Args:
        registry: whose profile and number of keys (of all epochs) are calibrated; its own keys are not used.
        texts: unmarked, not empty.
        profile, tokenizer: as in `Auditor`.
        registries: how many read each text, at least 1.
        seed: of their keys.
        progress: called with a line after each text.

    Raises:
        InputError: no text.

    Deterministic.
    """
    if isinstance(registries, bool) or not isinstance(registries, int) or registries < 1:
        raise InputError(f"registries: got {registries!r}, expected an int of at least 1")
    agents = len(registry.scoring_keys(profile))
    chosen = registry.get_profile(profile)
    reader = registry.open_tokenizer(profile, tokenizer)
    found, attributed = [], []
    for number, text in enumerate(texts, 1):
        row: tuple[list[float], list[float]] = ([], [])
        ids = reader.encode(text).token_ids
        for drawn in range(registries):
            # Texts share pairs: keys that read several texts would be lucky, or not, in all of them.
            registry = _drawn(chosen, reader, agents, f"{seed}/{number}/{drawn}")
            report = Auditor(registry, level=0.999).audit(token_ids=ids)
            row[0].append(report.log_p)
            sure = [
                max(report.evidence[s.best_guess], math.log(max(s.error or 0.0, 1e-12)))
                for s in report.segments
                if s.agent is not None and s.best_guess is not None
            ]
            row[1].append(min(sure, default=0.0))
        found.append(row[0])
        attributed.append(row[1])
        progress(f"{number} texts")
    if not found:
        raise InputError("texts: got none, expected at least one unmarked text")
    log_p, segments = np.array(found), np.array(attributed)
    levels = {}
    for level in LEVELS:
        hits = (log_p <= math.log(level)).mean(axis=1)
        low, high = clustered_interval(hits, registries, seed)
        share = float((segments <= math.log(level)).mean())
        levels[level] = (float(hits.mean()), low, high, share)
    return Null(len(log_p), registries, agents, levels, float(log_p.min()))


def null_table(found: Null) -> str:
    """Return the rates as a Markdown table, under a line that says of what."""
    lines = [
        f"{found.texts:,} texts, each under {found.registries} registries of {found.agents} drawn keys;"
        f" lowest p-value 10^{found.lowest / math.log(10):.1f}",
        "",
        "| level | an agent is found in | 95 % interval | a segment is attributed in |",
        "| --- | --- | --- | --- |",
    ]
    for level, (rate, low, high, segments) in found.levels.items():
        lines.append(f"| {level:g} | {rate:.5f} | {low:.5f} to {high:.5f} | {segments:.5f} |")
    return "\n".join(lines)


def clustered_interval(hits: Floats, each: int, seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of a rate from its share in each text [N]: texts are the independent units.

    Bootstrap over texts. Where fewer than five of `each` x N pairs hit, or N is below five, Wilson's interval
    for the share of texts with a hit: the rate is that at most, and at least so much divided by `each`.
    """
    if hits.sum() * each < 5 or len(hits) < 5:
        low, high = _wilson(int((hits > 0).sum()), len(hits))
        return low / each, high
    rng = np.random.default_rng(seed)
    means = np.array([hits[rng.integers(0, len(hits), len(hits))].mean() for _ in range(draws)])
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


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
        for number in range(64):  # with some V no key is usable, and the auditor says so
            name = f"iet calibrate/{label}/{agent}/{number}"
            secret = hashlib.blake2b(name.encode(), digest_size=32).digest()
            if usable(profile, secret):
                break
        registry.add(f"decoy-{agent + 1}", secret=secret)
    return registry


def read_corpus(path: pathlib.Path) -> Iterator[str]:
    """Yield the texts of a corpus: a folder's files, the "text" of each line of a `.jsonl`, or one file.

    Args:
        path: a folder is read with all below it, in the order of names; of its files those ending in .txt,
            .md, .rst or .jsonl.

    Raises:
        InputError: nothing to read there, no UTF-8, or a line of JSON without a text; names file and line.
    """
    kinds = (".txt", ".md", ".rst", ".jsonl")
    if not path.exists():
        raise InputError(f"corpus: got {path}, which is not there; expected a folder or a file")
    files = (
        [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in kinds and p.is_file())
    )
    if not files:
        raise InputError(f"corpus: got {path}, expected files that end in one of {', '.join(kinds)}")
    for file in files:
        try:
            content = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: byte {error.start} is not UTF-8; expected UTF-8 text") from None
        if file.suffix != ".jsonl":
            if content.strip():
                yield content
            continue
        for number, line in enumerate(content.split("\n"), 1):  # U+2028 may stand inside a JSON string
            if line.strip():
                yield _text_of(line, file, number)


def _text_of(line: str, file: pathlib.Path, number: int) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f'{file}, line {number}: got {line[:60]!r}, expected a JSON object with a "text"')
    return text
