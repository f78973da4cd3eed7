"""Table 1: attribution in nine settings, by every method, on the same records.

Methods that read plain text get the texts marked as "fourier". Every other mark has its own texts, of the
same records under the same seeds. Marks are read by the paper's decoder ("cusum", its open
options tuned on other records) and by "posterior". TokenAcc of new text leaves out tokens that follow the
same three tokens as earlier in the text: a model that copies does not choose them. The table is followed by
the figures if text may stay unattributed, and by differences between ours and each baseline, paired by
records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import recording, statistics
from benchmarks.paper import results
from benchmarks.paper.baselines import BASELINES
from benchmarks.paper.baselines.llm import ENDPOINTS
from benchmarks.paper.conversations.logs import Log, summary
from benchmarks.paper.experiments.study import Study
from benchmarks.paper.marks import PUBLISHED
from benchmarks.paper.quoted import SETTINGS, TABLE1
from benchmarks.paper.reading import readers, scoring
from benchmarks.paper.reading.readers import Reading
from benchmarks.paper.reading.scoring import FIGURES, SHOWN
from benchmarks.statistics import Interval
from iet.audit.metrics import token_accuracy
from iet.native.pairs import number_pairs, repeats

FEWEST_TEXTS = 10
"""Fewest texts of a setting whose difference counts as better, worse or not told apart."""

NEW = "new_token_accuracy"
TITLES = {**FIGURES, NEW: "TokenAcc of new text"}
"""Figures and their names in tables."""

PAIRED = (*SHOWN, NEW)
"""Figures that are compared, paired by records."""

UNATTRIBUTED = ("coverage", "accuracy_where_attributed")
"""Figures if text may stay unattributed."""

Cells = dict[str, dict[str, list[dict[str, Any]]]]
"""Setting -> method -> the figures of every text."""


@dataclasses.dataclass(frozen=True)
class Method:
    name: str  # in our table
    mark: str  # of the texts that it reads
    decoder: str = ""  # "cusum" or "posterior"; "" for a baseline of plain text
    quoted: str | None = None  # row of the paper
    baseline: str | None = None  # a key of `BASELINES`
    ours: bool = False  # the mark is iet's


def _named(name: str, model: str) -> str:
    return f"{name} ({model})"


METHODS = (
    *(
        Method(
            _named(entry.name, ENDPOINTS[key].model) if key in ENDPOINTS else entry.name,
            "fourier",
            quoted=entry.name,
            baseline=key,
        )
        for key, entry in BASELINES.items()
    ),
    Method("Unigram, cusum", "unigram", "cusum", "Unigram"),
    Method("Unigram, posterior", "unigram", "posterior"),
    Method("KGW, cusum", "kgw", "cusum", "KGW"),
    Method("KGW, posterior", "kgw", "posterior"),
    Method("Unigram as published, cusum", "unigram_published", "cusum"),
    Method("Unigram as published, posterior", "unigram_published", "posterior"),
    Method("KGW as published, cusum", "kgw_published", "cusum"),
    Method("KGW as published, posterior", "kgw_published", "posterior"),
    Method("SynthID-Text, cusum", "synthid", "cusum"),
    Method("SynthID-Text, posterior", "synthid", "posterior"),
    Method("IET raw, cusum (tuned)", "raw", "cusum", "IET", ours=True),
    Method("IET raw, posterior", "raw", "posterior", ours=True),
    Method("IET fourier, cusum", "fourier", "cusum", "IET", ours=True),
    Method("IET fourier, posterior", "fourier", "posterior", ours=True),
    Method("IET gumbel, cusum", "gumbel", "cusum", ours=True),
    Method("IET gumbel, posterior", "gumbel", "posterior", ours=True),
)

EQUAL_KL = ("IET fourier, posterior", "IET gumbel, posterior", "IET fourier, cusum")
"""Ours with at most the KL per token of the green lists; "gumbel" changes no distribution of a token."""

PLACED = ("IET raw, posterior", "IET raw, cusum (tuned)")
"""Ours with the paper's placement, which has a higher KL than the green lists below temperature 1."""


