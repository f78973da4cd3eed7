"""Who wrote what in drawn scores, by `posterior` and by a reader who knows the law: strengths, lengths, gaps.

    python -m benchmarks.accuracy.strengths -o benchmarks/results/strengths.json
    python -m benchmarks.accuracy.strengths --alternating -o benchmarks/results/alternating.json

Scores are drawn from the laws of families fourier and gumbel and of a green list (a quarter of the
vocabulary), with marks of a given number of nats a token (relative entropy of marked from unmarked scores);
agents of one text differ by a factor of e^0.4 (one standard deviation). In "diluted" texts half of an agent's
tokens carry no mark, and the others twice as many nats, or somewhat less if the family has a limit. In
"varied" ones nats differ by a factor of e (one standard deviation) from turn to turn. The Bayes reader
knows strengths (of varied turns their law, in five steps), dilution, the mean length of segments and the null
share, and uses the same chain: it bounds what fitting could reach. "IoU" is of the tokens that have the one
agent's name, "TokenAcc" counts unmarked as a name. Of the tokens that `posterior` names, "stated" is the mean
of their posteriors, and "right" the share that is. With `--alternating` there are twelve turns of one length,
a gap of one length before each, and the Bayes reader knows both. The fit's constants were chosen on other
draws of such regimes, and on tuning texts.
`--before` names the results of another checkout on the same draws, whose rows are added to them, and is
compared text by text.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser, read_rows
from benchmarks.statistics import summary
from iet.decoding import UNATTRIBUTED, decode, forward_backward
from iet.marks.families import FAMILIES, BernoulliSum, Family, sum_family

LAWS = {
    "fourier": FAMILIES["fourier"],
    "gumbel": FAMILIES["gumbel"],
    "green list": sum_family("kgw", BernoulliSum((1,), 0.25, 0.0, 1.0)),
}
STAGES, SPREAD, DILUTED = 3, 0.4, 0.5
VARIED = 1.0  # spread of log nats from turn to turn
STEPS = VARIED * np.array([-1.28, -0.52, 0.0, 0.52, 1.28])  # equally likely

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Regime:
    """Texts of one kind.

    Attributes:
        agents: how many.
        turns: tokens of each turn; drawn around it (three stages) where `drawn`.
        count: number of turns.
        unmarked: tokens of all unmarked text, cut at random places between and around the turns.
        null: whether the reader may leave tokens unattributed.
        nats: a token, tried one after the other.
        drawn, diluted, varied: see above.
        gap: tokens of unmarked text before each turn.
    """

    name: str
    agents: int
    turns: int
    count: int
    unmarked: int = 0
    has_null: bool = True
    nats: tuple[float, ...] = (0.02, 0.06, 0.2, 0.6)
    drawn: bool = True
    diluted: bool = False
    varied: bool = False
    gap: int = 0

    @property
    def measure(self) -> str:
        return "IoU" if self.agents == 1 and self.unmarked and self.count else "TokenAcc"

    @property
    def tokens(self) -> int:
        return (self.gap + self.turns) * self.count + self.unmarked

    @property
    def mean_segment(self) -> float:
        if self.gap:
            return self.turns
        gaps = self.count + 1 if self.unmarked else 0
        return self.tokens / max(1, self.count + gaps)

    @property
    def unmarked_share(self) -> float:
        return 0.95 if self.gap else min(0.98, max(0.02, self.unmarked / self.tokens))


REGIMES = (
    Regime("100 in 500", 1, 100, 1, 400, drawn=False),
    Regime("30 in 100", 1, 30, 1, 70, drawn=False, nats=(0.2, 0.6, 1.2)),
    Regime("60 in 1,000", 1, 60, 1, 940, drawn=False, nats=(0.2, 0.6)),
    Regime("400 in 500", 1, 400, 1, 100, drawn=False),
    Regime("all of 1,000", 1, 1000, 1, drawn=False),
    Regime("all of 1,000, 4 agents", 4, 1000, 1, drawn=False),
    Regime("unmarked, 1 agent", 1, 0, 0, 1000, nats=(0.06,)),
    Regime("unmarked, 6 agents", 6, 0, 0, 1000, nats=(0.06,)),
    *(Regime(f"turns of {n}, forced", 4, n, 12, has_null=False) for n in (30, 60, 120, 200, 400)),
    *(Regime(f"turns of {n}", 4, n, 12) for n in (30, 60, 120, 200)),
    *(Regime(f"8 agents, turns of {n}, forced", 8, n, 16, has_null=False) for n in (60, 200)),
    *(Regime(f"gaps, turns of {n}", 3, n, 8, 9 * n) for n in (60, 200)),
    *(Regime(f"diluted, turns of {n}", 4, n, 12, diluted=True) for n in (60, 200)),
    *(Regime(f"diluted, gaps, turns of {n}", 3, n, 8, 9 * n, diluted=True) for n in (60, 200)),
    Regime("varied, twice 90 in 500", 1, 90, 2, 320, drawn=False, varied=True),
    Regime("varied, turns of 120", 4, 120, 12, varied=True),
    Regime("varied, gaps, turns of 120", 3, 120, 8, 1080, varied=True),
)

ALTERNATING = tuple(
    Regime(f"turns of {turn}, gaps of {gap}", 6, turn, 12, nats=(0.03, 0.08, 0.2), drawn=False, gap=gap)
    for turn, gap in ((60, 60), (60, 200), (120, 30), (200, 60), (200, 200), (400, 40))
)


def strength_of(law: Family, nats: NDArray[np.floating[Any]]) -> Floats:
    """Return the λ of a mark with this number of nats a token, at most 0.97 of the family's limit."""
    grid = np.linspace(1e-3, min(12.0, 0.97 * law.strength_limit), 4000)
    return np.asarray(np.interp(nats, grid * law.mean(grid) - law.log_mgf(grid), grid))


