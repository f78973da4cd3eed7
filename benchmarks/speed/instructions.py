"""Count the instructions that a marked logit costs on a GPU, without one.

    python -m benchmarks.speed.instructions -o benchmarks/results/instructions.json

`csrc/cuda/embed.cu` and `rows.cu` are compiled by nvcc, nvdisasm prints their SASS, and every warp of the
first and the last block of a row is walked through it from the first instruction to the exit
(`benchmarks/speed/sass.py`); the blocks between are as the first.
Two lanes stand for a warp, its first and its last; an instruction counts once for the warp if one of them
executes it, and as often as the one that does so more often. The row has no unmarked ids, lies packed and
aligned, and is marked in place; loads give 0, so that the walk out of the grid, which some of 10,000 vectors
take, is not in it. What is given is 32 times the instructions of all warps of both kernels, over V.

nvdisasm is a package of its own where CUDA has none (nvidia-cuda-nvdisasm); nvcc is taken from $CUDACXX or
the PATH.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.recording import as_json, exit_code, number, table
from benchmarks.speed import sass
from iet.errors import BackendUnavailable
from iet.native import reference

CSRC = pathlib.Path(__file__).parents[2] / "csrc" / "cuda"
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
VOCAB_SIZES = (128256, 151936)
DTYPES = {"bfloat16": ("BFloat16Words", 2, 2), "float32": ("Float32Words", 4, 0)}  # code, bytes, number
CHUNK, THREADS, WARP = 4096, 256, 32
SOMEWHERE = 1 << 40  # an aligned address


def listings(architecture: str, folder: pathlib.Path) -> dict[str, sass.Code]:
    """Return the kernels of embed.cu and rows.cu as they are compiled for one architecture."""
    nvcc, nvdisasm = os.environ.get("CUDACXX") or shutil.which("nvcc"), shutil.which("nvdisasm")
    if nvcc is None or nvdisasm is None:
        raise BackendUnavailable(
            "nvcc and nvdisasm: one of them is not on the PATH; nvdisasm is in CUDA's toolkit, or in the"
            " package nvidia-cuda-nvdisasm"
        )
    found: dict[str, sass.Code] = {}
    for name in ("embed", "rows"):
        binary = folder / f"{name}_{architecture}.cubin"
        flags = ["-std=c++17", "-O3", f"-arch={architecture}", "-cubin", "-o", str(binary)]
        subprocess.run([nvcc, *flags, str(CSRC / f"{name}.cu")], check=True)
        listing = subprocess.run([nvdisasm, "-c", str(binary)], check=True, capture_output=True, text=True)
        found |= sass.kernels(listing.stdout)
    return found


def the_one(kernels: dict[str, sass.Code], *parts: str) -> sass.Code:
    """Return the only kernel whose name has all parts."""
    [name] = [name for name in kernels if all(part in name for part in parts)]
    return kernels[name]


def inverse(b: int) -> tuple[int, int]:
    """Return `b_inverse` and `b_shift` of `make_lane_grid` in csrc/cuda/registers.h."""

    def of(shift: int) -> int:
        return ((1 << 32 + shift) + b - 1) // b

    shift = 0
    while of(shift + 1) <= 0xFFFFFFFF:
        shift += 1
    return of(shift), shift


def marking(vocab_size: int, n_gram: int) -> bytes:
    """Return a `CudaMarking` of three keys without unmarked ids."""
    return sass.packed("IIIxxxxQQQQQq", vocab_size, n_gram, 0, 0, 0, SOMEWHERE, SOMEWHERE, SOMEWHERE, 3)


NONE = sass.packed("Qqixxxx", 0, 0, 0)


def integers(stride: int) -> bytes:
    """Return `Integers` of 64 bits."""
    return sass.packed("Qqixxxx", SOMEWHERE, stride, 1)


def embed_launch(vocab_size: int, n_gram: int, rows: int, size: int, dtype: int, chunks: int) -> bytes:
    """Return an `EmbedLaunch` of packed rows."""
    a, b = reference.grid(vocab_size)
    arguments = sass.packed("Qixxxxqqqq", SOMEWHERE, dtype, rows, vocab_size, vocab_size * size, size)
    arguments += sass.packed("Qq", SOMEWHERE, rows) + NONE + sass.packed("Q", SOMEWHERE)
    grid = sass.packed("IIIIIxxxxQ", vocab_size, a, b, *inverse(b), (1 << 64) // vocab_size)
    return marking(vocab_size, n_gram) + arguments + grid + sass.packed("qIxxxx", 0, chunks)


def rows_launch(vocab_size: int, n_gram: int, rows: int) -> bytes:
    """Return a `RowsLaunch` of contexts [rows, n-1]."""
    words = n_gram - 1
    arguments = sass.packed("q", rows) + NONE + sass.packed("q", rows) + integers(words)
    arguments += sass.packed("qq", 1, words) + 3 * NONE + integers(1) + sass.packed("Qqfxxxx", 0, 0, 0.8)
    arguments += NONE + sass.packed("qQQQ", rows, SOMEWHERE, SOMEWHERE, 0)
    return marking(vocab_size, n_gram) + arguments


def warps(code: sass.Code, constants: bytes, base: int, block: int, threads: int) -> int:
    """Return how many instructions the warps of a block issue."""
    total = 0
    for warp in range(0, threads, WARP):
        ways = [
            sass.Thread(code, constants, base, {"SR_TID.X": warp + lane, "SR_CTAID.X": block}).run()
            for lane in (0, WARP - 1)
        ]
        total += (ways[0] | ways[1]).total()  # the larger count of each
    return total


def counted(kernels: dict[str, sass.Code], architecture: str, dtype: str, vocab_size: int) -> dict[str, Any]:
    """Return the instructions of a logit for n = 2, where a block takes one chunk, and eight."""
    words, size, code = DTYPES[dtype]
    a, b = reference.grid(vocab_size)
    walks = int(a * b != vocab_size)
    kernel = the_one(kernels, "embed_kernel", words, f"FamilyE0ELb1ELb{walks}ELb1E")
    base, rows = sass.PARAMETERS[architecture], 256
    reading = warps(the_one(kernels, "rows_kernel"), rows_launch(vocab_size, 2, rows), base, 0, WARP)
    result: dict[str, Any] = {"architecture": architecture, "dtype": dtype, "vocab_size": vocab_size}
    for chunks in (1, 8):
        constants = embed_launch(vocab_size, 2, rows, size, code, chunks)
        blocks = -(-vocab_size // (CHUNK * chunks))
        first, last = (warps(kernel, constants, base, block, THREADS) for block in (0, blocks - 1))
        result[f"chunks {chunks}"] = WARP * (reading + (blocks - 1) * first + last) / vocab_size
    result["rows_kernel"] = WARP * reading / vocab_size
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "-o", "--output", type=pathlib.Path, help="a file for the results, as JSON and Markdown"
    )
    output = parser.parse_args().output
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            kernels = listings(architecture, pathlib.Path(folder))
            results += [
                counted(kernels, architecture, dtype, vocab_size)
                for dtype in DTYPES
                for vocab_size in VOCAB_SIZES
            ]
    titles = ["architecture", "dtype", "V", "one chunk a block", "eight", "of it rows_kernel"]
    text = table(titles, [[number(v) if isinstance(v, float) else v for v in r.values()] for r in results])
    print(text)
    if output is not None:
        record = {"n_gram": 2, "unit": "SASS instructions a marked logit", "results": results}
        output.write_text(as_json(record), encoding="utf-8")
        output.with_suffix(".md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))
