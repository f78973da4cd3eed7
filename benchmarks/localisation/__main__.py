"""Compare `iet`'s decoders with WISER and a Bayes reader: where does marked text begin and end?

    python -m benchmarks.localisation --data PATH -o benchmarks/results/localisation.json

`--data` is the folder data/output of github.com/subroy13/WISER (not copied here: it carries no licence).
Its files hold scores of one key; without them only drawn scores of several keys are read. WISER, `cusum` and
`window` are tuned for the highest mean IoU on the first texts of a corpus, which are not reported.
`posterior` has its defaults everywhere. A method of one key reads each key separately; then a token goes to
the key whose interval has the highest standardised sum. The Bayes reader knows the distributions of scores
and of lengths in drawn texts. Differences are paired by texts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.localisation import bayes, wiser
from benchmarks.localisation.laws import GREEN, PUBLISHED, Floats, draw
from benchmarks.paper.reading.readers import GRID as CUSUM_GRID
from benchmarks.recording import exit_code, finish, parser, table
from benchmarks.statistics import difference, summary
from iet.audit.metrics import mean_iou
from iet.decoding import decode
from iet.errors import InputError
from iet.marks.families import FAMILIES, Family

TUNING = 20
"""Texts of a published file that are not reported; a third of this number of drawn ones."""

DECODERS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "posterior": {},
    "cusum": CUSUM_GRID,
    "window": {"window": (16, 32, 64, 128)},
}
"""Decoder of `iet` -> options to tune."""

TOKENS, SHORTEST, LONGEST = 1000, 40, 160  # tokens of a drawn text and of its turns
UNMARKED = 0.25  # share of unmarked turns in a drawn text
DRAWN = [(f, s, a) for f, s in (("fourier", 0.8), ("green list", 0.6), ("gumbel", 0.5)) for a in (2, 4, 8)]
"""Family, strength and number of agents of drawn texts."""

Labels = NDArray[np.int64]
Reader = Callable[[NDArray[np.float32]], Labels]


@dataclasses.dataclass(frozen=True)
class Text:
    """Scores float32 [T, A] and the agent of each token [T], -1 for unmarked tokens."""

    scores: NDArray[np.float32]
    truth: Labels


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts of one kind; the Bayes reader needs strength and lengths, which only drawn texts have."""

    name: str
    family: Family
    tuning: Sequence[Text]
    texts: Sequence[Text]
    strength: float | None = None
    lengths: bayes.Lengths | None = None


def published(folder: pathlib.Path, texts: int) -> Iterator[Corpus]:
    """Yield the corpora of a folder of WISER's score files whose law is known here.

    Raises:
        InputError: the folder has no score files.
    """
    paths = sorted(folder.glob("data_*.json"))
    if not paths:
        raise InputError(f"--data: got {folder}, expected a folder with data_*.json")
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        intervals = content["configuration"]["intervals"]
        marks = {mark for _, _, mark in intervals} & set(PUBLISHED)
        if len(marks) != 1:
            continue
        (mark,) = marks
        raw = np.array([row["pivots"] for row in content["data"]], np.float64)
        raw[np.isinf(raw)] = raw[np.isfinite(raw)].max()
        truth = np.full(raw.shape[1], -1)
        for start, end, kind in intervals:
            truth[start:end] = 0 if kind == mark else -1
        every = [Text(row[:, None].astype(np.float32), truth) for row in raw]
        name = path.stem.removeprefix("data_")
        yield Corpus(name, PUBLISHED[mark], every[:TUNING], every[TUNING : TUNING + texts])


