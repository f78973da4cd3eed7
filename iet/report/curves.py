"""What is drawn along the text: whose curves, in how many points, and how dark."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.report.model import Report, Trace

DEPTHS = 5
"""Steps in which the text is shaded by posterior."""


def depths_of(trace: Trace | None, agent: str, low: int, high: int) -> tuple[list[int], list[int]]:
    """Return where runs of one depth begin in characters [low, high), and their depths, 1 to `DEPTHS`."""
    if trace is None or trace.posterior is None or agent not in trace.agents:
        return [low], [DEPTHS]
    first, last = np.searchsorted(trace.starts, [low, high])
    if first == last:
        return [low], [DEPTHS]
    column = trace.posterior[first:last, trace.agents.index(agent)]
    depths = 1 + (column * DEPTHS).astype(np.int64).clip(0, DEPTHS - 1)
    changes = np.flatnonzero(np.append(True, depths[1:] != depths[:-1]))
    starts = trace.starts[first:last][changes]
    starts[0] = low  # what stands before the first token belongs to it
    return starts.tolist(), depths[changes].tolist()


def columns_of(report: Report, trace: Trace) -> list[int]:
    """Return the columns that are drawn: agents who occur, else the three that are the likeliest."""
    wrote = [s.agent for s in report.segments if s.agent is not None]
    guessed = sorted(trace.agents, key=lambda name: report.evidence.get(name, 0.0))[:3]
    return [trace.agents.index(name) for name in dict.fromkeys(wrote or guessed) if name in trace.agents]


def means_of(values: NDArray[Any], stride: int) -> NDArray[np.float64]:
    """Return the means [ceil(W/stride), K] of `stride` rows each."""
    firsts = np.arange(0, len(values), stride)
    sums = np.add.reduceat(values.astype(np.float64), firsts, axis=0)
    return np.asarray(sums / np.diff(np.append(firsts, len(values)))[:, None])
