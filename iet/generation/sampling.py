"""Family gumbel where an engine samples: of a row one token is left, chosen with keyed noise.

An engine shows a processor its logits and samples from them afterwards. So the processor forms the
distribution that the engine would draw from, adds the keyed noise to it, takes the largest, and hands back a
row in which only that token is left: whatever the sampler does to such a row, this token is drawn. With
drafts, rejection sampling accepts one exactly if it is the token.

A row is left to the sampler if its token is free or its position is not scored: no agent, or an unmarked id
in its context. The seed holds how often the context stands earlier in the sequence, prompt included, so that
a repeated context has noise of its own.
"""

from __future__ import annotations

import torch

from iet.marks.scheme import Profile

_COLUMNS = 4096  # of a sequence, looked at together: memory stays small beside the logits


class ContextIds:
    """Which ids may stand in the context of a marked position; one table for each device."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._unmarked: dict[torch.device, torch.Tensor] = {}

    def are_marked(self, contexts: torch.Tensor) -> torch.Tensor:
        """Tell which rows [B] have no unmarked id in their context [B, n-1]; embed_ refuses placeholders."""
        vocab_size = self._profile.vocab_size
        if contexts.device not in self._unmarked:
            unmarked = torch.zeros(vocab_size + 1, dtype=torch.bool)
            unmarked[[*self._profile.unmarked_ids, vocab_size]] = True
            self._unmarked[contexts.device] = unmarked.to(contexts.device)
        table = self._unmarked[contexts.device]
        return ~(table[contexts.clamp(0, vocab_size).long()] & (contexts >= 0)).any(dim=-1)


def times_before(ids: torch.Tensor, ends: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
    """Count how often each row's context stands in its sequence before its last place.

    Args:
        ids: integers [B, T]; what stands from a row's end on is not looked at.
        ends: int64 [B], length of each sequence.
        contexts: integers [B, n-1], the last n-1 ids before `ends`.

    Returns:
        int64 [B]; 0 where the sequence is shorter than n. O(B·T·n), nothing is read back to the host.
    """
    words, rows = contexts.shape[1], len(ids)
    places = ids.shape[1] - words  # where a context can begin, the last place left out
    count = torch.zeros(rows, dtype=torch.int64, device=ids.device)
    last = (ends - words)[:, None]
    for low in range(0, places, _COLUMNS):
        high = min(low + _COLUMNS, places)
        same = torch.arange(low, high, device=ids.device) < last
        for word in range(words):
            same &= ids[:, low + word : high + word] == contexts[:, word, None]
        count += same.sum(dim=1)
    return count


def leave_one(noisy: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the logits, with only the largest of `noisy` left in some rows.

    Args:
        noisy: float32 [B, V'], final logits with noise; its memory is used for what is returned.
        logits: floating-point [B, V'], as the engine shows them.
        rows: bool [B], the rows in which one token is chosen.

    Returns:
        [B, V'] of the dtype of `logits`: in the chosen rows -inf but for one token, which keeps its logit.
    """
    best = noisy.max(dim=-1, keepdim=True).indices  # on the CPU half the time of argmax
    # In the room that is there: on the CPU new pages cost more than what is written to them.
    kept = logits.gather(1, best).float()
    chosen = noisy.fill_(-torch.inf).scatter_(1, best, kept).to(logits.dtype)
    return torch.where(rows[:, None], chosen, logits, out=chosen)
