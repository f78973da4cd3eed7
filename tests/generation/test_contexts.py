"""Counts of contexts in a sequence whose list an engine extends and shortens."""

from __future__ import annotations

import numpy as np
import pytest

from iet.generation.contexts import SequenceContexts


def counted_at_once(words: int, ids: list[int]) -> int:
    """Number of earlier occurrences of the last `words` ids."""
    last = ids[-words:]
    return sum(ids[i : i + words] == last for i in range(len(ids) - words)) if len(ids) >= words else 0


@pytest.mark.parametrize("words", [1, 2, 3])
@pytest.mark.parametrize("prompt", [[], [1], [0, 1, 0, 1, 1, 0]], ids=str)
def test_counts_follow_a_growing_and_shrinking_list(words: int, prompt: list[int]) -> None:
    rng, output = np.random.default_rng(words), list[int]()
    contexts = SequenceContexts(words, prompt, output, True)
    shortened = 0
    for _ in range(300):
        if rng.random() < 0.2 and output:  # an engine takes back what it samples again
            del output[-int(rng.integers(1, min(5, len(output)) + 1)) :]
            shortened += 1
        output += rng.integers(0, 2, int(rng.integers(0, 3))).tolist()
        assert contexts.last() == tuple([*prompt, *output][-words:])
        if len(prompt) + len(output) >= words:
            assert contexts.times_before() == counted_at_once(words, [*prompt, *output])
    assert shortened > 30
