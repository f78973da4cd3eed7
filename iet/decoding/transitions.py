"""The transitions between agents in a segmented text (§ Transition Structure Encoding)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.decoding.topology import Match, classify, edges_of
from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Bools, Float64s, Int64s
from iet.native.load import loops


class Transition(NamedTuple):
    """One observed passage from `source` to `target`, which starts at token `start`; its P_ij.

    In the report on a text whose agents have several profiles, and so tokens of several kinds, `start` is a
    character.
    """

    start: int
    source: Hashable
    target: Hashable
    confidence: float


@dataclasses.dataclass(frozen=True, eq=False)
class Transitions:
    """The transition structure of a text, over the agents that occur in it (K of them).

    It describes the linearised output, not the communication that produced it (the paper's own caveat).

    Attributes:
        agents: K agents in ascending order of their columns: the labels of all matrices.
        observed: the passages in the order of the text.
    """

    agents: tuple[Hashable, ...]
    observed: tuple[Transition, ...]

    @property
    def passages(self) -> dict[tuple[Any, Any], list[float]]:
        """The P_ij of every passage, by (source, target), in the order of the text."""
        grouped: dict[tuple[Any, Any], list[float]] = {}
        for _, source, target, confidence in self.observed:
            grouped.setdefault((source, target), []).append(confidence)
        return grouped

    @property
    def confidence(self) -> Float64s:
        """Â [K, K] float64: Â_ij is the highest P_ij over the boundaries from i to j, 0 without one."""
        matrix = np.zeros((len(self.agents), len(self.agents)))
        for (source, target), grouped in self.passages.items():
            matrix[self.agents.index(source), self.agents.index(target)] = max(grouped)
        return matrix

    @property
    def adjacency(self) -> Bools:
        """M [K, K] bool: whether a passage from i to j was observed."""
        matrix = np.zeros((len(self.agents), len(self.agents)), np.bool_)
        for source, target in self.passages:
            matrix[self.agents.index(source), self.agents.index(target)] = True
        return matrix

    @property
    def bitmask(self) -> int:
        """μ = g(M) (Eq. matrix_encoding), a Python int of up to K² bits."""
        return to_bitmask(self.adjacency)

    @property
    def topology(self) -> Match:
        """The class of the symmetrised M, with `agents` as the labels 0 .. K-1."""
        return classify(self.adjacency)

    def accumulate(self) -> list[tuple[int, int]]:
        """Return (t, μ_t) after every passage: M_t holds what was observed up to token t."""
        masks, mask = [], 0
        for start, source, target, _ in self.observed:
            mask |= 1 << (self.agents.index(source) * len(self.agents) + self.agents.index(target))
            masks.append((start, mask))
        return masks

    def rename(self, names: Mapping[Hashable, Hashable]) -> Transitions:
        """Return the same transitions between other labels, such as names for columns."""
        observed = (Transition(at, names[i], names[j], p) for at, i, j, p in self.observed)
        return Transitions(tuple(names[a] for a in self.agents), tuple(observed))

    def moved(self, new_starts: Mapping[int, int]) -> Transitions:
        """Return the same transitions with `start` replaced by its place, such as a character's."""
        observed = (Transition(new_starts[at], i, j, p) for at, i, j, p in self.observed)
        return dataclasses.replace(self, observed=tuple(observed))

    def to_dot(self) -> str:
        """Return the graph in Graphviz' DOT: agents, and edges with their count and Â_ij.

        >>> print(Transitions(("planner", "critic"), (Transition(9, "planner", "critic", 0.75),)).to_dot())
        digraph transitions {
          "planner";
          "critic";
          "planner" -> "critic" [label="×1 (0.75)"];
        }
        """
        lines = [f"  {_dot_id(agent)};" for agent in self.agents]
        lines += [
            f'  {_dot_id(source)} -> {_dot_id(target)} [label="×{len(p)} ({max(p):.2f})"];'
            for (source, target), p in self.passages.items()
        ]
        return "\n".join(["digraph transitions {", *lines, "}"])

    def dense(self, all_agents: Iterable[Hashable]) -> Transitions:
        """Return the same transitions with matrices over `all_agents`, in that order.

        Args:
            all_agents: labels of the new matrices, among them all of `agents`.

        Raises:
            InputError: an agent is named twice, or one that occurs is missing.
        """
        agents = tuple(all_agents)
        if len(set(agents)) < len(agents) or not set(self.agents) <= set(agents):
            raise InputError(f"all_agents: got {agents}, expected distinct agents, among them {self.agents}")
        return dataclasses.replace(self, agents=agents)


def _dot_id(label: Hashable) -> str:
    # In a quoted string \\ and \" are escaped; names contain no line ends.
    escaped = str(label).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def to_bitmask(adjacency: npt.ArrayLike) -> int:
    """Encode an adjacency matrix as an int.

        μ = g(M) = Σ_{i=1}^{K} Σ_{j=1}^{K} M_ij · 2^{(i-1)K + (j-1)}      (Eq. matrix_encoding)

    Args:
        adjacency: M [K, K]; non-zero entries are ones.

    Raises:
        ShapeError: it is not a square matrix.

    >>> to_bitmask([[0, 1], [0, 0]])
    2
    """
    bits = edges_of(adjacency).ravel()
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def from_bitmask(bitmask: int, agents: int) -> Bools:
    """Decode `to_bitmask`: return M [K, K] bool.

    Args:
        bitmask: μ, at least 0.
        agents: K.

    Raises:
        InputError: `bitmask` is negative or has more than K² bits, or K is negative.

    >>> from_bitmask(2, 2).tolist()
    [[False, True], [False, False]]
    """
    if agents < 0 or bitmask < 0 or bitmask >> (agents * agents):
        raise InputError(f"bitmask: got {bitmask} for {agents} agents, expected 0 to 2^(agents²) - 1")
    size = agents * agents
    octets = np.frombuffer(bitmask.to_bytes((size + 7) // 8, "little"), np.uint8)
    return np.unpackbits(octets, count=size, bitorder="little").astype(np.bool_).reshape(agents, agents)


def transitions(
    segments: Sequence[tuple[int, int, int]],
    window_scores: npt.ArrayLike,
    window: int = 64,
    step: int = 16,
    neighbourhood: int = 8,
    max_gap: int = 0,
) -> Transitions:
    """Collect the passages between the segments of a text, each with its confidence.

        f̄_L(a), f̄_R(a) = means of f(t, a) over the h windows before and after the boundary
        P_ij = σ([f̄_L(a_i) - max_{k≠i} f̄_L(a_k)] + [f̄_R(a_j) - max_{k≠j} f̄_R(a_k)]),    σ(x) = 1/(1 + e^-x)
        Â_ij = max_s P_ij^{(s)} over the boundaries s from i to j

    (§ Transition Estimation and Aggregation). The paper leaves open h, whether t counts windows, and what
    happens near other boundaries. Here windows are placed at their centres; one on the boundary itself
    belongs to neither side, as in the paper's sums; both sides end at the ends of their own segment, so a
    short one does not mix in its neighbours; a side without a window takes the one whose centre is nearest
    to the segment's middle.

    Unattributed segments are not an agent; by default no transition is counted across them.

    Args:
        segments: (start, end, agent) in order, as in `Segmentation.segments`; agent -1 = unattributed. Empty
            ones are skipped and neighbouring ones of one agent are one.
        window_scores: f [W, A] as `iet.decoding.windows` gives it, over all agents of the registry.
        window, step: the ones that f was made with.
        neighbourhood: h in windows, at least 1.
        max_gap: the longest unattributed gap in tokens across which i to j still counts, at j's start.

    Returns:
        Transitions over the agents that occur, which are columns of f.

    Raises:
        ShapeError: f is not [W, A] with the columns that `segments` names.
        InputError: a parameter is out of range, or segments overlap.

    Cost: O(S·h·A). Deterministic.
    """
    f = np.asarray(window_scores, np.float64)
    spans = _merge(segments)
    agents = sorted({agent for _, _, agent in spans if agent >= 0})
    if f.ndim != 2 or (agents and (agents[-1] >= f.shape[1] or not len(f))):
        raise ShapeError("window_scores", got=list(f.shape), expected="[W, A] with a column for every agent")
    for name, value in (("window", window), ("step", step), ("neighbourhood", neighbourhood)):
        check_number(name, value, 1)
    attributed = [span for span in spans if span[2] >= 0]
    passages = [
        (*first, *second)
        for first, second in itertools.pairwise(attributed)
        if first[2] != second[2] and second[0] - first[1] <= max_gap
    ]
    width = min(window, spans[-1][1] if spans else window)
    table = np.array(passages, np.int64).reshape(-1, 6)
    left_leads = _leads(f, table[:, :3], width, step, neighbourhood, True)
    leads = left_leads + _leads(f, table[:, 3:], width, step, neighbourhood, False)
    confidences = (1 / (1 + np.exp(-leads))).tolist()
    observed = (Transition(p[3], p[2], p[5], c) for p, c in zip(passages, confidences, strict=True))
    return Transitions(tuple(agents), tuple(observed))


def _merge(segments: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    merged: list[tuple[int, int, int]] = []
    for start, end, agent in segments:
        if (merged and start < merged[-1][1]) or end < start:
            raise InputError(f"segments: got [{start}, {end}), expected ascending spans that do not overlap")
        if merged and merged[-1][1:] == (start, agent):
            merged[-1] = (merged[-1][0], end, agent)
        elif end > start:
            merged.append((start, end, agent))
    return merged


def _leads(f: Float64s, sides: Int64s, width: int, step: int, neighbourhood: int, ending: bool) -> Float64s:
    """Return f̄(a) - max_{k≠a} f̄(k), or f̄(a) if A = 1, over the end or the beginning of each segment."""
    leads, means = np.empty(len(sides)), np.empty(f.shape[1])
    loops.leads(f, sides, width, step, neighbourhood, ending, means, leads)
    return leads
