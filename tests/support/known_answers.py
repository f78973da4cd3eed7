"""The frozen answers in tests/vectors."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

FOLDER = pathlib.Path(__file__).parents[1] / "vectors"


def vectors(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def from_bits(values: list[str], dtype: str = "float32") -> Any:
    """Numbers of a dtype from their hexadecimal bits; bfloat16 stays bits."""
    unsigned = np.uint32 if dtype == "float32" else np.uint16
    array = np.array([int(value, 16) for value in values], dtype=unsigned)
    return array if dtype == "bfloat16" else array.view(dtype)
