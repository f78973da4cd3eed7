"""The known answers on processors that this machine is not: the loops without vector code of their own.

A program of C++ alone holds the loops of csrc/cpu. Compiled for this machine it takes their portable path;
compiled for another one, as the wheels are, it runs under qemu (Debian: g++-aarch64-linux-gnu, qemu-user).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from iet.marks.families import FAMILIES
from iet.native import reference
from tests.support.known_answers import vectors

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = [
    ROOT / "tests/native/other_processors/known_answers.cpp",
    *(
        ROOT / "csrc/cpu" / f"{name}.cpp"
        for name in ("chain", "choose", "dispatch", "embed", "score", "threads")
    ),
]
FLAGS = ["-std=c++17", "-ffp-contract=off", "-fno-trapping-math", "-static", "-pthread"]
PROCESSORS = {
    "here": (os.environ.get("CXX", "g++"), "-O1", []),
    "aarch64": ("aarch64-linux-gnu-g++", "-O3", ["qemu-aarch64"]),
}
"""Name -> the compiler, how it optimises, and what runs its programs."""


def words(values: Iterable[Any]) -> str:
    return " ".join(str(value) for value in values)


def requests() -> tuple[str, list[str]]:
    """The input of the program, and the answers of tests/vectors."""
    scheme, *gumbel = (vectors(name) for name in ("scheme_v1", "gumbel_v1"))
    lines, expected = [], []
    for entry in scheme["permute"]:
        ids = entry["ids"]
        lines.append(f"permute {entry['vocab_size']} {entry['seed']} {len(ids)} {words(ids)}")
        expected.append(words(entry["ranks"]))
    for op in (op for file in (scheme, *gumbel) for op in file["ops"]):
        halves = [
            int.from_bytes(bytes.fromhex(subkey)[at : at + 8], "little")
            for subkey in op["subkeys"]
            for at in (0, 8)
        ]
        keys, unmarked = len(op["subkeys"]), op["unmarked_ids"]
        family = FAMILIES[op["family"]].code
        profile = (
            f"{op['vocab_size']} {op['n_gram']} {family} {len(unmarked)} {words(unmarked)}"
            f" {keys} {words(f'{half:x}' for half in halves)} {words([op['k_p']] * keys)}"
        )
        ids, counts = op["token_ids"], op.get("counts", [0] * len(op["slots"]))
        times = reference.times_before(ids, op["n_gram"]) if "counts" in op else [0] * len(ids)
        lines.append(f"score {profile} {len(ids)} {words(ids)} {words(times)}")
        expected.append(words(score for row in op["scores"] for score in row))
        rows = len(op["slots"])
        contexts = (token for context in op["contexts"] for token in context)
        arguments = f"{words(contexts)} {words(op['slots'])} {words(counts)} {words(op['kappas'])}"
        for number, dtype in enumerate(("float32", "float16", "bfloat16")):
            logits, marked = (op["embed"][dtype][key] for key in ("logits", "marked"))
            lines.append(f"embed {profile} {number} {rows} {len(logits) // rows} {arguments} {words(logits)}")
            expected.append(words(marked))
    return "\n".join(lines), expected


@pytest.mark.parametrize("processor", PROCESSORS)
def test_known_answers(processor: str, tmp_path: pathlib.Path) -> None:
    compiler, optimised, runner = PROCESSORS[processor]
    if missing := [name for name in (compiler, *runner) if shutil.which(name) is None]:
        pytest.skip(f"no {' and no '.join(missing)}")
    program = tmp_path / "known_answers"
    defined = ["-DIET_ISA=baseline", "-DIET_PORTABLE"]
    subprocess.run([compiler, optimised, *FLAGS, *defined, "-o", str(program), *SOURCES], check=True)
    lines, expected = requests()
    answer = subprocess.run([*runner, str(program)], input=lines, capture_output=True, text=True, check=True)
    answers = [line.strip() for line in answer.stdout.splitlines()]
    assert {request.split()[0] for request in lines.splitlines()} == {"permute", "score", "embed"}
    assert answers == expected
