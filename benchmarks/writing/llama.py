"""Run a Llama on a CPU, a token a row and step, at a fraction of what transformers' modules take.

A model in bfloat16 multiplies in bfloat16, which takes half of the time; sums over layers and attention to
earlier tokens are float32. Rows attend to the places that they have, not to those of the longest, and rows
that have ended can be left out. Prompts go through the layers end to end, without padding.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as nn
from transformers import LlamaForCausalLM

_BLOCK = 64  # places whose keys lie side by side, so that a query is multiplied with all of them at once
_PROMPT_TOKENS = 2048  # of prompts that go through the model together

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(number of the layer, query [N, H, D], keys and values [N, KV, D]) -> what the query finds [N, ..., D]."""


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


class _Network:
    """The layers of a model, from token ids to logits; attention is a function of the caller's."""

    def __init__(self, model: Any) -> None:
        self.config, inner = model.config, model.model
        self.head_size: int = inner.layers[0].self_attn.head_dim
        self.layers = [_weights(layer) for layer in inner.layers]
        self._embedding, self._rope = inner.embed_tokens.weight, inner.rotary_emb
        self._norm, self._head = inner.norm.weight.float(), model.lm_head.weight

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the last layer's states [N, E] of tokens [N] at positions [N]."""
        heads, kv, size = self.config.num_attention_heads, self.config.num_key_value_heads, self.head_size
        x = nn.embedding(ids, self._embedding).float()
        cos, sin = (part[0, :, None] for part in self._rope(x, positions[None]))
        for number, w in enumerate(self.layers):
            parts = _linear(self._scaled(x, w.before_attention), w.query_key_value)
            parts = parts.view(len(ids), heads + 2 * kv, size)
            turning, values = parts[:, : heads + kv], parts[:, heads + kv :]
            turned = torch.cat([-turning[..., size // 2 :], turning[..., : size // 2]], -1)
            turned = torch.addcmul(turning * cos, turned, sin)
            found = attend(number, turned[:, :heads], turned[:, heads:], values)
            x = x + _linear(found.reshape(len(ids), -1), w.output)
            gate, up = _linear(self._scaled(x, w.before_mlp), w.gate_up).chunk(2, -1)
            x = x + _linear(nn.silu(gate) * up, w.down)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V] of states [N, E]."""
        return _linear(self._scaled(hidden, self._norm), self._head).float()

    def _scaled(self, x: Tensor, weight: Tensor) -> Tensor:
        return nn.rms_norm(x, x.shape[-1:], weight, self.config.rms_norm_eps)


def steps(model: Any, ids: Tensor, real: Tensor, start: int) -> Generator[Tensor, Tensor | None, None]:
    """Yield what `sampler.steps` yields, for a model that `fits`; rows can be left out.

    `send` takes the numbers of the rows to go on with, int64, among those of the last logits, and yields
    these logits' rows again. `ids` keeps all rows: the caller writes each drawn id into its row.
    """
    network = _Network(model)
    kv, size = model.config.num_key_value_heads, network.head_size
    layers = [_Layer(len(ids), kv, size, ids.shape[1]) for _ in network.layers]
    positions = (real.cumsum(1) - 1).clamp(min=0)
    firsts = real.int().argmax(1)
    rows = torch.arange(len(ids))
    chunks = _chunks(firsts, start)
    logits = torch.cat([_read(network, ids, firsts, start, layers, chunk) for chunk in chunks])
    for end in range(start, ids.shape[1]):
        kept_rows = yield logits
        while kept_rows is not None:
            rows, logits = rows[kept_rows], logits[kept_rows]
            kept_rows = yield logits
        attend = functools.partial(_attend, layers, rows, firsts[rows].numpy(), end)
        logits = network.logits(network.hidden(ids[rows, end], positions[rows, end], attend))


def _attend(
    layers: list[_Layer],
    rows: Tensor,
    firsts: Ints,
    end: int,
    number: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Let the next token of each row, at place `end`, attend to those before it and to itself."""
    layers[number].keep(rows, end, keys[:, :, None], values[:, :, None])
    size, kv = query.shape[-1], keys.shape[1]
    grouped = query.float().reshape(len(rows), kv, -1, size) * size**-0.5
    return layers[number].attend(grouped, rows, firsts, end + 1)


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product in the type of the weights."""
    return nn.linear(x.to(weight.dtype), weight)


def _chunks(firsts: Tensor, start: int) -> list[list[int]]:
    """Return the rows in parts whose prompts have at most `_PROMPT_TOKENS` together, or of one row."""
    chunks: list[list[int]] = [[]]
    tokens = 0
    for row, length in enumerate((start - firsts).tolist()):
        if chunks[-1] and tokens + length > _PROMPT_TOKENS:
            chunks.append([])
            tokens = 0
        chunks[-1].append(row)
        tokens += length
    return chunks


def _read(
    network: _Network, ids: Tensor, firsts: Tensor, start: int, layers: list[_Layer], rows: list[int]
) -> Tensor:
    """Read the prompts of some rows, keep their keys and values, and return the logits [B, V] that follow."""
    begins = firsts[rows].tolist()
    lengths = [start - first for first in begins]
    tokens = torch.cat([ids[row, first:start] for row, first in zip(rows, begins, strict=True)])
    positions = torch.cat([torch.arange(length) for length in lengths])
    dtype = network.layers[0].output.dtype

    def attend(number: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Let each row attend to itself."""
        attended = []
        parts = (torch.split(part.transpose(0, 1), lengths, 1) for part in (query, keys, values))
        for row, first, q, k, v in zip(rows, begins, *parts, strict=True):
            layers[number].keep(torch.tensor([row]), first, k[None], v[None])
            groups = len(q) // len(k)
            k, v = (part.repeat_interleave(groups, 0)[None].to(dtype) for part in (k, v))
            found = nn.scaled_dot_product_attention(q[None].to(dtype), k, v, is_causal=True)
            attended.append(found[0].transpose(0, 1))
        return torch.cat(attended)

    hidden = network.hidden(tokens, positions, attend)
    return network.logits(hidden[torch.tensor(lengths).cumsum(0) - 1])


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
