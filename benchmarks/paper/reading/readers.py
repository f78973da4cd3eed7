"""Attribution of a marked text by the paper's decoder and by `posterior`, under any mark."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.marks import GAMMA, GREEN, Keys
from iet.audit.auditor import Auditor
from iet.audit.evidence import activity_log_p, benjamini_hochberg, decoy_log_p, holm, segment_log_p
from iet.audit.metrics import token_accuracy, token_labels
from iet.decoding import Segmentation, decode, log_activity, windows
from iet.decoding.activity import evidence_blocks
from iet.decoding.transitions import transitions
from iet.marks.families import BernoulliSum, Family, sum_family
from iet.marks.tokenizer import Tokenizer
from iet.native.pairs import repeats

LEVEL = 0.01
"""Level of attribution if text may stay unattributed."""

GRID: Mapping[str, tuple[float, ...]] = {
    "tau": (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8),
    "smooth_windows": (1, 5, 9),
    "radius": (0, 8, 16),
    "min_points": (2, 5, 10),
}
"""Options of "cusum" that the paper leaves open; chosen on texts that are in no table."""

ZERO_OR_ONE = sum_family("kgw", BernoulliSum((1,), GAMMA, 0.0, 1.0), strengths=(0.5, 1.0, 2.0))
"""The law of green lists' scores of 0 and 1, with the strengths that `iet` uses for KGW."""

DECOYS = 10_000
"""Number of random green lists among which those of the agents are ranked."""

Labels = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    labels: Labels  # agent of every token [T] in forced choice, as in the paper
    edges: NDArray[np.float64] | None  # Â over all keys, of those labels; None: the paper has N/A
    # Labels if text may stay unattributed (-1), at `LEVEL`; None: the reader always attributes
    free: Labels | None = None
    failures: int = 0  # 1 if the reader gave no answer


def read(
    text: str,
    keys: Keys,
    tokenizer: Tokenizer,
    decoder: str,
    options: Mapping[str, Any] | None = None,
    boundaries: Sequence[int] | None = None,
) -> Reading:
    """Read a text under keys; with true `boundaries`, in characters, only names are sought (Oracle-IET).

    An `Auditor` reads `iet`'s own marks. Green lists are read by the same decoders. If text may stay
    unattributed, their segments must pass the test of an `Auditor`: with "posterior" the agent is found in
    the text and the probability that it wrote none of the segment is at most `LEVEL`; with "cusum" the
    p-value of the segment is among the discoveries.
    """
    more = dict(options or {})
    if keys.registry is not None:
        forced = Auditor(keys.registry, decoder, allow_unattributed=False, **more)
        report = forced.audit(text, boundaries=None if boundaries is None else np.asarray(boundaries))
        edges = report.transitions.dense(keys.names).confidence
        free = None
        if boundaries is None:
            free = Auditor(keys.registry, decoder, level=LEVEL, **more).audit(text).token_agents
        return Reading(_labels(report.token_agents), edges, None if free is None else _labels(free))
    encoding = tokenizer.encode(text)
    ids = encoding.token_ids
    scores, pairs = keys.scores(ids), keys.pairs(ids)
    if boundaries is not None:
        cuts = itertools.pairwise([0, *boundaries, len(text)])
        spans = [(start, end, piece) for piece, (start, end) in enumerate(cuts)]
        labels = named(scores, pairs, token_labels(spans, encoding.char_ends))
        return Reading(labels, _edges(Segmentation(labels.astype(np.int32)), scores))
    segmentation = decode(scores, decoder, keys.family, pairs=pairs, **more)
    return Reading(
        _labels(segmentation.token_agents),
        _edges(segmentation, scores),
        _free(scores, pairs, keys.family, decoder, more),
    )


def tune(texts: Sequence[tuple[str, Keys, Labels]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the options of "cusum" with the highest mean TokenAcc on texts."""
    scored = ((keys.scores(tokenizer.encode(text).token_ids), truth) for text, keys, truth in texts)
    return ranked(scored, texts[0][1].family)[0]


def ranked(texts: Iterable[tuple[NDArray[np.float32], Labels]], family: Family | str) -> list[dict[str, Any]]:
    """Return the options in `GRID`, sorted by descending mean TokenAcc on scores and their truth."""
    options: list[dict[str, Any]]
    options = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    accuracy: list[list[float]] = [[] for _ in options]
    for scores, truth in texts:
        for chosen, values in zip(options, accuracy, strict=True):
            values.append(token_accuracy(truth, decode(scores, "cusum", family, **chosen).token_agents))
    return [options[i] for i in np.argsort(-np.mean(accuracy, axis=1), kind="stable")]


def _labels(agents: NDArray[Any]) -> Labels:
    return np.asarray(agents, np.int64)


def _edges(segmentation: Segmentation, scores: NDArray[np.float32]) -> NDArray[np.float64]:
    observed = transitions(segmentation.segments, windows(scores))
    return np.asarray(observed.dense(range(scores.shape[1])).confidence, np.float64)


def _free(
    scores: NDArray[np.float32], pairs: Labels, family: Family, decoder: str, options: dict[str, Any]
) -> Labels:
    segmentation = decode(scores, decoder, family, pairs=pairs, allow_unattributed=True, **options)
    labels = _labels(segmentation.token_agents)
    starts, ends, agents = np.array(segmentation.segments, np.int64).reshape(-1, 3).T
    attributed = np.flatnonzero(agents >= 0)
    if decoder == "posterior":
        assert segmentation.posterior is not None
        fresh = (pairs >= 0) & ~repeats(pairs)
        sums, counts = evidence_blocks(scores, fresh)
        if family is GREEN:  # no table of log Λ: p-values are ranks among random lists
            rng = np.random.default_rng(len(scores))
            green = rng.binomial(counts.astype(np.int64)[:, None], GAMMA, (len(counts), DECOYS))
            activity = log_activity((sums + counts[:, None]) / 2, counts, ZERO_OR_ONE)
            log_p = decoy_log_p(activity, log_activity(green, counts, ZERO_OR_ONE))
        else:
            log_p = activity_log_p(log_activity(sums, counts, family), int(fresh.sum()), family)
        agent_log_p = holm(log_p)
        sure = [
            segmentation.posterior[start:end, agent].max() >= 1 - LEVEL
            for start, end, agent in zip(
                starts[attributed], ends[attributed], agents[attributed], strict=True
            )
        ]
        accepted = (agent_log_p[agents[attributed]] <= math.log(LEVEL)) & np.array(sure, np.bool_)
    else:
        log_p = segment_log_p(
            scores, pairs, starts[attributed], ends[attributed], agents[attributed], family, scores.shape[1]
        )
        accepted = benjamini_hochberg(log_p, LEVEL)
    for segment in attributed[~accepted].tolist():
        labels[starts[segment] : ends[segment]] = -1
    return labels


def named(scores: NDArray[np.float32], pairs: Labels, pieces: Labels) -> Labels:
    """Return for every token the key with the highest sum in its piece; repeated pairs count once."""
    labels = np.zeros(len(pairs), np.int64)
    for piece in np.unique(pieces):
        inside = np.flatnonzero(pieces == piece)
        _, first = np.unique(pairs[inside], return_index=True)
        counted = inside[first[pairs[inside][first] >= 0]]
        labels[inside] = scores[counted].sum(axis=0).argmax()
    return labels
