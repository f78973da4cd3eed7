"""Check the promises about attributed segments, measured in marked text, regime by regime.

    python -m benchmarks.accuracy.promises --work DIR -o benchmarks/results/promises.json

Reads the texts that `benchmarks.accuracy.texts` made in DIR (those with six agents), put together again for
each regime of `benchmarks.accuracy.regimes`: turns of equal length, edited and quoted text, one turn in
8,000 tokens, boilerplate that comes back, turns between gaps of unmarked text. Each is read by `posterior`
at each of the levels:

* false: of the segments that are attributed, the share that holds no token of the named agent.
* wrong: of the characters that are named, the share that is another's; with `attributed="tokens"`.
* named: of the agents' characters, the share that is named, and rightly, with whole segments and by tokens.
* share: `Segment.share` of the attributed segments at 0.01, what is right, and how often the
  interval holds it, to within half a token.
* error: the stated error of the segments of agents who are found at 0.01, and how often it is so.

Intervals are 95 % bootstrap ones of texts. Temperatures and models are pooled. `--split tuning` reads the
texts for choosing the factor of `iet.audit.certainty.chance_factors` was chosen, and nothing else.
"""

from __future__ import annotations

import collections
import math
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import regimes, texts
from benchmarks.recording import columns, exit_code, finish, parser, table
from benchmarks.statistics import ratio
from iet.audit.attribution import attribute
from iet.audit.auditor import Auditor
from iet.audit.metrics import token_labels
from iet.report.result import AuditResult

