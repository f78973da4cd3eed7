"""What the tests of the paper's experiments share."""

from __future__ import annotations

import pytest

from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """That of the shipped model."""
    return Tokenizer(DEMO_SOURCE)


@pytest.fixture
def any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a local server takes for a key."""
    monkeypatch.setenv("OPENAI_API_KEY", "any word")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
