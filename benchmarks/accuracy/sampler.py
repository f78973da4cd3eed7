"""Sample many marked continuations at once on one CPU core.

`model.generate` spends most of its time on the cache: it copies all keys and values at every step, and
repeats them once per query head. Here the rows of one prompt share its keys and values, new ones are written
into buffers that are allocated once, and a query head reads the keys of its group where they lie.
Everything is float32, and a token is drawn from the same distribution as there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache

import iet
from iet.marks.keys import KeyTable

ENTROPY_EVERY = 8
"""Steps between two measurements of the entropy."""

_ATTENTION = "shared_prompt"
_BLOCK = 64  # tokens summed at once when one is drawn


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What was sampled.

    Attributes:
        ids: int64 [rows, tokens].
        entropy: float64 [rows], mean nats of the model's distribution at the temperature, before the mark.
        marked_entropy: the same of the distribution that a token is drawn from, given the key; 0 for a token
            that the key alone decides.
        unmarked: bool [rows, tokens], tokens drawn without a mark although the row has a slot.
    """

    ids: NDArray[np.int64]
    entropy: NDArray[np.float64]
    marked_entropy: NDArray[np.float64]
    unmarked: NDArray[np.bool_]


@torch.inference_mode()
def sample(
    model: Any,
    prompts: NDArray[np.int64],
    slots: NDArray[np.int64],
    keys: KeyTable,
    *,
    tokens: int,
    temperature: float,
    barred: Sequence[int],
    seed: int,
) -> Drawn:
    """Continue every prompt once per slot, all continuations in one batch.

    Args:
        model: causal language model of transformers in float32 evaluation mode, on the CPU.
        prompts: [N, P], all of one length.
        slots: [N, A], the key of each continuation, -1 for an unmarked one.
        keys: of the registry.
        tokens: of each continuation.
        temperature: above 0; κ counts after it.
        barred: ids that are never drawn.
        seed: of the draws. Equal on one machine and version of torch.

    Returns:
        Drawn, rows in the order of `slots`. Family "gumbel": a token is the argmax after the noise; where
        the n-1 ids before it stood in this prompt or continuation before, it is drawn without a mark.
    """
    model.set_attn_implementation(_ATTENTION)
    generator = torch.Generator().manual_seed(seed)
    prompted, speakers = slots.shape
    rows, prompt_length = prompted * speakers, prompts.shape[1]
    n = keys.profile.scheme.n_gram
    gumbel = keys.profile.scheme.family == "gumbel"
    cache = _TurnCache(speakers, tokens)
    ids = torch.empty(rows, prompt_length + tokens, dtype=torch.int64)
    ids[:, :prompt_length] = torch.from_numpy(prompts).repeat_interleave(speakers, 0)
    slot = torch.from_numpy(slots.reshape(rows))
    seen = _Contexts(ids, prompt_length, n) if gumbel else None
    entropy, marked_entropy = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64)
    unmarked = torch.zeros(rows, tokens, dtype=torch.bool)
    measured = 0
    step = torch.from_numpy(prompts)
    for t in range(prompt_length, prompt_length + tokens):
        hidden = model.base_model(input_ids=step, past_key_values=cache, use_cache=True).last_hidden_state
        logits = model.get_output_embeddings()(hidden[:, -1])
        if t == prompt_length:
            logits = logits.repeat_interleave(speakers, 0)
        logits /= temperature
        logits[:, list(barred)] = -torch.inf
        measure = (t - prompt_length) % ENTROPY_EVERY == 0
        if measure:
            measured += 1
            entropy += _entropy(logits)
        chosen = torch.empty(rows, dtype=torch.int64)
        free = torch.ones(rows, dtype=torch.bool)
        if seen is not None:
            free = seen.repeated(t) | (slot < 0)
            unmarked[:, t - prompt_length] = free
            at = free.nonzero()[:, 0]
            if len(at):
                chosen[at] = _draw(logits[at], generator)
                if measure:
                    marked_entropy[at] += _entropy(logits[at])
            marking = torch.where(free, -1, slot)
            iet.embed_(logits, ids[:, t - n + 1 : t], marking, keys, num_threads=1)
            chosen = torch.where(free, chosen, logits.max(-1).indices)  # half the time of argmax
        else:
            iet.embed_(logits, ids[:, t - n + 1 : t], slot, keys, num_threads=1)
            if measure:
                marked_entropy += _entropy(logits)
            chosen = _draw(logits, generator)
        ids[:, t] = chosen
        step = chosen[:, None]
    return Drawn(
        ids[:, prompt_length:].numpy(),
        (entropy / measured).numpy(),
        (marked_entropy / measured).numpy(),
        unmarked.numpy(),
    )


def _entropy(logits: Tensor) -> Tensor:
    log_p = torch.log_softmax(logits, -1)
    return torch.special.entr(log_p.exp()).sum(-1).double()


def _draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    return draw(logits, torch.rand(2, len(logits), 1, generator=generator))


