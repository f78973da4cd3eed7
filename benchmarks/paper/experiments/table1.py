"""Table 1: who wrote what in nine settings, by every method, on the same records.

Methods that read plain text get the texts marked as "fourier"; KGW, Unigram and iet's marks get texts of
their own, of the same records under the same seeds. Ours is read by the paper's decoder ("cusum", its open
options chosen on other records) and by "posterior". The table is followed by what is attributed where text
may stay unattributed, and by ours against each baseline, paired by records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import recording, statistics
from benchmarks.paper import plots, results
from benchmarks.paper.asking.endpoints import Parameters
from benchmarks.paper.baselines import BASELINES, Found
from benchmarks.paper.baselines.llm import ENDPOINTS
from benchmarks.paper.baselines.reading import read_tokens
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.experiments.study import Study
from benchmarks.paper.marks import PUBLISHED
from benchmarks.paper.quoted import SETTINGS, TABLE1
from benchmarks.paper.reading import readers, scoring
from benchmarks.paper.reading.readers import Read
from benchmarks.paper.reading.scoring import FIGURES
from benchmarks.statistics import Interval
from iet.marks.tokenizer import Tokenizer

FEWEST_TEXTS = 10
"""In a setting, for a difference to be told from none."""

PAIRED = ("token_accuracy", "iou", "edge_similarity")
Cells = dict[str, dict[str, list[dict[str, Any]]]]
"""Setting -> method -> the figures of every text."""


@dataclasses.dataclass(frozen=True)
class Method:
    name: str  # in our table
    mark: str  # of the texts that it reads
    # That reads marks: one of `iet`'s, "printed" (the paper's text, nothing tuned), or "told" (the number of
    # turns and their speakers in order); "" for a baseline that reads plain text
    decoder: str = ""
    quoted: str | None = None  # the paper's row for it, if there is one
    baseline: str | None = None  # a key of `BASELINES`
    ours: bool = False  # the mark is iet's


def _named(name: str, model: str) -> str:
    return f"{name} ({model})"


METHODS = (
    *(
        Method(
            _named(entry.name, ENDPOINTS[key].model) if key in ENDPOINTS else entry.name,
            "fourier",
            quoted=entry.name if entry.name in TABLE1 else None,
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
    Method("IET raw, cusum (tuned)", "raw", "cusum", "IET", ours=True),
    Method("IET raw, posterior", "raw", "posterior", ours=True),
    Method("IET fourier, cusum", "fourier", "cusum", ours=True),
    Method("IET fourier, posterior", "fourier", "posterior", ours=True),
    Method("IET gumbel, cusum", "gumbel", "cusum", ours=True),
    Method("IET gumbel, posterior", "gumbel", "posterior", ours=True),
    Method("IET raw, cusum as printed", "raw", "printed", "IET", ours=True),
    Method("IET fourier, cusum as printed", "fourier", "printed", ours=True),
    Method("IET raw, told the order", "raw", "told", ours=True),
    Method("IET fourier, told the order", "fourier", "told", ours=True),
    Method("IET gumbel, told the order", "gumbel", "told", ours=True),
)
EQUAL_KL = (
    "IET fourier, posterior",
    "IET gumbel, posterior",
    "IET fourier, cusum",
)
"""Ours at the KL per token of the green lists, or below: "gumbel" changes no distribution of tokens."""

PLACED = ("IET raw, posterior", "IET raw, cusum (tuned)")
"""Ours with the paper's placement, which below temperature 1 has a higher KL than the green lists."""

TOLD = tuple(method.name for method in METHODS if method.decoder == "told")
"""Ours told the number of turns and their speakers, as segmenters are: compared with these alone."""


