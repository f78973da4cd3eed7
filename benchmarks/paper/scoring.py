"""How well a reader did: figures of a text, intervals over texts, comparisons, tables."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from benchmarks import recording
from benchmarks.paper.logs import Log
from benchmarks.paper.transforms.altered import Altered
from iet.audit.metrics import (
    boundary_f1,
    coverage,
    edge_similarity,
    mean_iou,
    token_accuracy,
    token_labels,
)
from iet.errors import InputError, ShapeError
from iet.marks.tokenizer import Tokenizer

Labels = NDArray[np.int64]

FIGURES = {
    "token_accuracy": "TokenAcc",
    "iou": "IoU",
    "edge_similarity": "EdgeSim",
    "boundary_f1": "boundary F1",
    "coverage": "coverage",
    "accuracy_where_attributed": "accuracy where attributed",
}
"""Figures of `score`, and how tables call them."""

DRAWS = 10_000
"""Resamples of a bootstrap."""


def truth_of(source: Log | Altered, tokenizer: Tokenizer) -> Labels:
    """Return the true label of every token of the text, int64 [T]; -1 is nobody."""
    return token_labels(source.spans, tokenizer.encode(source.text).char_ends)


def true_edges(source: Log | Altered, agents: int) -> NDArray[np.float64]:
    """Return the true adjacency matrix [n, n] of the text as it stands: after a shuffle, of the new order."""
    return source.edges(agents) if isinstance(source, Altered) else source.edges


def score(
    truth: npt.ArrayLike,
    found: npt.ArrayLike,
    *,
    agents: int,
    edges: npt.ArrayLike,
    found_edges: npt.ArrayLike | None = None,
    margin: int = 16,
) -> dict[str, float | None]:
    """Return `FIGURES` of one text for what one reader found (`iet.metrics` has the definitions).

    Args:
        truth, found: [T] labels of the text's tokens, -1 = nobody. A reader whose registry holds more keys
            than agents (spurious ones) may find labels of n and above, which are wrong.
        agents: n, of which IoU is the mean, as in the paper; an agent in neither labelling is left out, and
            so a log of n agents who all speak counts all n.
        edges: A* [n, n].
        found_edges: Â [n, n], or over more keys than agents; None where the reader has none, and then
            EdgeSim is None.
        margin: of the boundary F1, in tokens.

    Returns:
        A figure each; `accuracy_where_attributed` is None where nothing is.

    Raises:
        ShapeError, InputError: arguments of other shapes, or labels out of range.
    """
    g, estimate = (np.asarray(labels) for labels in (truth, found))
    right = token_accuracy(g, estimate)
    if g.size and g.max() >= agents:
        raise InputError(f"truth: got {g.max()}, expected below {agents} agents")
    attributed = estimate >= 0
    return {
        "token_accuracy": right,
        "iou": mean_iou(g, np.where(estimate < agents, estimate, -1)),
        "edge_similarity": None if found_edges is None else _edge_similarity(edges, found_edges, agents),
        "boundary_f1": boundary_f1(_changes(g), _changes(estimate), margin),
        "coverage": coverage(estimate),
        "accuracy_where_attributed": (
            token_accuracy(g[attributed], estimate[attributed]) if attributed.any() else None
        ),
    }


def _changes(labels: Labels) -> Labels:
    return np.asarray(np.flatnonzero(np.diff(labels)) + 1, dtype=np.int64)


def _edge_similarity(edges: npt.ArrayLike, found: npt.ArrayLike, agents: int) -> float:
    truth, estimate = np.asarray(edges, np.float64), np.asarray(found, np.float64)
    if truth.shape != (agents, agents):
        raise ShapeError("edges", got=list(truth.shape), expected=[agents, agents])
    if estimate.ndim == 2 and len(estimate) > agents:  # keys that nobody holds have no edges
        truth = np.pad(truth, (0, len(estimate) - agents))
    return edge_similarity(truth, estimate)


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean over texts with its bootstrap interval.

    Attributes:
        mean: of the texts.
        low, high: the 2.5 and 97.5 % points of the resampled means.
        texts: how many.
    """

    mean: float
    low: float
    high: float
    texts: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(values: Sequence[float | None], seed: int, draws: int = DRAWS) -> Interval | None:
    """Return the mean over texts with a 95 % percentile bootstrap interval.

    Texts are drawn with replacement. None, a figure that a text does not have, is left out; None comes back
    if nothing is left. O(draws · texts).

    Raises:
        InputError: a value is not finite, or `draws` is not positive.
    """
    kept = _finite([value for value in values if value is not None])
    return _interval(kept.mean(), _means(kept, seed, draws), len(kept)) if len(kept) else None


