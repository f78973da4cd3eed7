"""Real text that every CPython carries, as ids of the tokenizer that ships with the demo."""

from __future__ import annotations

import functools
import pydoc_data.topics

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from iet.demo.conversation import MODEL

NOTE = (
    "Real text: the language reference that CPython carries, as ids of the demo's tokenizer of 4,096 tokens."
    " So few tokens repeat contexts more often than a large vocabulary would, which favours peers that"
    " remember contexts; ours remembers none."
)


def text() -> str:
    """Return about 460,000 characters of English prose with code."""
    return "\n\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))


@functools.cache
def real_ids() -> NDArray[np.int64]:
    """Return the text as ids [T], T about 140,000."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return np.array(tokenizer.encode(text(), add_special_tokens=False).ids, dtype=np.int64)
