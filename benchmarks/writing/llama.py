"""Run a Llama on a CPU, a token a row and step, at a fraction of what transformers' modules take.

A model in bfloat16 multiplies in bfloat16, which takes half of the time; all else is float32. Rows attend to
the places that they have, not to those of the longest, and rows that have ended can be left out. The prompts
go through the model itself, a few rows at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaForCausalLM

_BLOCK = 64  # places whose keys lie side by side, so that a query is multiplied with all of them at once
_PROMPTS = (
    16  # that go through the model together: what they leave between layers stays in a processor's cache
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def fits(model: Any) -> bool:
    """Tell whether `steps` runs a model: a Llama on the CPU, in float32 or bfloat16, without biases."""
    return (
        type(model) is LlamaForCausalLM
        and model.device.type == "cpu"
        and model.dtype in (torch.float32, torch.bfloat16)
        and model.config.hidden_act == "silu"
        and not any(name.endswith(".bias") for name, _ in model.named_parameters())
    )


@dataclasses.dataclass(frozen=True)
class _Weights:
    """Of one layer; what is multiplied with the same numbers shares one matrix."""

    before_attention: Tensor
    query_key_value: Tensor
    output: Tensor
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class _Layer:
    """Keys and values of one layer, of all rows: those that are left out keep their room."""

    def __init__(self, rows: int, heads: int, size: int, positions: int) -> None:
        self._keys = torch.empty(rows, heads, -(-positions // _BLOCK), size, _BLOCK)
        self._values = torch.empty(rows, heads, positions, size)

    def keep(self, rows: Tensor, first: int, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values [B, KV, T, D] of T places from `first` on."""
        at = torch.arange(first, first + keys.shape[2])
        # Indices side by side with others between them come to the front.
        self._keys[rows[:, None], :, at // _BLOCK, :, at % _BLOCK] = keys.transpose(1, 2).float()
        self._values[rows[:, None], :, at] = values.transpose(1, 2).float()

    def attend(self, query: Tensor, rows: Tensor, firsts: Ints, end: int) -> Tensor:
        """Return what scaled queries [B, KV, G, D] find from each row's first place up to `end`."""
        scores = torch.empty(*query.shape[:3], end)
        _score(query.numpy(), self._keys.numpy(), rows.numpy(), firsts, scores.numpy())
        shares, out = torch.softmax(scores, -1), torch.empty_like(query)
        _gather(shares.numpy(), self._values.numpy(), rows.numpy(), firsts, out.numpy())
        return out


def steps(model: Any, ids: Tensor, real: Tensor, start: int) -> Generator[Tensor, Tensor | None, None]:
    """Yield what `sampler.steps` yields, for a model that `fits`; rows can be left out.

    `send` takes the numbers of the rows to go on with, int64, among those of the last logits, and yields
    these logits' rows again. `ids` keeps all rows: the caller writes each drawn id into its row.
    """
    config, rope = model.config, model.model.rotary_emb
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    size = model.model.layers[0].self_attn.head_dim
    weights = [_weights(layer) for layer in model.model.layers]
    layers = [_Layer(len(ids), kv, size, ids.shape[1]) for _ in weights]
    positions = (real.cumsum(1) - 1).clamp(min=0)
    firsts = real.int().argmax(1)
    rows = torch.arange(len(ids))
    logits = torch.cat(
        [
            _read(model, ids[:, :start], firsts, positions, layers, chunk)
            for chunk in torch.split(rows, _PROMPTS)
        ]
    )
    eps = config.rms_norm_eps
    for end in range(start, ids.shape[1]):
        kept_rows = yield logits
        while kept_rows is not None:
            rows, logits = rows[kept_rows], logits[kept_rows]
            kept_rows = yield logits
        x = functional.embedding(ids[rows, end], model.model.embed_tokens.weight).float()
        cos, sin = (part[:, 0, None] for part in rope(x, positions[rows, end, None]))
        first_positions = firsts[rows].numpy()
        for w, layer in zip(weights, layers, strict=True):
            h = functional.rms_norm(x, x.shape[-1:], w.before_attention, eps)
            parts = _linear(h, w.query_key_value).view(len(rows), heads + 2 * kv, size)
            turning = parts[:, : heads + kv]
            turned = torch.cat([-turning[..., size // 2 :], turning[..., : size // 2]], -1)
            turning = turning * cos + turned * sin
            layer.keep(rows, end, turning[:, heads:, None], parts[:, heads + kv :, None])
            query = turning[:, :heads].reshape(len(rows), kv, heads // kv, size) * size**-0.5
            attended = layer.attend(query, rows, first_positions, end + 1).view(len(rows), heads * size)
            x = x + _linear(attended, w.output)
            h = functional.rms_norm(x, x.shape[-1:], w.before_mlp, eps)
            gate, up = _linear(h, w.gate_up).chunk(2, -1)
            x = x + _linear(functional.silu(gate) * up, w.down)
        x = functional.rms_norm(x, x.shape[-1:], model.model.norm.weight.float(), eps)
        logits = _linear(x, model.lm_head.weight)


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product in float32, computed in the type of the weights."""
    return functional.linear(x.to(weight.dtype), weight).float()


def _read(
    model: Any, ids: Tensor, firsts: Tensor, positions: Tensor, layers: list[_Layer], rows: Tensor
) -> Tensor:
    """Read the prompts of some rows, keep their keys and values, and return the logits that follow."""
    low, high = int(firsts[rows].min()), ids.shape[1]
    cache: Any = DynamicCache(config=model.config)
    output = model(
        input_ids=ids[rows, low:],
        attention_mask=(torch.arange(low, high) >= firsts[rows, None]).long(),
        position_ids=positions[rows, low:high],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    for layer, read in zip(layers, cache.layers, strict=True):
        layer.keep(rows, low, read.keys, read.values)
    logits: Tensor = output.logits[:, -1].float()
    return logits


def _weights(layer: Any) -> _Weights:
    attention, mlp = layer.self_attn, layer.mlp
    return _Weights(
        layer.input_layernorm.weight.float(),
        torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight.float(),
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        mlp.down_proj.weight,
    )


@numba.njit(fastmath=True, cache=True)
def _score(query: Floats, keys: Floats, rows: Ints, firsts: Ints, scores: Floats) -> None:
    """Write the products of queries with the keys of a row's places; -inf before its first."""
    _, heads, groups, size = query.shape
    end = scores.shape[3]
    block_scores = np.empty((groups, _BLOCK), np.float32)
    for i in range(len(rows)):
        scores[i, :, :, : firsts[i]] = -np.inf
        for head in range(heads):
            for block in range(firsts[i] // _BLOCK, (end - 1) // _BLOCK + 1):
                near = keys[rows[i], head, block]
                block_scores[:] = 0
                for d in range(size):
                    for group in range(groups):
                        query_value = query[i, head, group, d]
                        for j in range(_BLOCK):
                            block_scores[group, j] += query_value * near[d, j]
                low, high = max(firsts[i], block * _BLOCK), min(end, (block + 1) * _BLOCK)
                for group in range(groups):
                    for j in range(low, high):
                        scores[i, head, group, j] = block_scores[group, j - block * _BLOCK]


@numba.njit(fastmath=True, cache=True)
def _gather(shares: Floats, values: Floats, rows: Ints, firsts: Ints, out: Floats) -> None:
    """Write the values of a row's places, summed by their shares."""
    _, heads, groups, size = out.shape
    for i in range(len(rows)):
        for head in range(heads):
            out[i, head], row_values = 0, values[rows[i], head]
            for j in range(firsts[i], shares.shape[3]):
                for group in range(groups):
                    share, summed = shares[i, head, group, j], out[i, head, group]
                    for d in range(size):
                        summed[d] += share * row_values[j, d]
