"""How often text is read as marked by keys that had no part in it, and how much text a finding takes.

    python -m benchmarks.accuracy.null --data PATH --work DIR -o benchmarks/results/null.json

Null: unmarked text (`benchmarks.accuracy.unmarked`: public corpora in disjoint pieces, repetitive text,
samples of the models at low temperatures) and the grid's marked texts, each under registries of keys that
no text was marked with. A pair is a text and a registry. Rates are shares of pairs with a finding
(`Report.log_p` at most the level), and with an attributed segment; intervals take texts as the
independent units.

Attributions of the other decoders: the same texts, under one registry each.

P-values of fixed spans: every text as one span under single keys; they should be uniform.

Power: the first N tokens of single turns of the grid, under a registry of the grid's size that holds their
key.
"""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import texts, unmarked
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import distance_from_uniform
from iet.audit.auditor import Auditor
from iet.audit.calibration import LEVELS, clustered_interval
from iet.audit.evidence import log_tails
from iet.decoding import DECODERS
from iet.kernels import pair_numbers, score_tokens
from iet.marks.registry import Registry
from iet.native.pairs import repeats
from iet.report import Report

SIZES = (2, 4, 6, 14)
"""Keys of a registry, in turn."""

LENGTHS = (25, 50, 75, 100, 150, 200, 300, 400)
"""Tokens of a turn, for the power."""

Floats = NDArray[np.float64]


def verdict(report: Report) -> tuple[float, float]:
    """Return log p of the text, and the lowest level, as a logarithm, at which a segment is attributed."""
    sure = [
        max(report.evidence[s.agent], math.log(max(s.error or 0.0, 1e-12)))
        for s in report.segments
        if s.agent is not None
    ]
    return report.log_p, min(sure, default=0.0)


def drawn(model: str, family: str, label: str, agents: int) -> Registry:
    """Return a registry of fresh keys. No two texts share any: a pair of common ids is lucky for a key or not
    at every position, so rates over few keys would be less sure than their number of texts says.
    """
    return texts.keys(model, family, random.Random(f"null {model} {family} {label}").getrandbits(63), agents)


