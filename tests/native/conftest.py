"""The CUDA module without a GPU: compiled for the CPU, and as PTX that is interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import cuda_on_host
from tests.support.cuda_on_host import OnHost, empty_caches
from tests.support.ptx.build import TARGETS, Compiled, build, compile_kernels
from tests.support.ptx.device import Device
from tests.support.ptx.ops import Kernels


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


@pytest.fixture(params=["host", *TARGETS])
def device(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """Target that runs the kernels: the PTX of an architecture, or the sources compiled for the CPU."""
    if request.param == "host":
        device: Kernels = OnHost(request.getfixturevalue("module"))
    else:
        device = request.getfixturevalue("interpreted")
        device.target = request.param
    with empty_caches():
        yield device