def ratio(parts: Sequence[float], wholes: Sequence[float], seed: int, draws: int = DRAWS) -> Interval | None:
    """Return Σ parts / Σ wholes, as of turns that are right, with a 95 % percentile bootstrap interval.

    Texts are drawn with replacement, each with its part and its whole. Texts of whole 0 are left out; None
    comes back if nothing is left.

    Raises:
        ShapeError: the numbers of texts differ.
        InputError: as in `interval`.
    """
    a, b = _pairs(parts, wholes)
    a, b = a[b > 0], b[b > 0]
    if not len(b):
        return None
    return _interval(a.sum() / b.sum(), _means(a, seed, draws) / _means(b, seed, draws), len(b))


def crossed(values: npt.ArrayLike, seed: int, draws: int = DRAWS) -> Interval | None:
    """Return the mean over runs and texts with a 95 % percentile bootstrap interval of both.

    Runs and texts are each drawn with replacement, independently, and every drawn run is read on every drawn
    text. With one run it is the `interval` of its texts. None comes back if there is no text. O(draws · S·N).

    Args:
        values: [S, N], the figure of every run S (such as a judge's seed) on every text N.
        seed: of the resamples.
        draws: resamples.

    Raises:
        ShapeError: `values` is not a matrix.
        InputError: a value is not finite, or `draws` is not positive.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise ShapeError("values", got=list(table.shape), expected="[runs, texts]")
    if not table.size:
        return None
    _finite(table.ravel().tolist())
    runs, texts = table.shape
    if draws < 1:
        raise InputError(f"draws: got {draws!r}, expected at least 1")
    rng = np.random.default_rng(seed)
    of_texts = rng.multinomial(texts, np.full(texts, 1 / texts), size=draws)
    of_runs = rng.multinomial(runs, np.full(runs, 1 / runs), size=draws)
    means = ((of_runs @ table) * of_texts).sum(1) / table.size
    return _interval(table.mean(), means, texts)


def difference(
    ours: Sequence[float | None], theirs: Sequence[float | None], seed: int, draws: int = DRAWS
) -> Interval | None:
    """Return the mean of ours - theirs, text by text, with a paired bootstrap interval.

    Both have the same texts in the same order. Texts that lack a figure on either side are left out.

    Raises:
        ShapeError: the numbers of texts differ.
        InputError: as in `interval`.
    """
    a, b = _pairs(ours, theirs)
    return interval((a - b).tolist(), seed, draws)


def relative_change(
    before: Sequence[float | None], after: Sequence[float | None], seed: int, draws: int = DRAWS
) -> Interval | None:
    """Return 100·(mean after / mean before - 1) in percent, paired by texts, with a bootstrap interval.

    None if no pair is left or the mean before is zero; resamples whose mean before is zero are left out.

    Raises:
        ShapeError, InputError: as in `difference`.
    """
    a, b = _pairs(before, after)
    if not len(a) or a.mean() == 0:
        return None
    earlier, later = _means(a, seed, draws), _means(b, seed, draws)  # of the same resamples
    there = earlier != 0
    return _interval(100 * (b.mean() / a.mean() - 1), 100 * (later[there] / earlier[there] - 1), len(a))


def mean_difference(
    cells: Sequence[tuple[Sequence[float | None], Sequence[float | None]]], seed: int, draws: int = DRAWS
) -> Interval | None:
    """Return the mean over cells of (ours - theirs), each cell's texts resampled on their own.

    Args:
        cells: (ours, theirs) on the same texts, as in `difference`. A cell without a pair is left out.
        seed: of all cells.
        draws: resamples.

    Raises:
        ShapeError, InputError: as in `difference`.
    """
    differences = [a - b for a, b in (_pairs(*cell) for cell in cells) if len(a)]
    if not differences:
        return None
    seeds = np.random.SeedSequence(seed).generate_state(len(differences))
    means = [_means(d, int(s), draws) for d, s in zip(differences, seeds, strict=True)]
    mean = float(np.mean([d.mean() for d in differences]))
    return _interval(mean, np.mean(means, axis=0), sum(map(len, differences)))


def _means(values: NDArray[np.float64], seed: int, draws: int) -> NDArray[np.float64]:
    """Return the mean of each resample [draws]; how often a text is drawn follows from number and seed."""
    if draws < 1:
        raise InputError(f"draws: got {draws!r}, expected at least 1")
    return np.asarray(_counts(len(values), seed, draws) @ values / len(values))


@functools.lru_cache(maxsize=4)
def _counts(texts: int, seed: int, draws: int) -> NDArray[np.int64]:
    """Return how often each text is in each resample [draws, texts]."""
    return np.random.default_rng(seed).multinomial(texts, np.full(texts, 1 / texts), size=draws)


def _interval(mean: float, means: NDArray[np.float64], texts: int) -> Interval:
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(mean), float(low), float(high), texts)


def _pairs(
    a: Sequence[float | None], b: Sequence[float | None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if len(a) != len(b):
        raise ShapeError("pairs", got=f"{len(a)} and {len(b)} texts", expected="the same texts twice")
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return _finite([x for x, _ in both]), _finite([y for _, y in both])


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if not np.isfinite(found).all():
        raise InputError(f"values: got {found[~np.isfinite(found)][0]}, expected finite figures")
    return found


def worst(figures: Sequence[float | None], k: int = 5) -> list[int]:
    """Return the numbers of the k texts with the lowest figure, lowest first.

    Of equal ones the earlier comes first. Texts without the figure are left out.

    >>> worst([0.9, 0.2, None, 0.2, 0.5], k=3)
    [1, 3, 4]
    """
    if k < 0:
        raise InputError(f"k: got {k!r}, expected at least 0")
    there = [(figure, number) for number, figure in enumerate(figures) if figure is not None]
    return [number for _, number in sorted(there)[:k]]


Cell = str | int | float | Interval | None
"""What a table holds; None is "N/A"."""


def markdown(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return the table in Markdown: three decimals, an interval in one cell.

    Raises:
        ShapeError: a row is not as long as the header.
    """
    _check(header, rows)
    return recording.table(
        header, [["N/A" if cell is None else _escaped(cell) for cell in row] for row in rows]
    )


