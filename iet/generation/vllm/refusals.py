"""What becomes of a request that is admitted and cannot be marked after all: it ends, without a word.

An exception next to the model ends vLLM's engine, and everybody's requests with it. Nothing there can refuse
one request, but its row can be left with the end of the text alone. So nobody gets text without its mark, and
all others are served.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

REFUSED = -2
"""In place of a row of the keys: the request is neither marked nor unmarked, but ended."""

_log = logging.getLogger("iet.generation.vllm")


def tell(problem: object) -> None:
    """Write to the server's log why a request is ended, or why none can be marked."""
    _log.error("%s", problem)


def end_of_text(vllm_config: Any) -> int:
    """Return the id that ends a text, 0 where the model's configuration names none."""
    model = vllm_config.model_config
    for name in ("hf_config", "hf_text_config"):  # of models for images and text, the second has it
        found = getattr(getattr(model, name, None), "eos_token_id", None)
        found = found[0] if isinstance(found, (list, tuple)) and found else found
        if isinstance(found, int) and 0 <= found < model.get_vocab_size():
            return found
    return 0


def close_(logits: torch.Tensor, rows: torch.Tensor, end: int) -> torch.Tensor:
    """Leave one token in some rows, in place.

    Args:
        logits: floating-point [B, V'].
        rows: bool [B], or their int64 indices.
        end: the id of that token.
    """
    logits[rows] = -torch.inf
    logits[rows, end] = 0.0
    return logits
