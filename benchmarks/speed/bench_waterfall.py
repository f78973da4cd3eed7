"""Time scheme `waterfall` on one thread: ours, NumPy's shuffle, and the Waterfall package if it is there.

python -m benchmarks.speed.bench_waterfall -o benchmarks/results/waterfall.json [--tokenizer T --text FILE]

Scoring costs what its distinct contexts cost, so random ids (nearly all contexts distinct) are the worst
case; a text of your own shows a usual one. One key. Embedding is one row's perturbation [V] per call.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
from typing import Any

import numpy as np

from benchmarks.recording import columns, command, environment, parser, write
from iet import kernels
from iet.cli import bench
from iet.cli.bench import select_isa, timed
from iet.errors import IetError
from iet.marks.foreign import waterfall
from iet.marks.foreign.waterfall import WaterfallKeys
from iet.marks.tokenizer import Tokenizer
from iet.native import foreign

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
    floor = functools.partial(foreign.waterfall_scores, few, 2, keys=keys.keys, k_p=1, vocab_size=vocab_size)
    expected = floor()
    score = functools.partial(kernels.score_tokens, registry=keys, num_threads=1)
    for isa in bench.isas():
        select_isa(isa)
        if not np.array_equal(score(few), expected):
            raise IetError(f"score_tokens differs from the reference on {isa}")
    samplers = {
        isa: timed(functools.partial(score, ids), functools.partial(select_isa, isa)) for isa in bench.isas()
    }
    tokens = dict.fromkeys(samplers, len(ids))
    samplers["NumPy, a shuffle per context"] = timed(floor)
    if Permute is not None:
        permute = Permute(vocab_size)
        phi = foreign.waterfall_phi(vocab_size, 1)
        if not np.array_equal(phi[packages_ranks(few.tolist(), permute)], expected[1:, 0]):
            raise IetError("the reference differs from the Waterfall package")
        samplers["Waterfall package"] = timed(lambda: packages_ranks(few.tolist(), permute))
    return [
        {
            "ids": name,
            "vocab_size": vocab_size,
            "what": what,
            "tokens": tokens.get(what, len(few)),
            "distinct_contexts": len(np.unique((ids if what in tokens else few)[:-1])),
            "token_keys_per_second": tokens.get(what, len(few)) / bench.spread(seconds).median,
        }
        for what, seconds in bench.interleaved(samplers, rounds).items()
    ]


def embedding(vocab_size: int, rounds: int) -> list[dict[str, object]]:
    contexts = itertools.cycle(range(vocab_size))  # a new one in every call

    def new_context(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return 42, [next(contexts)], vocab_size

    samplers = {
        isa: timed(waterfall.waterfall_permutation, functools.partial(new_context, isa))
        for isa in bench.isas()
    }
    samplers["NumPy"] = timed(foreign.waterfall_permutation, lambda: (42, (next(contexts),), vocab_size))
    return [
        {"vocab_size": vocab_size, "what": what, "microseconds": bench.spread(seconds).median * 1e6}
        for what, seconds in bench.interleaved(samplers, 10 * rounds).items()
    ]


def main() -> None:
    line = parser("benchmarks.speed.bench_waterfall", __doc__)
    line.add_argument("--tokenizer", help="of the text, and its V")
    files = "UTF-8 files; their first tokens are read"
    line.add_argument("--text", type=pathlib.Path, nargs="+", help=files)
    line.add_argument("--tokens", type=int, default=1 << 14, help="of the text (default: 16384)")
    line.add_argument("--rounds", type=int, default=5)
    line.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    given = line.parse_args()
    rng = np.random.default_rng(0)
    scores, shuffles = [], []
    tokens, few, vocab_sizes = (60, 30, (257,)) if given.quick else (2000, 300, (32000, 128256))
    before = kernels.backends().isa
    for vocab_size in vocab_sizes:
        ids = rng.integers(0, vocab_size, tokens)
        scores += measure("random", ids, vocab_size, few, given.rounds)
        shuffles += embedding(vocab_size, given.rounds)
    if given.text:
        tokenizer = Tokenizer(given.tokenizer)
        text = "\n".join(path.read_text(encoding="utf-8") for path in given.text)
        ids = tokenizer.encode(text).token_ids[: given.tokens]
        vocab_size = tokenizer.backend.get_vocab_size(with_added_tokens=False)
        scores += measure("text", ids, vocab_size, given.tokens, given.rounds)
    if before is not None:
        select_isa(before)
    content = {
        "command": command(line, given),
        "environment": environment(),
        "scores": scores,
        "permutations": shuffles,
    }
    scored = {
        **{"ids": "{ids}", "V": "{vocab_size}", "tokens": "{tokens}"},
        **{"distinct contexts": "{distinct_contexts}", "what": "{what}"},
        "token·keys per second": "{token_keys_per_second:.0f}",
    }
    parts = ["Scheme `waterfall`: scores, one key, n = 2, one thread", columns(scores, scored)]
    permuted = {"V": "{vocab_size}", "what": "{what}", "µs": "{microseconds:.0f}"}
    parts += ["One permutation, as a marked row needs it", columns(shuffles, permuted)]
    write(given.output, content, "\n\n".join(parts))


if __name__ == "__main__":
    main()
