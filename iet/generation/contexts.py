"""Contexts of a sequence whose ids the engine keeps on the host, as a prompt and a growing list."""

from __future__ import annotations

import collections
from collections.abc import Sequence


class SequenceContexts:
    """The last n-1 ids of one sequence, and how often they occurred earlier in it.

    Each call processes the ids that the engine has appended since the last call. If the engine has removed
    ids, to sample them again, everything is counted again.

    Args:
        context_len: n-1.
        prompt: its ids, as far as they are known.
        output: the list to which the engine appends.
        counted: whether earlier contexts are counted.
    """

    _read: int  # number of ids of the output that are counted
    _last: tuple[int, ...]  # the last ids of the counted part
    _counts: collections.Counter[tuple[int, ...]]

    def __init__(self, context_len: int, prompt: Sequence[int], output: Sequence[int], counted: bool) -> None:
        self._context_len = context_len
        self._prompt, self._counted = prompt, counted
        self._prompt_end = tuple(prompt[-context_len:])
        self.output = output
        self._start()

    def last(self) -> tuple[int, ...]:
        """Return the last n-1 ids, fewer if the sequence is shorter."""
        output = self.output
        ids = output if len(output) >= self._context_len else [*self._prompt_end, *output]
        return tuple(ids[-self._context_len :])

    def times_before(self) -> int:
        """Return how often the last n-1 ids occurred earlier in the sequence."""
        counted = self._last[len(self._last) - min(self._context_len, self._read) :]
        if counted != tuple(self.output[self._read - len(counted) : self._read]):
            self._start()
        while self._read < len(self.output):
            if len(self._last) == self._context_len:
                self._counts[self._last] += 1
            self._last = (*self._last, self.output[self._read])[-self._context_len :]
            self._read += 1
        return self._counts[self._last]

    def _start(self) -> None:
        self._read, self._last = 0, self._prompt_end
        shifted = (self._prompt[shift:] for shift in range(self._context_len))
        contexts = list(zip(*shifted, strict=False)) if self._counted else []
        self._counts = collections.Counter(contexts[:-1])
