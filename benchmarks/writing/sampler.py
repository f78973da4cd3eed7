"""Sample from a language model of transformers, many rows at once.

A step: raw logits -> a penalty on repetition -> a raw mark -> temperature -> top-p -> any other mark -> one
draw. A Llama on a CPU runs in `llama`, where rows that have ended are left out; any other model
runs through transformers' own static cache, and a row that has ended goes on unseen until all have.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

from benchmarks.writing import llama

ENTROPY_EVERY = 8
"""Steps between two measurements of the entropy."""

_LEFT_OUT = 8  # rows are copied without ended ones when one in this number has ended
_BLOCK = 64  # ids summed at once when one is drawn
_TOP = 64  # ids among which the nucleus is looked for first, then among eight times as many

Mark = Callable[[Any, Any], Any]
"""(ids so far [B, T], logits [B, V]) -> marked logits, as processors of transformers; changes neither."""

Marking = Callable[[Sequence[int]], Mark | None]
"""Numbers of the rows that go on -> what marks them, None for nothing; asked again when rows are left out."""

Uniforms = Callable[[int], Tensor]
"""Number of a step -> what its ids are drawn with, [2, B, 1], uniform on [0, 1); asked for after the mark."""


@dataclasses.dataclass(frozen=True)
class Ends:
    ids: Sequence[int]  # that end a row, and are no part of it
    fewest: Tensor  # least tokens of each row [B]
    most: Tensor


@dataclasses.dataclass(frozen=True)
class Sampled:
    ids: Tensor  # int64 [B, M]
    lengths: Tensor  # int64 [B], tokens of each row before its end
    entropy: Tensor  # float64 [B], mean nats of the distribution before the mark, over every eighth token
    marked_entropy: Tensor  # the same of the distribution that is drawn from; 0 if the key alone decides


@torch.inference_mode()
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    uniforms: Uniforms,
    *,
    tokens: int,
    temperature: float,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    barred: Sequence[int] = (),
    pad: int = 0,
    ends: Ends | None = None,
    marking: Marking | None = None,
    raw: bool = False,
    on_logits: Callable[[Tensor, Tensor], object] | None = None,
) -> Sampled:
    """Continue prompts of any lengths, all in one batch.

    Args:
        model: causal language model of transformers, in evaluation mode.
        tokens: M, of the longest continuation.
        top_p: above 0; 1 keeps all.
        repetition_penalty: of ids that occur in the prompt or the continuation so far (`penalised`).
        barred: ids that are never drawn.
        pad: id that fills shorter prompts; no row attends to it.
        ends: None: every row has M tokens.
        raw: whether the mark comes before the temperature.
        on_logits: called at every eighth step with the final unmarked logits [B', V] and the rows that have
            not ended [B'], of the B' <= B rows that are still there.
    """
    device, longest = model.device, max(map(len, prompts))
    ids = torch.full((len(prompts), longest + tokens), pad)
    real = torch.ones(ids.shape, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) : longest] = torch.tensor(prompt)
        real[row, : longest - len(prompt)] = False
    ids, real = ids.to(device), real.to(device)
    rows = len(ids)
    if ends is None:
        ends = Ends((), torch.zeros(rows, dtype=torch.int64), torch.full((rows,), tokens))
    end_ids = torch.tensor(ends.ids, dtype=torch.int64, device=device)
    fewest, max_lengths = ends.fewest.to(device), ends.most.to(device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    lengths, measured = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
    entropy, marked_entropy = (torch.zeros(rows, dtype=torch.float64, device=device) for _ in range(2))
    here = torch.arange(rows, device=device)  # the rows that go on, and ended ones that are not left out yet
    mark = None if marking is None else marking(range(rows))
    can_leave = llama.fits(model)
    run: Any = (llama.steps if can_leave else steps)(model, ids, real, longest)
    logits = next(run)
    occurred = None  # ids [B, V] that each row holds so far, if that counts
    if repetition_penalty != 1:
        occurred = torch.zeros_like(logits, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            occurred[row, list(prompt)] = True
    for t in range(tokens):
        if occurred is not None:
            logits = penalised(logits, occurred[here], repetition_penalty)
        logits[:, list(barred)] = -torch.inf
        if len(end_ids):
            early = (fewest[here] > t)[:, None].expand(-1, len(end_ids))
            logits[:, end_ids] = logits[:, end_ids].masked_fill(early, -torch.inf)
        seen, measure = ids[here, : longest + t], t % ENTROPY_EVERY == 0
        marked = unmarked = nucleus(logits / temperature, top_p) if measure or not raw else logits
        if mark is not None and raw:
            marked = nucleus(mark(seen, logits) / temperature, top_p)
        elif mark is not None:
            marked = mark(seen, unmarked)
        gone = ended[here]
        if measure:
            entropy[here] += torch.where(gone, 0.0, entropies(unmarked))
            marked_entropy[here] += torch.where(gone, 0.0, entropies(marked))
            measured[here] += ~gone
            if on_logits is not None:
                on_logits(unmarked, ~gone)
        chosen = draw(marked, uniforms(t).to(device)[:, here])
        ids[here, longest + t] = chosen
        if occurred is not None:
            occurred[here, chosen] = True
        ended[here] |= torch.isin(chosen, end_ids)
        lengths += ~ended
        ended |= lengths >= max_lengths
        rows_left = int((~ended).sum())
        if not rows_left or t + 1 == tokens:
            break
        if can_leave and rows_left * _LEFT_OUT <= len(here) * (_LEFT_OUT - 1):
            rows_kept = torch.nonzero(~ended[here])[:, 0]
            run.send(rows_kept)
            here = here[rows_kept]
            mark = None if marking is None else marking(here.tolist())
        logits = next(run)
    measured = measured.clamp(min=1)
    return Sampled(
        ids[:, longest:].cpu(), lengths.cpu(), (entropy / measured).cpu(), (marked_entropy / measured).cpu()
    )


def steps(model: Any, ids: Tensor, real: Tensor, start: int) -> Iterator[Tensor]:
    """Yield the raw float32 logits [B, V] of one position after another; the caller writes it into `ids`.

    `ids` and `real` (no padding) are [B, P + M], with the prompts at the right end of the first P = `start`.
    """
    positions = (real.cumsum(1) - 1).clamp(min=0)
    more = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    cache, low = StaticCache(model.config, max_cache_len=ids.shape[1]), 0
    for end in range(start, ids.shape[1]):
        output = model(
            input_ids=ids[:, low:end],
            attention_mask=real[:, :end].long(),
            position_ids=positions[:, low:end],
            past_key_values=cache,
            use_cache=True,
            **more,
        )
        low = end
        yield output.logits[:, -1].float()


def penalised(logits: Tensor, occurred: Tensor, penalty: float) -> Tensor:
    """Return logits [B, V], lower where an id `occurred` [B, V]: divided by the penalty if above 0, else
    multiplied. As in transformers and in vLLM; 1 changes nothing.
    """
    return torch.where(occurred, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return logits, float32, with -inf outside the nucleus: the fewest likeliest ids whose probabilities
    reach `top_p`; 1 keeps all. O(V) where few ids are enough, else a sort.
    """
    logits = logits.float()
    return logits if top_p >= 1 else _nucleus(logits, top_p, min(_TOP, logits.shape[1]))


def _nucleus(logits: Tensor, top_p: float, width: int) -> Tensor:
    top, at = logits.topk(width)
    p = (top - logits.logsumexp(-1, keepdim=True)).exp()
    mass_before = p.cumsum(-1) - p
    masked = torch.full_like(logits, -torch.inf)
    masked.scatter_(1, at, top.masked_fill(mass_before >= top_p, -torch.inf))
    short = mass_before[:, -1] + p[:, -1] < top_p
    if width < logits.shape[1] and bool(short.any()):
        masked[short] = _nucleus(logits[short], top_p, min(8 * width, logits.shape[1]))
    return masked


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each row in nats, float64 [B]."""
    values: Tensor = torch.special.entr(torch.softmax(logits, -1)).sum(-1).double()
    return values


def draw(logits: Tensor, u: Tensor) -> Tensor:
    """Draw one id per row [B] from softmax(logits): first a block of ids, then one in it, by their inverse
    CDFs.

    `u` is [2, B, 1], uniform on [0, 1). NaN logits raise a ValueError: they would be drawn as id 0.
    """
    rows, size = logits.shape
    if size % _BLOCK:
        logits = torch.nn.functional.pad(logits, (0, -size % _BLOCK), value=-torch.inf)
    p = torch.softmax(logits, -1).view(rows, logits.shape[1] // _BLOCK, _BLOCK)
    if torch.isnan(p[:, 0, 0]).any():  # softmax spreads one NaN over its row
        raise ValueError("logits: got NaN, expected numbers or -inf")
    block = _invert(p.sum(-1), u[0])
    inside = _invert(p[torch.arange(rows, device=p.device), block], u[1])
    return block * _BLOCK + inside


def _invert(weights: Tensor, u: Tensor) -> Tensor:
    # An index of weight 0 is never met: the first sum above u·total is one that its own weight has raised.
    sums = weights.cumsum(-1)
    return (sums <= u * sums[:, -1:]).sum(-1).clamp_(max=weights.shape[1] - 1)


def times_before(ids: Tensor, context_len: int) -> Tensor:
    """Return how often the last `context_len` ids of each row [B, T] occurred earlier in it, int64 [B]."""
    contexts = ids.unfold(1, context_len, 1)
    return (contexts[:, :-1] == contexts[:, -1:]).all(dim=-1).sum(dim=1)
