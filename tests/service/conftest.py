"""A registry file that the tests of a file share."""

from __future__ import annotations

import pathlib

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def registry(folder: pathlib.Path) -> pathlib.Path:
    from tests.support.service import registry_file  # skips the test if the extra is not installed

    return registry_file(folder)
