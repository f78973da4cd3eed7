"""csrc/cuda as nvcc compiles it: PTX for some architectures, and the module with runtime.cpp in it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sysconfig
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SOURCES = ("embed.cu", "rows.cu", "score.cu", "permute.cu", "runtime.cu")
# A PTX for each way in which the sources or nvcc tell architectures apart: no conversion of pairs before
# sm_80, another optimiser from sm_100 on. That of sm_90 is that of sm_80, which test_cuda_ptx.py sees to.
TARGETS = ("75", "80", "120")


def nvcc() -> str:
    """Return the CUDA compiler, or skip the test."""
    found = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if found is None:
        pytest.skip("no nvcc")
    return found


@dataclasses.dataclass(frozen=True)
class Built:
    """The module, where it lies, and the PTX of each target: the texts of all sources."""

    module: Any
    library: pathlib.Path
    ptx: dict[str, list[str]]


def build(folder: pathlib.Path) -> Built:
    """Compile csrc/cuda into a module whose launches go to the interpreter, and load it.

    Skips the test where nvcc, a C++ compiler, pybind11 or Python's headers are missing.
    """
    compiler, host = nvcc(), os.environ.get("CXX", "g++")
    pybind11 = pytest.importorskip("pybind11", reason="pybind11 builds the module")
    if shutil.which(host) is None:
        pytest.skip(f"no C++ compiler {host}")
    include = sysconfig.get_path("include")
    if not (pathlib.Path(include) / "Python.h").is_file():
        pytest.skip("no Python headers")
    here, csrc = pathlib.Path(__file__).parent, ROOT / "csrc" / "cuda"
    paths = [f"-I{pybind11.get_include()}", f"-I{include}"]
    common = [compiler, "-std=c++17", "-O0", "-Xcompiler=-fPIC", "-c"]  # of the host's code; PTX is optimised
    codes = [f"-gencode=arch=compute_{target},code=compute_{target}" for target in TARGETS]
    commands = {here / "runtime.cpp": [], csrc / "bindings.cpp": paths}
    commands |= {csrc / name: [*codes, "--keep", f"--keep-dir={folder}"] for name in SOURCES}
    objects = {source: folder / f"{source.name}.o" for source in commands}
    running = [  # one process a source: they compile side by side
        subprocess.Popen([*common, *options, source, "-o", objects[source]])
        for source, options in commands.items()
    ]
    assert [process.wait() for process in running] == [0] * len(running)
    library = folder / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([host, "-shared", *objects.values(), "-o", library], check=True)
    texts = {
        target: [(folder / f"{pathlib.Path(name).stem}.compute_{target}.ptx").read_text() for name in SOURCES]
        for target in TARGETS
    }
    # pybind11 hands the same module out again for the same name, whatever its file.
    spec = importlib.util.spec_from_file_location("interpreted._cuda", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Built(module, library, texts)
