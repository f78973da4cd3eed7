"""Who wrote what, on every text of the grid by every decoder, with bootstrap intervals.

    python -m benchmarks.accuracy.decoders --work DIR -o benchmarks/results/decoders.json --model 40

Reads the texts that `benchmarks.accuracy.texts` made in DIR. A cell is a model, a temperature, a family, a
number of agents and a length of turns: 12 turns of equal length, joined by one space. All decoders read the
same texts, in forced choice; "coverage" is the share of tokens that are attributed at level 0.01 where
leaving text unattributed is allowed, "there" the TokenAcc of those. The oracle knows the true boundaries
and names the agent of each turn by the sum of its scores, each pair counted once. τ, smoothing, radius and
the least length of a segment of `cusum` are the best of a grid on ten tuning texts of the same cell; of
"cusum, min_points 10" the least length is the paper's number, 160 tokens, and the others are the best.
Nothing else was fitted to any cell.
`--model N` also reads the first N texts of every cell with the model that wrote them. Finished cells stay in
DIR: the same command goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import iet
from benchmarks.accuracy import texts
from benchmarks.paper.reading import readers
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser, table
from benchmarks.statistics import summary
from iet.audit.auditor import Auditor
from iet.audit.metrics import mean_iou, token_accuracy
from iet.cli.demo import compare, true_labels
from iet.decoding import decode
from iet.demo.conversation import JOINER, Conversation
from iet.kernels import pair_numbers, score_tokens
from iet.marks.files import write_file
from iet.marks.registry import Registry
from iet.native.pairs import novelty_weights

LEVEL = 0.01
CUSUM, PAPERS_CUSUM = "cusum", "cusum, min_points 10"
READERS = (PAPERS_CUSUM, CUSUM, "window", "posterior", "oracle")
FIELDS = ("cell", "texts", "entropy_nats")
SHOWN = re.compile(
    r".*/token_accuracy|posterior/(mean_iou|edge_similarity)|(posterior|cusum)/(coverage|there)"
    r"|posterior of \d+ keys"
)
"""What the summary keeps of a cell, and of its figures; the table beside it has more."""

SPURIOUS = {4: (4, 8), 6: (2, 8)}
"""Agents of the text -> how many keys more the registry holds, for the keys that nobody used."""

BINS = 20
Labels = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Text:
    talk: Conversation
    registry: Registry
    ids: NDArray[np.int64]
    truth: Labels


def form(turns: texts.Turns, length: int, joiner: str = JOINER, spurious: int = 0) -> Text:
    talk, registry = texts.form(turns, length, joiner=joiner, spurious=spurious)
    ids = registry.open_tokenizer().encode(talk.text).token_ids
    return Text(talk, registry, ids, true_labels(talk, registry))


def oracle(text: Text) -> Labels:
    """Return the labels of a reader who knows where turns begin and end."""
    scores, pairs = score_tokens(text.ids, text.registry), pair_numbers(text.ids, text.registry)
    return readers.named(scores, pairs, np.append(0, np.cumsum(np.diff(text.truth) != 0)))


def tune(tuning: Iterable[Text], family: str) -> dict[str, dict[str, Any]]:
    """Return the options of each `cusum` with the highest TokenAcc on the tuning texts."""
    ranked = readers.ranked(
        ((score_tokens(t.ids, t.registry), t.truth) for t in tuning), texts.scheme(family).family
    )
    return {
        CUSUM: ranked[0],
        PAPERS_CUSUM: next(options for options in ranked if options["min_points"] == 10),
    }


def measure(text: Text, cusum: Mapping[str, dict[str, Any]]) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Return the figures of one text, and counts of how sure the posterior was and how often right."""
    figures: dict[str, float] = {"tokens": float(len(text.ids))}

    def note(name: str, labels: NDArray[np.integer[Any]]) -> None:
        figures[f"{name}/token_accuracy"] = token_accuracy(text.truth, labels)
        figures[f"{name}/mean_iou"] = mean_iou(text.truth, labels)

    note("oracle", oracle(text))
    reliability = np.zeros((2, BINS))
    for name, options in {"posterior": {}, "window": {}, **cusum}.items():
        decoder = name.split(",")[0]
        forced = Auditor(text.registry, decoder, allow_unattributed=False, **options).audit(text.talk.text)
        note(name, forced.token_agents)
        comparison = compare(text.talk, text.registry, forced)
        figures[f"{name}/edge_similarity"] = comparison.edge_similarity
        figures[f"{name}/boundary_f1"] = comparison.boundary_f1
        free = Auditor(text.registry, decoder, level=LEVEL, **options).audit(text.talk.text)
        comparison = compare(text.talk, text.registry, free)
        figures[f"{name}/coverage"] = comparison.coverage
        if comparison.accuracy_where_attributed is not None:
            figures[f"{name}/there"] = comparison.accuracy_where_attributed
        if forced.posterior is not None:
            sure = forced.posterior.max(axis=1)
            right = forced.posterior.argmax(axis=1) == text.truth
            bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
            reliability = np.stack([np.bincount(bins, minlength=BINS), np.bincount(bins, right, BINS)])
    return figures, reliability.astype(np.float64)


