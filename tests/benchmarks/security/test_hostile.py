"""`benchmarks.security.hostile`: what honest clients are told, and the committed results."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import tables

hostile = pytest.importorskip("benchmarks.security.hostile")


def test_the_committed_results_serve_everyone_else() -> None:
    found = json.loads((tables.RESULTS / "hostile.json").read_text())
    beside = found["honest"]["beside the hostile client"]
    assert beside["right"] == beside["requests"] >= 300
    assert beside["wrong"] == beside["refused"] == found["tracebacks in the log"] == 0
    assert found["the service runs"]
    assert {*found["attacks"]} == {*hostile.ATTACKS}
    assert not any("500" in outcomes for outcomes in found["attacks"].values())
    assert "the heaviest text that is taken" in hostile.markdown(found)


def test_honest_clients_are_counted_by_what_they_are_told() -> None:
    text, evidence = "a", {"planner": 0.0}

    class Told(hostile.Address):  # type: ignore[name-defined, misc]
        def ask(
            self, path: str, body: bytes, media: str = hostile.JSON, accept: str = hostile.JSON
        ) -> tuple[int, bytes]:
            if path.endswith("batch"):
                return 200, b'{"status": 503, "error": "busy"}\n'
            if accept == "text/html":
                return 200, b"<!doctype html>"
            return 200, json.dumps({"evidence": evidence}).encode()

    outcomes, seconds = hostile.ask(Told(1, ""), [text], {text: evidence}, random.Random(1), 10)
    assert outcomes == {"right": 9, "503": 1}
    assert len(seconds) == 10
    outcomes, _ = hostile.ask(Told(1, ""), [text], {text: {"critic": 0.0}}, random.Random(1), 5)
    assert outcomes == {"wrong": 5}