def draw(law: Family, strengths: Floats, rng: np.random.Generator) -> Floats:
    """Return scores of the law, each tilted by its λ."""
    if law.bits is not None:  # one draw of 0 or 1
        odds = law.bits.chance / (1 - law.bits.chance) * np.exp(strengths)
        return (rng.random(strengths.shape) < odds / (1 + odds)).astype(np.float64)
    if law.name == "gumbel":
        return np.asarray(rng.exponential(1 / (1 - strengths)))
    return np.asarray(np.cos(rng.vonmises(0, np.maximum(strengths, 1e-12))))


def truth_of(regime: Regime, rng: np.random.Generator) -> Labels:
    """Return who wrote each token, -1 for unmarked tokens."""
    lengths = np.full(regime.count, regime.turns)
    if regime.drawn and regime.count:
        lengths = np.maximum(4, rng.gamma(STAGES, regime.turns / STAGES, regime.count).round()).astype(
            np.int64
        )
    speakers = [int(rng.integers(regime.agents))]
    while len(speakers) < regime.count:
        step = int(rng.integers(1, regime.agents)) if regime.agents > 1 else 0
        speakers.append((speakers[-1] + step) % regime.agents)
    cuts = np.sort(rng.integers(0, regime.unmarked + 1, regime.count))
    gaps = np.diff(np.concatenate([[0], cuts, [regime.unmarked]]))
    parts = [np.full(gaps[0], UNATTRIBUTED)]
    for length, speaker, gap in zip(lengths, speakers, gaps[1:], strict=False):
        parts += [np.full(regime.gap, UNATTRIBUTED), np.full(length, speaker), np.full(gap, UNATTRIBUTED)]
    return np.concatenate(parts)


def measured(regime: Regime, truth: Labels, labels: NDArray[np.integer[Any]]) -> float:
    if regime.measure == "TokenAcc":
        return float((labels == truth).mean())
    either = (labels >= 0) | (truth >= 0)
    return float(((labels >= 0) & (truth >= 0)).sum() / max(1, either.sum()))


def bayes(regime: Regime, law: Family, scores: Floats, nats: Floats) -> NDArray[np.int64]:
    """Return the labels of the reader who knows the law: nats of the agents' marks [A]."""
    steps = np.exp(STEPS) if regime.varied else np.ones(1)
    strengths = strength_of(law, np.outer(steps, nats).ravel())
    ratios = strengths * np.tile(scores, len(steps)) - law.log_mgf(strengths)
    if regime.diluted:
        ratios = np.logaddexp(np.log(DILUTED), np.log(1 - DILUTED) + ratios)
    null_share = regime.unmarked_share if regime.has_null else 0.0
    gap = regime.gap or None
    posterior, null_posterior, _ = forward_backward(
        ratios, regime.mean_segment, null_share, stages=STAGES, null_segment=gap
    )
    posterior = posterior.reshape(len(scores), len(steps), -1).sum(axis=1)
    best = posterior.argmax(axis=1)
    return np.where(posterior.max(axis=1) <= null_posterior, UNATTRIBUTED, best) if regime.has_null else best


