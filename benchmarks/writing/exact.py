"""Run a Llama in float64, so that another processor or version of torch draws the same tokens.

Sums in another order differ in the 16th digit here, and a draw hangs on that in one token of some 10^13. In
float32, as transformers runs it (norms and angles are float32 there even in a model of float64), it is one of
some 10^6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from iet.errors import InputError


def steps(model: Any, ids: Tensor, start: int) -> Iterator[Tensor]:
    """Yield the raw logits [B, V], float64, of one position after another; the caller writes it into `ids`.

    `ids` is [B, P + M] with P = `start`. Every position attends to all before it.

    Raises:
        InputError: the model is no Llama in float64 with default rotations.
    """
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    if (config.model_type, model.dtype, rope.get("rope_type")) != ("llama", torch.float64, "default"):
        raise InputError(
            f"model: got a {config.model_type} in {model.dtype} with rotations {rope.get('rope_type')!r},"
            " expected a llama in torch.float64 with 'default' ones"
        )
    inner = model.model
    kv, size = config.num_key_value_heads, inner.layers[0].self_attn.head_dim
    eps = config.rms_norm_eps
    frequencies = rope["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(ids.shape[1], dtype=torch.float64)[:, None] * frequencies.repeat(2)
    turns = angles.cos(), angles.sin()
    shape = (len(inner.layers), 2, len(ids), kv, ids.shape[1], size)
    kept = torch.empty(shape, dtype=torch.float64)
    low = 0
    for end in range(start, ids.shape[1]):
        x = functional.embedding(ids[:, low:end], inner.embed_tokens.weight)
        for layer, (keys, values) in zip(inner.layers, kept, strict=True):
            own = layer.self_attn
            h = functional.rms_norm(x, x.shape[-1:], layer.input_layernorm.weight, eps)
            query, key, value = (
                part(h).view(len(ids), end - low, -1, size).transpose(1, 2)
                for part in (own.q_proj, own.k_proj, own.v_proj)
            )
            keys[:, :, low:end] = _turned(key, turns, low, end)
            values[:, :, low:end] = value
            query = _turned(query, turns, low, end).reshape(len(ids), kv, -1, size)  # [B, KV, G·T, D]
            scores = (query @ keys[:, :, :end].mT * size**-0.5).view(len(ids), kv, -1, end - low, end)
            later = torch.ones(end - low, end, dtype=torch.bool).triu(low + 1)
            shares = torch.softmax(scores.masked_fill_(later, -torch.inf), -1).flatten(2, 3)
            found = (shares @ values[:, :, :end]).view(len(ids), -1, end - low, size)
            x = x + own.o_proj(found.transpose(1, 2).flatten(2))
            h = functional.rms_norm(x, x.shape[-1:], layer.post_attention_layernorm.weight, eps)
            x = x + layer.mlp.down_proj(functional.silu(layer.mlp.gate_proj(h)) * layer.mlp.up_proj(h))
        low = end
        yield model.lm_head(functional.rms_norm(x[:, -1], x.shape[-1:], inner.norm.weight, eps))


def _turned(x: Tensor, turns: tuple[Tensor, Tensor], low: int, end: int) -> Tensor:
    """Return queries or keys [B, H, T, D] turned by the angles of their places."""
    cos, sin = (turn[low:end] for turn in turns)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