def run(
    study: Study,
    settings: Sequence[tuple[str, int]] = SETTINGS,
    marks: Sequence[str] | None = None,
    endpoints: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Measure all methods in all settings, and write the table.

    Args:
        marks: marks whose texts are read, in addition to "fourier"; None: all.
        endpoints: key of a baseline -> the arguments that it needs; a baseline without them is left out.
    """
    endpoints = dict(endpoints or {})
    methods = [
        _with_model(method, endpoints)
        for method in METHODS
        if (method.baseline is None or not BASELINES[method.baseline].needs or method.baseline in endpoints)
        and (marks is None or method.mark in {"fourier", *marks})
    ]
    texts: Cells = {}
    all_logs: list[Log] = []
    extra: dict[str, Any] = {"failures": {}, "options": {}, "strength": {}}
    entropies: dict[str, list[float]] = {}
    of_texts: dict[str, dict[str, Mapping[str, float]]] = {}
    for topology, agents in results.with_progress(settings):
        cell = texts.setdefault(f"{topology} {agents}", {})
        for mark in dict.fromkeys(method.mark for method in methods):
            setting = study.setting(topology, agents, mark)
            logs = study.logs(setting)
            all_logs += logs
            extra["strength"][mark] = setting.strength
            of_texts.setdefault(mark, {})[f"{topology} {agents}"] = _properties(study, logs)
            nats = [log.entropy for log in logs if log.entropy is not None]
            entropies.setdefault(mark, []).extend([float(np.mean(nats))] if nats else [])
            for method in methods:
                if method.mark != mark:
                    continue
                readings = _read(study, method, logs, extra["options"], endpoints)
                cell[method.name] = [
                    _figures(study, log, reading) for log, reading in zip(logs, readings, strict=True)
                ]
                failures = sum(reading.failures for reading in readings)
                if failures:
                    extra["failures"][f"{method.name}, {topology}, {agents}"] = failures
    extra["texts"] = of_texts
    extra["entropy"] = {mark: float(np.mean(means)) for mark, means in entropies.items() if means}
    _write(study, methods, texts, all_logs, extra, endpoints)


PROPERTIES = {
    "entropy": "nats a token",
    "repeated": "repeated share",
    "turn": "tokens a turn",
    "turn_of_token": "tokens of the turn of a token",
}
"""Properties of texts, see `_properties`, and their names in tables."""


def _properties(study: Study, logs: Sequence[Log]) -> dict[str, float]:
    """Return what a mark can work with in texts: means over logs of entropy, repetition and turns."""
    repeated = [float(_repeated(study, log).mean()) for log in logs]
    sizes = np.array([len(turn.ids) for log in logs for turn in log.turns], np.float64)
    turns = {"turn": float(sizes.mean()), "turn_of_token": float((sizes**2).sum() / sizes.sum())}
    return {"entropy": summary(logs).entropy, "repeated": float(np.mean(repeated)), **turns}


def _repeated(study: Study, log: Log) -> NDArray[np.bool_]:
    """Return which tokens of a text [T] follow the same three tokens as earlier in it."""
    ids = study.loaded.reader.encode(log.text).token_ids
    return repeats(number_pairs(ids, np.arange(len(ids)) >= 3, 4))


def _with_model(method: Method, endpoints: Mapping[str, Mapping[str, Any]]) -> Method:
    """Return the row with the name of the model that is asked; only the paper's model has a quoted row."""
    key = method.baseline or ""
    if key not in endpoints or endpoints[key]["endpoint"].model == ENDPOINTS[key].model:
        return method
    name = _named(f"LLM of --{key}", endpoints[key]["endpoint"].model)
    return dataclasses.replace(method, name=name, quoted=None)


def _read(
    study: Study,
    method: Method,
    logs: Sequence[Log],
    options: dict[str, Any],
    endpoints: Mapping[str, Mapping[str, Any]],
) -> list[Reading]:
    reader = study.loaded.reader
    if method.baseline is not None:
        needs = endpoints.get(method.baseline, {})
        return BASELINES[method.baseline].read(logs, reader, seed=123, **needs)
    tuned = study.decoder_options(method.decoder, logs[0].setting)
    if tuned:
        options[f"{method.name}, {logs[0].setting.topology}, {logs[0].setting.agents}"] = tuned
    return [readers.read(log.text, study.keys(log), reader, method.decoder, tuned) for log in logs]


def _figures(study: Study, log: Log, reading: Reading) -> dict[str, Any]:
    agents = log.setting.agents
    truth = scoring.truth_of(log, study.loaded.reader)
    figures = scoring.score(truth, reading.labels, agents=agents, edges=log.edges, found_edges=reading.edges)
    is_new = ~_repeated(study, log)
    figures[NEW] = token_accuracy(truth[is_new], reading.labels[is_new])
    figures |= dict.fromkeys(UNATTRIBUTED)
    if reading.free is not None:
        free = scoring.score(truth, reading.free, agents=agents, edges=log.edges)
        figures |= {name: free[name] for name in UNATTRIBUTED}
    return {"record": log.record, **figures}


def _write(
    study: Study,
    methods: Sequence[Method],
    texts: Cells,
    logs: Sequence[Log],
    extra: Mapping[str, Any],
    endpoints: Mapping[str, Mapping[str, Any]],
) -> None:
    def mean(setting: str, method: Method, name: str) -> Interval | None:
        return statistics.interval(_values(texts[setting], method, name), study.options.seed)

    header = ["method", "figure", *(name for s in texts for name in (s, f"paper {s}"))]
    column = {f"{topology} {agents}": i for i, (topology, agents) in enumerate(SETTINGS)}
    cells: list[list[recording.Cell]] = []
    for method in methods:
        quoted = TABLE1.get(method.quoted or "", {})
        for name in PAIRED:
            row: list[recording.Cell] = [method.name, TITLES[name]]
            for setting in texts:
                row += [mean(setting, method, name), quoted[name][column[setting]] if name in quoted else ""]
            cells.append(row)
    free: list[list[recording.Cell]] = [
        [method.name, TITLES[name], *(mean(setting, method, name) for setting in texts)]
        for method in methods
        if method.decoder
        for name in UNATTRIBUTED
    ]
    properties: list[list[recording.Cell]] = [
        [mark, title, *(by_setting[setting][name] for setting in texts)]
        for mark, by_setting in extra["texts"].items()
        for name, title in PROPERTIES.items()
    ]
    names = {method.name for method in methods}
    ours = [name for name in (*EQUAL_KL, *PLACED) if name in names]
    compared = [row for name in ours for row in _compared(name, methods, texts, study.options.seed)]
    narrow = ["method", "figure", *texts]
    versus = ["ours", "against", "figure", "mean difference", "better in", "not told apart", "worse in"]
    sources = [f"{m.name}: {BASELINES[m.baseline].source}" for m in methods if m.baseline]
    parts = [
        _note(methods, extra, endpoints),
        f"Methods that read plain text: {'; '.join(sources)}.",
        f"The texts of each mark:\n\n{recording.table(['mark', 'property', *texts], properties)}",
        f"If text may stay unattributed, level {readers.LEVEL:g}:\n\n{recording.table(narrow, free)}",
        "Ours less theirs, paired by records, over the settings:\n\n" + recording.table(versus, compared),
    ]
    study.write(
        *("table1", header, cells, logs, rows_of(texts)),
        note="\n\n".join(parts),
        against=_nested(versus, compared),
        free=recording.as_dicts(narrow, free),
        **extra,
    )


def rows_of(texts: Cells) -> Iterator[dict[str, Any]]:
    """Yield the figures of every text with its setting and method."""
    for setting, by_method in texts.items():
        for method, figures_of_texts in by_method.items():
            yield from ({"setting": setting, "method": method, **text} for text in figures_of_texts)


def _note(
    methods: Sequence[Method], extra: Mapping[str, Any], endpoints: Mapping[str, Mapping[str, Any]]
) -> str:
    note = f" δ of green lists: {extra['strength'].get('kgw')} for equal KL, {PUBLISHED:g} as published."
    note += " Labels of Recursive, Semantic-BoW, TextTiling and the LLMs are oracle-matched."
    for method in methods:
        needs = endpoints.get(method.baseline or "")
        if needs is not None:
            temperature = needs["sampling"].temperature
            temperature_text = "the model's own" if temperature is None else f"{temperature:g}"
            address = needs["endpoint"].address or "its default address"
            note += f" {method.name}: asked at {address}, temperature {temperature_text}."
    left_out = [entry.name for key, entry in BASELINES.items() if entry.needs and key not in endpoints]
    if left_out:
        note += f" Left out, because no endpoint was given: {', '.join(left_out)}."
    if extra["failures"]:
        note += f" Logs without a valid answer: {extra['failures']}."
    return note


def _values(cell: Mapping[str, Sequence[Mapping[str, Any]]], method: Method, name: str) -> list[Any]:
    return [figures[name] for figures in cell[method.name]]


def _compared(
    name: str, methods: Sequence[Method], texts: Cells, seed: int
) -> Iterator[list[recording.Cell]]:
    (ours,) = (method for method in methods if method.name == name)
    for method in methods:
        if (method.ours and method.name not in EQUAL_KL) or method is ours:
            continue
        for figure in PAIRED:
            pairs = [(_values(cell, ours, figure), _values(cell, method, figure)) for cell in texts.values()]
            mean = statistics.interval(_over_settings(pairs), seed)
            if mean is None:
                continue
            differences = [d for a, b in pairs if (d := statistics.difference(a, b, seed)) is not None]
            large = [d for d in differences if d.texts >= FEWEST_TEXTS]
            better, worse = sum(d.low > 0 for d in large), sum(d.high < 0 for d in large)
            counts: list[recording.Cell] = [better, len(large) - better - worse, worse] if large else [""] * 3
            yield [name, method.name, TITLES[figure], mean, *counts]


def _over_settings(
    pairs: Sequence[tuple[Sequence[float | None], Sequence[float | None]]],
) -> list[float | None]:
    """Return the difference of each record, as the mean over settings, which have the same records.

    A record has the same task in every setting, so that its differences are not independent.
    """
    ours, theirs = (np.array([pair[i] for pair in pairs], np.float64) for i in (0, 1))  # NaN: no figure
    return [float(np.nanmean(d)) if np.isfinite(d).any() else None for d in (ours - theirs).T]


def _nested(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows of `_compared` as nested dicts: our method, baseline, figure."""
    nested: dict[str, dict[str, dict[str, Any]]] = {}
    for ours, theirs, figure, mean, *counts in rows:
        values = dict(zip(header[3:], [[mean.mean, mean.low, mean.high], *counts], strict=True))
        nested.setdefault(ours, {}).setdefault(theirs, {})[figure] = values
    return nested
