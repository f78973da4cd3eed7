"""What the CUDA compiler says about the kernels: nothing is spilled, nothing lies in local memory."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

CSRC = pathlib.Path(__file__).parents[2] / "csrc" / "cuda"
MAX_REGISTERS = 64  # of 65536: four blocks of 256 threads on a multiprocessor
KERNELS = {"embed.cu": ("embed_kernel", 21), "score.cu": ("score_kernel|score_spans_kernel|scale_kernel", 7)}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("source", sorted(KERNELS))
def test_no_kernel_spills(source: str, architecture: str, tmp_path: pathlib.Path) -> None:
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    flags = ["-std=c++17", f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "cubin")]
    result = subprocess.run([nvcc, *flags, str(CSRC / source)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    report = result.stderr
    names, count = KERNELS[source]
    compiled = re.findall(rf"Function properties for \S*({names})", report)
    assert len(compiled) == count, report
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert spills == [("0", "0", "0")] * count, report
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", report)]
    assert len(registers) == count
    assert max(registers) <= MAX_REGISTERS, report
    assert "lmem" not in report
