"""The canonical communication topologies: templates, classification, and a walk along the edges.

Deterministic; a template or a class costs O(n²), a step of a walk at most O(n²).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Bools

Edges = Iterable[tuple[int, int]]
Adjacency = Bools

OTHER = "other"
"""The class of a graph that equals no template."""

TOPOLOGIES: Mapping[str, Callable[[int], Edges]] = {
    "chain": lambda n: ((i, i + 1) for i in range(n - 1)),
    "star_pure": lambda n: ((0, i) for i in range(1, n)),
    "tree": lambda n: (((i - 1) // 2, i) for i in range(1, n)),
    "circle": lambda n: ((i, (i + 1) % n) for i in range(n)),
    # The star, and a ring over 1 .. n-1.
    "star_ring": lambda n: ((i, j) for j in range(1, n) for i in (0, j % (n - 1) + 1)),
    "complete": lambda n: ((i, j) for i in range(n) for j in range(i)),
}
"""Name -> edges over agents 0 .. n-1, as in MAMA's `generate_adj`. `classify` prefers earlier names."""


class Match(NamedTuple):
    """The class of a graph: `matches` are all templates that it equals, `name` the first, or "other"."""

    name: str
    matches: tuple[str, ...]


def template(name: str, n: int) -> Adjacency:
    """Return the symmetric adjacency matrix of a topology over agents 0 .. n-1.

    Args:
        name: a key of `TOPOLOGIES`.
        n: number of agents, at least 2.

    Returns:
        [n, n] bool, zero diagonal.

    Raises:
        InputError: the name is unknown, or n is not from 2 to 10,000.

    >>> template("star_pure", 3).astype(int).tolist()
    [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    """
    if name not in TOPOLOGIES:
        raise InputError(f"topology: got {name!r}, expected one of {list(TOPOLOGIES)}")
    check_number("n", n, 2, 10_000)
    adjacency = np.zeros((n, n), np.bool_)
    for i, j in TOPOLOGIES[name](int(n)):
        adjacency[i, j] = adjacency[j, i] = i != j
    return adjacency


def classify(adjacency: npt.ArrayLike) -> Match:
    """Name the topology whose template has the same edges, on the symmetrised support.

    Non-zero entries are edges. Direction and diagonal do not count; labels do: a star is one around agent 0.
    Small graphs equal several templates (with two agents all are one edge; with four, star_ring is complete):
    `matches` holds all, in the order of `TOPOLOGIES`. The paper names the classes and gives no rule.

    Args:
        adjacency: [n, n] numbers or bool.

    Returns:
        Match; `Match("other", ())` if no template fits or n < 2.

    Raises:
        ShapeError: it is not a square matrix.

    >>> classify([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    Match(name='chain', matches=('chain',))
    """
    support = _support(adjacency)
    support |= support.T
    n = len(support)
    matches = tuple(name for name in TOPOLOGIES if n >= 2 and np.array_equal(template(name, n), support))
    return Match(matches[0] if matches else OTHER, matches)


def walk(adjacency: npt.ArrayLike, length: int, start: int = 0, seed: int = 0) -> list[int]:
    """Return a random walk on the graph: a sequence of speakers, each a neighbour of the last.

    Unused edges come first: from where none is left, the walk takes a shortest way to the next one, so a
    connected graph is covered soon; then all count as unused again. An edge is used in either direction.

    Args:
        adjacency: [n, n]; non-zero (i, j) allows j after i. The diagonal is ignored.
        length: number of speakers, at least 0.
        start: the first speaker.
        seed: any int; ties are broken by `random.Random(seed)`.

    Returns:
        `length` agents; equal for equal arguments.

    Raises:
        ShapeError: it is not a square matrix.
        InputError: `start` or `length` is out of range, or an agent without successors is reached.

    >>> walk(template("chain", 4), 7)
    [0, 1, 2, 3, 2, 1, 0]
    """
    support = _support(adjacency)
    if not 0 <= start < len(support):
        raise InputError(f"start: got {start!r}, expected an agent from 0 to {len(support) - 1}")
    check_number("length", length, 0)
    neighbours = [np.flatnonzero(row).tolist() for row in support]
    choose = random.Random(seed).choice
    speakers, used = [start], set[frozenset[int]]()
    while len(speakers) < length:
        path = _to_unused_edge(neighbours, speakers[-1], used, choose)
        if not path:
            used.clear()
            path = _to_unused_edge(neighbours, speakers[-1], used, choose)
        if not path:
            raise InputError(f"adjacency: got no agent that may follow agent {speakers[-1]}")
        for speaker in path:
            used.add(frozenset((speakers[-1], speaker)))
            speakers.append(speaker)
    return speakers[:length]


def _to_unused_edge(
    neighbours: list[list[int]],
    start: int,
    used: set[frozenset[int]],
    choose: Callable[[list[list[int]]], list[int]],
) -> list[int]:
    """Return the agents on a shortest way from `start` over an unused edge, or [] if there is none."""
    paths, reached = [[start]], {start}
    while paths:
        longer = [[*path, j] for path in paths for j in neighbours[path[-1]]]
        unused = [path for path in longer if frozenset(path[-2:]) not in used]
        if unused:
            return choose(unused)[1:]
        paths = []
        for path in longer:
            if path[-1] not in reached:
                reached.add(path[-1])
                paths.append(path)
    return []


def _support(adjacency: npt.ArrayLike) -> Adjacency:
    support = edges_of(adjacency)
    np.fill_diagonal(support, False)
    return support


def edges_of(adjacency: npt.ArrayLike) -> Adjacency:
    """Return which entries of a square matrix [n, n] are not 0, or raise ShapeError."""
    array = np.asarray(adjacency)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ShapeError("adjacency", got=list(array.shape), expected="a square matrix [n, n]")
    return np.asarray(array != 0)
