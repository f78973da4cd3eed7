"""Family gumbel on an engine's logits: add keyed noise, and mask all tokens of a row except the largest.

An engine shows a processor its logits and samples from them afterwards. The processor computes the
distribution that the engine would sample from, adds the keyed noise, and returns a row with the largest
token only. So every sampler draws this token; with drafts, rejection sampling accepts a draft exactly if it
is the token.

A row is left to the engine's sampler if its token is free, or if its position is not scored: it has no
agent, or an unmarked id in its context. Seeds hold how often the context occurred earlier in the sequence,
with its prompt, so that the noise of a repeated context differs.
"""

from __future__ import annotations

import torch

from iet.kernels import choose, embed_
from iet.marks.keys import KeyTable
from iet.marks.scheme import Profile

_COLUMNS = 4096  # positions that are compared at once, so that memory stays small compared with the logits


class ContextIds:
    """Which ids may occur in the context of a marked position; one table for each device."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._unmarked: dict[torch.device, torch.Tensor] = {}

    def are_marked(self, contexts: torch.Tensor) -> torch.Tensor:
        """Return which rows [B] have no unmarked id in their context [B, n-1]; negative ids pass."""
        vocab_size = self._profile.vocab_size
        if contexts.device not in self._unmarked:
            unmarked = torch.zeros(vocab_size + 1, dtype=torch.bool)
            unmarked[[*self._profile.unmarked_ids, vocab_size]] = True
            self._unmarked[contexts.device] = unmarked.to(contexts.device)
        table = self._unmarked[contexts.device]
        return ~(table[contexts.clamp(0, vocab_size).long()] & (contexts >= 0)).any(dim=-1)


def times_before(ids: torch.Tensor, ends: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
    """Count how often each row's context occurs in its sequence before the end.

    Args:
        ids: integers [B, T]; ids from a row's end on are ignored.
        ends: int64 [B], length of each sequence.
        contexts: integers [B, n-1], the last n-1 ids before `ends`.

    Returns:
        int64 [B]; 0 if the sequence is shorter than n. O(B·T·n); nothing is copied to the host.
    """
    context_len, rows = contexts.shape[1], len(ids)
    starts = ids.shape[1] - context_len  # number of positions at which an earlier context can start
    count = torch.zeros(rows, dtype=torch.int64, device=ids.device)
    last = (ends - context_len)[:, None]
    for low in range(0, starts, _COLUMNS):
        high = min(low + _COLUMNS, starts)
        same = torch.arange(low, high, device=ids.device) < last
        for i in range(context_len):
            same &= ids[:, low + i : high + i] == contexts[:, i, None]
        count += same.sum(dim=1)
    return count


def choose_and_force(
    final: torch.Tensor,
    logits: torch.Tensor,
    contexts: torch.Tensor,
    slots: torch.Tensor,
    keys: KeyTable,
    counts: torch.Tensor,
) -> torch.Tensor:
    """Choose the tokens of some rows, and force them by masking all others in the logits.

    Args:
        final: float32 [B, V'], the logits that the engine would sample from. Its memory is reused for the
            result, except for `logits` itself; on CUDA noise is added to it.
        logits: floating-point [B, V'], as the engine shows them.
        contexts, slots, counts: as `iet.kernels.choose` takes them, all contexts without unmarked ids;
            slot -1 for a row that stays as it is.
        keys: of the slots.

    Returns:
        [B, V'] of the dtype of `logits`, as `force_token` returns them.
    """
    if final.device.type != "cpu":
        embed_(final, contexts, slots, keys, counts=counts)
        return force_token(final, final.max(dim=-1, keepdim=True).indices, logits, slots >= 0)
    chosen = torch.from_numpy(choose(final, contexts, slots, keys, counts=counts))
    memory = torch.empty_like(final) if final is logits else final
    return force_token(memory, chosen.clamp(min=0)[:, None], logits, chosen >= 0)


def force_token(
    memory: torch.Tensor, tokens: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Force a token in some rows, by masking all others in the logits.

    Args:
        memory: float32 [B, V'], reused for the result.
        tokens: int64 [B, 1].
        logits: floating-point [B, V'], as the engine shows them.
        rows: bool [B], the rows to change.

    Returns:
        [B, V'] of the dtype of `logits`: in the changed rows -inf, except for one token, which keeps its
        logit.
    """
    # Reuse the buffer: on the CPU, touching new memory costs more than writing to it.
    of_tokens = logits.gather(1, tokens).float()
    forced = memory.fill_(-torch.inf).scatter_(1, tokens, of_tokens).to(logits.dtype)
    return torch.where(rows[:, None], forced, logits, out=forced)
