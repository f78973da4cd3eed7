"""Time `score_tokens` on random ids, after checking it against the reference.

python -m benchmarks.speed.bench_score -o benchmarks/results/score.json
"""

from __future__ import annotations

import argparse
import pathlib

import numpy as np

from benchmarks.recording import environment, table, write
from benchmarks.speed.timing import interleaved
from iet import kernels, reference
from iet.registry import KeyTable, Registry
from iet.scheme import Scheme


def team(vocab_size: int, n_gram: int, keys: int) -> KeyTable:
    registry = Registry.create(None, vocab_size=vocab_size, scheme=Scheme(n_gram=n_gram))
    for i in range(keys):
        registry.add(f"agent {i}", secret=i.to_bytes(32, "little"))
    return registry.scoring_keys()


def measure(tokens: int, vocab_size: int, keys: int) -> list[dict[str, object]]:
    ids = np.random.default_rng(0).integers(0, vocab_size, tokens)
    results: list[dict[str, object]] = []
    for n_gram in (2, 3, 5):
        table_of_keys = team(vocab_size, n_gram, keys)
        expected = reference.score_tokens(
            ids[:500], n_gram, subkeys=table_of_keys.subkeys, k_p=table_of_keys.k_p, vocab_size=vocab_size
        )

        def ours(isa: str) -> object:
            kernels._cpu.select_isa(isa)
            return kernels.score_tokens(ids, table_of_keys)  # noqa: B023

        isas = kernels.backends().isas
        for isa in isas:
            kernels._cpu.select_isa(isa)
            assert np.array_equal(kernels.score_tokens(ids[:500], table_of_keys), expected)
        seconds = interleaved({isa: lambda isa=isa: ours(isa) for isa in isas})
        kernels._cpu.select_isa(isas[-1])
        for isa, value in seconds.items():
            rate = tokens * keys / value / 1e6
            results.append({"n_gram": n_gram, "isa": isa, "million_token_keys_per_second": rate})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=1 << 16)
    parser.add_argument("--vocab-size", type=int, default=128256)
    parser.add_argument("--keys", type=int, default=16)
    arguments = parser.parse_args()
    results = measure(arguments.tokens, arguments.vocab_size, arguments.keys)
    command = f"python -m benchmarks.speed.bench_score -o {arguments.output}"
    content = {"command": command, "environment": environment(), "results": results}
    rows = [[r["n_gram"], r["isa"], f"{r['million_token_keys_per_second']:.0f}"] for r in results]
    header = ["n", "instruction set", "million token·keys per second"]
    title = f"`score_tokens`, {arguments.tokens} tokens, {arguments.keys} keys, one thread\n\n"
    write(arguments.output, content, title + table(header, rows))


if __name__ == "__main__":
    main()
