"""Predict the accuracy of an audit from measured figures (`iet calibrate --plan`).

The accuracy depends on the evidence of a turn, tokens times information per token. Texts of two models, two
families, three temperatures and four turn lengths lie near one curve for each family
(`benchmarks/results/curve.md`). `power_curves.json` holds these curves, made by `benchmarks.accuracy.curve`:

    l = Σ n_i² / Σ n_i            mean length of the turn of a token, for turns of n_i tokens
    x = l · I(family, H)          nats of evidence a turn; I: KL of marked from unmarked scores, simulated
    figure = curve(family, agents, x)

Curves are the measured figures made monotone, linear in log x between the points, and linear in the number of
agents between those measured. Outside the measured range there is no prediction.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.audit import simulation
from iet.audit.simulation import NATIVE, MarkName, Method
from iet.errors import InputError, check_number
from iet.marks.families import FAMILIES
from iet.native.arrays import Float64s

FIGURES = {"token_accuracy": "TokenAcc", "iou": "IoU", "coverage": "coverage"}
"""Figures that are expected, and how tables call them."""

FEWEST_TOKENS = 200
"""Of a sample, for its mean entropy to be taken."""

SMALLEST_SPREAD = 0.05
"""Of √(p·(1 - p)), to which errors are proportional: near 0 and 1 they do not vanish."""

_BLOCK = 32  # tokens that count as one in the error of a sample's mean: neighbours are alike


@dataclasses.dataclass(frozen=True)
class Entropy:
    """Mean nats per token of a sample.

    Attributes:
        nats: the mean.
        low, high: its 95 % interval, from means of blocks of 32 tokens.
        tokens: of the sample.
    """

    nats: float
    low: float
    high: float
    tokens: int


@dataclasses.dataclass(frozen=True)
class Expected:
    """The expected accuracy of the decoder "posterior" under one family.

    Attributes:
        family: its name; of family "fourier", κ is 0.8.
        nats: of evidence a turn.
        token_accuracy: share of tokens that get their agent in forced choice: (expected, low, high); None
            outside of what was measured.
        iou: mean intersection over union of the agents, in the same form.
        coverage: share of tokens that are attributed at level 0.01 where text may stay unattributed.
        outside: what of the question lies outside of what was measured, in words; empty where nothing does.
        method: how the text is marked.
        generated: tokens that the model generates for each token of the text.
    """

    family: str
    nats: float
    token_accuracy: tuple[float, float, float] | None
    iou: tuple[float, float, float] | None
    coverage: tuple[float, float, float] | None
    outside: tuple[str, ...] = ()
    method: Method = NATIVE
    generated: float = 1.0


def plan(
    entropy: float | Entropy,
    agents: int,
    turn_tokens: int | Sequence[int],
    *,
    families: Sequence[str] | None = None,
    mark: MarkName = "native",
    candidates: int = 8,
    chunk_tokens: int = 16,
) -> list[Expected]:
    """Return what is to be expected of the agents' turns, a row for each family, the best first.

    Intervals reach from the worst to the best of the cells that the curve is not made of: the grid's, each
    left out with all of its model and temperature, and conversations whose agents read and repeat each other
    (Table 1), which are the worst. They are about the mean over texts like those, not about a single text. A
    sample's interval of its entropy makes them wider.

    Args:
        entropy: H, mean nats per token of the distribution that tokens are drawn from, after temperature and
            top-p, above 0; or what `entropy_of` gives.
        agents: number of agents with keys, at least 2.
        turn_tokens: tokens of each turn, or of all; at least 1.
        families: some of those that the package has curves of; None: all of them. "select" and "walk" have
            "gumbel" alone.
        mark, candidates, chunk_tokens: as in `power`.

    Raises:
        InputError: an argument is out of range.

    Deterministic. Microseconds for "native" marks: nothing is simulated. For "select" and "walk" I is
    simulated, in about a second, and the curve is that of native marks.
    """
    table = _table()
    method = Method(mark, candidates, chunk_tokens)
    measured = [family for family in table["errors"] if family in method.families]
    names = measured if families is None else list(dict.fromkeys(families))
    unknown = [family for family in names if family not in measured]
    if unknown or not names:
        raise InputError(f"families: got {families!r}, expected some of {measured}")
    check_number("agents", agents, 2)
    if isinstance(entropy, Entropy):
        nats = (entropy.nats, entropy.low, entropy.high)
    else:
        check_number("entropy", entropy, 0, integer=False)
        nats = (float(entropy),) * 3
    if not nats[0] > 0:
        raise InputError(f"entropy: got {nats[0]:g}, expected nats per token above 0")
    lengths = list(turn_tokens) if isinstance(turn_tokens, Sequence) else [turn_tokens]
    for tokens in lengths:
        check_number("turn_tokens", tokens, 1)
    if not lengths:
        raise InputError("turn_tokens: got none, expected the tokens of at least one turn")
    length = sum(tokens * tokens for tokens in lengths) / sum(lengths)
    rows = [_expected(table, method, family, nats, agents, length) for family in names]
    return sorted(rows, key=lambda row: -(row.token_accuracy or (-1.0,))[0])


def advice(rows: Sequence[Expected]) -> str:
    """Say which family to take, from rows of `plan`."""
    measured_rows = [row for row in rows if row.token_accuracy is not None]
    if len(rows) < 2:
        return "One family: nothing is compared."
    if len(measured_rows) < len(rows):
        return "No advice: not every family lies inside of what was measured."
    (first, second), note = measured_rows[:2], " (it takes sampling: for greedy decoding take fourier)"
    if first.token_accuracy is None or second.token_accuracy is None:
        return ""
    lead = first.token_accuracy[0] - second.token_accuracy[0]
    note = note if FAMILIES[first.family].chooses else ""
    take = f"Take {first.family}{note}: TokenAcc higher by {lead:.2f}"
    if first.token_accuracy[1] > second.token_accuracy[2]:
        return f"{take}, beyond both intervals."
    return f"{take}, though the intervals overlap."


def plan_table(rows: Sequence[Expected]) -> str:
    """Return the rows as a Markdown table, what lies outside of the measured range, and the advice."""
    row = rows[0]
    lines = [
        "Expected of decoder `posterior`. In brackets: the worst and the best result in measured settings"
        " that the estimate was not fitted to. Coverage: share of tokens attributed at level 0.01."
        + (row.method.mark != "native")
        * f" Mark: {row.method}; tokens generated per token of text: {row.generated:.3g}.",
        "",
        "| family | nats of evidence a turn | " + " | ".join(FIGURES.values()) + " |",
        "|" + " --- |" * (2 + len(FIGURES)),
    ]
    for row in rows:
        predicted = [getattr(row, name) for name in FIGURES]
        cells = ["not measured" if x is None else f"{x[0]:.2f} ({x[1]:.2f} to {x[2]:.2f})" for x in predicted]
        family = FAMILIES[row.family]
        name = family.name if family.chooses else f"{family.name}, κ {family.kappa:g}"
        lines.append(f"| {name} | {row.nats:.3g} | " + " | ".join(cells) + " |")
    notes = [
        f"{row.family}: outside of what was measured: {'; '.join(row.outside)}" for row in rows if row.outside
    ]
    return "\n".join([*lines, "", *notes, advice(rows)])


# ---------------------------------------------------------------- a sample


def entropy_of(log_probs: npt.ArrayLike) -> Entropy:
    """Return the mean nats per token of a sample of drawn tokens, by their log-probabilities.

    Args:
        log_probs: natural logarithms of the probabilities of the drawn tokens [N], N >= 200, after
            temperature and top-p: -log p is then H on average. (Raw logits of a temperature below 1 overstate
            it.)

    Raises:
        InputError: one is above 0 or not finite, or there are too few.
    """
    try:
        values = np.asarray(log_probs, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(f"log_probs: got {log_probs!r:.80}, expected numbers") from None
    bad = values[~(np.isfinite(values) & (values <= 0))]
    if len(bad):
        raise InputError(f"log_probs: got {bad[0]:g}, expected finite natural logarithms of at most 0")
    return sample_entropy(-values)


def sample_entropy(nats: Float64s) -> Entropy:
    """Return the mean of nats per token [N] with its interval; raise InputError if they are too few."""
    if len(nats) < FEWEST_TOKENS:
        raise InputError(f"sample: got {len(nats)} tokens, expected at least {FEWEST_TOKENS}")
    if not np.isfinite(nats).all():
        raise InputError("sample: got a token of NaN or infinite nats, expected finite numbers")
    blocks = np.array([part.mean() for part in np.array_split(nats, len(nats) // _BLOCK)])
    error = t_quantile(len(blocks) - 1) * float(blocks.std(ddof=1) / math.sqrt(len(blocks)))
    mean = float(nats.mean())
    return Entropy(mean, max(1e-9, mean - error), mean + error, len(nats))


def t_quantile(freedom: int) -> float:
    """Return the 0.975 quantile of Student's t with some degrees of freedom, at least 3, to 0.1 %.

    Fisher's expansion in 1 / freedom about that of the normal law.
    """
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))


def entropies(model: Any, token_ids: npt.ArrayLike, temperature: float = 1.0) -> Float64s:
    """Return the nats of a model's distribution before each token of a text but the first [T - 1].

    Args:
        model: an `iet.LanguageModel`, which reads the text alone, without its prompt.
        token_ids: integer ids [T], in that model's tokens.
        temperature: of the sampler, above 0. (Top-p is not known here; it lowers the entropy.)

    Raises:
        InputError: `temperature` is out of range.
    """
    check_number("temperature", temperature, 0.01, 100, integer=False)
    import torch

    def predicted() -> Iterator[Float64s]:
        for _, rows in model.logits(token_ids, model.vocab_size):
            q = (rows.double() / temperature).softmax(-1)
            yield torch.special.entr(q).sum(-1).cpu().numpy()  # 0 of a token that cannot follow

    return np.concatenate([np.empty(0), *predicted()])


# ---------------------------------------------------------------- the curves


def information(table: Mapping[str, Any], family: str, entropy: float) -> float:
    """Return the information per token, in nats, at a mean entropy: linear between points, in logarithms."""
    points = table["information"]
    log_nats = np.interp(math.log(entropy), np.log(points["entropy"]), np.log(points[family]))
    return float(math.exp(log_nats))


def at(table: Mapping[str, Any], family: str, agents: int, nats: float, figure: str) -> float | None:
    """Return a figure on the curve; None outside of what was measured."""
    curves = {curve["agents"]: curve for curve in table["curves"] if curve["family"] == family}
    low = max((count for count in curves if count <= agents), default=None)
    high = min((count for count in curves if count >= agents), default=None)
    if low is None or high is None:
        return None
    values = []
    for count in (low, high):
        x = curves[count]["nats"]
        if not x[0] <= nats <= x[-1]:
            return None
        values.append(float(np.interp(math.log(nats), np.log(x), curves[count][figure])))
    share = 0.0 if low == high else (agents - low) / (high - low)
    return values[0] + share * (values[1] - values[0])


def spread(value: float) -> float:
    """Return what errors at a figure of this value are proportional to."""
    return max(math.sqrt(max(0.0, value * (1 - value))), SMALLEST_SPREAD)


@functools.cache
def _table() -> Any:
    return json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def _expected(
    table: Mapping[str, Any],
    method: Method,
    family: str,
    entropy: tuple[float, float, float],
    agents: int,
    length: float,
) -> Expected:
    def evidence(h: float) -> float:
        if method.mark == "native":
            return length * information(table, family, h)
        return length * simulation.information(method, h, length)

    outside = tuple(_outside(table, family, entropy, agents, length, evidence))
    nats = evidence(entropy[0])
    predicted: dict[str, tuple[float, float, float] | None] = dict.fromkeys(FIGURES)
    if not outside:
        lowest, highest = map(evidence, entropy[1:])
        for name in FIGURES:
            values = [at(table, family, agents, x, name) for x in (nats, lowest, highest)]
            mean, low, high = (float("nan") if value is None else value for value in values)
            below, above = table["errors"][family][name]
            low, high = low + below * spread(low), high + above * spread(high)
            predicted[name] = (mean, min(mean, max(0.0, low)), max(mean, min(1.0, high)))
    generated = method.generated(entropy[0])
    return Expected(family, nats, **predicted, outside=outside, method=method, generated=generated)


def _outside(
    table: Mapping[str, Any],
    family: str,
    entropy: tuple[float, float, float],
    agents: int,
    length: float,
    evidence: Callable[[float], float],
) -> Iterator[str]:
    measured = [curve for curve in table["curves"] if curve["family"] == family]
    points, tokens = table["information"]["entropy"], table["turn_tokens"]
    counts = [curve["agents"] for curve in measured]
    if not counts[0] <= agents <= counts[-1]:
        yield f"{agents} agents (measured: {counts[0]} to {counts[-1]})"
    if not (points[0] <= min(entropy) and max(entropy) <= points[-1]):
        text_of = f"{entropy[0]:.3g}" if entropy[1] == entropy[2] else f"{entropy[1]:.3g} to {entropy[2]:.3g}"
        yield f"{text_of} nats per token (measured: {points[0]:.3g} to {points[-1]:.3g})"
    if not tokens[0] <= length <= tokens[1]:
        yield f"turns of {length:.0f} tokens (measured: {tokens[0]:g} to {tokens[1]:g})"
    reach = [evidence(h) for h in entropy]
    low = max(curve["nats"][0] for curve in measured)
    high = min(curve["nats"][-1] for curve in measured)
    inside = [curve for curve in measured if curve["agents"] == agents]
    if inside:  # only what is read counts
        low, high = inside[0]["nats"][0], inside[0]["nats"][-1]
    if not (low <= min(reach) and max(reach) <= high):
        yield f"{reach[0]:.3g} nats of evidence a turn (measured: {low:.3g} to {high:.3g})"
