"""The fuzzer of the native code (tests/fuzz): random calls of every op, and a sample of them read in Python.

The program compares every call with the scheme applied to one token at a time, in C++; what it prints as its
sample is computed again here by the reference in NumPy.
"""

from __future__ import annotations

import json
import pathlib
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.security import foreign_marks as foreign
from iet.marks.families import FAMILIES
from iet.native import reference
from iet.native.filters import FILTER
from iet.native.marking import KernelParams

ROOT = pathlib.Path(__file__).parents[2]
FAMILY_NAMES = {family.code: family.name for family in FAMILIES.values()}
DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))
Line = dict[str, Any]

WHAT = {
    "none": "no sanitizer",
    "address,undefined": "AddressSanitizer and UBSan",
    "thread": "ThreadSanitizer",
}
"""Programs by the sanitizers in them."""

ROUND: dict[str, dict[str, int]] = {
    "none": {"calls": 4_000_000, "threads": 1, "sample": 20_000},
    "address,undefined": {"calls": 800_000, "threads": 1, "sample": 20_000},
    "thread": {"calls": 20_000, "threads": 3, "sample": 2000},
}
"""What a round calls."""


def build(folder: pathlib.Path, kinds: Iterable[str]) -> None:
    """Compile the fuzzer into a folder: `kinds` of sanitizers as the compiler names them, or "none"."""
    missing = [kind for kind in kinds if not (folder / f"fuzz-{kind}").exists()]
    if missing:
        subprocess.run([str(ROOT / "tests/fuzz/build"), str(folder), *missing], check=True)


def fuzz(
    folder: pathlib.Path, kind: str, *, seed: int, calls: int, threads: int = 1, sample: int = 0
) -> Counter[str]:
    """Return how many calls of each op were made, how many of those were judged here, and how many differed.

    Args:
        folder: of `build`.
        kind: of sanitizer.
        seed: of all that is drawn.
        calls: at least this number.
        threads: of callers at once.
        sample: one in this number of calls is judged here; 0: no call.

    Raises:
        RuntimeError: the program did not end by itself, for example because a sanitizer reported an error.
    """
    *lines, summary_line = _run(folder, kind, seed, calls, threads, sample)
    counts = Counter({name: count for name, count in summary_line.items() if name != "op"})
    differ = [line for line in lines if not agrees(line)]
    counts["judged"] = len(lines)
    counts["faults"] += len(differ)
    for line in differ[:3]:
        print(f"the reference computes something else: {json.dumps(line)[:2000]}")
    return counts


def sample(folder: pathlib.Path, kind: str, *, seed: int, calls: int, every: int) -> list[Line]:
    """Return one in `every` calls, as `agrees` takes it."""
    return _run(folder, kind, seed, calls, 1, every)[:-1]


