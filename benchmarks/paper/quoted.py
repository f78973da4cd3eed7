"""The figures that the paper prints. None of them was measured here."""

from __future__ import annotations

import json
import pathlib
from typing import Any

_PRINTED: dict[str, Any] = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

SETTINGS = tuple((topology, agents) for agents in (4, 5, 6) for topology in ("star_pure", "chain", "tree"))
"""The nine settings of Table 1, in its order."""

TABLE1: dict[str, dict[str, list[float]]] = _PRINTED["table1"]
"""Table 1: method -> figure -> its nine numbers."""

WINDOW: dict[str, dict[int, float]] = {
    figure: {int(width): value for width, value in values.items()}
    for figure, values in _PRINTED["window"].items()
}
"""§ Sliding-Window Width Sweep: figures in its text (for w = 256 only ranges: 0.72-0.80, 0.75-0.79)."""

SPURIOUS: dict[tuple[int, int], float] = {(true, keys): value for true, keys, value in _PRINTED["spurious"]}
"""§ Robustness to Spurious Registered Keys: (true K, candidate keys) -> TokenAcc."""

TRANSFORMS: dict[str, list[float]] = _PRINTED["transforms"]
"""§ Sensitivity to Post-Generation Text Transformations: SemSim, ROUGE-L, ΔTokenAcc, ΔIoU, ΔEdgeSim in %."""

TABLE2: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    protocol: {
        side: {corruption: (agent, step) for corruption, (agent, step) in values.items()}
        for side, values in sides.items()
    }
    for protocol, sides in _PRINTED["table2"].items()
}
"""Table 2: protocol -> side -> corruption -> AgentAcc, StepAcc in %, on the algorithm-generated logs."""