def run(
    study: Study,
    asked: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Sequence[tuple[str, int]] = SETTINGS,
    under: Sequence[str] | None = None,
) -> None:
    """Measure all methods in all settings, and write table and histograms.

    `asked` says what a baseline needs (an endpoint), by its key in `BASELINES`. One that lacks it is left
    out, and the table says so. `under` names the marks whose texts are read (None: all); "fourier" is always
    among them, as methods that read plain text get its texts.
    """
    asked = dict(asked or {})
    methods = [
        _as_asked(m, asked)
        for m in METHODS
        if (m.baseline is None or not BASELINES[m.baseline].needs or m.baseline in asked)
        and (under is None or m.mark in {"fourier", *under})
    ]
    texts: Cells = {}
    all_logs: list[Log] = []
    panels: dict[str, tuple[Any, Any]] = {}
    extra: dict[str, Any] = {"failures": {}, "options": {}, "strength": {}, "entropy": {}}
    for topology, agents in results.each(settings, "{0[0]}, {0[1]} agents".format):
        cell = texts.setdefault(f"{topology} {agents}", {})
        for mark in dict.fromkeys(method.mark for method in methods):
            setting = study.setting(topology, agents, mark)
            logs = study.logs(setting)
            all_logs += logs
            extra["strength"][mark] = setting.strength
            nats = [log.entropy for log in logs if log.entropy is not None]
            extra["entropy"].setdefault(mark, []).append(float(np.mean(nats)) if nats else None)
            if mark == "fourier":
                panels[f"{topology}, {agents}"] = _scores(study, logs)
            for method in methods:
                if method.mark != mark:
                    continue
                found = _read(study, method, logs, extra["options"], asked)
                cell[method.name] = [_figures(study, log, one) for log, one in zip(logs, found, strict=True)]
                failed = sum(one.failures for one in found)
                if failed:
                    extra["failures"][f"{method.name}, {topology}, {agents}"] = failed
    extra["entropy"] = {
        mark: float(np.mean(known))
        for mark, found in extra["entropy"].items()
        if (known := [nats for nats in found if nats is not None])
    }
    _write(study, methods, texts, all_logs, extra, asked)
    plots.histograms(study.out / "table1-scores", panels, xlabel="score under one key, IET fourier")


def _as_asked(method: Method, asked: Mapping[str, Mapping[str, Any]]) -> Method:
    """Return the row under the name of the model that is asked; any but the usual has no row in the paper."""
    key = method.baseline or ""
    if "endpoint" not in asked.get(key, {}):
        return method
    model, usual = asked[key]["endpoint"].model, ENDPOINTS.get(key)
    if usual is not None and model == usual.model:
        return method
    return dataclasses.replace(method, name=_named(f"LLM of --{method.baseline}", model), quoted=None)


def _asked_as(needs: Mapping[str, Any]) -> str:
    values = dataclasses.asdict(needs.get("parameters", Parameters()))
    said = ", ".join(f"{name} {'left out' if v is None else f'{v:g}'}" for name, v in values.items())
    return f"asked at {needs['endpoint'].address or 'its own address'}, {said}"


def _read(
    study: Study,
    method: Method,
    logs: Sequence[Log],
    options: dict[str, Any],
    asked: Mapping[str, Mapping[str, Any]],
) -> list[Read]:
    reader = study.loaded.reader
    if method.baseline is not None:
        found: list[Found] = BASELINES[method.baseline].read(
            logs, reader, seed=123, **asked.get(method.baseline, {})
        )
        return [Read(f.labels, f.edges, None, f.matched, f.failures) for f in found]
    if method.decoder == "printed":
        return [readers.read_as_printed(log.text, study.keys(log), reader) for log in logs]
    if method.decoder == "told":
        return [readers.read_told(log.text, study.keys(log), reader, _speakers(log, reader)) for log in logs]
    chosen = study.options_of(method.decoder, logs[0].setting)
    if chosen:
        options[f"{method.name}, {logs[0].setting.topology}, {logs[0].setting.agents}"] = chosen
    return [readers.read(log.text, study.keys(log), reader, method.decoder, chosen) for log in logs]


def _speakers(log: Log, tokenizer: Tokenizer) -> list[int]:
    """Return who speaks in each turn, in order; turns that no token ends in are none."""
    tokens = read_tokens(log, tokenizer)
    return [log.turns[turn].agent for turn in np.unique(tokens.turns).tolist()]


def _figures(study: Study, log: Log, found: Read) -> dict[str, Any]:
    reader, agents = study.loaded.reader, log.setting.agents
    truth = scoring.truth_of(log, reader)
    figures = scoring.score(truth, found.labels, agents=agents, edges=log.edges, found_edges=found.edges)
    figures["coverage"] = figures["accuracy_where_attributed"] = None
    if found.free is not None:
        free = scoring.score(truth, found.free, agents=agents, edges=log.edges)
        figures |= {name: free[name] for name in ("coverage", "accuracy_where_attributed")}
    return {"record": log.record, **figures}


def _scores(study: Study, logs: Sequence[Log]) -> tuple[Any, Any]:
    own, others = [], []
    for log in logs[:8]:
        ids = study.loaded.reader.encode(log.text).token_ids
        keys, truth = study.keys(log), scoring.truth_of(log, study.loaded.reader)
        scores, scored = keys.scores(ids), keys.pairs(ids) >= 0
        mine = np.arange(scores.shape[1]) == truth[:, None]
        own.append(scores[scored[:, None] & mine])
        others.append(scores[scored[:, None] & ~mine])
    return np.concatenate(own), np.concatenate(others)


