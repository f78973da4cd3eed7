"""Random models of transformers, small enough that a test can run them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def tiny_model(vocab_size: int, kind: str = "Llama", *, seed: int = 0, **config: Any) -> Any:
    """Two layers of 32 units, which never end a text: whatever differs is in `config`."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.2,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        **config,
    }
    configuration = getattr(transformers, f"{kind}Config")(**sizes)
    return getattr(transformers, f"{kind}ForCausalLM")(configuration).eval()
