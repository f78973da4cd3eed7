"""What Table 2 can come to, beside judges that answer by flips of a coin."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openai")
pytest.importorskip("transformers")

from benchmarks.paper.__main__ import main
from benchmarks.paper.asking.asker import AnswerError
from benchmarks.paper.failure import ceilings, protocols
from benchmarks.paper.failure.restoration import corrupt_boundaries, cut_spans, ideal_judge, ideal_step
from benchmarks.paper.failure.trajectories import SUBSETS, Restored, Trajectory, Turn
from benchmarks.paper.failure.verdicts import STRICT, Seen
from tests.support.failure_logs import algorithm_generated, hand_crafted, write

SAID = ("We add.", "print(3 + 4)", "7", "It says seven.", "So it is seven, and we are done.")


def log_of(turns: int, step: int) -> Trajectory:
    said = tuple(Turn(f"Agent_{i % 3}", SAID[i]) for i in range(turns))
    return Trajectory(SUBSETS[0], 7, "How many?", "Seventeen", said, said[step].name, step)


@pytest.mark.parametrize("protocol", ["step_by_step", "binary_search"])
@pytest.mark.parametrize(("turns", "step"), [(1, 0), (4, 2), (5, 0), (5, 4)])
def test_the_law_is_that_of_all_flips_of_a_coin(protocol: str, turns: int, step: int) -> None:
    log, r, law = log_of(turns, step), 0.7, np.zeros(turns)
    for flips in itertools.product((True, False), repeat=turns):
        left, weights = iter(flips), list[float]()

        def ask(question: Any, left: Any = left, weights: Any = weights) -> str:
            user, flip = question(None).user, next(left)
            numbers = [int(n) for n in re.findall(r"step (\d+)", user)]
            if protocol == "step_by_step":
                weights.append(r if flip else 1 - r)
                return f"1. {'Yes' if flip == (numbers[-1] == step) else 'No'}.\n2. Reason: so"
            start, end, half = numbers[0], numbers[1], numbers[3]
            inside = start <= step <= end
            weights.append((r if flip else 1 - r) if inside else 0.5)
            return "upper half" if flip == (step <= half or not inside) else "lower half"

        try:
            found = protocols.PROTOCOLS[protocol](log, ask, STRICT).index
        except AnswerError:
            continue
        law[found] += np.prod(weights) / 2 ** len(list(left))
    assert ceilings.PROTOCOLS[protocol](turns, step, r) == pytest.approx(law, abs=1e-12)


def test_all_at_once_errs_evenly() -> None:
    assert ceilings.all_at_once(5, 1, 0.6).tolist() == pytest.approx([0.1, 0.6, 0.1, 0.1, 0.1])
    assert ceilings.all_at_once(1, 0, 0.6).tolist() == [1.0]


@pytest.mark.parametrize("protocol", list(ceilings.PROTOCOLS))
def test_a_judge_who_is_always_right_is_the_ideal_one(protocol: str) -> None:
    kinds = set()
    for turns, seed in itertools.product((2, 4, 5), range(12)):
        log = log_of(turns, seed % turns)
        shown = corrupt_boundaries(log, seed)
        spans = cut_spans(shown)
        found = ceilings.expected(ceilings.Case.of(Seen(log, shown, spans)), protocol, 1.0)
        restored = Restored(shown, spans)
        assert found == (float(ideal_judge(log, restored)), float(ideal_step(log, restored)))
        kinds.add(found)
    assert len(kinds) > 2
    assert ceilings.expected(ceilings.Case.of(Seen(log, log)), protocol, 1.0) == (1.0, 1.0)


@pytest.mark.parametrize("protocol", list(ceilings.PROTOCOLS))
def test_r_is_what_reaches_the_step_accuracy(protocol: str) -> None:
    cases = [ceilings.Case.of(Seen(log, log)) for log in (log_of(5, 3), log_of(4, 0), log_of(3, 1))]
    rs = [ceilings.reaching(cases, protocol, q) for q in (0.4, 0.75, 1.0)]
    for q, r in zip((0.4, 0.75, 1.0), rs, strict=True):
        assert np.mean([ceilings.expected(case, protocol, r)[1] for case in cases]) == pytest.approx(
            q, abs=1e-5
        )
    assert rs == sorted(rs)
    if protocol == "all_at_once":
        assert rs == pytest.approx([0.4, 0.75, 1.0], abs=1e-5)


def test_the_experiment_writes_both_subsets_and_one_with_marks(tmp_path: pathlib.Path) -> None:
    data = write(tmp_path, SUBSETS[0], {"1.json": algorithm_generated(mistake_step="0")})
    write(tmp_path, SUBSETS[1], {"1.json": hand_crafted()})
    out = tmp_path / "out"
    command = ["ceilings", "--data", str(data), "--any-rows", "--subset"]
    assert main([*command, *SUBSETS, "--out", str(out), "--marks"]) == 0
    table = json.loads((out / "ceilings.json").read_text())["table"]
    assert len(table) == 2 * 3 * 3
    for row in table:
        assert row["StepAcc % at q = 0.5"][0] == pytest.approx(50, abs=0.01) or row["corruption"] != "clean"
        if row["corruption"] == "ID removal":
            assert row["AgentAcc % at q = 1"][0] == 0
    marked = tmp_path / "marked"
    assert main([*command, SUBSETS[0], "--out", str(marked), "--marks", "gumbel"]) == 0
    rows = json.loads((marked / "ceilings.json").read_text())["table"]
    logs = sorted(row["log"] for row in rows if row["protocol"] == "binary_search")
    assert logs == ["original"] * 3 + ["restored, gumbel"] * 2 + ["rewritten, gumbel"] * 3
