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

from tests.support.cuda_on_host import ROOT, bindings, host_compiler

SOURCES = ("choose.cu", "embed.cu", "rows.cu", "score.cu", "permute.cu", "runtime.cu")
EVERYTHING = os.environ.get("IET_PTX") == "all"
# One PTX for each class of architectures that the sources or nvcc distinguish: no conversion of pairs before
# sm_80, another optimiser from sm_100 on. sm_90 has the PTX of sm_80, which test_cuda_build.py checks.
TARGETS = ("75", "80", "120") if EVERYTHING else ("80",)
HOST = ["-std=c++17", "-O0", "-Xcompiler=-fPIC", "-c"]  # -O0: of the host's code; PTX is optimised


def nvcc() -> str:
    """Return the CUDA compiler, or skip the test."""
    path = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if path is None:
        pytest.skip("no nvcc")
    return path


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The objects of SOURCES, and the PTX of each target: a file for each source, by its name."""

    objects: list[pathlib.Path]
    ptx: dict[str, dict[str, pathlib.Path]]


def compile_kernels(folder: pathlib.Path) -> Compiled:
    """Compile the kernels with their launchers; skips the test where nvcc or a C++ compiler is missing."""
    compiler = nvcc()
    host_compiler()
    codes = [f"-gencode=arch=compute_{target},code=compute_{target}" for target in TARGETS]
    objects = [folder / f"{name}.o" for name in SOURCES]
    running = [  # one process a source: they compile side by side
        subprocess.Popen(
            [
                compiler,
                *HOST,
                *codes,
                "--keep",
                f"--keep-dir={folder}",
                ROOT / "csrc/cuda" / name,
                "-o",
                target,
            ]
        )
        for name, target in zip(SOURCES, objects, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(running)
    ptx = {
        target: {
            # If there is a single architecture, nvcc does not name it.
            name: folder / (f"{stem}.compute_{target}.ptx" if len(TARGETS) > 1 else f"{stem}.ptx")
            for name in SOURCES
            for stem in [pathlib.Path(name).stem]
        }
        for target in TARGETS
    }
    return Compiled(objects, ptx)


@dataclasses.dataclass(frozen=True)
class Built:
    """The loaded module, its file, and for each target the PTX of all sources."""

    module: Any
    library: pathlib.Path
    ptx: dict[str, list[str]]


def build(folder: pathlib.Path, compiled: Compiled) -> Built:
    """Link the kernels into a module whose launches go to the interpreter, and load it."""
    runtime = folder / "runtime.o"
    source = pathlib.Path(__file__).parent / "runtime.cpp"
    subprocess.run([nvcc(), *HOST, source, "-o", runtime], check=True)
    library = folder / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    objects = [*compiled.objects, runtime, bindings()]
    subprocess.run([host_compiler(), "-shared", *objects, "-o", library], check=True)
    texts = {target: [path.read_text() for path in files.values()] for target, files in compiled.ptx.items()}
    # pybind11 hands the same module out again for the same name, whatever its file.
    spec = importlib.util.spec_from_file_location("interpreted._cuda", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Built(module, library, texts)