def rates(pairs_of_texts: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Return realised rates of a group of texts, from (log p, log level) of each of its pairs."""
    p, segments = np.moveaxis(np.array(pairs_of_texts), 2, 0)
    levels = {}
    for level in LEVELS:
        hits = (p <= math.log(level)).mean(axis=1)
        low, high = clustered_interval(hits, p.shape[1])
        levels[str(level)] = {
            "found": float(hits.mean()),
            "low": low,
            "high": high,
            "attributed": float((segments <= math.log(level)).mean()),
        }
    return {"texts": len(p), "pairs": p.size, "levels": levels, "lowest_log_p": float(p.min())}


def null(groups: dict[str, list[Callable[[], Sequence[Report]]]]) -> dict[str, Any]:
    by_group = {}
    everything = []
    for name, audits in groups.items():
        rows = [[verdict(report) for report in audit()] for audit in tqdm(audits, desc=name)]
        by_group[name] = rates(rows)
        everything += rows
    pairs_per_text = min(len(row) for row in everything)
    by_group["all"] = rates([row[:pairs_per_text] for row in everything])
    return by_group


def attributions(
    corpus: Sequence[unmarked.Unmarked], model: str, family: str, agents: int = 6
) -> dict[str, dict[str, list[float]]]:
    """Return for each decoder and level the share of texts with a segment attributed, and its 95 % interval.

    Each text is read under one registry. `cusum` and `window` attribute by the false-discovery rate of the
    segments' own p-values, `posterior` by the rule that `null` counts too.
    """
    hits = {decoder: np.zeros((len(LEVELS), len(corpus))) for decoder in DECODERS}
    for i, text in enumerate(tqdm(corpus, desc=f"attributions, {family}")):
        registry = drawn(model, family, f"attributions {i}", agents)
        ids = texts.tokenizer(model).encode(text.text).token_ids
        for decoder, level in itertools.product(DECODERS, LEVELS):
            report = Auditor(registry, decoder, level=level).audit(token_ids=ids)
            hits[decoder][LEVELS.index(level), i] = any(s.agent is not None for s in report.segments)
    return {
        decoder: {
            str(level): [float(hit.mean()), *clustered_interval(hit, 1)]
            for level, hit in zip(LEVELS, rows, strict=True)
        }
        for decoder, rows in hits.items()
    }


def fixed_spans(
    corpus: Sequence[unmarked.Unmarked], model: str, family: str, keys: int = 40
) -> dict[str, Any]:
    """Return how uniform the p-values of whole texts under single keys are."""
    log_p = []
    for number, text in enumerate(tqdm(corpus, desc=f"fixed spans, {family}")):
        registry = drawn(model, family, f"single {number}", keys)
        ids = texts.tokenizer(model).encode(text.text).token_ids
        pairs = pair_numbers(ids, registry)
        first = np.flatnonzero((pairs >= 0) & ~repeats(pairs))
        totals = score_tokens(ids, registry)[first].sum(axis=0, dtype=np.float64)
        log_p.append(log_tails(totals, np.full(keys, len(first)), registry.profile.family))
    return uniformity(np.exp(np.concatenate(log_p)))


def uniformity(p_values: Floats) -> dict[str, Any]:
    """Return the distance of p-values from uniform, and their shares at or below levels."""
    p = np.sort(p_values)
    histogram = np.histogram(p, 20, (0, 1))[0] / len(p)
    tails = {str(level): float((p <= level).mean()) for level in (0.1, *LEVELS)}
    return {
        "p_values": len(p),
        "kolmogorov_distance": distance_from_uniform(p),
        "expected_distance_95": 1.36 / math.sqrt(len(p)),
        "histogram": histogram.tolist(),
        "tails": tails,
    }


def power(work: pathlib.Path, cell: texts.Cell, limit: int = 300) -> list[dict[str, Any]]:
    """Return the share of single turns, cut to N tokens, whose agent is found."""
    rows = []
    chosen = itertools.islice(
        ((t, turn) for turn in range(texts.TURNS) for t in texts.load(work, cell)), limit
    )
    logs: dict[int, list[float]] = {length: [] for length in LENGTHS}
    entropy = []
    for text, turn in chosen:
        registry = text.registry()
        auditor, name = Auditor(registry), texts.agent_name(text.speakers[turn])
        entropy.append(float(text.entropy[turn]))
        for length in LENGTHS:
            turn_words = texts.turn_text(cell.model, text.ids[turn, :length])
            logs[length].append(auditor.audit(turn_words).evidence[name])
    for length, values in logs.items():
        log_p = np.array(values)
        shares = {str(level): float((log_p <= math.log(level)).mean()) for level in LEVELS}
        rows.append(
            {
                "cell": cell.name,
                "entropy_nats": float(np.mean(entropy)),
                "tokens": length,
                "turns": len(log_p),
                "found": shares,
            }
        )
    return rows


def groups_of(
    corpus: Sequence[unmarked.Unmarked], work: pathlib.Path, registries_per_text: int, limit: int | None
) -> dict[str, list[Callable[[], Sequence[Report]]]]:
    """Return for every kind of text its audits, each a text under some registries."""
    groups: dict[str, list[Callable[[], Sequence[Report]]]] = {}
    kinds = list(itertools.product(texts.MODELS, texts.FAMILIES))

    def audit(text: str, model: str, family: str, label: str) -> Sequence[Report]:
        ids = texts.tokenizer(model).encode(text).token_ids
        registries = (
            drawn(model, family, f"{label} {i}", SIZES[i % len(SIZES)]) for i in range(registries_per_text)
        )
        # This level attributes whatever could be attributed at any.
        return [Auditor(registry, level=0.999).audit(token_ids=ids) for registry in registries]

    for number, text in enumerate(corpus[:limit]):
        kind = text.kind if text.kind in ("pieces", "twice") or " T=" in text.kind else "corpora"
        kind = "samples at low temperatures" if " T=" in kind else kind
        model, family = kinds[number % len(kinds)]
        groups.setdefault(f"unmarked: {kind}", []).append(
            functools.partial(audit, text.text, model, family, f"unmarked {number}")
        )
    for cell in texts.CELLS:
        for number, turns in enumerate(texts.load(work, cell)[: None if limit is None else limit // 20]):
            talk = turns.conversation(texts.TURN_TOKENS[number % len(texts.TURN_TOKENS)])
            groups.setdefault("marked under other keys", []).append(
                functools.partial(audit, talk.text, cell.model, cell.family, f"{cell.name} {number}")
            )
    return groups


def markdown(results: dict[str, Any]) -> str:
    groups = [{"text": name, **group} for name, group in results["null"].items()]
    rate = "{{levels[{0}][found]:.5f}} ({{levels[{0}][low]:.5f}}, {{levels[{0}][high]:.5f}})"
    realised = {
        **{"text": "{text}", "texts": "{texts:,}", "pairs": "{pairs:,}"},
        **{f"found at {level:g} (95 %)": rate.format(level) for level in LEVELS},
        **{f"attributed at {level:g}": f"{{levels[{level}][attributed]:.5f}}" for level in LEVELS},
    }
    by_decoder = [
        {"decoder": decoder, "family": family, "levels": levels}
        for family, of_decoder in results["attributions"].items()
        for decoder, levels in of_decoder.items()
    ]
    share = INTERVAL.replace("3f", "5f")
    attributed = {
        **{"decoder": "{decoder}", "family": "{family}"},
        **{f"at {level:g} (95 %)": share.format(f"levels[{level}]") for level in LEVELS},
    }
    spans = [{"family": name, **span_figures} for name, span_figures in results["fixed_spans"].items()]
    uniform = {
        **{"family": "{family}", "p-values": "{p_values:,}"},
        **{"distance": "{kolmogorov_distance:.5f}", "95 %": "{expected_distance_95:.5f}"},
        **{f"<= {level:g}": f"{{tails[{level}]:.5f}}" for level in (0.1, *LEVELS)},
    }
    detection = {
        **{"cell": "{cell}", "nats per token": "{entropy_nats:.3f}", "N": "{tokens}", "turns": "{turns}"},
        **{f"at {level:g}": f"{{found[{level}]:.3f}}" for level in LEVELS},
    }
    return "\n\n".join(
        [
            "Rates at which keys that had no part in a text are found in it; intervals are over texts.",
            columns(groups, realised),
            "Share of the unmarked texts, each under one registry of six keys, in which a decoder attributes"
            " a segment.",
            columns(by_decoder, attributed),
            "P-values of whole texts under single keys: the largest distance from uniform, and below which it"
            " stays in 95 % of the cases where they are uniform and independent; shares at or below a level.",
            columns(spans, uniform),
            "Share of single turns, cut to N tokens, in which their agent is found, among 4 or 6 keys.",
            columns(results["power"], detection),
        ]
    )


def main() -> None:
    line = parser("benchmarks.accuracy.null", __doc__)
    line.add_argument("--data", type=pathlib.Path, required=True, help="folder of the public data")
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--registries", type=int, default=20, help="per text (default: 20)")
    line.add_argument("--texts", type=int, help="unmarked ones (default: all)")
    options = line.parse_args()
    corpus = unmarked.texts(options.data, options.work)
    chosen = corpus[: options.texts]
    results = {
        "null": null(groups_of(corpus, options.work, options.registries, options.texts)),
        "attributions": {family: attributions(chosen, "shipped", family) for family in texts.FAMILIES},
        "fixed_spans": {family: fixed_spans(chosen, "shipped", family) for family in texts.FAMILIES},
        "power": [row for cell in texts.CELLS for row in power(options.work, cell)],
    }
    finish(line, options, results, markdown(results))


if __name__ == "__main__":
    sys.exit(exit_code(main))