LEVELS = (0.05, 0.01, 0.001)
EDGES = (0.0, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Bins of `error`."""

ROUNDS = {"one turn in 8,000": 4}
"""Texts that are made of each one of a cell, where not one."""

AGENTS = 6
Floats = NDArray[np.float64]
Counts = dict[str, float]


def measured(case: regimes.Case) -> Counts:
    """Return counts of one text, by name."""
    counts: Counts = collections.defaultdict(float)
    encoding = Auditor(case.registry).plan.encode([case.talk.text])[0]
    slots = {name: slot for slot, name in enumerate(case.registry.names())}
    spans = [(s.start, s.end, -1 if s.agent is None else slots[s.agent]) for s in case.talk.spans]
    truth = token_labels(spans, encoding[0].char_ends)
    characters = np.diff(encoding[0].char_ends, prepend=0).astype(np.float64)
    counts["characters"] = characters[truth >= 0].sum()
    for level in LEVELS:
        plan = Auditor(case.registry, level=level).plan
        attributed = attribute(plan, [case.talk.text], [encoding])
        _segments(counts, attributed, truth, level)
        counts[f"segments/{level}/right"] = _named(attributed, truth, characters)[1]
        if level == 0.01:
            _shares(counts, attributed, truth)
            _errors(counts, attributed, truth)
        plan = Auditor(case.registry, level=level, attributed="tokens").plan
        wrong, right = _named(attribute(plan, [case.talk.text], [encoding]), truth, characters)
        counts[f"tokens/{level}/named"], counts[f"tokens/{level}/wrong"] = wrong + right, wrong
        counts[f"tokens/{level}/right"] = right
    return dict(counts)


def _attributed(result: AuditResult) -> list[int]:
    return np.flatnonzero(_column(result, "agent") >= 0).tolist()


def _column(result: AuditResult, name: str) -> NDArray[Any]:
    column = result.segments[name]
    assert column is not None
    return column


def _segments(counts: Counts, result: AuditResult, truth: NDArray[np.int64], level: float) -> None:
    for s in _attributed(result):
        counts[f"segments/{level}/all"] += 1
        counts[f"segments/{level}/false"] += not _is_guess(result, truth, s).any()


def _is_guess(result: AuditResult, truth: NDArray[np.int64], s: int) -> NDArray[np.bool_]:
    """Return which tokens of a segment are its best guess's."""
    inside = slice(_column(result, "start")[s], _column(result, "end")[s])
    return np.asarray(truth[inside] == _column(result, "best_guess")[s])


def _named(result: AuditResult, truth: NDArray[np.int64], characters: Floats) -> tuple[float, float]:
    """Return how many characters are named wrongly and rightly."""
    names = np.repeat(_column(result, "agent"), _column(result, "end") - _column(result, "start"))
    named, right = names >= 0, names == truth
    return float(characters[named & ~right].sum()), float(characters[named & right].sum())


def _shares(counts: Counts, result: AuditResult, truth: NDArray[np.int64]) -> None:
    means, lows, highs = (_column(result, name) for name in ("posterior", "share_low", "share_high"))
    for s in _attributed(result):
        is_guess = _is_guess(result, truth, s)
        near = 0.5 / len(is_guess)
        counts["share/tokens"] += len(is_guess)
        counts["share/stated"] += float(means[s]) * len(is_guess)
        counts["share/right"] += is_guess.sum()
        counts["share/covered"] += bool(lows[s] - near <= is_guess.mean() <= highs[s] + near)
        counts["share/width"] += float(highs[s] - lows[s])


def _errors(counts: Counts, result: AuditResult, truth: NDArray[np.int64]) -> None:
    errors = _column(result, "error")
    is_found = result.evidence[0, _column(result, "best_guess")] <= math.log(0.01)
    for s in np.flatnonzero(is_found & (_column(result, "decoded") >= 0)).tolist():
        which = min(int(np.searchsorted(EDGES, errors[s], "right")) - 1, len(EDGES) - 2)
        counts[f"error/{which}/all"] += 1
        counts[f"error/{which}/stated"] += float(errors[s])
        counts[f"error/{which}/false"] += not _is_guess(result, truth, s).any()


def figures(rows: Sequence[Counts]) -> dict[str, Any]:
    """Return the figures of a regime from the counts of its texts."""

    def all_of(name: str) -> list[float]:
        return [row.get(name, 0.0) for row in rows]

    def share(part: str, total: str) -> list[float] | None:
        share_of = ratio(all_of(part), all_of(total), 0, 2000)
        return None if share_of is None else [share_of.mean, share_of.low, share_of.high]

    def total(name: str) -> float:
        return float(np.sum(all_of(name)))

    result: dict[str, Any] = {"texts": len(rows)}
    for level in LEVELS:
        result[f"{level:g}"] = {
            "segments": int(total(f"segments/{level}/all")),
            "false": share(f"segments/{level}/false", f"segments/{level}/all"),
            "wrong": share(f"tokens/{level}/wrong", f"tokens/{level}/named"),
            "characters": int(total(f"tokens/{level}/named")),
            "named": [
                total(f"{mode}/{level}/right") / total("characters") for mode in ("segments", "tokens")
            ],
        }
    tokens, segments = max(1.0, total("share/tokens")), max(1.0, total("segments/0.01/all"))
    result["share"] = {
        "stated": total("share/stated") / tokens,
        "right": total("share/right") / tokens,
        "covered": total("share/covered") / segments,
        "width": total("share/width") / segments,
    }
    result["error"] = [
        [int(total(f"error/{i}/all")), total(f"error/{i}/stated"), int(total(f"error/{i}/false"))]
        for i in range(len(EDGES) - 1)
    ]
    return result


def run(work: pathlib.Path, split: str, names: Iterable[str], limit: int | None) -> dict[str, Any]:
    """Return regime -> family -> figures, of what texts are there."""
    by_regime: dict[str, Any] = {}
    cells = [cell for cell in texts.CELLS if cell.agents == AGENTS]
    for name in tqdm(list(names), desc="regimes"):
        rows: dict[str, list[Counts]] = collections.defaultdict(list)
        for cell in cells:
            of_cell = texts.load(work, cell, split)[:limit]
            rounds = ROUNDS.get(name, 1) if len(of_cell) > 1 else 0
            rows[cell.family] += [measured(case) for case in regimes.cases(of_cell, name, rounds)]
        by_regime[name] = {
            family: figures(family_rows) for family, family_rows in rows.items() if family_rows
        }
    return by_regime


def verdicts(by_regime: Mapping[str, Any]) -> list[list[str]]:
    """Return the worst regime for each level, of those with 1,000 attributed segments or more."""
    lines = []
    for level in LEVELS:
        worst_values = [
            (regime, family, figures[f"{level:g}"])
            for regime, of in by_regime.items()
            for family, figures in of.items()
        ]
        many = [(f["false"][0], f"{r}, {family}") for r, family, f in worst_values if f["segments"] >= 1000]
        named = [
            (f["wrong"][0], f"{r}, {family}") for r, family, f in worst_values if f["characters"] >= 100_000
        ]
        for question, of in (("false segments", many), ("wrong characters, by tokens", named)):
            worst, regime_name = max(of, default=(math.nan, "nowhere"))
            lines.append([f"{level:g}", question, f"{worst:.4f}", regime_name, str(len(of))])
    return lines


def markdown(by_regime: Mapping[str, Any]) -> str:
    rows = [
        {
            "regime": regime,
            "family": family,
            **figures,
            **{f"at{i}": figures[f"{level:g}"] for i, level in enumerate(LEVELS)},
        }
        for regime, of in by_regime.items()
        for family, figures in of.items()
    ]
    first = [("regime", "{regime}"), ("family", "{family}"), ("texts", "{texts}")]
    rate = "{{{0}[0]:.4f}} ({{{0}[1]:.4f}}, {{{0}[2]:.4f}})"
    false, wrong, named = list(first), list(first), list(first)
    for i, level in enumerate(LEVELS):
        false += [
            (f"segments at {level:g}", f"{{at{i}[segments]:,}}"),
            ("false", rate.format(f"at{i}[false]")),
        ]
        wrong += [
            (f"characters at {level:g}", f"{{at{i}[characters]:,}}"),
            ("wrong", rate.format(f"at{i}[wrong]")),
        ]
        named += [
            (f"segments, {level:g}", f"{{at{i}[named][0]:.3f}}"),
            ("tokens", f"{{at{i}[named][1]:.3f}}"),
        ]
    share = [
        *first,
        *((column, f"{{share[{column}]:.3f}}") for column in ("stated", "right", "covered", "width")),
    ]
    errors = np.sum([row["error"] for row in rows], axis=0) if rows else np.zeros((len(EDGES) - 1, 3))
    calibrated = [
        [f"{low:g} to {high:g}", f"{int(count):,}", f"{stated / count:.5f}", f"{wrong_ / count:.5f}"]
        for low, high, (count, stated, wrong_) in zip(EDGES[:-1], EDGES[1:], errors, strict=True)
        if count
    ]
    sections = [
        "**In one number each**: the worst regime of those with 1,000 attributed segments, or 100,000 named"
        " characters",
        table(["level", "what", "share", "where", "regimes"], verdicts(by_regime)),
        "**False**: attributed segments that hold no token of the named agent",
        columns(rows, false),
        '**Wrong**: named characters that are another\'s, with `attributed="tokens"`',
        columns(rows, wrong),
        "**Named**: share of the agents' characters that is named, and rightly",
        columns(rows, named),
        "**Share** of attributed segments at 0.01 (interval at 0.9)",
        columns(rows, share),
        "**Error** of segments of agents that are found, all regimes together",
        table(["error", "segments", "stated", "was so"], calibrated),
    ]
    return "\n\n".join(sections)


def main() -> None:
    line = parser("benchmarks.accuracy.promises", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", default="evaluation", choices=tuple(texts.SPLITS))
    names = list(regimes.REGIMES)
    line.add_argument("--regimes", nargs="+", default=names, choices=names)
    line.add_argument("--texts", type=int, help="of each cell (default: all)")
    options = line.parse_args()
    by_regime = run(options.work, options.split, options.regimes, options.texts)
    finish(line, options, {"levels": LEVELS, "edges": EDGES, "regimes": by_regime}, markdown(by_regime))


if __name__ == "__main__":
    sys.exit(exit_code(main))
