"""What several agents said, as it was generated, and the text that survives."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a log was made with.

    Attributes:
        topology: a name of `iet.topology.TOPOLOGIES`.
        agents: n.
        protocol: "round-major" or "edge-walk".
        mark: a key of `MARKS`.
        model: digest of the model's parameters and tokenizer.
        temperature, top_p: of the sampler.
        joiner: what stands between turns.
        seed: of everything that is drawn.
    """

    topology: str
    agents: int
    protocol: str
    mark: str
    model: str
    temperature: float
    top_p: float
    joiner: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Turn:
    """What an agent said at once.

    Attributes:
        agent: 0 to n - 1.
        round: 0 for the Genesis turn.
        ids: tokens as they were sampled.
        text: as it stands in the log's text.
    """

    agent: int
    round: int
    ids: tuple[int, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Log:
    """The turns of one record, in the order in which the text has them."""

    setting: Setting
    record: int
    turns: tuple[Turn, ...]

    @property
    def text(self) -> str:
        """All that an auditor gets."""
        return self.setting.joiner.join(turn.text for turn in self.turns)

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """Characters `[start, end)` and agent of each turn; a joiner belongs to the turn after it."""
        lengths = [len(turn.text) for turn in self.turns]
        if lengths:
            lengths[1:] = [length + len(self.setting.joiner) for length in lengths[1:]]
        ends = list(itertools.accumulate(lengths))
        starts = [0, *ends[:-1]]
        return tuple(
            (start, end, turn.agent) for start, end, turn in zip(starts, ends, self.turns, strict=True)
        )

    @property
    def edges(self) -> NDArray[np.float64]:
        """The true adjacency matrix A* [n, n]: 1 where agent j speaks right after another agent i."""
        edges = np.zeros((self.setting.agents, self.setting.agents))
        for before, after in itertools.pairwise(self.turns):
            if before.agent != after.agent:
                edges[before.agent, after.agent] = 1.0
        return edges
