"""Tabulate the null law of `log_activity`: how often a key that is not in a text seems to speak in it.

    python -m benchmarks.accuracy.activity_null -o iet/audit/activity_null.json

Over random keys the scores of a text without key a are independent draws from the family's null law, one for
each distinct pair, whatever the text says. So the law of log Λ depends on their number n alone. Where P is
large it is counted; in the tail it is the mean of 1/Λ over texts drawn *with* key a, from the very mixture
that Λ divides by (P(log Λ > x) = E_marked[1/Λ; log Λ > x]), which is exact for every x.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.recording import exit_code
from iet.decoding.activity import BLOCK, ENTRY_RATES, MEAN_SEGMENT, log_activity
from iet.marks.families import FAMILIES

COUNTS = tuple(2**k for k in range(5, 18))
# Where P falls from 1 the law is steep, and what is read off between two points must not be below it.
LEVELS = (
    *(-3.0, -2.5, -2.0, -1.75, -1.5, -1.25, -1.0, -0.9, -0.8, -0.7, -0.6, -0.5, -0.4, -0.3, -0.25),
    *(-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 26.0, 32.0),
)
POOL = 1 << 20


@functools.cache
def block_sums(family: str, strength: float, seed: int) -> NDArray[np.float64]:
    """Return sums of `BLOCK` scores tilted by `strength` (0: unmarked), [POOL]."""
    rng = np.random.default_rng([seed, FAMILIES[family].code, round(100 * strength)])
    if family == "gumbel":  # fast: a sum of exponential scores has a gamma law
        return np.asarray(rng.gamma(BLOCK, 1 / (1 - strength), POOL))
    return np.asarray(FAMILIES[family].draw(rng, (POOL, BLOCK), strength).sum(axis=1))


def draw_states(blocks: int, texts: int, rate: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return the blocks that carry the key, [blocks, texts]."""
    leave = BLOCK / MEAN_SEGMENT
    speaks = np.empty((blocks, texts), dtype=bool)
    speaks[0] = rng.random(texts) < rate / (rate + leave)
    for b in range(1, blocks):
        turn = rng.random(texts)
        speaks[b] = np.where(speaks[b - 1], turn >= leave, turn < rate)
    return speaks


def tail(family: str, count: int, budget: int, seed: int) -> list[float]:
    """Return log P(log Λ > x) for the x of `LEVELS` in texts of `count` distinct pairs."""
    blocks = count // BLOCK
    counts = np.full(blocks, float(BLOCK))
    rng = np.random.default_rng([seed, FAMILIES[family].code, count])
    null = block_sums(family, 0.0, seed)
    texts = min(400_000, max(10_000, budget // blocks))
    chunk = max(1, (1 << 21) // blocks)

    def ratios(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return log_activity(sums, counts, FAMILIES[family])

    unmarked = np.concatenate(
        [ratios(null[rng.integers(0, POOL, (blocks, min(chunk, texts - i)))]) for i in range(0, texts, chunk)]
    )
    marked = []
    per_setting = texts // (len(FAMILIES[family].strengths) * len(ENTRY_RATES))
    for strength in FAMILIES[family].strengths:
        pool = block_sums(family, strength, seed)
        for rate in ENTRY_RATES:
            for i in range(0, per_setting, chunk):
                size = (blocks, min(chunk, per_setting - i))
                speaks = draw_states(*size, rate, rng)
                draws = rng.integers(0, POOL, size)
                marked.append(ratios(np.where(speaks, pool[draws], null[draws])))
    seen = np.concatenate(marked)
    row: list[float] = []
    for level in LEVELS:
        weights = np.where(seen > level, np.exp(-seen), 0.0)
        weighted, error = weights.mean(), weights.std() / math.sqrt(len(weights))
        counted = (unmarked > level).mean()
        few = counted * len(unmarked) < 100
        better = not few and math.sqrt((1 - counted) / (counted * len(unmarked))) * weighted < error
        chance = counted if better else weighted
        # Out of reach of so short a text: P(log Λ > x + d) <= e^-d P(log Λ > x) holds far out, and is enough.
        row.append(math.log(chance) if chance > 0 else row[-1] - (level - LEVELS[len(row) - 1]))
    return [float(value) for value in np.minimum.accumulate(row)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--budget", type=int, default=30_000_000, help="blocks to draw for each row, twice")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for family in FAMILIES:
        rows[family] = [
            [round(p, 4) for p in tail(family, count, arguments.budget, arguments.seed)]
            for count in tqdm(COUNTS, desc=family)
        ]
    table = {
        "command": f"python -m benchmarks.accuracy.activity_null -o {arguments.output}"
        f" --budget {arguments.budget} --seed {arguments.seed}",
        "log_ratios": LEVELS,
        "counts": COUNTS,
        "log_p": rows,
    }
    arguments.output.write_text(json.dumps(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))
