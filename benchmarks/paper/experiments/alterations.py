"""Texts that were changed after they were generated: PII redaction, Oracle-IET, transformations.

§ Robustness to PII Redaction, § Sensitivity to Post-Generation Text Transformations, and ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import recording, statistics
from benchmarks.paper import plots, results
from benchmarks.paper.conversations.author import ModelAuthor, Row
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.conversations.prompts import Heard, parsed, prompt_of
from benchmarks.paper.conversations.protocol import NO_ANSWER, drawn_seed
from benchmarks.paper.experiments.study import Study
from benchmarks.paper.quoted import SETTINGS
from benchmarks.paper.quoted import TRANSFORMS as PRINTED
from benchmarks.paper.reading import similarity
from benchmarks.paper.reading.scoring import FIGURES
from benchmarks.paper.transforms import TRANSFORMS
from benchmarks.paper.transforms.altered import Altered
from benchmarks.paper.transforms.pii import Find
from benchmarks.statistics import Interval
from iet.errors import BackendUnavailable, InputError

SHOWN = ("token_accuracy", "iou", "edge_similarity")
MARKED = ("fourier", "gumbel")
"""Marks whose texts are changed, where none are named."""

Figures = dict[str, float | None]


def pii(
    study: Study,
    settings: Sequence[tuple[str, int]] = SETTINGS,
    find: Find | None = None,
    under: Sequence[str] = MARKED,
) -> None:
    """Redact personal data in nine settings, before and after; first the records' own data is put in where
    fewer than 2 % of the tokens would change.
    """
    header = ["setting", "mark", "decoder", "figure", "original", "redacted", "change", "tokens changed"]
    cells: list[list[recording.Cell]] = []
    panels: dict[str, tuple[list[Interval | None], list[Interval | None]]] = {
        f"{FIGURES[name]}, {mark}": ([], []) for mark in under for name in SHOWN
    }
    rows, all_logs = [], list[Log]()
    asked = list(itertools.product(settings, under))
    for (topology, agents), mark in results.each(asked, "{0[0][0]}, {0[0][1]} agents, {0[1]}".format):
        setting = study.setting(topology, agents, mark)
        logs = study.logs(setting)
        all_logs += logs
        sides: tuple[list[Altered], list[Altered]] = [], []
        for log in logs:
            rng = np.random.default_rng([study.options.seed, log.record])
            needs: dict[str, Any] = {"entities": study.record(log).pii, "tokenizer": study.loaded.reader}
            needs |= {} if find is None else {"find": find}
            sides[0].append(TRANSFORMS["insertion"](log, rng, **needs))
            sides[1].append(TRANSFORMS["redaction"](sides[0][-1], rng, **needs))
        changed = float(np.mean([after.figures["changed"] for after in sides[1]]))
        for decoder in ("cusum", "posterior"):
            cell = {"setting": f"{topology} {agents}", "mark": mark, "decoder": decoder}
            options = study.options_of(decoder, setting)
            original, redacted = (
                [study.figures(log, decoder, options, one) for log, one in zip(logs, some, strict=True)]
                for some in sides
            )
            for name, compared in _compared(study, original, redacted).items():
                cells.append([*cell.values(), FIGURES[name], *compared, f"{changed:.1%}"])
                if decoder == "posterior":
                    for side, interval in zip(panels[f"{FIGURES[name]}, {mark}"], compared, strict=False):
                        side.append(interval)
            for text, found in (("original", original), ("redacted", redacted)):
                rows += _rows(logs, found, **cell, text=text)
    study.write("pii", header, cells, all_logs, rows)
    plots.before_and_after(study.out / "pii", [f"{t} {a}" for t, a in settings], panels)


def oracle(study: Study, settings: Sequence[tuple[str, int]] = SETTINGS) -> None:
    """Read nine settings with the true boundaries given (Oracle-IET), beside "posterior" without them."""
    header = ["setting", "mark", "figure", "oracle", "posterior", "posterior less oracle"]
    cells: list[list[recording.Cell]] = []
    rows, all_logs = [], list[Log]()
    for topology, agents in results.each(settings, "{0[0]}, {0[1]} agents".format):
        for mark in ("fourier", "gumbel"):
            logs = study.logs(study.setting(topology, agents, mark))
            all_logs += logs
            given, free = (
                [study.figures(log, "posterior", {}, oracle=known) for log in logs] for known in (True, False)
            )
            cell = {"setting": f"{topology} {agents}", "mark": mark}
            for name, compared in _compared(study, given, free).items():
                cells.append([*cell.values(), FIGURES[name], *compared])
            rows += [*_rows(logs, given, **cell, reader="oracle"), *_rows(logs, free, **cell, reader="free")]
    study.write("oracle", header, cells, all_logs, rows)


def _compared(
    study: Study, first: Sequence[Figures], second: Sequence[Figures]
) -> dict[str, list[Interval | None]]:
    """Return for each figure both means, and the second less the first, paired by texts."""
    found = {}
    for name in SHOWN:
        a, b = [f[name] for f in first], [f[name] for f in second]
        seed = study.options.seed
        change = statistics.difference(b, a, seed)
        found[name] = [statistics.interval(a, seed), statistics.interval(b, seed), change]
    return found


def _rows(logs: Sequence[Log], figures: Sequence[Figures], **cell: Any) -> list[dict[str, Any]]:
    return [{**cell, "record": log.record, **found} for log, found in zip(logs, figures, strict=True)]


def check_human(study: Study, human: str, under: Sequence[str] = MARKED) -> None:
    """Refuse a text that is too short to paste half of the longest log into, before anything else is made."""
    for mark in under:
        needed = max(len(log.text) for log in study.logs(study.setting("chain", 4, mark))) // 2
        if len(human) < needed:
            raise InputError(
                f"human: got {len(human)} characters, expected at least {needed}, half of the longest text"
            )


def transforms(
    study: Study,
    needs: Mapping[str, Any] | None = None,
    embed: similarity.Embed | None = None,
    under: Sequence[str] = MARKED,
) -> None:
    """Apply every transformation to chain_4, read with the true boundaries (as in the paper) and without.

    `needs` are those of `benchmarks.paper.transforms.NEEDS`: a row whose needs are not met is left blank, and
    says what it lacks. Without `embed` SemSim stays blank.
    """
    seed = study.options.seed
    brought = {"tokenizer": study.loaded.reader, "regenerate": regenerator(study), **(needs or {})}
    header = ["mark", "category", "transformation", "reader", "SemSim", "ROUGE-L"]
    header += [f"Δ {FIGURES[name]} (%)" for name in SHOWN]
    header += ["false alarms", "paper: Δ TokenAcc, IoU, EdgeSim"]
    cells: list[list[recording.Cell]] = []
    rows: list[dict[str, Any]] = []
    modes = (("oracle", "posterior", True), ("posterior", "posterior", False), ("cusum", "cusum", False))
    all_logs: dict[str, list[Log]] = {}
    clean: dict[tuple[str, str], list[Figures]] = {}
    options: dict[str, dict[str, Any]] = {}
    asked = list(itertools.product(under, TRANSFORMS.items()))
    for mark, (name, transform) in results.each(
        asked, lambda a: f"{a[1][1].label}, {a[0]}", "transformation"
    ):
        if mark not in all_logs:
            setting = study.setting("chain", 4, mark)
            all_logs[mark] = study.logs(setting)
            options = {"oracle": {}, "posterior": {}, "cusum": study.cusum(setting)}
        logs = all_logs[mark]
        altered: list[Altered] = []
        try:
            for log in logs:
                rng = np.random.default_rng([seed, log.record])
                altered.append(transform(log, rng, **brought, entities=study.record(log).pii))
        except BackendUnavailable as error:
            cells.append([mark, transform.category, transform.label, f"left out: {error}", *[""] * 7])
            continue
        pairs = [(log.text, one.text) for log, one in zip(logs, altered, strict=True)]
        rouge = statistics.interval([similarity.rouge_l(*pair) for pair in pairs], seed)
        semantic = statistics.interval(similarity.semantic_similarity(pairs, embed), seed)
        for mode, decoder, known in modes:
            found = [
                study.figures(log, decoder, options[mode], one, oracle=known)
                for log, one in zip(logs, altered, strict=True)
            ]
            before = clean.setdefault((mark, mode), found)
            changes = [
                statistics.relative_change([f[figure] for f in before], [f[figure] for f in found], seed)
                for figure in SHOWN
            ]
            alarms = statistics.interval([f.get("false_alarms") for f in found], seed)
            printed = PRINTED.get(name) if (mark, mode) == ("fourier", "oracle") else None
            quoted = "" if printed is None else ", ".join(f"{v:+.1f}" for v in printed[2:])
            shown: list[recording.Cell] = [mark, transform.category, transform.label, mode]
            cells.append([*shown, semantic or "", rouge, *changes, "" if alarms is None else alarms, quoted])
            of_texts = [{**figures, **one.figures} for figures, one in zip(found, altered, strict=True)]
            rows += _rows(logs, of_texts, mark=mark, transformation=name, reader=mode)
    study.write("transforms", header, cells, [log for logs in all_logs.values() for log in logs], rows)


def regenerator(study: Study) -> Callable[[Log, int], str]:
    """Return what writes a turn once more without a mark, about as long, from the text before it."""
    author = ModelAuthor(study.loaded, study.setting("chain", 4, "none"), batch=1)

    def regenerate(log: Log, turn: int) -> str:
        said = log.turns[turn]
        earlier = [t for t in log.turns[:turn] if t.round == said.round - 1]
        own = next((t.text for t in earlier if t.agent == said.agent), "")
        others = {t.agent: t.text for t in earlier if t.agent != said.agent}
        size = max(1, len(said.ids))
        seed = drawn_seed("regenerated", log.record, turn, log.setting.seed)
        prompt = prompt_of(study.record(log), said.agent, said.round, Heard(own, "", others))
        (found,) = author.generate([Row(prompt, seed, size, size)], [None])
        return parsed(found.text).response or NO_ANSWER

    return regenerate