def spurious(turns: texts.Turns, length: int) -> dict[str, float]:
    """Return TokenAcc of `posterior` with unused keys in the registry."""
    max_extra = max(SPURIOUS[turns.cell.agents])
    text = form(turns, length, spurious=max_extra)
    scores, pairs = score_tokens(text.ids, text.registry), pair_numbers(text.ids, text.registry)
    family = texts.scheme(turns.cell.family).family
    weights = novelty_weights(text.ids) if family == "gumbel" else None
    figures = {}
    for more in (0, *SPURIOUS[turns.cell.agents]):
        subset = scores[:, : turns.cell.agents + more]
        decoded = decode(subset, family=family, pairs=pairs, weights=weights)
        figures[f"posterior of {turns.cell.agents + more} keys"] = token_accuracy(
            text.truth, decoded.token_agents
        )
    return figures


@functools.lru_cache(1)
def language_model(name: str) -> iet.LanguageModel:
    return iet.LanguageModel(texts.MODELS[name])


def with_model(
    path: pathlib.Path, all_turns: Sequence[texts.Turns], length: int, joiner: str
) -> list[dict[str, float]]:
    """Return the figures of `posterior` with the model that wrote the texts; `path` keeps those it has."""
    rows: list[dict[str, float]] = []
    if path.is_file():
        rows = json.loads(path.read_text(encoding="utf-8"))
    for turns in all_turns[len(rows) :]:
        text = form(turns, length, joiner)
        reader = Auditor(text.registry, allow_unattributed=False, model=language_model(turns.cell.model))
        started = time.perf_counter()
        labels = reader.audit(text.talk.text).token_agents
        row = {
            "token_accuracy": token_accuracy(text.truth, labels),
            "mean_iou": mean_iou(text.truth, labels),
            "seconds": time.perf_counter() - started,
        }
        rows.append(row)
        write_file(path, json.dumps(rows).encode())
    return rows[: len(all_turns)]


