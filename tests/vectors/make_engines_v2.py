"""Write the known answers of marks in vLLM's tree and of SBW: `python tests/vectors/make_engines_v2.py`.

It needs what `benchmarks.accuracy.engine_answers` needs: each answer is that of the code that a case names.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np

from benchmarks import engine_wheels
from benchmarks.accuracy.engine_answers import CASES


def main() -> None:
    rng = np.random.default_rng(20261129)
    cases = []
    for case in CASES:
        if case.scheme == "vllm-gumbel" and "prf" not in case.parameters:
            continue  # in engines_v1.json
        ids = rng.integers(0, case.vocab_size, 16)
        keys = [1, (1 << case.key_bits) - 1, int.from_bytes(rng.bytes(32), "little") % (1 << case.key_bits)]
        scores = np.stack([case.score(ids, key) for key in keys], axis=1)
        scores[: case.first] = 0
        cases.append(
            {
                "name": f"{case.scheme} {' '.join(map(str, case.parameters.values()))}: {case.source}",
                "scheme": case.scheme,
                "parameters": case.parameters,
                "first": case.first,
                "ids": ids.tolist(),
                "keys": [str(key) for key in keys],
                "scores": scores.round(9).tolist(),
            }
        )
    content = {"engines": "vllm 0.33.0, sbw 1.0.0", "commits": engine_wheels.PULLS, "cases": cases}
    path = pathlib.Path(__file__).parent / "engines_v2.json"
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
