"""The CUDA module without a GPU: compiled for the CPU, and as PTX that is interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import cuda_on_host
from tests.support.ptx.build import Compiled, build, compile_kernels
from tests.support.ptx.device import Device


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    with cuda_on_host.built() as module:
        yield module


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The kernels as nvcc compiles them, once: most of what the tests of this folder cost."""
    return compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def interpreted(
    request: pytest.FixtureRequest, kernels: Compiled, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    """Run the PTX of csrc/cuda; report at the end how much of it ran."""
    device = Device(build(tmp_path_factory.mktemp("cuda"), kernels))
    yield device
    terminal = request.config.pluginmanager.getplugin("terminalreporter")
    terminal.write_line("")
    for line in device.summary():
        terminal.write_line(line)