def add_model(result: dict[str, Any], rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the result with the figures of `with_model`, and the plain ones of exactly these texts."""
    figures = dict(result["figures"])
    for name in rows[0] if rows else ():
        figures[f"with model/{name}"] = [row[name] for row in rows]
    for name in ("token_accuracy", "mean_iou"):
        plain = figures[f"posterior/{name}"][: len(rows)]
        figures[f"beside the model/{name}"] = plain
        figures[f"gain of the model/{name}"] = [
            row[name] - value for row, value in zip(rows, plain, strict=True)
        ]
    return {**result, "figures": figures, "texts_with_model": len(rows)}


def cell_results(
    work: pathlib.Path, cell: texts.Cell, length: int, joiner: str, limit: int | None
) -> dict[str, Any] | None:
    """Return all figures of one cell, or None where its texts are not there yet."""
    all_turns = texts.load(work, cell)[:limit]
    tuning = texts.load(work, cell, "tuning")
    if len(all_turns) < (limit or texts.SPLITS["evaluation"]) or not tuning:
        return None
    options = tune((form(turns, length, joiner) for turns in tuning), cell.family)
    rows, reliability = [], np.zeros((2, BINS))
    for turns in all_turns:
        figures, counts = measure(form(turns, length, joiner), options)
        figures |= spurious(turns, length)
        rows.append(figures)
        reliability += counts
    return {
        "cell": {**dataclasses.asdict(cell), "turn_tokens": length},
        "texts": len(rows),
        **texts.entropies(all_turns),
        "cusum": options,
        "figures": {key: [row.get(key) for row in rows] for key in sorted(set().union(*rows))},
        "reliability": reliability.tolist(),
    }


def summarise(result: dict[str, Any]) -> dict[str, Any]:
    """Return the means of a cell with their intervals, in place of the figures of its texts."""
    figures = {key: summary(values) for key, values in result["figures"].items()}
    return {**result, "figures": {key: value for key, value in figures.items() if value}}


def rows_of(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(result["texts"]):
        figures = {key: values[number] for key, values in result["figures"].items() if number < len(values)}
        yield {**result["cell"], "text": number, **figures}


def shown(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the summary keeps of a cell, with the intervals of TokenAcc alone."""
    figures = {
        key: value if re.fullmatch(r"(?!with|beside).*/token_accuracy", key) else value[:1]
        for key, value in result["figures"].items()
        if SHOWN.fullmatch(key)
    }
    return {key: result[key] for key in FIELDS} | {"figures": figures}


def reliability(results: Sequence[dict[str, Any]]) -> NDArray[np.float64]:
    """Return how many tokens, and right ones, all cells have by how sure the posterior was [2, BINS]."""
    return np.asarray(np.sum([result["reliability"] for result in results], axis=0), np.float64)


def calibration_error(reliability: NDArray[np.float64]) -> float:
    """Return the expected calibration error: the mean over tokens of |share right - middle of the bin|."""
    counts, right = reliability
    middle = (np.arange(BINS) + 0.5) / BINS
    return float(np.abs(right - counts * middle).sum() / max(1.0, counts.sum()))


def verdicts(results: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return what is asked of the decoder over all cells, as one number each; None without a cell."""

    def of(result: dict[str, Any], name: str) -> float:
        return float(result["figures"][name][0])

    def lead(result: dict[str, Any], ours: str, theirs: str) -> float:
        return of(result, f"{ours}/token_accuracy") - of(result, f"{theirs}/token_accuracy")

    def gains(ours: str, theirs: str) -> list[float]:
        return [lead(r, ours, theirs) for r in results if f"{theirs}/token_accuracy" in r["figures"]]

    readable = [r for r in results if of(r, "oracle/token_accuracy") > 0.7]
    long = [r for r in results if r["cell"]["turn_tokens"] >= 200]
    marked = [r for r in long if (r["cell"]["family"], r["cell"]["temperature"]) == ("fourier", 1.0)]
    gumbel = [r for r in long if r["cell"]["family"] != "fourier" and 0.35 <= r["entropy_nats"] <= 0.9]
    over_oracle = [of(r, "posterior/token_accuracy") / of(r, "oracle/token_accuracy") for r in marked]
    change = [
        abs(of(r, name) - of(r, f"posterior of {r['cell']['agents']} keys"))
        for r in readable
        for name in r["figures"]
        if name.endswith("keys")
    ]
    leads = {name: [lead(r, "posterior", name) for r in readable] for name in (CUSUM, PAPERS_CUSUM)}
    more = {"model, gain": gains("with model", "beside the model")}
    fourier_long = "fourier at T = 1.0 with turns of 200 and more"
    gumbel_long = "gumbel near 0.5 nats with turns of 200 and more"
    lowest = [of(r, "posterior/token_accuracy") for r in gumbel]
    return {
        "posterior - window, lowest": min((lead(r, "posterior", "window") for r in results), default=None),
        **{
            f"posterior - {name}, mean over cells with an oracle above 0.7": _mean(values)
            for name, values in leads.items()
        },
        f"posterior / oracle, lowest, {fourier_long}": min(over_oracle, default=None),
        f"{gumbel_long}, lowest TokenAcc": min(lowest, default=None),
        f"{gumbel_long}, lowest IoU": min((of(r, "posterior/mean_iou") for r in gumbel), default=None),
        "spurious keys, largest change where the oracle is above 0.7": max(change, default=None),
        **{
            f"{name}, mean over {len(differences)} cells": _mean(differences)
            for name, differences in more.items()
            if differences
        },
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _columns(chosen: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    def interval(name: str) -> str:
        return INTERVAL.format(f"figures[{name}]")

    def point(name: str) -> str:
        return f"{{figures[{name}][0]:.3f}}"

    def measured(name: str) -> bool:
        return any(f"{name}/token_accuracy" in result["figures"] for result in chosen)

    return [
        ("T (nats)", "{cell[temperature]} ({entropy_nats:.2f})"),
        ("A", "{cell[agents]}"),
        ("turn", "{cell[turn_tokens]}"),
        *((name, interval(f"{name}/token_accuracy")) for name in READERS),
        ("posterior IoU", point("posterior/mean_iou")),
        ("EdgeSim", point("posterior/edge_similarity")),
        *((name, point(f"posterior/{name}")) for name in ("coverage", "there")),
        ("coverage of cusum", point("cusum/coverage")),
        ("there", point("cusum/there")),
        *[
            ("with model", point("with model/token_accuracy")),
            ("posterior there", point("beside the model/token_accuracy")),
            ("gain", interval("gain of the model/token_accuracy")),
            ("IoU with model", point("with model/mean_iou")),
            ("posterior there", point("beside the model/mean_iou")),
            ("texts with model", "{texts_with_model}"),
            ("s per text", point("with model/seconds")),
        ][: 7 * measured("with model")],
    ]


def markdown(results: Sequence[dict[str, Any]], counts: NDArray[np.float64]) -> str:
    """Return a table for every model and family, the verdicts, and the calibration of `counts` [2, BINS]."""
    sections = []
    for model, family in itertools.product(texts.MODELS, texts.SCHEMES):
        chosen = [r for r in results if (r["cell"]["model"], r["cell"]["family"]) == (model, family)]
        if chosen:
            sections.append(f"**{model} model, {family}**: TokenAcc (95 % interval)")
            sections.append(columns(chosen, _columns(chosen)))
    verdict_rows = [
        [name, "none" if value is None else f"{value:.4f}"] for name, value in verdicts(results).items()
    ]
    sections += ["**In one number each**", table(["what", "value"], verdict_rows)]
    calibrated = [
        [f"{i / BINS:.2f} to {(i + 1) / BINS:.2f}", f"{every:,.0f}", float(right / every)]
        for i, (every, right) in enumerate(counts.T)
        if every
    ]
    sections += [
        "**Calibration** of the highest posterior of every token, forced choice: error"
        f" {calibration_error(counts):.4f}",
        table(["posterior", "tokens", "share right"], calibrated),
    ]
    return "\n\n".join(sections)


def cells(
    only: Callable[[texts.Cell], bool], lengths: Sequence[int] = texts.TURN_TOKENS
) -> list[tuple[texts.Cell, int]]:
    return [
        (cell, length) for cell in texts.cells(families=texts.SCHEMES) if only(cell) for length in lengths
    ]


def measured(
    work: pathlib.Path,
    chosen: Sequence[tuple[texts.Cell, int]],
    *,
    joiner: str = JOINER,
    limit: int | None = None,
    model_texts: int = 0,
) -> list[dict[str, Any]]:
    """Return the figures of the cells whose texts are there; what `work` keeps is not computed again."""

    def folder(name: str, *key_parts: Any) -> pathlib.Path:
        key = hashlib.blake2b(repr((iet.__version__, joiner, *key_parts)).encode(), digest_size=6)
        path = work / f"{name}-{key.hexdigest()}"
        path.mkdir(exist_ok=True)
        return path

    cache, results = folder("decoders", limit), []
    for cell, length in tqdm(chosen, desc="cells"):
        path = cache / f"{cell.name}-{length}.json"
        if not path.is_file():
            result = cell_results(work, cell, length, joiner, limit)
            if result is None:
                continue
            write_file(path, json.dumps(result).encode())
        result = json.loads(path.read_text(encoding="utf-8"))
        if model_texts:
            all_turns = texts.load(work, cell)[: min(model_texts, result["texts"])]
            rows = with_model(folder("decoders-model") / path.name, all_turns, length, joiner)
            result = add_model(result, rows)
        results.append(result)
    return results


def main() -> None:
    models, families, lengths = list(texts.MODELS), list(texts.SCHEMES), list(texts.TURN_TOKENS)
    line = parser("benchmarks.accuracy.decoders", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--joiner", default=JOINER, help="between turns (default: one space)")
    line.add_argument("--models", nargs="+", default=models, choices=models)
    line.add_argument("--families", nargs="+", default=texts.FAMILIES, choices=families)
    tokens = "tokens of a turn"
    line.add_argument("--lengths", nargs="+", type=int, default=lengths, choices=lengths, help=tokens)
    line.add_argument("--texts", type=int, help="of each cell (default: all)")
    read = "of each cell, read so many texts with the model that wrote them, too"
    line.add_argument("--model", type=int, default=0, metavar="N", help=read)
    options = line.parse_args()
    chosen = cells(lambda c: c.model in options.models and c.family in options.families, options.lengths)
    read_options = {"joiner": options.joiner, "limit": options.texts}
    measurements = measured(options.work, chosen, **read_options, model_texts=options.model)
    results, counts = [summarise(result) for result in measurements], reliability(measurements)
    content = {"verdicts": verdicts(results), "reliability": counts.tolist()}
    content |= {"cells": [shown(result) for result in results]}
    rows = itertools.chain.from_iterable(map(rows_of, measurements))
    finish(line, options, content, markdown(results, counts), rows=rows)


if __name__ == "__main__":
    sys.exit(exit_code(main))
