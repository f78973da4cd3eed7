"""Write the known answers of the engines' own detectors: `python tests/vectors/make_engines.py`.

It needs torch, transformers and msgspec, and what `.ci/wheels` unpacks. The numbers are those of vLLM 0.33.0,
SGLang 0.5.23 and transformers 5.23.0: what text of those engines is read with, whatever later ones do.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent))
import engine_wheels


def gumbel(name: str, ids: list[int], width: int) -> dict[str, Any]:
    keys = [0, 42, 2**63 + 12345, 2**64 - 1]
    columns = []
    if name == "vllm":
        vllm = engine_wheels.detector("vllm")
        for key in keys:
            detector = vllm.GumbelWatermarkDetector(key, context_width=width, deduplicate_contexts=False)
            columns.append(detector._score_tokens(*detector._prepare_inputs(ids)).tolist())
    else:
        sglang = engine_wheels.detector("sglang")
        for key in keys:
            detector = sglang.WatermarkDetector(f"{key:x}", context_window=width)
            contexts = [sglang.hash_context(ids[j - width : j]) for j in range(width, len(ids))]
            scores = map(detector._score, [detector._key_a] * len(ids), contexts, ids[width:])
            columns.append([0.0] * width + list(scores))
    formatted = keys if name == "vllm" else [f"{key:x}" for key in keys]
    return case(f"{name}-gumbel", ids, formatted, {"n_gram": width + 1}, columns)


def kgw(ids: list[int], vocab_size: int, scheme: str, width: int, ratio: float) -> dict[str, Any]:
    keys, columns = [1, 15485863, 2**61 + 12345], []
    n_gram = width + (scheme == "lefthash")
    tensor = torch.tensor(ids)
    for key in keys:
        processor = transformers.WatermarkLogitsProcessor(vocab_size, "cpu", ratio, 2.0, key, scheme, width)
        column = [0.0] * (n_gram - 1)
        for j in range(n_gram - 1, len(ids)):
            green = processor._get_greenlist_ids(tensor[j - n_gram + 1 : j + (scheme == "selfhash")])
            column.append(float(ids[j] in green))
        columns.append(column)
    parameters = {
        "vocab_size": vocab_size,
        "n_gram": n_gram,
        "greenlist_ratio": ratio,
        "seeding_scheme": scheme,
    }
    return case("kgw", ids, keys, parameters, columns)


def synthid(ids: list[int], n_gram: int, depth: int) -> dict[str, Any]:
    keys = np.random.default_rng(depth).integers(0, 2**63 - 1, (3, depth)).tolist()
    columns = []
    for key in keys:
        processor = transformers.SynthIDTextWatermarkLogitsProcessor(
            n_gram, key, 1 << 16, 0, context_history_size=1024, device=torch.device("cpu")
        )
        g = processor.compute_g_values(torch.tensor([ids]))[0].numpy()
        columns.append([0.0] * (n_gram - 1) + (2 * math.sqrt(depth) * (g.mean(axis=1) - 0.5)).tolist())
    return case("synthid", ids, keys, {"n_gram": n_gram}, columns)


def case(
    scheme: str, ids: list[int], keys: list[Any], parameters: dict[str, Any], columns: list[list[float]]
) -> dict[str, Any]:
    scores = np.array(columns).T.round(9).tolist()
    name = f"{scheme} {' '.join(map(str, parameters.values()))}"
    return {
        "name": name, "scheme": scheme, "parameters": parameters, "ids": ids, "keys": keys, "scores": scores,
    }  # fmt: skip


def main() -> None:
    rng = np.random.default_rng(20261122)
    ids, few = rng.integers(0, 200_000, 24).tolist(), rng.integers(0, 257, 24).tolist()
    ids[3] = 0
    cases = [gumbel(name, ids, width) for name in ("vllm", "sglang") for width in (1, 4, 6)]
    cases += [kgw(few, 257, "lefthash", 1, 0.25), kgw(few, 257, "selfhash", 3, 0.5)]
    cases += [kgw(rng.integers(0, 32000, 12).tolist(), 32000, "lefthash", 1, 0.25)]
    cases += [synthid(ids, 5, 30), synthid(ids, 2, 9)]
    content = {"engines": "vllm 0.33.0, sglang 0.5.23, transformers 5.23.0", "cases": cases}
    path = pathlib.Path(__file__).parent / "engines_v1.json"
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