def figures(regime: Regime, name: str, nats: float, text: int) -> dict[str, float]:
    """Return how right `posterior` and the Bayes reader are on one text."""
    law = LAWS[name]
    rng = np.random.default_rng([zlib.crc32(f"{regime.name}/{name}/{nats}".encode()), text])
    truth = truth_of(regime, rng)
    nats_of_agents = nats * np.exp(SPREAD * rng.normal(size=regime.agents)) * (2 if regime.diluted else 1)
    tilts = np.zeros((len(truth), regime.agents))
    marked = np.flatnonzero(truth >= 0)
    if regime.diluted:
        marked = marked[rng.random(len(marked)) >= DILUTED]
    carried = nats_of_agents[truth[marked]]
    if regime.varied:
        turn = np.cumsum(np.diff(truth, prepend=truth[0]) != 0)[marked]
        carried = carried * np.exp(VARIED * rng.normal(size=len(truth))[turn])
    tilts[marked, truth[marked]] = strength_of(law, carried)
    scores = draw(law, tilts, rng).astype(np.float32)
    read = decode(scores, family=law, allow_unattributed=regime.has_null)
    bayes_labels, fitted, posterior = (
        bayes(regime, law, scores.astype(np.float64), nats_of_agents),
        read.token_agents,
        read.posterior,
    )
    assert posterior is not None
    named = fitted >= 0
    return {
        "posterior": measured(regime, truth, fitted),
        "bayes": measured(regime, truth, bayes_labels),
        "named": float(named.sum()),
        "stated": float(posterior[np.arange(len(fitted)), fitted][named].sum()),
        "right": float((fitted == truth)[named].sum()),
    }


def rows_of(regimes: Sequence[Regime], texts: int) -> Iterator[dict[str, Any]]:
    for regime in regimes:
        for nats in regime.nats:
            for law in LAWS:
                for text in range(texts):
                    labels = {"regime": regime.name, "measure": regime.measure, "nats": nats, "law": law}
                    yield {**labels, "text": text, **figures(regime, law, nats, text)}


def run(
    regimes: Sequence[Regime], texts: int, earlier_rows: Sequence[dict[str, Any]] = ()
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the cells, a regime with a number of nats in all families, and their rows."""
    keys = ("regime", "nats", "law", "text")
    earlier = {tuple(row[key] for key in keys): row["posterior"] for row in earlier_rows}
    rows = list(rows_of(regimes, texts))
    for row in rows:
        at = tuple(row[key] for key in keys)
        if at in earlier:
            row |= {"before": earlier[at], "gain": row["posterior"] - earlier[at]}
    cells = []
    for regime in regimes:
        for nats in regime.nats:
            selected = [row for row in rows if (row["regime"], row["nats"]) == (regime.name, nats)]
            names = [name for name in ("before", "posterior", "gain", "bayes") if name in selected[0]]
            means: dict[str, Any] = {name: summary([row[name] for row in selected]) for name in names}
            gap = summary([row["bayes"] - row["posterior"] for row in selected])
            count = max(1.0, sum(row["named"] for row in selected))
            for name in ("stated", "right"):
                means[name] = sum(row[name] for row in selected) / count
            cells.append(
                {**{key: selected[0][key] for key in ("regime", "measure", "nats")}, **means, "gap": gap}
            )
    return cells, rows


def markdown(cells: Sequence[dict[str, Any]], texts: int) -> str:
    signed = {name: INTERVAL.format(name).replace(":.3f", ":+.3f") for name in ("gain", "gap")}
    formats = {
        **{"text": "{regime}", "": "{measure}", "nats a token": "{nats}", "before": "{before[0]:.3f}"},
        **{"posterior": "{posterior[0]:.3f}", "gain": signed["gain"]},
        **{"Bayes reader": "{bayes[0]:.3f}", "what he gains": signed["gap"]},
        **{"stated": "{stated:.3f}", "right": "{right:.3f}"},
    }
    head = (
        f"**Drawn scores**: families fourier and gumbel and a green list, {texts} texts each; differences on"
        " the same texts with 95 % intervals."
    )
    return f"{head}\n\n{columns(cells, formats)}"


def main() -> None:
    line = parser("benchmarks.accuracy.strengths", __doc__)
    line.add_argument("--texts", type=int, default=40, help="of each family and cell (default: 40)")
    line.add_argument("--before", type=pathlib.Path, help="results of another checkout, rows beside them")
    line.add_argument("--alternating", action="store_true", help="a gap before each turn, and nothing else")
    options = line.parse_args()
    earlier = read_rows(options.before) if options.before else []
    cells, rows = run(ALTERNATING if options.alternating else REGIMES, options.texts, earlier)
    finish(line, options, {"cells": cells}, markdown(cells, options.texts), rows=rows)


if __name__ == "__main__":
    sys.exit(exit_code(main))
