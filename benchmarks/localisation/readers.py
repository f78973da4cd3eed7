"""All readers in one shape: options from the first texts of a corpus, then labels for each text.

The methods of others read one key. With several, each key is read by itself; where intervals of several keys
overlap, a token goes to the key whose interval has the highest standardised sum,

    Σ (score - null mean) / (σ·√length).
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.localisation import aligator, bayes, seeded, seeker, wiser
from benchmarks.localisation.corpora import Corpus, Text
from benchmarks.localisation.laws import Floats, draw
from benchmarks.paper.reading.readers import GRID as CUSUM_GRID
from iet.audit.metrics import mean_iou
from iet.decoding import decode
from iet.errors import InputError
from iet.marks.families import Family

Labels = NDArray[np.int64]
Intervals = Sequence[tuple[int, int]]
Reader = Callable[[Text], Labels]
Options = dict[str, Any]
Entrant = Callable[[NDArray[np.float32], Family], NDArray[np.integer[Any]]]
"""Somebody's reader: scores [T, A] and the null law of a score → the agent of each token [T], -1 nobody."""

RIVALS: Mapping[str, tuple[Callable[..., Intervals], Mapping[str, Sequence[Any]]]] = {
    "WISER": (wiser.detect, wiser.GRID),
    "WISER, as published": (wiser.detect, {}),
    "AOL": (aligator.detect, aligator.GRID),
    "SeedBS-NOT": (seeded.detect, seeded.GRID),
    "WaterSeeker": (seeker.detect, seeker.GRID),
}
"""Name -> what finds the intervals of one key, and the options that it is tuned over, slow ones first."""

OURS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "posterior": {},
    "cusum": CUSUM_GRID,
    "window": {"window": (16, 32, 64, 128)},
}
"""Decoder of `iet` -> options that it is tuned over; `posterior` has its defaults everywhere."""

BAYES, TOLD = "Bayes", "posterior, told"
NAMES = ("posterior", *RIVALS, "cusum", "window", BAYES)
"""Of all corpora; of drawn ones `TOLD` as well."""

_BINS, _HALVINGS, _NULL_SCORES = 24, 10, 1_000_000


def tuned(corpus: Corpus) -> dict[str, tuple[Reader, Options]]:
    """Return the readers of a corpus with the options that have the highest mean IoU on its tuning texts."""
    found: dict[str, tuple[Reader, Options]] = {}
    law = corpus.tuned_with or corpus.family
    for name, (detect, grid) in RIVALS.items():
        every = list(_grid(grid))
        figures = np.array([_of_one_key_each(detect, text, law, every) for text in corpus.tuning])
        best = every[int(figures.mean(axis=0).argmax())]
        found[name] = functools.partial(_by_keys, detect, corpus.family, best), best
    for name, grid in OURS.items():
        every = list(_grid(grid))
        best = every[0]
        if len(every) > 1:
            figures = np.array(
                [
                    [mean_iou(text.truth, _decoded(name, law, given, text)) for given in every]
                    for text in corpus.tuning
                ]
            )
            best = every[int(figures.mean(axis=0).argmax())]
        found[name] = functools.partial(_decoded, name, corpus.family, best), best
    if corpus.lengths is not None:
        ratios = log_ratios(corpus)
        lengths = corpus.lengths
        found[BAYES] = (lambda text: bayes.read(ratios(text), lengths)[0]), {}
        if corpus.strength is not None:
            found[TOLD] = functools.partial(_decoded, "posterior", corpus.family, told(corpus)), {}
    return {name: found[name] for name in (*NAMES, TOLD) if name in found}


def told(corpus: Corpus) -> Options:
    """Return what `posterior` fits, as it is in drawn texts: strengths, mean length, nobody's share."""
    assert corpus.lengths is not None
    law = corpus.lengths.agents
    return {
        "strengths": np.full(corpus.texts[0].scores.shape[1], corpus.strength),
        "mean_segment": float(law @ np.arange(1, len(law) + 1)),
        "nobody": float(corpus.lengths.shares[-1]),
    }


def entered(name: str) -> Entrant:
    """Return the reader that "MODULE:FUNCTION" names, as something else than this benchmark wrote it.

    Raises:
        InputError: there is none.
    """
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"--reader: got {name!r}, which cannot be imported ({error})") from None
    if not callable(found):
        raise InputError(f"--reader: got {name!r}, expected MODULE:FUNCTION with a function")
    return cast(Entrant, found)


