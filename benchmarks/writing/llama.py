"""Run a Llama in float32 on a CPU, a token a row and step, at a fraction of what transformers' modules take.

Rows attend to the places that there are, not to a whole cache, and rows that have ended can be left out. The
prompts go through the model itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaForCausalLM


def fits(model: Any) -> bool:
    """Tell whether `steps` runs a model: a Llama on the CPU, in float32, without biases."""
    return (
        type(model) is LlamaForCausalLM
        and model.device.type == "cpu"
        and model.dtype == torch.float32
        and model.config.hidden_act == "silu"
        and not any(name.endswith(".bias") for name, _ in model.named_parameters())
    )


@dataclasses.dataclass(frozen=True)
class _Weights:
    """Of one layer; what is multiplied with the same numbers stands in one matrix."""

    before_attention: Tensor
    query_key_value: Tensor
    output: Tensor
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


def steps(model: Any, ids: Tensor, real: Tensor, start: int) -> Generator[Tensor, Tensor | None, None]:
    """Yield what `sampler.steps` yields, for a model that `fits`; rows can be left out.

    `send` takes the numbers of the rows to go on with, int64, among those of the last logits, and yields
    these logits' rows again. `ids` keeps all rows: the caller writes what it draws where the row stands.
    """
    config, rope = model.config, model.model.rotary_emb
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    size = model.model.layers[0].self_attn.head_dim
    weights = [_weights(layer) for layer in model.model.layers]
    places = (real.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=config)
    logits = model(
        input_ids=ids[:, :start],
        attention_mask=real[:, :start].long(),
        position_ids=places[:, :start],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    shape = (len(ids), kv, size, ids.shape[1])
    keys, values = list[Tensor](), list[Tensor]()
    layers: Any = cache.layers
    for layer in layers:
        # Places last: of all layouts the one in which products with few queries are fastest.
        for kept, found in ((keys, layer.keys), (values, layer.values)):
            kept.append(torch.empty(shape).index_copy_(3, torch.arange(start), found.mT))
    del cache
    hidden_places = torch.zeros(real.shape).masked_fill_(~real, -torch.inf)[:, None, None]
    rows = torch.arange(len(ids))
    eps = config.rms_norm_eps
    for end in range(start, ids.shape[1]):
        left = yield logits
        while left is not None:
            rows, logits, hidden_places = rows[left], logits[left], hidden_places[left]
            keys, values = [x[left] for x in keys], [x[left] for x in values]
            left = yield logits
        x = functional.embedding(ids[rows, end], model.model.embed_tokens.weight)
        cos, sin = (part[:, 0, None] for part in rope(x, places[rows, end, None]))
        shown = hidden_places[..., : end + 1]
        for w, k, v in zip(weights, keys, values, strict=True):
            h = functional.rms_norm(x, x.shape[-1:], w.before_attention, eps)
            parts = functional.linear(h, w.query_key_value).view(len(rows), heads + 2 * kv, size)
            turning = parts[:, : heads + kv]
            turned = torch.cat([-turning[..., size // 2 :], turning[..., : size // 2]], -1)
            turning = turning * cos + turned * sin
            k[..., end], v[..., end] = turning[:, heads:], parts[:, heads + kv :]
            query = turning[:, :heads].reshape(len(rows), kv, heads // kv, size) * size**-0.5
            shares = torch.softmax(torch.matmul(query, k[..., : end + 1]) + shown, -1)
            found = torch.matmul(shares, v[..., : end + 1].mT).view(len(rows), heads * size)
            x = x + functional.linear(found, w.output)
            h = functional.rms_norm(x, x.shape[-1:], w.before_mlp, eps)
            gate, up = functional.linear(h, w.gate_up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, w.down)
        x = functional.rms_norm(x, x.shape[-1:], model.model.norm.weight, eps)
        logits = functional.linear(x, model.lm_head.weight)


def _weights(layer: Any) -> _Weights:
    attention, mlp = layer.self_attn, layer.mlp
    return _Weights(
        layer.input_layernorm.weight,
        torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        mlp.down_proj.weight,
    )
