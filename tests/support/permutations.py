"""NumPy's permutations, as the Waterfall package draws them."""

from __future__ import annotations

from typing import Any

import numpy as np


def numpys(key: int, context: Any, vocab_size: int) -> np.ndarray[Any, Any]:
    return np.random.RandomState([int(key), *(int(id) for id in context)]).permutation(vocab_size)