def _run(folder: pathlib.Path, kind: str, *numbers: int) -> list[Line]:
    # With as many bits of address randomisation as some systems use, the sanitizer of threads finds no room.
    steady = ["setarch", platform.machine(), "-R"] if kind == "thread" and shutil.which("setarch") else []
    command = [*steady, str(folder / f"fuzz-{kind}"), *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode not in (0, 1) or not lines or lines[-1]["op"] != "counts":
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    print(done.stderr[-4000:], end="")
    return lines


def agrees(line: Line) -> bool:
    """Tell whether the reference computes what a call of the sample wrote."""
    return bool(JUDGES[line["op"]](line))


def _array(line: Line, name: str, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(bytearray.fromhex(line[name]), dtype)


def _marking(line: Line) -> KernelParams:
    return KernelParams(
        vocab_size=line["vocab"],
        n_gram=line["n_gram"],
        family=FAMILY_NAMES[line["family"]],
        code=line["family"],
        kappa=1.0,
        unmarked_ids=tuple(_array(line, "unmarked", np.int32).tolist()),
        subkeys=_array(line, "subkeys", np.uint8).reshape(-1, 16),
        k_p=_array(line, "k_p", np.uint32),
        counted=True,
    )


def _permute(line: Line) -> bool:
    ranks = reference.permute(_array(line, "ids", np.uint32), _array(line, "seeds", np.uint64), line["vocab"])
    return np.array_equal(ranks, _array(line, "ranks", np.uint32))


def _text(line: Line) -> tuple[KernelParams, NDArray[np.int64], NDArray[np.int32]]:
    return _marking(line), _array(line, "ids", np.int64), _array(line, "counts", np.int32)


def _score(line: Line) -> bool:
    marking, ids, counts = _text(line)
    scores = _array(line, "scores", np.uint32).reshape(len(ids), len(marking))
    return np.array_equal(reference.score_tokens(marking, ids, counts).view(np.uint32), scores)


def _score_spans(line: Line) -> bool:
    marking, ids, counts = _text(line)
    cuts, weights = _array(line, "cuts", np.int64), _array(line, "weights", np.uint8)
    sums = reference.score_spans(marking, ids, cuts, weights, counts)
    return np.array_equal(sums, _array(line, "sums", np.int64).reshape(sums.shape) * reference.SPAN_UNIT)


def _rows(line: Line, logits: NDArray[Any]) -> tuple[Any, ...]:
    """Return the arguments of `reference.embed_` and `choose`, for logits with the strides of the call."""
    size, rows = logits.dtype.itemsize, line["rows"]
    view = np.lib.stride_tricks.as_strided(
        logits[line["origin"] :],
        (rows, line["columns"]),
        (line["row_stride"] * size, line["element_stride"] * size),
        writeable=True,
    )
    contexts = _array(line, "contexts", np.int64).reshape(rows, -1)
    slots, counts = _array(line, "slots", np.int32), _array(line, "counts", np.int32)
    return _marking(line), view, contexts, slots, _array(line, "kappas", np.float32), counts


def _embed(line: Line) -> bool:
    dtype = DTYPES[line["dtype"]]
    logits, marked = _array(line, "before", dtype), _array(line, "after", dtype)
    if line["rows"]:
        reference.embed_(*_rows(line, logits))
    if dtype == np.uint16:
        logits, marked = (reference.bfloat16_to_float32(bits) for bits in (logits, marked))
    words = np.dtype(f"u{logits.dtype.itemsize}")
    same = (logits.view(words) == marked.view(words)) | (np.isnan(logits) & np.isnan(marked))
    return bool(same.all())


def _choose(line: Line) -> bool:
    if not line["rows"]:
        return True
    logits = _array(line, "before", DTYPES[line["dtype"]])
    floats = reference.bfloat16_to_float32(logits) if logits.dtype == np.uint16 else logits.astype("f4")
    filters = _array(line, "filters", FILTER) if line["filtered"] else None
    arguments = (*_rows(line, floats), filters)
    chosen = reference.choose(*arguments)
    return np.array_equal(chosen, _array(line, "chosen", np.int64))


def _engine_scores(line: Line) -> bool:
    scored, words = _array(line, "scored", np.bool_), _array(line, "words", np.uint32)
    keys = foreign.key_numbers(_array(line, "keys", np.uint64).reshape(-1, 4 if line["prf"] == 2 else 1))
    rule = line["rule"], line["limit"], 0.125, -1.5
    scores = foreign.engine_scores(line["prf"], rule, words, line["width"] + 1, scored, keys)
    return np.array_equal(scores, _array(line, "scores", np.float32).reshape(scores.shape))


def _synthid(line: Line) -> bool:
    size, depth = 1 << line["bits"], line["depth"]
    order = np.arange(size, dtype=np.uint64) * np.uint64(6364136223846793005) + np.uint64(1)
    table = np.zeros(size, np.uint8)
    table[(order & np.uint64(size - 1)).astype(np.int64)] = _array(line, "g_values", np.uint8)[:size] // 255
    keys = _array(line, "keys", np.uint32).reshape(-1, depth).astype(np.uint64)
    words, scored = _array(line, "words", np.uint32).astype(np.int64), _array(line, "scored", np.bool_)
    weights = _array(line, "weights", np.uint32).astype(int)
    scores = foreign.synthid_scores(words, line["n_gram"], scored, keys, table, weights, 0.125, -1.5)
    return np.array_equal(scores, _array(line, "scores", np.float32).reshape(scores.shape))


def _waterfall(line: Line) -> bool:
    keys, offsets = _array(line, "keys", np.uint32).tolist(), _array(line, "offsets", np.int64).tolist()
    contexts = _array(line, "contexts", np.uint32).reshape(-1, line["n_gram"] - 1).tolist()
    tokens = _array(line, "tokens", np.uint32)
    ranks = _array(line, "ranks", np.uint32).reshape(len(keys), len(tokens))
    return all(
        np.array_equal(
            ranks[row, first:last],
            foreign.waterfall_permutation(key, tuple(context), line["vocab"])[tokens[first:last]],
        )
        for row, key in enumerate(keys)
        for context, first, last in zip(contexts, offsets[:-1], offsets[1:], strict=True)
    )


def _green(line: Line) -> bool:
    seeds = np.repeat(_array(line, "seeds", np.uint32), np.diff(_array(line, "offsets", np.int64)))
    green = foreign.green_tokens(seeds, _array(line, "tokens", np.uint32), line["vocab"], line["green"])
    return np.array_equal(green, _array(line, "is_green", np.bool_))


JUDGES: dict[str, Callable[[Line], bool]] = {
    "permute": _permute,
    "score": _score,
    "score_spans": _score_spans,
    "embed": _embed,
    "choose": _choose,
    "engine_scores": _engine_scores,
    "synthid": _synthid,
    "waterfall": _waterfall,
    "green": _green,
}

WRITTEN = {
    "permute": "ranks",
    "score": "scores",
    "score_spans": "sums",
    "embed": "after",
    "choose": "chosen",
    "engine_scores": "scores",
    "synthid": "scores",
    "waterfall": "ranks",
    "green": "is_green",
}
"""What each op writes."""
