"""Time `embed_` against in-place additions of a bias, after checking it against the reference.

python -m benchmarks.speed.bench_embed -o benchmarks/results/embed.json
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np
import torch

from benchmarks.recording import environment, table, write
from benchmarks.speed.timing import interleaved
from iet import kernels, reference
from iet.registry import KeyTable, Registry


def team(vocab_size: int) -> KeyTable:
    registry = Registry.create(None, vocab_size=vocab_size)
    for i in range(4):
        registry.add(f"agent {i}", secret=bytes([i]) * 32)
    return registry.marking_keys()


def validate(keys: KeyTable) -> None:
    """Compare one batch with the reference, to the bit."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4, keys.profile.vocab_size)).astype(np.float32)
    expected, contexts, slots = logits.copy(), rng.integers(0, keys.profile.vocab_size, (4, 1)), np.arange(4)
    kappas = np.full(4, np.float32(keys.profile.scheme.kappa))
    vocab_size = keys.profile.vocab_size
    reference.embed_(
        expected, contexts, slots, kappas, subkeys=keys.subkeys, k_p=keys.k_p, vocab_size=vocab_size
    )
    kernels.embed_(logits, contexts, slots, keys)
    assert np.array_equal(logits, expected)


def measure(rows: int, vocab_size: int) -> list[dict[str, object]]:
    keys = team(vocab_size)
    rng = np.random.default_rng(1)
    torch.set_num_threads(1)
    results = []
    for dtype in ("float32", "float16", "bfloat16"):
        logits = torch.zeros(rows, vocab_size, dtype=getattr(torch, dtype))
        whole, row_bias = torch.zeros_like(logits), torch.zeros(vocab_size, dtype=logits.dtype)
        float_logits, float_whole = logits.float(), whole.float()
        slots = np.arange(rows) % len(keys)

        def ours(isa: str) -> object:
            kernels._cpu.select_isa(isa)
            return kernels.embed_(logits, rng.integers(0, vocab_size, (rows, 1)), slots, keys)  # noqa: B023

        functions = {isa: lambda isa=isa: ours(isa) for isa in kernels.backends().isas}
        functions["add [B, V]"] = lambda: logits.add_(whole)  # noqa: B023
        functions["add [V]"] = lambda: logits.add_(row_bias)  # noqa: B023
        functions["float32 add [B, V]"] = lambda: float_logits.add_(float_whole)  # noqa: B023
        for isa in kernels.backends().isas:
            kernels._cpu.select_isa(isa)
            validate(keys)
        seconds = interleaved(functions)
        kernels._cpu.select_isa(kernels.backends().isas[-1])
        for name, value in seconds.items():
            results.append(
                {
                    "dtype": dtype,
                    "what": name,
                    "ns_per_logit": value / logits.numel() * 1e9,
                    "over_float32_add": value / seconds["float32 add [B, V]"],
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=128256)
    arguments = parser.parse_args()
    results = measure(arguments.rows, arguments.vocab_size)
    command = f"python -m benchmarks.speed.bench_embed -o {arguments.output}"
    shape = [arguments.rows, arguments.vocab_size]
    content = {"command": command, "shape": shape, "environment": environment("torch"), "results": results}
    rows = [[r["dtype"], r["what"], r["ns_per_logit"], r["over_float32_add"]] for r in results]
    header = ["dtype", "what", "ns per logit", "over a float32 add of a [B, V] bias"]
    write(arguments.output, content, f"`embed_` on {shape}, one thread\n\n" + table(header, rows))


if __name__ == "__main__":
    main()