def _write(
    study: Study,
    methods: Sequence[Method],
    texts: Cells,
    logs: Sequence[Log],
    extra: Mapping[str, Any],
    asked: Mapping[str, Mapping[str, Any]],
) -> None:
    def mean(setting: str, method: Method, name: str) -> Interval | None:
        return statistics.interval(_values(texts[setting], method, name), study.options.seed)

    header = ["method", "figure", *(name for s in texts for name in (s, f"paper {s}"))]
    at = {f"{topology} {agents}": i for i, (topology, agents) in enumerate(SETTINGS)}
    cells: list[list[recording.Cell]] = []
    for method in methods:
        quoted = TABLE1.get(method.quoted or "", {})
        for name in PAIRED:
            row: list[recording.Cell] = [method.name, FIGURES[name]]
            for setting in texts:
                row += [mean(setting, method, name), quoted[name][at[setting]] if name in quoted else ""]
            cells.append(row)
    free: list[list[recording.Cell]] = [
        [method.name, FIGURES[name], *(mean(setting, method, name) for setting in texts)]
        for method in methods
        if method.baseline is None and method.decoder not in ("printed", "told")
        for name in ("coverage", "accuracy_where_attributed")
    ]
    there = {method.name for method in methods}
    ours_there = [name for name in (*EQUAL_KL, *PLACED, *TOLD) if name in there]
    compared = [row for ours in ours_there for row in _compared(ours, methods, texts, study.options.seed)]
    kgw = extra["strength"].get("kgw")
    note = "" if kgw is None else f" δ of the green lists for equal KL per token: {kgw}."
    if not {"kgw_published", "unigram_published"}.isdisjoint(extra["strength"]):
        note += f" As published it is {PUBLISHED:g}."
    note += (
        ' Labels of Recursive, Semantic-BoW, TextTiling and the LLMs are oracle-matched; "in order" they, and'
        ' "told the order" ours, are told the number of turns and their speakers, and nothing else.'
    )
    for method in methods:
        needs = asked.get(method.baseline or "", {})
        if "endpoint" in needs:
            note += f" {method.name}: {_asked_as(needs)}."
    baselines = {method.baseline for method in methods}
    left_out = [
        BASELINES[m.baseline].name
        for m in METHODS
        if m.baseline and m.baseline not in baselines and m.quoted in TABLE1
    ]
    if left_out:
        note += f" Left out, because no endpoint was given: {', '.join(left_out)}."
    if extra["failures"]:
        note += f" Without an answer: {extra['failures']}."
    narrow = ["method", "figure", *texts]
    versus = ["ours", "against", "figure", "mean difference", "better in", "not told apart", "worse in"]
    sources = [f"{m.name}: {BASELINES[m.baseline].source}" for m in methods if m.baseline]
    parts = [
        note,
        f"Methods that read plain text: {'; '.join(sources)}.",
        f"Where text may stay unattributed, level {readers.LEVEL:g}:\n\n{recording.table(narrow, free)}",
        "Ours less theirs, paired by records, over the settings:\n\n" + recording.table(versus, compared),
    ]
    study.write(
        "table1",
        header,
        cells,
        logs,
        (
            {"setting": setting, "method": method, **text}
            for setting, found in texts.items()
            for method, some in found.items()
            for text in some
        ),
        note="\n\n".join(parts),
        against=_nested(versus, compared),
        free=recording.as_dicts(narrow, free),
        **extra,
    )


def _values(cell: Mapping[str, Sequence[Mapping[str, Any]]], method: Method, name: str) -> list[Any]:
    return [figures[name] for figures in cell[method.name]]


def _compared(
    name: str, methods: Sequence[Method], texts: Cells, seed: int
) -> Iterator[list[recording.Cell]]:
    (ours,) = (method for method in methods if method.name == name)
    for method in methods:
        if (method.ours and method.name not in EQUAL_KL) or method is ours:
            continue
        if ours.decoder == "told" and "in order" not in method.name:
            continue
        for figure in PAIRED:
            pairs = [(_values(cell, ours, figure), _values(cell, method, figure)) for cell in texts.values()]
            each = [found for a, b in pairs if (found := statistics.difference(a, b, seed)) is not None]
            if each:
                told = [d for d in each if d.texts >= FEWEST_TEXTS]
                better, worse = sum(d.low > 0 for d in told), sum(d.high < 0 for d in told)
                mean = statistics.mean_difference(pairs, seed)
                rest = len(each) - better - worse
                yield [name, method.name, FIGURES[figure], mean, better, rest, worse]


def _nested(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows of `_compared` as ours -> theirs -> figure -> what is said."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for ours, theirs, figure, mean, *rest in rows:
        said = dict(zip(header[3:], [[mean.mean, mean.low, mean.high], *rest], strict=True))
        found.setdefault(ours, {}).setdefault(theirs, {})[figure] = said
    return found
