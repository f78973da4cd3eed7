"""Compare likelihood ratios of a `gumbel` score alone: tilted, with weights of novelty, and blind.

    python -m benchmarks.accuracy.blind --work DIR -o benchmarks/results/blind.json

Reads the texts that `benchmarks.accuracy.counting` wrote into DIR, with the counts of their writers. A token
of probability p has u = 1 - exp(-x) with u^(1/p) uniform.

* tilted: log(1 - λ) + λ·x.
* novelty: the same with λ·c, c of `novelty_weights`.
* blind: log(1 - w + w·∫ p^(1/h - 1)·u^(1/p - 1)/p dp / h), a mixture of certain tokens and of tokens with an
  exponential surprise of mean h. "Weighted" has w·c.

Each row has the best λ, or w and h, of its own text, so these nats a token are upper bounds.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import counting
from benchmarks.recording import columns, exit_code, finish, parser
from iet.errors import InputError
from iet.native.pairs import novelty_weights
from iet.native.texts import Texts

STRENGTHS = np.linspace(0.02, 0.98, 49)
MEANS, SHARES = (0.25, 0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
CELLS = tuple(cell for cell in counting.CELLS if cell.prompts == "apart" and cell.writer != "forty words")

Floats = NDArray[np.float64]


def densities(log_u: Floats, mean: float) -> Floats:
    """Return the density of u, for tokens with an exponential surprise, by a table."""
    p = (np.arange(4000) + 0.5) / 4000
    table = -np.exp(np.linspace(np.log(60), np.log(1e-9), 3000))
    values = [float((p ** (1 / mean - 1) * np.exp((1 / p - 1) * at) / p).mean() / mean) for at in table]
    return np.asarray(np.interp(log_u, table, values))


def measure(cell: counting.Cell, written: counting.Written, split: str) -> dict[str, Any]:
    tokenizer, scores, weights = counting.tokenizer_of(cell.writer), list[Floats](), list[Floats]()
    for i, (ids, owners, counts) in enumerate(zip(written.ids, written.owners, written.counts, strict=True)):
        keys = counting.registry_of(tokenizer, cell, split, i).scoring_keys()
        texts = Texts.single(ids)
        _, first = np.unique(keys.pairs(texts)[0] * (1 + counts.max()) + counts, return_index=True)
        first = first[keys.pairs(texts)[0][first] >= 0]
        scores.append(keys.scores(texts, 1, counts.astype(np.int32))[first, owners[first]].astype(np.float64))
        weights.append(novelty_weights(ids)[first].astype(np.float64))
    x, c = np.concatenate(scores), np.concatenate(weights)
    log_u = np.log(-np.expm1(-np.maximum(x, 1e-9)))
    blind = [densities(log_u, mean) for mean in MEANS]
    return {
        "tokens": len(x),
        "entropy": written.entropy,
        "tilted": max(float((np.log1p(-s) + s * x).mean()) for s in STRENGTHS),
        "novelty": max(float((np.log1p(-s * c) + s * c * x).mean()) for s in STRENGTHS),
        "blind": max(float(np.log(1 - w + w * ratio).mean()) for w in SHARES for ratio in blind),
        "weighted": max(float(np.log(1 - w * c + w * c * r).mean()) for w in SHARES for r in blind),
    }


def main() -> None:
    line = parser("benchmarks.accuracy.blind", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(counting.SPLITS), default="evaluation")
    options = line.parse_args()
    rows = []
    for cell in CELLS:
        written = counting.load(options.work, cell, options.split)
        if written is None:
            raise InputError(f"{options.work}: got no texts of {cell.name} (benchmarks.accuracy.counting)")
        rows.append({"writer": cell.writer, "T": cell.temperature, **measure(cell, written, options.split)})
    names = ("tilted", "novelty", "blind", "weighted")
    formats = {"writer": "{writer}", "T": "{T:g}", "entropy": "{entropy:.2f}", "tokens": "{tokens:,}"}
    formats |= {name: f"{{{name}:.4f}}" for name in names}
    finish(line, options, {"rows": rows}, columns(rows, formats))


if __name__ == "__main__":
    sys.exit(exit_code(main))
