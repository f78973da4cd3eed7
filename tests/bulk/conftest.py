"""The registry whose agents wrote some of the documents, and what reads it."""

from __future__ import annotations

import pytest

from iet.audit.auditor import Auditor
from iet.marks.registry import Registry
from tests.support.bulk_documents import team


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return team(tmp_path_factory.mktemp("team"))


@pytest.fixture(scope="session")
def auditor(registry: Registry) -> Auditor:
    return Auditor(registry, "cusum")
