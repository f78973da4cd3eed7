"""Open the language models that texts are read with."""

from __future__ import annotations

import os
from typing import Any

from iet.audit.progress_bars import no_progress_bars
from iet.errors import BackendUnavailable, InputError, missing
from iet.marks.tokenizer import DEMO_MODEL, DEMO_SOURCE, Tokenizer

SMOLLM2 = "smollm2"
"""The name of the model of `iet.audit.smollm2`."""


def open_model(model: Any, tokenizer: Any = None) -> tuple[Any, Tokenizer | None, str]:
    """Return a model, its tokenizer and its name.

    Args:
        model: a causal language model of transformers, its path or id on the Hub, "smollm2" or "iet:demo".
        tokenizer: its tokenizer, as `Tokenizer` takes it; None: that of the path. A model that is given as
            an object has None then.

    Raises:
        InputError: `model` is not such a model.
        TokenizerMismatch: the tokenizer cannot be read.
        BackendUnavailable: torch, transformers or SmolLM2 is not installed.
    """
    torch_module()
    if not isinstance(model, (str, os.PathLike)):
        parts = ("config", "forward", "device", "state_dict")
        if not all(hasattr(model, part) for part in parts) or not hasattr(model.config, "get_text_config"):
            raise InputError(
                f"model: got {type(model).__name__}, expected a causal model of transformers, or its path or"
                " id"
            )
        name = getattr(model.config, "_name_or_path", "") or type(model).__name__
        return model, None if tokenizer is None else Tokenizer(tokenizer), name
    try:
        import transformers
    except ImportError as error:
        raise _unavailable(error) from None
    path: Any = DEMO_MODEL if model == DEMO_SOURCE else model
    if model == SMOLLM2:
        from iet.audit import smollm2  # here, because it needs an extra

        path = smollm2.folder()
    try:
        with no_progress_bars():
            opened = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    except (OSError, ValueError) as error:
        raise InputError(f"model: {str(model)!r} holds no causal language model ({error})") from None
    source = os.fspath(path) if tokenizer is None else tokenizer
    return opened, Tokenizer(source), str(model)


def torch_module() -> Any:
    """Return torch.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise _unavailable(error) from None
    return torch


def _unavailable(error: ImportError) -> BackendUnavailable:
    return missing(f"reading with a model: {error}", "transformers")
