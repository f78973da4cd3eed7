"""What a repeated (context, token) pair should count: for decoding, and for evidence.

    python -m benchmarks.accuracy.repeats --data PATH --work DIR -o benchmarks/results/repeats.json

A repeat gives every key the number that it gave before. Decoding: TokenAcc of `posterior` on the texts of the
grid with turns of 200, in forced choice, where the repeats of a pair share some of the weight of one
("share"), only the first counts ("drop"), or each counts fully ("count"). Family gumbel has no repeats: its
seeds hold how often a context stood before.

Evidence: p-values under single keys that nobody used, of texts as one span each, with each pair counted once
and with every repeat counted. The texts are unmarked repetitive ones (`benchmarks.accuracy.unmarked`) and
marked ones of the grid under keys that had no part in them. P-values should be uniform: as many at most α as
α says. Of fewer than 20 scores the Fourier family's is a bound, which is on the safe side: such texts are
counted apart.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import texts, unmarked
from benchmarks.accuracy.decoders import form
from benchmarks.accuracy.null import uniformity
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import summary
from iet.audit.calibration import LEVELS, clustered_interval
from iet.audit.evidence import log_tails
from iet.audit.metrics import token_accuracy
from iet.decoding import decode
from iet.kernels import pair_numbers, score_tokens
from iet.marks.registry import Registry
from iet.native.pairs import repeats

WAYS = ("share", "drop", "count")
FAMILY = "fourier"
LENGTH = 200
KEYS = 40
"""Keys that read a text for its p-values, drawn anew for each text."""


def decoding(turns: texts.Turns, length: int) -> dict[str, float]:
    """Return the share of repeats in one text, and TokenAcc each way."""
    text = form(turns, length)
    scores, pairs = score_tokens(text.ids, text.registry), pair_numbers(text.ids, text.registry)
    scored, repeated = pairs >= 0, repeats(pairs)
    figures = {"repeats": float(repeated.sum() / max(1, scored.sum()))}
    given: dict[str, dict[str, Any]] = {
        "share": {"pairs": pairs},
        "drop": {"scored": scored, "repeated": repeated},
        "count": {"scored": scored},
    }
    for way in WAYS:
        found = decode(scores, family=turns.cell.family, repeats=way, **given[way])
        figures[way] = token_accuracy(text.truth, found.token_agents)
    return figures


def log_p_values(ids: NDArray[np.int64], registry: Registry) -> tuple[float, NDArray[np.float64]]:
    """Return the share of repeats, and log p under every key [2, K]: each pair counted once, every repeat."""
    scores, pairs = score_tokens(ids, registry), pair_numbers(ids, registry)
    scored, repeated = pairs >= 0, repeats(pairs)
    found = []
    for counted in (scored & ~repeated, scored):
        totals = scores[counted].sum(axis=0, dtype=np.float64)
        found.append(log_tails(totals, np.full(len(totals), counted.sum()), registry.profile.family))
    return float(repeated.sum() / max(1, scored.sum())), np.array(found)


def evidence(rows: Sequence[tuple[float, NDArray[np.float64]]]) -> dict[str, Any]:
    """Return how uniform the p-values of a group of texts are, from `log_p_values` of each."""
    result: dict[str, Any] = {"texts": len(rows), "repeats": float(np.mean([share for share, _ in rows]))}
    for which, name in enumerate(("once", "every")):
        log_p = np.array([values[which] for _, values in rows])
        summary = uniformity(np.exp(log_p.ravel()))
        summary["intervals"] = {
            level: clustered_interval((log_p <= np.log(float(level))).mean(axis=1), log_p.shape[1])
            for level in summary["tails"]
        }
        result[name] = summary
    return result


def groups(
    corpus: Iterable[unmarked.Unmarked], work: pathlib.Path, family: str, limit: int
) -> dict[str, list[tuple[NDArray[np.int64], Registry]]]:
    """Return texts as ids, and keys that had no part in them, by the kind of text."""
    found: dict[str, list[tuple[NDArray[np.int64], Registry]]] = collections.defaultdict(list)

    def add(kind: str, model: str, text: str) -> None:
        ids = texts.tokenizer(model).encode(text).token_ids
        scheme = texts.keys(model, family, 0, 1)
        if family == "fourier" and pair_numbers(ids, scheme).max() + 1 < 20:
            kind += ", below 20 pairs"
        if len(found[kind]) < limit:
            seed = random.Random(f"repeats {family} {kind} {len(found[kind])}").getrandbits(63)
            found[kind].append((ids, texts.keys(model, family, seed, KEYS)))

    for text in corpus:
        if text.kind in ("pieces", "twice"):
            add(f"unmarked: {text.kind}", "shipped", text.text)
        elif " T=" in text.kind:
            add(f"unmarked: {text.kind}", text.kind.split()[0], text.text)
    for cell in texts.CELLS:
        if cell.family == family and cell.temperature == min(texts.TEMPERATURES):
            for turns in texts.load(work, cell)[:limit]:
                kind = f"marked under other keys: {cell.model} T={cell.temperature} A={cell.agents}"
                add(kind, cell.model, turns.conversation(LENGTH).text)
    return found


def run(
    work: pathlib.Path, corpus: Sequence[unmarked.Unmarked], per_cell: int, per_kind: int
) -> dict[str, Any]:
    cells = []
    for cell in tqdm([cell for cell in texts.CELLS if cell.family == FAMILY], desc="decoding"):
        rows = [decoding(turns, LENGTH) for turns in texts.load(work, cell)[:per_cell]]
        if rows:
            figures = {name: summary([row[name] for row in rows]) for name in rows[0]}
            for a, b in itertools.combinations(WAYS, 2):
                figures[f"{a} - {b}"] = summary([row[a] - row[b] for row in rows])
            cells.append({"cell": dataclasses.asdict(cell), "texts": len(rows), "figures": figures})
    found = {
        kind: evidence([log_p_values(ids, registry) for ids, registry in tqdm(members, desc=kind)])
        for kind, members in groups(corpus, work, FAMILY, per_kind).items()
    }
    return {"cells": cells, "evidence": {FAMILY: found}}


def markdown(results: dict[str, Any]) -> str:
    figures = {"repeats": "{repeats[0]:.3f}", **{way: INTERVAL.format(way) for way in WAYS}}
    for way in WAYS[1:]:
        figures[f"share - {way}"] = INTERVAL.format(f"share - {way}").replace(":.3f", ":+.3f")
    cell = {
        "model": "{model}",
        "family": "{family}",
        "T": "{temperature:.3f}",
        "A": "{agents}",
        "texts": "{texts}",
    }
    decoded = [{**row["cell"], "texts": row["texts"], **row["figures"]} for row in results["cells"]]
    tails = [str(level) for level in (0.1, *LEVELS)]
    body = [
        {
            "family": family,
            "kind": kind,
            **{"texts": group["texts"], "repeats": group["repeats"], "counted": counted, **group[name]},
            "rates": {t: [group[name]["tails"][t], *group[name]["intervals"][t]] for t in tails},
        }
        for family, kinds in results["evidence"].items()
        for kind, group in kinds.items()
        for name, counted in (("once", "each pair once"), ("every", "every repeat"))
    ]
    formats = {
        **{"family": "{family}", "text": "{kind}", "texts": "{texts}", "repeats": "{repeats:.3f}"},
        **{"counted": "{counted}", "p-values": "{p_values:,}"},
        **{f"<= {level}": INTERVAL.replace("3f", "5f").format(f"rates[{level}]") for level in tails},
        "distance": "{kolmogorov_distance:.4f}",
    }
    return "\n\n".join(
        [
            "**Decoding**: TokenAcc of `posterior`, forced choice, turns of 200 tokens, by what repeats"
            " count; differences on the same texts (95 % intervals).",
            columns(decoded, {**cell, **figures}),
            f"**Evidence**: p-values of whole texts under {KEYS} keys each that nobody used in them: share at"
            " most α (95 % interval over texts), and the largest distance from uniform.",
            columns(body, formats),
        ]
    )


def main() -> None:
    line = parser("benchmarks.accuracy.repeats", __doc__)
    line.add_argument("--data", type=pathlib.Path, required=True, help="folder of the public data")
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--texts", type=int, default=40, help="of each cell (default: 40)")
    line.add_argument("--null-texts", type=int, default=200, help="of each kind (default: 200)")
    given = line.parse_args()
    corpus = unmarked.texts(given.data, given.work)
    results = run(given.work, corpus, given.texts, given.null_texts)
    finish(line, given, results, markdown(results))


if __name__ == "__main__":
    sys.exit(exit_code(main))
