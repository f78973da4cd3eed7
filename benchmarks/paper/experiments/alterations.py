"""PII redaction, Oracle-IET, and transformations of the text after generation.

§ Robustness to PII Redaction and § Sensitivity to Post-Generation Text Transformations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import recording, statistics
from benchmarks.paper import plots, quoted, results, transforms
from benchmarks.paper.conversations.author import ModelAuthor, Row
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.conversations.prompts import Heard, parsed, prompt_of
from benchmarks.paper.conversations.protocol import NO_ANSWER, drawn_seed
from benchmarks.paper.experiments.study import MARKED, Study
from benchmarks.paper.quoted import SETTINGS
from benchmarks.paper.reading import similarity
from benchmarks.paper.reading.scoring import FIGURES, SHOWN
from benchmarks.paper.transforms import TRANSFORMS, Altered, Context, Find, Translate
from benchmarks.statistics import Interval
from iet.errors import BackendUnavailable

Figures = dict[str, float | None]


def pii(
    study: Study,
    settings: Sequence[tuple[str, int]] = SETTINGS,
    marks: Sequence[str] = MARKED,
    find: Find | None = None,
) -> None:
    """Redact personal data in all settings, before and after.

    If redaction would change less than 2 % of a turn's tokens, entities of the record are inserted first.
    `find` finds further personal data.
    """
    header = ["setting", "mark", "decoder", "figure", "original", "redacted", "change", "tokens changed"]
    cells: list[list[recording.Cell]] = []
    panels: dict[str, dict[str, list[Interval | None]]] = {
        f"{FIGURES[name]}, {mark}": {"original": [], "redacted": []} for mark in marks for name in SHOWN
    }
    rows, all_logs = [], list[Log]()
    combinations = list(itertools.product(settings, marks))
    for (topology, agents), mark in results.with_progress(combinations):
        setting = study.setting(topology, agents, mark)
        logs = study.logs(setting)
        all_logs += logs
        originals: list[Altered] = []
        redacted: list[Altered] = []
        for log in logs:
            rng = np.random.default_rng([study.options.seed, log.record])
            context = _context(study, log, find=find)
            originals.append(transforms.with_entities(log, rng, context))
            redacted.append(transforms.redacted(originals[-1], context))
        changed = float(np.mean([text.changed for text in redacted]))
        for decoder in ("cusum", "posterior"):
            cell = {"setting": f"{topology} {agents}", "mark": mark, "decoder": decoder}
            options = study.decoder_options(decoder, setting)
            original_figures, redacted_figures = (
                [study.figures(log, decoder, options, text) for log, text in zip(logs, texts, strict=True)]
                for texts in (originals, redacted)
            )
            for name, compared in _compared(study, original_figures, redacted_figures).items():
                cells.append([*cell.values(), FIGURES[name], *compared, f"{changed:.1%}"])
                if decoder == "posterior":
                    panel = panels[f"{FIGURES[name]}, {mark}"]
                    panel["original"].append(compared[0])
                    panel["redacted"].append(compared[1])
            rows += [
                *_rows(logs, original_figures, **cell, text="original"),
                *_rows(logs, redacted_figures, **cell, text="redacted"),
            ]
    study.write("pii", header, cells, all_logs, rows)
    names = [f"{topology} {agents}" for topology, agents in settings]
    plots.error_bars(study.out / "pii", dict.fromkeys(panels, names), panels, ylabel="figure")


def oracle(
    study: Study, settings: Sequence[tuple[str, int]] = SETTINGS, marks: Sequence[str] = MARKED
) -> None:
    """Read all settings with the true boundaries (Oracle-IET), and without them by "posterior"."""
    header = ["setting", "mark", "figure", "oracle", "posterior", "posterior less oracle"]
    cells: list[list[recording.Cell]] = []
    rows, all_logs = [], list[Log]()
    combinations = list(itertools.product(settings, marks))
    for (topology, agents), mark in results.with_progress(combinations):
        logs = study.logs(study.setting(topology, agents, mark))
        all_logs += logs
        with_truth, without = (
            [study.figures(log, "posterior", {}, oracle=with_boundaries) for log in logs]
            for with_boundaries in (True, False)
        )
        cell = {"setting": f"{topology} {agents}", "mark": mark}
        for name, compared in _compared(study, with_truth, without).items():
            cells.append([*cell.values(), FIGURES[name], *compared])
        rows += [
            *_rows(logs, with_truth, **cell, reader="oracle"),
            *_rows(logs, without, **cell, reader="free"),
        ]
    study.write("oracle", header, cells, all_logs, rows)


def transformations(
    study: Study,
    marks: Sequence[str] = MARKED,
    translators: Mapping[str, Translate] | None = None,
    embed: similarity.Embed | None = None,
) -> None:
    """Apply every transformation to chain_4; read with the true boundaries (as in the paper) and without.

    A row without its translators says so; without `embed` SemSim stays blank.
    """
    seed = study.options.seed
    regenerate = regenerator(study)
    header = ["mark", "category", "transformation", "reader", "SemSim", "ROUGE-L"]
    header += [f"Δ {FIGURES[name]} (%)" for name in SHOWN] + ["paper: Δ TokenAcc, IoU, EdgeSim"]
    cells: list[list[recording.Cell]] = []
    rows: list[dict[str, Any]] = []
    all_logs: list[Log] = []
    for mark in marks:
        setting = study.setting("chain", 4, mark)
        logs = study.logs(setting)
        all_logs += logs
        clean: dict[str, list[Figures]] = {}
        for name, transform in TRANSFORMS.items():
            try:
                altered = [
                    transform.apply(
                        log,
                        np.random.default_rng([seed, log.record]),
                        _context(study, log, regenerate=regenerate, translators=translators or {}),
                    )
                    for log in logs
                ]
            except BackendUnavailable as error:
                cells.append([mark, transform.category, transform.label, f"left out: {error}", *[""] * 6])
                continue
            pairs = [(log.text, text.text) for log, text in zip(logs, altered, strict=True)]
            rouge = statistics.interval([similarity.rouge_l(*pair) for pair in pairs], seed)
            semantic = statistics.interval(similarity.semantic_similarity(pairs, embed), seed)
            for mode in ("oracle", "posterior", "cusum"):
                decoder, with_boundaries = ("posterior", True) if mode == "oracle" else (mode, False)
                options = study.decoder_options(decoder, setting)
                figures = [
                    study.figures(log, decoder, options, text, oracle=with_boundaries)
                    for log, text in zip(logs, altered, strict=True)
                ]
                original_figures = clean.setdefault(mode, figures)
                changes = [
                    statistics.relative_change(
                        [f[figure] for f in original_figures], [f[figure] for f in figures], seed
                    )
                    for figure in SHOWN
                ]
                printed = quoted.TRANSFORMS.get(name) if (mark, mode) == ("fourier", "oracle") else None
                paper = "" if printed is None else ", ".join(f"{v:+.1f}" for v in printed[2:])
                columns: list[recording.Cell] = [mark, transform.category, transform.label, mode]
                cells.append([*columns, semantic or "", rouge, *changes, paper])
                rows += _rows(logs, figures, mark=mark, transformation=name, reader=mode)
    study.write("transforms", header, cells, all_logs, rows)


def regenerator(study: Study) -> Callable[[Log, int], str]:
    """Return a function that generates a turn again without a mark, from the text before it."""
    author = ModelAuthor(study.loaded, study.setting("chain", 4, "none"), batch=1)

    def regenerate(log: Log, number: int) -> str:
        turn = log.turns[number]
        earlier = [t for t in log.turns[:number] if t.round == turn.round - 1]
        own_response = next((t.text for t in earlier if t.agent == turn.agent), "")
        other_responses = {t.agent: t.text for t in earlier if t.agent != turn.agent}
        size = max(1, len(turn.ids))
        seed = drawn_seed("regenerated", log.record, number, log.setting.seed)
        prompt = prompt_of(
            study.record(log), turn.agent, turn.round, Heard(own_response, "", other_responses)
        )
        (generated,) = author.generate([Row(prompt, seed, size, size)], [None])
        return parsed(generated.text).response or NO_ANSWER

    return regenerate


def _context(study: Study, log: Log, **more: Any) -> Context:
    fields = {"tokenizer": study.loaded.reader, "entities": study.record(log).pii, "regenerate": None}
    return Context(**{**fields, **more})


def _compared(
    study: Study, first: Sequence[Figures], second: Sequence[Figures]
) -> dict[str, list[Interval | None]]:
    """Return for each figure both means, and the second less the first, paired by texts."""
    compared, seed = {}, study.options.seed
    for name in SHOWN:
        a, b = [f[name] for f in first], [f[name] for f in second]
        means = statistics.interval(a, seed), statistics.interval(b, seed)
        compared[name] = [*means, statistics.difference(b, a, seed)]
    return compared


def _rows(logs: Sequence[Log], figures: Sequence[Figures], **cell: Any) -> list[dict[str, Any]]:
    return [
        {**cell, "record": log.record, **figures_of_log}
        for log, figures_of_log in zip(logs, figures, strict=True)
    ]
