"""Time scheme `waterfall` on one thread: ours, NumPy's shuffle, and the Waterfall package if it is there.

python -m benchmarks.speed.bench_waterfall -o benchmarks/results/waterfall.json [--tokenizer T --text FILE]

Scoring costs what its distinct contexts cost, so random ids (nearly all contexts distinct) are the worst
case; a text of your own shows a usual one. One key. Embedding is one row's perturbation [V] per call.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.recording import environment, table, write
from benchmarks.speed.timing import interleaved
from iet import kernels, native, reference, waterfall
from iet.tokenizer import Tokenizer
from iet.waterfall import WaterfallKeys

try:
    from waterfall.permute import Permute
except ImportError:
    Permute = None


def packages_ranks(ids: list[int], permute: Any) -> list[int]:
    """Return the ranks of a text as the package's verification finds them: a shuffle per distinct context."""
    after: dict[tuple[int], set[int]] = {}
    for context, token in itertools.pairwise(ids):
        after.setdefault((context,), set()).add(token)
    found = {
        context: permute.get_unshuffled_indices([42], (context, tuple(tokens)))
        for context, tokens in after.items()
    }
    return [int(found[(context,)][token][0]) for context, token in itertools.pairwise(ids)]


def measure(
    name: str, ids: np.ndarray[Any, Any], vocab_size: int, theirs_on: int, rounds: int
) -> list[dict[str, object]]:
    keys = WaterfallKeys({"a": 42}, vocab_size=vocab_size)
    few = ids[:theirs_on]
    expected = reference.waterfall_scores(few, 2, keys=keys.keys, k_p=1, vocab_size=vocab_size)
    isas = kernels.backends().isas

    def ours(isa: str) -> object:
        native.cpu.select_isa(isa)
        return kernels.score_tokens(ids, keys)

    for isa in isas:
        native.cpu.select_isa(isa)
        assert np.array_equal(kernels.score_tokens(few, keys), expected)
    functions: dict[str, Callable[[], object]] = {isa: lambda isa=isa: ours(isa) for isa in isas}  # type: ignore[misc]
    tokens = dict.fromkeys(isas, len(ids))
    functions["NumPy, a shuffle per context"] = lambda: reference.waterfall_scores(
        few, 2, keys=keys.keys, k_p=1, vocab_size=vocab_size
    )
    if Permute is not None:
        permute = Permute(vocab_size)
        phi = reference.waterfall_phi(vocab_size, 1)
        assert np.array_equal(phi[packages_ranks(few.tolist(), permute)], expected[1:, 0])
        functions["Waterfall package"] = lambda: packages_ranks(few.tolist(), permute)
    seconds = interleaved(functions, rounds)
    native.cpu.select_isa(isas[-1])
    return [
        {
            "ids": name,
            "vocab_size": vocab_size,
            "what": what,
            "tokens": tokens.get(what, len(few)),
            "distinct_contexts": len(np.unique((ids if what in tokens else few)[:-1])),
            "token_keys_per_second": tokens.get(what, len(few)) / value,
        }
        for what, value in seconds.items()
    ]


def embedding(vocab_size: int, rounds: int) -> list[dict[str, object]]:
    contexts = iter(range(1 << 30))  # a new one in every call
    isas = kernels.backends().isas

    def ours(isa: str) -> object:
        native.cpu.select_isa(isa)
        return waterfall.waterfall_permutation(42, [next(contexts) % vocab_size], vocab_size)

    functions: dict[str, Callable[[], object]] = {isa: lambda isa=isa: ours(isa) for isa in isas}  # type: ignore[misc]
    functions["NumPy"] = lambda: reference.waterfall_permutation(
        42, (next(contexts) % vocab_size,), vocab_size
    )
    seconds = interleaved(functions, 10 * rounds)
    native.cpu.select_isa(isas[-1])
    return [
        {"vocab_size": vocab_size, "what": what, "microseconds": value * 1e6}
        for what, value in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", help="of the text, and its V")
    parser.add_argument(
        "--text", type=pathlib.Path, nargs="+", help="UTF-8 files; their first tokens are read"
    )
    parser.add_argument("--tokens", type=int, default=1 << 14, help="of the text (default: 16384)")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    scores, shuffles = [], []
    for vocab_size in (32000, 128256):
        scores += measure("random", rng.integers(0, vocab_size, 2000), vocab_size, 300, arguments.rounds)
        shuffles += embedding(vocab_size, arguments.rounds)
    if arguments.text:
        tokenizer = Tokenizer(arguments.tokenizer)
        text = "\n".join(path.read_text(encoding="utf-8") for path in arguments.text)
        ids = tokenizer.encode(text).token_ids[: arguments.tokens]
        vocab_size = tokenizer.backend.get_vocab_size(with_added_tokens=False)
        scores += measure("text", ids, vocab_size, arguments.tokens, arguments.rounds)
    content = {
        "command": f"python -m benchmarks.speed.bench_waterfall -o {arguments.output}",
        "environment": environment(),
        "scores": scores,
        "permutations": shuffles,
    }
    rows = [
        [
            r["ids"],
            r["vocab_size"],
            r["tokens"],
            r["distinct_contexts"],
            r["what"],
            f"{r['token_keys_per_second']:.0f}",
        ]
        for r in scores
    ]
    header = ["ids", "V", "tokens", "distinct contexts", "what", "token·keys per second"]
    parts = ["Scheme `waterfall`: scores, one key, n = 2, one thread", table(header, rows)]
    rows = [[r["vocab_size"], r["what"], f"{r['microseconds']:.0f}"] for r in shuffles]
    parts += ["One permutation, as a marked row needs it", table(["V", "what", "µs"], rows)]
    write(arguments.output, content, "\n\n".join(parts))


if __name__ == "__main__":
    main()
