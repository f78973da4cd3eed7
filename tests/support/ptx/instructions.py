"""Instructions and bytes of a step that marks, from the PTX that is interpreted: what bounds it on a GPU.

    python -m tests.support.ptx.instructions -o benchmarks/results/instructions.md

Two rows of a step of [256, V] are marked; the shape of their logits is that of a language model, with the
entropy given. A bound is the larger of two times, as a share of the time to add [256, V] logits: bytes over
3.0 TB/s, the measured bandwidth of an addition on an H100, and PTX instructions over what its 132
multiprocessors issue at 1.755 GHz. It is one of full devices: what starts and ends a kernel, some
microseconds, is not in it.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.recording import number, table
from iet.native.filters import FILTER, filter_of
from tests.support.cuda_on_host import empty_caches
from tests.support.keys import key_table
from tests.support.ptx.build import build, compile_kernels
from tests.support.ptx.device import Device
from tests.support.ptx.ops import choose, embed_

V, ROWS, BATCH = 128256, 2, 256
BANDWIDTH, ISSUED = 3.0e12, 132 * 4 * 1.755e9  # bytes a second; instructions of warps a second
FILTERS = {
    "none": filter_of(),
    "top-k 50": filter_of(top_k=50),
    "top-p 0.9": filter_of(top_p=0.9),
    "top-k 20, top-p 0.95": filter_of(top_k=20, top_p=0.95),
    "min-p 0.05": filter_of(min_p=0.05),
}
PIECE = 512


def logits_of(entropy: float, rows: int, vocab_size: int, seed: int) -> torch.Tensor:
    """Return logits whose probabilities fall as a power of the rank, of about this entropy in nats."""
    ranks = np.log(np.arange(1, vocab_size + 1))

    def nats(power: float) -> float:
        p = np.exp(-power * ranks)
        p /= p.sum()
        return float(-(p * np.log(p + 1e-300)).sum())

    low, high = 0.5, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if nats(middle) > entropy else (low, middle)
    rng = np.random.default_rng(seed)
    values = np.stack([-low * rng.permutation(ranks) for _ in range(rows)])
    return torch.tensor(values, dtype=torch.float32)


def cases() -> Iterator[tuple[str, str, str, float | None]]:
    """Yield family, dtype, filter and entropy."""
    for dtype in ("float32", "bfloat16"):
        yield "fourier", dtype, "none", None
        for entropy in (0.5, 2.0, 4.0):
            yield "gumbel", dtype, "none", entropy
    for name in list(FILTERS)[1:]:
        for entropy in (0.5, 2.0, 4.0):
            yield "gumbel", "float32", name, entropy


def count(
    device: Device, family: str, dtype: str, name: str, entropy: float | None, vocab_size: int = V
) -> dict[str, float]:
    """Return PTX instructions (32 for one of a warp) and bytes of a step, for each logit."""
    keys = key_table(vocab_size, n_gram=2 if family == "fourier" else 4, family=family)
    logits = torch.zeros(BATCH, vocab_size, dtype=getattr(torch, dtype))
    logits[:ROWS] = logits_of(entropy or 2.0, ROWS, vocab_size, seed=1)
    contexts = torch.arange(BATCH * (keys.marking.n_gram - 1)).view(BATCH, -1) + 5
    records = np.array([FILTERS[name]] * BATCH, FILTER).view(np.int32).reshape(BATCH, 4)
    filters = None if name == "none" else torch.from_numpy(records)
    counts: dict[str, int] = {}
    for marked, sign in ((ROWS, 1), (0, -1)):  # less those of rows that are not marked
        slots = torch.where(torch.arange(BATCH) < marked, 0, -1)
        before = device.instructions()
        if family == "fourier":
            embed_(device, logits, contexts, slots, keys)
        else:
            choose(device, logits, contexts, slots, keys, filters=filters)
        for key, value in device.instructions().items():
            counts[key] = counts.get(key, 0) + sign * (value - before.get(key, 0))
    scale = 32 / (ROWS * vocab_size)
    size = logits.element_size()
    moved = 2.0 * size if family == "fourier" else size + 12 / PIECE
    found = {"instructions": scale * sum(counts.values()), "bytes": moved}
    found["of choose_kernel"] = scale * sum(value for key, value in counts.items() if "choose_kernel" in key)
    return found


def bound(found: dict[str, float], size: int, vocab_size: int = V) -> float:
    """Return the least time of a step of [256, V] as a share of that of an addition."""
    logits = BATCH * vocab_size
    add = 3 * size * logits / BANDWIDTH
    return max(found["bytes"] * logits / BANDWIDTH, found["instructions"] * logits / 32 / ISSUED) / add


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="file for the table")
    options = parser.parse_args()
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as folder, empty_caches():
        device = Device(build(pathlib.Path(folder), compile_kernels(pathlib.Path(folder))))
        for family, dtype, name, entropy in cases():
            found = count(device, family, dtype, name, entropy)
            size = 4 if dtype == "float32" else 2
            shown = [number(found["instructions"]), number(found["of choose_kernel"]), number(found["bytes"])]
            nats = "" if entropy is None else f"{entropy:g}"
            rows.append([family, dtype, name, nats, *shown, f"{bound(found, size):.2f}"])
    titles = "family|dtype|filter|nats|PTX a logit|of it choose_kernel|bytes a logit|bound, x add [256, V]"
    text = table(titles.split("|"), rows)
    options.output.write_text(f"V = {V}, PTX of sm_80.\n\n{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