def drawn(family: str, strength: float, agents: int, texts: int) -> Corpus:
    """Return drawn scores: the same for the same law, however many texts."""
    law = GREEN if family == GREEN.name else FAMILIES[family]
    shares = np.append(np.full(agents, (1 - UNMARKED) / agents), UNMARKED)
    length = bayes.uniform(SHORTEST, LONGEST)
    every = [_drawn_text(law, strength, agents, shares, index) for index in range(TUNING // 3 + texts)]
    return Corpus(
        f"drawn, {family} λ = {strength:g}, {agents} agents",
        law,
        every[: TUNING // 3],
        every[TUNING // 3 :],
        strength,
        bayes.Lengths(length, length, shares, shares),
    )


def _drawn_text(family: Family, strength: float, agents: int, shares: Floats, index: int) -> Text:
    rng = np.random.default_rng([agents, index, *family.name.encode()])
    truth = np.empty(TOKENS, np.int64)
    speaker, start = int(rng.choice(len(shares), p=shares)), 0
    while start < TOKENS:
        end = start + int(rng.integers(SHORTEST, LONGEST + 1))
        truth[start:end] = speaker if speaker < agents else -1
        next_shares = np.where(np.arange(len(shares)) == speaker, 0, shares)
        speaker, start = int(rng.choice(len(shares), p=next_shares / next_shares.sum())), end
    scores = draw(family, 0.0, rng, (TOKENS, agents))
    marked = np.flatnonzero(truth >= 0)
    scores[marked, truth[marked]] = draw(family, strength, rng, len(marked))
    return Text(scores.astype(np.float32), truth)


def combined(
    scores: NDArray[np.floating[Any]], family: Family, intervals: Sequence[Sequence[tuple[int, int]]]
) -> Labels:
    """Return the label of every token, -1 for unmarked, from the intervals of each key.

    A token in intervals of several keys goes to the one with the highest Σ (score - null mean) / (σ·√length).
    """
    labels, highest = np.full(len(scores), -1), np.full(len(scores), -np.inf)
    for key, of_key in enumerate(intervals):
        for start, end in of_key:
            length = end - start
            centred = scores[start:end, key].sum(dtype=np.float64) - length * family.mean(0.0)
            z = centred / np.sqrt(length * family.variance)
            higher = start + np.flatnonzero(highest[start:end] < z)
            labels[higher], highest[higher] = key, z
    return labels


def _by_wiser(family: Family, options: Mapping[str, Any], scores: NDArray[np.float32]) -> Labels:
    columns = scores.T.astype(np.float64)
    return combined(scores, family, [wiser.detect(column, family, **options) for column in columns])


def _by_decoder(name: str, family: Family, options: Mapping[str, Any], scores: NDArray[np.float32]) -> Labels:
    decoded = decode(scores, name, family, allow_unattributed=True, **options)
    return np.asarray(decoded.token_agents, np.int64)


def _by_bayes(corpus: Corpus, scores: NDArray[np.float32]) -> Labels:
    assert corpus.strength is not None
    assert corpus.lengths is not None
    ratios = scores.astype(np.float64) * corpus.strength - float(corpus.family.log_mgf(corpus.strength))
    return bayes.read(ratios, corpus.lengths)[0]


def tuned(corpus: Corpus) -> dict[str, Reader]:
    """Return the readers of a corpus, with the options of the highest mean IoU on its tuning texts."""
    readers: dict[str, Reader] = {}
    for name, options in DECODERS.items():
        make = functools.partial(_by_decoder, name, corpus.family)
        readers[name] = _best(make, options, corpus.tuning)
    readers["WISER"] = _best(functools.partial(_by_wiser, corpus.family), wiser.GRID, corpus.tuning)
    readers["WISER, as published"] = functools.partial(_by_wiser, corpus.family, {})
    if corpus.lengths is not None:
        readers["Bayes"] = functools.partial(_by_bayes, corpus)
    return readers


def _best(read: Callable[..., Labels], grid: Mapping[str, Sequence[Any]], tuning: Sequence[Text]) -> Reader:
    choices = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if len(choices) == 1:
        return functools.partial(read, choices[0])
    ious = [[mean_iou(text.truth, read(options, text.scores)) for text in tuning] for options in choices]
    return functools.partial(read, choices[int(np.mean(ious, axis=1).argmax())])


def measured(corpus: Corpus) -> dict[str, Any]:
    """Return mean IoU, its paired difference from `posterior`, and milliseconds a text, of each reader."""
    ious: dict[str, list[float]] = {}
    milliseconds = {}
    for name, read in tuned(corpus).items():
        read(corpus.tuning[0].scores)  # compiles, and simulates thresholds
        started = time.perf_counter()
        labels = [read(text.scores) for text in corpus.texts]
        milliseconds[name] = 1e3 * (time.perf_counter() - started) / len(labels)
        ious[name] = [mean_iou(text.truth, label) for text, label in zip(corpus.texts, labels, strict=True)]
    readers = {}
    for name, values in ious.items():
        paired = difference(values, ious["posterior"], 0)
        assert paired is not None
        readers[name] = {
            "iou": summary(values),
            "less posterior": [paired.mean, paired.low, paired.high],
            "ms": milliseconds[name],
        }
    return {"corpus": corpus.name, "texts": len(corpus.texts), "readers": readers}


def markdown(corpora: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of mean IoU; "+" and "-" mark readers that are better or worse than `posterior`."""
    names = list(dict.fromkeys(name for corpus in corpora for name in corpus["readers"]))
    rows = [
        [corpus["corpus"], corpus["texts"], *(_cell(corpus["readers"].get(name)) for name in names)]
        for corpus in corpora
    ]
    note = 'Mean IoU; "+" and "-": the paired 95 % interval of the difference from `posterior` excludes 0.'
    return f"{note}\n\n{table(['corpus', 'texts', *names], rows)}"


def _cell(result: Mapping[str, Any] | None) -> str | None:
    if result is None:
        return None
    _, low, high = result["less posterior"]
    return f"{result['iou'][0]:.3f}" + (" +" if low > 0 else " -" if high < 0 else "")


def main() -> None:
    line = parser("benchmarks.localisation", __doc__)
    line.add_argument("--data", type=pathlib.Path, help="folder of the published score files")
    line.add_argument("--texts", type=int, default=60, help="texts of a published file, at most 180")
    line.add_argument("--texts-drawn", type=int, default=30, help="texts of a drawn corpus")
    options = line.parse_args()
    files = published(options.data, options.texts) if options.data else ()
    corpora = itertools.chain(files, (drawn(*law, options.texts_drawn) for law in DRAWN))
    results = [measured(corpus) for corpus in corpora]
    finish(line, options, {"corpora": results}, markdown(results))


if __name__ == "__main__":
    sys.exit(exit_code(main))
