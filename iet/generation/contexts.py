"""Contexts of a sequence that an engine keeps on the host, as a prompt and a list of what was sampled."""

from __future__ import annotations

import collections
from collections.abc import Sequence


class SequenceContexts:
    """The last n-1 ids of one sequence, and how often they stood there before.

    Args:
        words: n-1.
        prompt: its ids, as far as they are known.
        output: the list to which the engine appends.
        counted: whether earlier contexts are counted.

    A call costs what the engine has appended since the last one. Where it has taken ids back, to sample them
    again, all are counted anew.
    """

    _read: int  # how far the output is counted
    _place: tuple[int, ...]  # the last ids there
    _counts: collections.Counter[tuple[int, ...]]

    def __init__(self, words: int, prompt: Sequence[int], output: Sequence[int], counted: bool) -> None:
        self._words = words
        self._prompt, self._counted = prompt, counted
        self._prompt_end = tuple(prompt[-words:])
        self.output = output
        self._start()

    def last(self) -> tuple[int, ...]:
        """Return the last n-1 ids, fewer where the sequence is shorter."""
        output = self.output
        known = output if len(output) >= self._words else [*self._prompt_end, *output]
        return tuple(known[-self._words :])

    def times_before(self) -> int:
        """Return how often the last n-1 ids stood in the sequence before."""
        known = self._place[len(self._place) - min(self._words, self._read) :]
        if known != tuple(self.output[self._read - len(known) : self._read]):
            self._start()
        while self._read < len(self.output):  # each new id makes the place before it an earlier one
            if len(self._place) == self._words:
                self._counts[self._place] += 1
            self._place = (*self._place, self.output[self._read])[-self._words :]
            self._read += 1
        return self._counts[self._place]

    def _start(self) -> None:
        self._read, self._place = 0, self._prompt_end
        words, prompt = range(self._words), self._prompt
        places = list(zip(*(prompt[word:] for word in words), strict=False)) if self._counted else []
        self._counts = collections.Counter(places[:-1])
