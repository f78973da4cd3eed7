"""Texts that were changed after they were generated: PII redaction, Oracle-IET, transformations.

§ Robustness to PII Redaction, § Sensitivity to Post-Generation Text Transformations, and ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper import plots, readers, scoring, similarity
from benchmarks.paper.author import ModelAuthor, Row
from benchmarks.paper.logs import Log
from benchmarks.paper.prompts import Heard, parsed, prompt_of
from benchmarks.paper.protocol import NO_ANSWER, drawn_seed
from benchmarks.paper.quoted import SETTINGS
from benchmarks.paper.quoted import TRANSFORMS as PRINTED
from benchmarks.paper.scoring import FIGURES, Interval
from benchmarks.paper.study import Study
from benchmarks.paper.transforms import TRANSFORMS, Altered
from benchmarks.paper.transforms.pii import Find
from iet.errors import BackendUnavailable, InputError

SHOWN = ("token_accuracy", "iou", "edge_similarity")
Figures = dict[str, float | None]


def figures_of(
    study: Study,
    log: Log,
    altered: Log | Altered,
    decoder: str,
    options: Mapping[str, Any],
    oracle: bool = False,
) -> Figures:
    """Return the figures of a text as it stands, in forced choice.

    Characters that nobody wrote count in none of them: no reader in forced choice can be right there. What is
    attributed of them where text may stay unattributed is `false_alarms` of `pasted`.
    """
    agents, reader = log.setting.agents, study.loaded.reader
    truth = scoring.truth_of(altered, reader)
    boundaries = [end for _, end, _ in altered.spans[:-1]] if oracle else None
    found = readers.read(altered.text, study.keys(log), reader, decoder, options, boundaries)
    known = truth >= 0
    figures = scoring.score(
        truth[known],
        found.labels[known],
        agents=agents,
        edges=scoring.true_edges(altered, agents),
        found_edges=found.edges,
    )
    if found.free is not None:
        figures["false_alarms"] = float((found.free[~known] >= 0).mean()) if (~known).any() else None
    return figures


def pii(
    study: Study, settings: Sequence[tuple[str, int]] = SETTINGS, find: Find | None = None
) -> dict[str, Any]:
    """Redact personal data in nine settings, before and after; first the records' own data is put in where
    fewer than 2 % of the tokens would change.

    Args:
        study: model, records and options.
        settings: (topology, agents).
        find: what finds personal data; None: the rules.
    """
    seed, reader = study.options.seed, study.loaded.reader
    header = ["setting", "decoder", "figure", "original", "redacted", "change", "tokens changed"]
    rows: list[list[scoring.Cell]] = []
    panels: dict[str, tuple[list[Interval | None], list[Interval | None]]] = {
        FIGURES[name]: ([], []) for name in SHOWN
    }
    content_figures, all_logs = [], list[Log]()
    by_index = {record.index: record for record in study.records}
    for topology, agents in settings:
        setting = study.setting(topology, agents, "fourier")
        logs = study.logs(setting)
        all_logs += logs
        sides: list[tuple[Log, Altered, Altered]] = []
        for log in logs:
            rng = np.random.default_rng([seed, log.record])
            needs: dict[str, Any] = {"entities": by_index[log.record].pii, "tokenizer": reader}
            needs |= {} if find is None else {"find": find}
            before = TRANSFORMS["insertion"](log, rng, **needs)
            sides.append((log, before, TRANSFORMS["redaction"](before, rng, **needs)))
        changed = float(np.mean([after.figures["changed"] for _, _, after in sides]))
        for decoder in ("cusum", "posterior"):
            options = study.cusum(setting) if decoder == "cusum" else {}
            original = [figures_of(study, log, before, decoder, options) for log, before, _ in sides]
            redacted = [figures_of(study, log, after, decoder, options) for log, _, after in sides]
            for name in SHOWN:
                a, b = [f[name] for f in original], [f[name] for f in redacted]
                first, second = scoring.interval(a, seed), scoring.interval(b, seed)
                rows.append(
                    [
                        f"{topology} {agents}",
                        decoder,
                        FIGURES[name],
                        first,
                        second,
                        scoring.difference(b, a, seed),
                        f"{changed:.1%}",
                    ]
                )
                if decoder == "posterior":
                    panels[FIGURES[name]][0].append(first)
                    panels[FIGURES[name]][1].append(second)
            content_figures.append(
                {
                    "setting": f"{topology} {agents}",
                    "decoder": decoder,
                    "original": original,
                    "redacted": redacted,
                }
            )
    content = study.content("pii", all_logs, figures=content_figures)
    scoring.write(study.out / "pii", header, rows, content, note=study.note(all_logs))
    plots.before_and_after(study.out / "pii", [f"{t} {a}" for t, a in settings], panels)
    return content


def oracle(study: Study, settings: Sequence[tuple[str, int]] = SETTINGS) -> dict[str, Any]:
    """Read nine settings with the true boundaries given (Oracle-IET), beside "posterior" without them."""
    seed = study.options.seed
    header = ["setting", "mark", "figure", "oracle", "posterior", "posterior less oracle"]
    rows: list[list[scoring.Cell]] = []
    found, all_logs = [], list[Log]()
    for topology, agents in settings:
        for mark in ("fourier", "gumbel"):
            logs = study.logs(study.setting(topology, agents, mark))
            all_logs += logs
            given = [figures_of(study, log, log, "posterior", {}, oracle=True) for log in logs]
            free = [figures_of(study, log, log, "posterior", {}) for log in logs]
            for name in SHOWN:
                a, b = [f[name] for f in given], [f[name] for f in free]
                rows.append(
                    [
                        f"{topology} {agents}",
                        mark,
                        FIGURES[name],
                        scoring.interval(a, seed),
                        scoring.interval(b, seed),
                        scoring.difference(b, a, seed),
                    ]
                )
            found.append({"setting": f"{topology} {agents}", "mark": mark, "oracle": given, "free": free})
    content = study.content("oracle", all_logs, figures=found)
    scoring.write(study.out / "oracle", header, rows, content, note=study.note(all_logs))
    return content


def check_human(study: Study, human: str) -> None:
    """Refuse a text that is too short to paste half of the longest log into, before anything else is made.

    Raises:
        InputError: it is.
    """
    needed = max(len(log.text) for log in study.logs(study.setting("chain", 4, "fourier"))) // 2
    if len(human) < needed:
        raise InputError(
            f"human: got {len(human)} characters, expected at least {needed}, half of the longest text"
        )


def transforms(
    study: Study, needs: Mapping[str, Any] | None = None, embed: similarity.Embed | None = None
) -> dict[str, Any]:
    """Apply every transformation to chain_4, read with the true boundaries (as in the paper) and without.

    Args:
        study: model, records and options.
        needs: of `benchmarks.paper.transforms.NEEDS`: translators, a human text. A row whose needs are not
            met is left blank, and says what it lacks.
        embed: a `similarity.Embedder`, or None: SemSim stays blank.
    """
    seed = study.options.seed
    setting = study.setting("chain", 4, "fourier")
    logs = study.logs(setting)
    by_index = {record.index: record for record in study.records}
    brought = {"tokenizer": study.loaded.reader, "regenerate": Regenerator(study), **(needs or {})}
    header = ["category", "transformation", "reader", "SemSim", "ROUGE-L"]
    header += [f"Δ {FIGURES[name]} (%)" for name in SHOWN]
    header += ["false alarms", "paper: Δ TokenAcc, IoU, EdgeSim"]
    rows: list[list[scoring.Cell]] = []
    content_figures: list[dict[str, Any]] = []
    modes = (("oracle", "posterior", True), ("posterior", "posterior", False), ("cusum", "cusum", False))
    options = {"oracle": {}, "posterior": {}, "cusum": study.cusum(setting)}
    clean: dict[str, list[Figures]] = {}
    for name, transform in TRANSFORMS.items():
        altered: list[Altered] = []
        try:
            for log in logs:
                rng = np.random.default_rng([seed, log.record])
                altered.append(transform(log, rng, **brought, entities=by_index[log.record].pii))
        except BackendUnavailable as error:
            rows.append([transform.category, transform.label, f"left out: {error}", *[""] * 7])
            continue
        rouge = scoring.interval(
            [similarity.rouge_l(log.text, one.text) for log, one in zip(logs, altered, strict=True)], seed
        )
        pairs = [(log.text, one.text) for log, one in zip(logs, altered, strict=True)]
        semantic = scoring.interval(similarity.semantic_similarity(pairs, embed), seed)
        for mode, decoder, known in modes:
            found = [
                figures_of(study, log, one, decoder, options[mode], known)
                for log, one in zip(logs, altered, strict=True)
            ]
            before = clean.setdefault(mode, found)
            alarms = scoring.interval([f.get("false_alarms") for f in found], seed)
            row: list[scoring.Cell] = [transform.category, transform.label, mode, semantic or "", rouge]
            for figure in SHOWN:
                row.append(
                    scoring.relative_change([f[figure] for f in before], [f[figure] for f in found], seed)
                )
            printed = PRINTED.get(name) if mode == "oracle" else None
            row.append("" if alarms is None else alarms)
            row.append("" if printed is None else ", ".join(f"{v:+.1f}" for v in printed[2:]))
            rows.append(row)
            content_figures.append(
                {
                    "transformation": name,
                    "reader": mode,
                    "texts": found,
                    "of_itself": [dict(one.figures) for one in altered],
                }
            )
    content = study.content("transforms", logs, figures=content_figures)
    scoring.write(study.out / "transforms", header, rows, content, note=study.note(logs))
    return content


class Regenerator:
    """Write a turn once more without a mark, of about the same length, from the text before it.

    Args:
        study: whose model writes.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        setting = study.setting("chain", 4, "none")
        self._engine = ModelAuthor(study.loaded, setting, batch=1)

    def __call__(self, log: Log, turn: int) -> str:
        """Return the text; the same for the same log and turn."""
        record = next(record for record in self._study.records if record.index == log.record)
        said = log.turns[turn]
        earlier = [t for t in log.turns[:turn] if t.round == said.round - 1]
        own = next((t.text for t in earlier if t.agent == said.agent), "")
        others = {t.agent: t.text for t in earlier if t.agent != said.agent}
        size = max(1, len(said.ids))
        seed = drawn_seed("regenerated", log.record, turn, log.setting.seed)
        prompt = prompt_of(record, said.agent, said.round, Heard(own, "", others))
        (found,) = self._engine.generate([Row(prompt, seed, size, size)], [None])
        return parsed(found.text).response or NO_ANSWER
