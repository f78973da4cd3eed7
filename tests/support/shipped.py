"""The small model that ships with the package."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from iet.demo.conversation import MODEL, load_model


@functools.cache
def shipped_model() -> tuple[Any, Any]:
    """The model and its tokenizer, of transformers."""
    pytest.importorskip("transformers")
    if not (MODEL / "model.safetensors").is_file():
        pytest.skip("the model that ships with the package is not in this checkout")
    return load_model()