def _escaped(cell: Cell) -> object:
    return cell.replace("|", "\\|").replace("\n", " ") if isinstance(cell, str) else cell


def as_csv(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return the same table as CSV, with all digits.

    A column in which there is an interval becomes three: its name for the mean, and with " low" and " high".

    Raises:
        ShapeError: a row is not as long as the header.
    """
    _check(header, rows)
    wide = [any(isinstance(row[column], Interval) for row in rows) for column in range(len(header))]
    lines: list[list[str]] = [[]]
    for name, intervals in zip(header, wide, strict=True):
        lines[0] += [name, f"{name} low", f"{name} high"] if intervals else [name]
    for row in rows:
        lines.append([])
        for cell, intervals in zip(row, wide, strict=True):
            if isinstance(cell, Interval):
                lines[-1] += [repr(cell.mean), repr(cell.low), repr(cell.high)]
            else:
                lines[-1] += ["N/A" if cell is None else str(cell)] + ["", ""] * intervals
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(lines)
    return written.getvalue()


def _check(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ShapeError(f"row {number}", got=f"{len(row)} cells", expected=len(header))


def write(
    path: pathlib.Path,
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    content: Mapping[str, Any],
    *,
    title: str = "",
    note: str = "",
) -> None:
    """Write a result as `path`.json, .md and .csv, and print the Markdown.

    Args:
        path: without a suffix.
        header, rows: of the table.
        content: what goes into the JSON: configuration, digests, figures of every text.
        title, note: what Markdown has before and after the table.
    """
    table = markdown(header, rows)
    recording.write(
        path.with_name(path.name + ".json"),
        dict(content),
        "\n\n".join(part for part in (title, table, note) if part),
    )
    path.with_name(path.name + ".csv").write_text(as_csv(header, rows), encoding="utf-8", newline="")
