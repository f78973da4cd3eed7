"""Fixtures of the tests of the paper's experiments."""

from __future__ import annotations

import pytest

from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The tokenizer of the shipped model."""
    return Tokenizer(DEMO_SOURCE)


@pytest.fixture
def any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set an API key; a local server accepts any word."""
    monkeypatch.setenv("OPENAI_API_KEY", "any word")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