def entrant(name: str, family: Family) -> Reader:
    """Return somebody's reader in the shape of the others; what it returns is checked."""
    read = entered(name)

    def checked(text: Text) -> Labels:
        found = np.asarray(read(text.scores, family))
        if found.shape != text.truth.shape or found.dtype.kind not in "iu":
            raise InputError(f"{name}: got {found.dtype} {found.shape}, expected integers {text.truth.shape}")
        if found.size and not -1 <= found.min() <= found.max() < text.scores.shape[1]:
            raise InputError(f"{name}: got {found.min()} to {found.max()}, expected agents from 0 on, or -1")
        return found.astype(np.int64)

    return checked


def combined(scores: NDArray[np.floating[Any]], family: Family, found: Sequence[Intervals]) -> Labels:
    """Return the label of every token, -1 nobody, given the intervals of each key."""
    labels, highest = np.full(len(scores), -1), np.full(len(scores), -np.inf)
    for key, intervals in enumerate(found):
        for start, end in intervals:
            length = end - start
            centred = scores[start:end, key].sum(dtype=np.float64) - length * family.mean(0.0)
            z = centred / np.sqrt(length * family.variance)
            ahead = start + np.flatnonzero(highest[start:end] < z)
            labels[ahead], highest[ahead] = key, z
    return labels


def log_ratios(corpus: Corpus) -> Callable[[Text], Floats]:
    """Return what gives log p(score | marked) / p(score | unmarked) [T, A]: known, or of the tuning texts.

    An estimate counts marked scores of tokens of one kind in bins that hold equal shares of unmarked ones,
    the last of them halved again and again, because strong marks lie there, and half a score more in each.
    """
    family, strength = corpus.family, corpus.strength
    if strength is not None:
        return lambda text: text.scores.astype(np.float64) * strength - family.log_mgf(strength)
    null = draw(family, 0.0, np.random.default_rng(0), _NULL_SCORES).astype(np.float32)
    shares = np.append(np.arange(1, _BINS) / _BINS, 1 - 0.5 ** np.arange(1, _HALVINGS) / _BINS)
    edges = np.unique(np.quantile(null, shares, method="higher"))
    expected = np.bincount(np.searchsorted(edges, null, side="right"), minlength=len(edges) + 1) / len(null)
    kinds = 1 + max(int(_kinds(text).max()) for text in corpus.tuning)
    counts = np.full((kinds, len(expected)), 0.5)
    for text in corpus.tuning:
        mine = np.flatnonzero(text.truth >= 0)
        bins = np.searchsorted(edges, text.scores[mine, text.truth[mine]], side="right")
        np.add.at(counts, (_kinds(text)[mine], bins), 1)
    counts[:, expected == 0] = 0
    share = counts / counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.where(expected > 0, np.log(share / expected), 0.0)
    return lambda text: table[_kinds(text)[:, None], np.searchsorted(edges, text.scores, side="right")]


def _kinds(text: Text) -> NDArray[np.int64]:
    return np.zeros(len(text.truth), np.int64) if text.kinds is None else text.kinds


def _by_keys(detect: Callable[..., Intervals], family: Family, options: Options, text: Text) -> Labels:
    columns = text.scores.T.astype(np.float64)
    return combined(text.scores, family, [detect(column, family, **options) for column in columns])


def _of_one_key_each(
    detect: Callable[..., Intervals], text: Text, family: Family, every: Sequence[Options]
) -> list[float]:
    """Return the IoU of one text with each of the options; each key with all of them before the next."""
    columns = text.scores.T.astype(np.float64)
    by_key = [[detect(column, family, **options) for options in every] for column in columns]
    return [mean_iou(text.truth, combined(text.scores, family, found)) for found in zip(*by_key, strict=True)]


def _decoded(name: str, family: Family, options: Options, text: Text) -> Labels:
    more = {key: value for key, value in text.more.items() if key != "weights" or name == "posterior"}
    found = decode(text.scores, name, family, allow_unattributed=True, **more, **options)
    return found.token_agents.astype(np.int64)


def _grid(grid: Mapping[str, Sequence[Any]]) -> Iterator[Options]:
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