def draw(logits: Tensor, u: Tensor) -> Tensor:
    """Draw one id per row from softmax(logits): first a block of ids, then one in it, by their inverse CDFs.

    Args:
        logits: [B, V].
        u: [2, B, 1], uniform on [0, 1).

    Returns:
        int64 [B].
    """
    rows, size = logits.shape
    if size % _BLOCK:
        logits = torch.nn.functional.pad(logits, (0, -size % _BLOCK), value=-torch.inf)
    p = torch.softmax(logits, -1).view(rows, -1, _BLOCK)
    block = _invert(p.sum(-1), u[0])
    inside = _invert(p[torch.arange(rows, device=p.device), block], u[1])
    return block * _BLOCK + inside


def _invert(weights: Tensor, u: Tensor) -> Tensor:
    # An index of weight 0 is never met: the first sum above u·total is one that its own weight has raised.
    sums = weights.cumsum(-1)
    return (sums <= u * sums[:, -1:]).sum(-1).clamp_(max=weights.shape[1] - 1)


class _Contexts:
    """Which rows stand behind n-1 ids that their sequence has shown before."""

    def __init__(self, ids: Tensor, prompt_length: int, n: int) -> None:
        self.ids, self.width = ids, n - 1
        self.codes = torch.zeros(ids.shape, dtype=torch.int64)  # of the n-1 ids that end before a position
        for t in range(self.width, prompt_length):
            self._note(t)

    def _note(self, t: int) -> None:
        code = torch.zeros(len(self.ids), dtype=torch.int64)
        for column in self.ids[:, t - self.width : t].unbind(1):
            code = code * 1_000_003 + column
        self.codes[:, t] = code

    def repeated(self, t: int) -> Tensor:
        """Tell it of the context before position `t`, for t one after another."""
        self._note(t)
        return (self.codes[:, self.width : t] == self.codes[:, t : t + 1]).any(1)


class _TurnCache(Cache):
    """Keys and values of prompts, which the continuations of a prompt share, and of the continuations."""

    def __init__(self, speakers: int, tokens: int) -> None:
        super().__init__(layers=[])
        self.speakers, self.tokens = speakers, tokens
        self.prompts: list[tuple[Tensor, Tensor]] = []
        self.own: list[tuple[Tensor, Tensor]] = []
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def update(  # type: ignore[override]  # what comes back goes to `_attention` alone
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        batch, heads, length, width = key_states.shape
        if layer_idx == len(self.prompts):
            self.prompts.append((key_states.contiguous(), value_states.contiguous()))
            shape = (batch * self.speakers, heads, self.tokens, width)
            self.own.append((torch.empty(shape), torch.empty(shape)))
            if layer_idx == 0:
                self.length = length
            return key_states, value_states
        if layer_idx == 0:
            self.length += 1
        prompt = self.prompts[layer_idx]
        end = self.length - prompt[0].shape[2]
        keys, values = self.own[layer_idx]
        keys[:, :, end - 1 : end] = key_states
        values[:, :, end - 1 : end] = value_states
        return (prompt[0], keys[:, :, :end]), (prompt[1], values[:, :, :end])


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor | tuple[Tensor, Tensor],
    value: Tensor | tuple[Tensor, Tensor],
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention over prompts, or one query per row over its prompt and what the row has said."""
    if isinstance(key, Tensor):
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return mixed.transpose(1, 2).contiguous(), None
    (prompt_keys, keys), (prompt_values, values) = key, value
    rows, heads, _one, width = query.shape
    prompted, groups, prompt_length = prompt_keys.shape[:3]
    query = (query * scaling).reshape(rows, groups, heads // groups, width)
    over_prompt = _apart(_together(query, prompted) @ prompt_keys.transpose(-1, -2), rows)
    over_own = query @ keys.transpose(-1, -2)
    weights = torch.softmax(torch.cat([over_prompt, over_own], -1), -1)
    on_prompt, on_own = weights.split([prompt_length, keys.shape[2]], -1)
    mixed = _apart(_together(on_prompt, prompted) @ prompt_values, rows) + on_own @ values
    return mixed.reshape(rows, 1, heads, width), None


def _together(x: Tensor, prompted: int) -> Tensor:
    """Put the rows of a prompt side by side: [N·A, groups, heads, ...] to [N, groups, A·heads, ...]."""
    rows, groups, heads, width = x.shape
    x = x.reshape(prompted, rows // prompted, groups, heads, width).transpose(1, 2)
    return x.reshape(prompted, groups, -1, width)


def _apart(x: Tensor, rows: int) -> Tensor:
    """Undo `_together`."""
    prompted, groups, _, width = x.shape
    x = x.reshape(prompted, groups, rows // prompted, -1, width).transpose(1, 2)
    return x.reshape(rows, groups, -1, width)


AttentionInterface.register(_ATTENTION, _attention)  # type: ignore[arg-type]
