"""The CUDA module, compiled for the CPU: csrc/cuda, with tests/native/cuda_on_host in place of CUDA."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from iet.native import cuda

ROOT = pathlib.Path(__file__).parents[2]
HERE = ROOT / "tests" / "native" / "cuda_on_host"
FLAGS = [
    *("-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"),
    *("-Wno-unused-function", "-Wno-unknown-pragmas", "-ffp-contract=off", "-fno-strict-aliasing"),
    # A misaligned 16-byte access is an error on the device: here it stops the process.
    *("-fsanitize=alignment,bounds,shift", "-fsanitize-undefined-trap-on-error"),
]
SOURCES = [ROOT / "csrc" / "cuda" / f"{name}.cu" for name in ("choose", "embed", "permute", "rows", "score")]


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Forget what was put on devices, before and after."""
    caches: tuple[Any, ...] = (cuda._tables, cuda._refused, cuda._scratch, cuda._in_graphs)
    for cache in caches:
        cache.clear()
    yield
    for cache in caches:
        cache.clear()


@contextlib.contextmanager
def built() -> Iterator[Any]:
    """Compile the module, once, and begin with empty caches. Skips where nothing compiles it."""
    module = _build()
    with empty_caches():
        yield module


@functools.cache
def host_compiler() -> str:
    """Return the C++ compiler; skip the test without it, pybind11 or Python's headers."""
    compiler = os.environ.get("CXX", "g++")
    pytest.importorskip("pybind11", reason="pybind11 builds the module")
    if shutil.which(compiler) is None:
        pytest.skip(f"no C++ compiler {compiler}")
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").is_file():
        pytest.skip("no Python headers")
    return compiler


@functools.cache
def compiled_into() -> pathlib.Path:
    """Return the folder of what is compiled for this process."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cuda_on_host"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _compiling_bindings() -> tuple[subprocess.Popen[bytes], pathlib.Path]:
    import pybind11

    paths = [f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}"]
    target = compiled_into() / "bindings.o"
    command = [host_compiler(), *FLAGS, "-O0", *paths, "-c", str(ROOT / "csrc" / "cuda" / "bindings.cpp")]
    return subprocess.Popen([*command, "-o", str(target)]), target


def bindings() -> pathlib.Path:
    """Return csrc/cuda/bindings.cpp compiled: it knows no CUDA, so that one object serves every module."""
    process, target = _compiling_bindings()
    assert process.wait() == 0
    return target


@functools.cache
def _build() -> Any:
    folder, compiler = compiled_into(), host_compiler()
    library = folder / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [*SOURCES, HERE / "runtime.cpp"]
    # One process a source: they compile side by side.
    objects = [folder / f"{source.name}.o" for source in sources]
    _compiling_bindings()
    running = [
        subprocess.Popen([compiler, *FLAGS, f"-I{HERE}", "-c", "-x", "c++", str(source), "-o", str(target)])
        for source, target in zip(sources, objects, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(running)
    objects.append(bindings())
    subprocess.run([compiler, *FLAGS, *map(str, objects), "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location("on_host._cuda", library)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class OnHost:
    """The module where tests expect a device that interprets PTX."""

    target = "host"

    def __init__(self, module: Any) -> None:
        self.module = module

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Watch nothing: the kernels of this module touch memory as they like."""
        return contextlib.nullcontext()


def launches(module: Any) -> int:
    """Return how many kernels have been launched so far."""
    return int(ctypes.CDLL(module.__file__).on_host_launches())


@contextlib.contextmanager
def failing(module: Any, words: str) -> Iterator[None]:
    """Let launches and copies fail as they do if the driver is too old or the device unsupported."""
    fail = ctypes.CDLL(module.__file__).on_host_fail
    fail.argtypes = [ctypes.c_char_p]
    message = ctypes.create_string_buffer(words.encode())
    fail(message)
    yield
    fail(None)
