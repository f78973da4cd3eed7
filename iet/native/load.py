"""Load the compiled modules, and say what is in use: their only importer.

Three backends: `cpu` (the compiled module), `cuda` (a module of its own, loaded on first use) and
`reference` (NumPy, the kernels only), the fallback without the compiled module. All agree to the bit.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import os
import pathlib
import re
import subprocess
import sys
import warnings
from typing import Any

from iet.errors import BackendUnavailable, IetError, InputError

SCHEME_VERSION = 1
"""Version of the format in `reference.py` and `csrc/keyed.h`, which `tests/vectors` holds answers of."""


@dataclasses.dataclass(frozen=True)
class Backends:
    """The backends in use, and the reasons.

    Attributes:
        host: "cpu" or "reference": what numpy arrays and CPU tensors use.
        isa: instruction set in use ("baseline", "avx2", "avx512"), or None on `reference`.
        isas: those that this build and machine can run.
        cpu: a sentence about the compiled module.
        cuda: a sentence about the CUDA module.
        cuda_devices: how many CUDA devices the driver shows.
    """

    host: str
    isa: str | None
    isas: tuple[str, ...]
    cpu: str
    cuda: str
    cuda_devices: int


def load(name: str) -> tuple[Any, str]:
    """Return a native module, or None, and a sentence that says why."""
    if os.environ.get("IET_BACKEND") == "reference":
        return None, "IET_BACKEND=reference asks for the reference backend"
    try:
        module = importlib.import_module(f"iet.native.{name}")
    except ModuleNotFoundError:
        return None, f"this installation has no compiled module iet.native.{name}"
    except ImportError as error:
        return None, f"the compiled module iet.native.{name} cannot be loaded ({error})"
    if module.scheme_version != SCHEME_VERSION:
        return (
            None,
            f"iet.native.{name} was built for scheme {module.scheme_version}, expected {SCHEME_VERSION}:"
            " rebuild it",
        )
    built = f" ({module.build})" if hasattr(module, "build") else ""
    return module, f"the compiled module iet.native.{name} is loaded{built}"


@functools.cache
def load_cuda() -> Any:
    """Return the CUDA module, loaded on first use."""
    module, why = load("_cuda")
    if module is None:
        raise BackendUnavailable(
            f"CUDA: {why}; it is in the wheels for Linux on x86-64, and in what is built where nvcc is found"
            " (pip install -v . says so); or move the tensors with .cpu() first: nothing is copied between"
            " devices silently"
        )
    return module


def _load_cpu() -> tuple[Any, str]:
    backend = os.environ.get("IET_BACKEND", "")
    if backend not in ("", "cpu", "reference"):
        raise InputError(f'IET_BACKEND: got {backend!r}, expected "cpu" or "reference"')
    module, why = load("_cpu")
    if module is None:
        if backend == "cpu":
            raise BackendUnavailable(f"IET_BACKEND=cpu, but {why}")
        if backend == "":
            if (pathlib.Path(__file__).parents[2] / "csrc").is_dir():
                why += "; this is the source tree: pip install -e ."
            warnings.warn(f"iet runs on its slow reference backend: {why}", RuntimeWarning, stacklevel=2)
        return None, why
    threads = os.environ.get("IET_NUM_THREADS") or "1"
    if not re.fullmatch("0*[1-9][0-9]{0,4}", threads, re.ASCII):
        raise InputError(f"IET_NUM_THREADS: got {threads!r}, expected a number from 1 to 99999")
    isa = os.environ.get("IET_CPU")
    if isa and not module.select_isa(isa):
        raise BackendUnavailable(
            f"IET_CPU: got {isa!r}, expected one of {module.isas().split()} on this machine"
        )
    return module, why


_refusal: IetError | None = None
try:
    cpu, _why_cpu = _load_cpu()
except IetError as error:  # raised by the first op, so that `import iet` succeeds
    cpu, _why_cpu, _refusal = None, str(error), error


class _Missing:
    """Replaces the compiled module if it is missing."""

    def __getattr__(self, name: str) -> Any:
        check_environment()
        raise BackendUnavailable(
            f"audits, decoders and foreign marks need the compiled module, but {_why_cpu}; the reference"
            " backend only has the kernels (iet.kernels)"
        )


compiled: Any = _Missing() if cpu is None else cpu
"""The compiled module, for what has no NumPy fallback."""

loops: Any = _Missing() if cpu is None else cpu.loops
"""Loops over arrays in C++ (csrc/cpu/*_loops.cpp). They check types and dimensions, but no index."""


def check_environment() -> None:
    """Raise what is wrong with IET_BACKEND, IET_CPU or IET_NUM_THREADS: every op calls this first."""
    if _refusal is not None:
        raise _refusal


def backends() -> Backends:
    """Return what is in use, and why. Loads the CUDA module, but does not initialise CUDA in this process.

    If there is a driver, another process counts its devices, once.
    """
    check_environment()
    module, why_cuda = load("_cuda")
    devices = 0
    if module:
        devices, why_none = _devices(module)
        why_cuda += f"; {devices} device{'' if devices == 1 else 's'}"
        why_cuda += f" ({why_none})" if devices == 0 else ""
    if cpu is None:
        return Backends("reference", None, (), _why_cpu, why_cuda, devices)
    return Backends("cpu", cpu.isa(), tuple(cpu.isas().split()), _why_cpu, why_cuda, devices)


def _devices(module: Any) -> tuple[int, str]:
    """Return how many devices the driver shows, and why none.

    A process that has initialised CUDA cannot fork children that use it, and to count devices initialises
    it: so one that has not done so asks another process.
    """
    # Loaded without a call: even the runtime's question for the driver's version initialises.
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0, "no CUDA driver"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return module.device_count(), module.device_error()
    return _devices_seen_elsewhere(module.__file__, os.environ.get("CUDA_VISIBLE_DEVICES"))


@functools.cache
def _devices_seen_elsewhere(file: str, visible: str | None) -> tuple[int, str]:
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('_cuda', sys.argv[1]);"
        " module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module);"
        " print(module.device_count(), module.device_error())"
    )
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, file], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, f"no process could ask the driver: {error}"
    count, _, why = process.stdout.strip().partition(" ")
    if process.returncode != 0 or not count.isdigit():
        return (
            0,
            f"the process that asked the driver ended with {process.returncode}: {process.stderr[-200:]}",
        )
    return int(count), why
