"""The CUDA module that runs on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import cuda_on_host


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    with cuda_on_host.built() as module:
        yield module
