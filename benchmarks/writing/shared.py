"""Run a language model on rows that continue few prompts, many at once, on one CPU core.

Keys and values of a prompt are computed and kept once for all rows that continue it, and rows attend to what
is there, not to a whole cache. Matrix products are oneDNN's, which on some processors take half the time of
those that torch chooses.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface

_NAME = "iet-benchmarks-shared"

Floats = NDArray[np.float32]


class _Layer:
    """Keys and values of one layer: of the prompts, and of what each row has written after its own.

    Positions are the last axis, so that the kernels read what lies side by side.
    """

    def __init__(self, keys: Tensor, values: Tensor, copies: int, tokens: int) -> None:
        prompts, heads, self._prompt, size = keys.shape
        self._prompt_keys, self._prompt_values = (x.mT.contiguous().numpy() for x in (keys, values))
        shape = (prompts * copies, heads, size, tokens)
        self._keys, self._values = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, at: int, scaling: float) -> Tensor:
        """Keep keys and values [B, KV, 1, D] of place `at`, and return what queries [B, H, 1, D] find."""
        rows, heads, _, size = key.shape
        scaled_query = query.reshape(rows, heads, -1, size) * scaling
        scores = torch.empty(*scaled_query.shape[:3], self._prompt + at + 1)
        _score(scaled_query.numpy(), key.numpy(), self._prompt_keys, self._keys, at, scores.numpy())
        shares = torch.softmax(scores, -1).numpy()
        out = torch.empty(scaled_query.shape)
        _gather(shares, value.numpy(), self._prompt_values, self._values, at, out.numpy())
        return out.view(rows, -1, size)


class _Rows:
    """The state of a model's layers between the steps of one batch."""

    def __init__(self, copies: int, tokens: int) -> None:
        self.copies, self.tokens, self.at = copies, tokens, -1
        self.layers: dict[int, _Layer] = {}


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    *,
    scaling: float,
    rows: _Rows,
    **_: Any,
) -> tuple[Tensor, None]:
    if rows.at < 0:
        rows.layers[module.layer_idx] = _Layer(key, value, rows.copies, rows.tokens)
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return attended.transpose(1, 2), None
    attended = rows.layers[module.layer_idx].attend(query, key, value, rows.at, scaling)
    return attended[:, None], None


AttentionInterface.register(_NAME, _attention)


def steps(model: Any, ids: Tensor, start: int, copies: int) -> Iterator[Tensor]:
    """Yield the raw float32 logits [B, V] of one position after another; the caller writes it into `ids`.

    `ids` is [B, P + M], P = `start`; of every `copies` rows in a row the first P ids are the same. The model
    is in float32 on the CPU, every position attends to all before it, and a head has a multiple of 4 numbers.
    """
    rows = _Rows(copies, ids.shape[1] - start)
    more = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with _attending(model):
        seen = ids[::copies, :start]
        positions = torch.arange(start)[None]
        output = model(input_ids=seen, position_ids=positions, use_cache=False, rows=rows, **more)
        yield output.logits[:, -1].float().repeat_interleave(copies, 0)
        for end in range(start, ids.shape[1] - 1):
            rows.at = end - start
            positions = torch.full((1, 1), end)
            output = model(
                input_ids=ids[:, end : end + 1], position_ids=positions, use_cache=False, rows=rows
            )
            yield output.logits[:, -1].float()


@contextlib.contextmanager
def _attending(model: Any) -> Iterator[None]:
    implementation = model.config._attn_implementation
    linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
    model.set_attn_implementation(_NAME)
    for module in linear:
        packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
        vars(module)["forward"] = functools.partial(_linear, packed, module.bias)
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)
        for module in linear:
            del module.forward


def _linear(packed: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    # oneDNN: on some processors twice as fast as what torch takes for float32
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


@numba.njit(fastmath=True, cache=True)
def _score(query: Floats, key: Floats, shared: Floats, keys: Floats, at: int, scores: Floats) -> None:
    """Keep the keys of place `at`, and write the scores of the prompt's places and of own ones."""
    rows, heads, groups, size = query.shape
    copies, prompt = rows // len(shared), shared.shape[3]
    for row in range(rows):
        for head in range(heads):
            for d in range(size):
                keys[row, head, d, at] = key[row, head, 0, d]
            for group in range(groups):
                row_query, row_scores = query[row, head, group], scores[row, head, group]
                _products(row_query, shared[row // copies, head], row_scores[:prompt])
                _products(row_query, keys[row, head], row_scores[prompt:])


@numba.njit(fastmath=True, cache=True)
def _products(query: Floats, keys: Floats, out: Floats) -> None:
    for j in range(len(out)):
        out[j] = 0
    for d in range(0, len(query), 4):  # four at once: a score is read and written a quarter as often
        a, b, c, e = query[d], query[d + 1], query[d + 2], query[d + 3]
        first, second, third, fourth = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
        for j in range(len(out)):
            out[j] += a * first[j] + b * second[j] + c * third[j] + e * fourth[j]


@numba.njit(fastmath=True, cache=True)
def _gather(shares: Floats, value: Floats, shared: Floats, values: Floats, at: int, out: Floats) -> None:
    """Keep the values of place `at`, and write those of all places, summed by their shares."""
    rows, heads, groups, size = out.shape
    copies, prompt = rows // len(shared), shared.shape[3]
    for row in range(rows):
        for head in range(heads):
            of_prompt, row_values = shared[row // copies, head], values[row, head]
            for d in range(size):
                row_values[d, at] = value[row, head, 0, d]
            for group in range(groups):
                first, later_shares = shares[row, head, group, :prompt], shares[row, head, group, prompt:]
                for d in range(size):
                    out[row, head, group, d] = _dot(first, of_prompt[d]) + _dot(later_shares, row_values[d])


@numba.njit(fastmath=True, cache=True)
def _dot(shares: Floats, values: Floats) -> np.float32:
    total = np.float32(0)
    for j in range(len(shares)):
        total += shares[j] * values[j]
    return total
