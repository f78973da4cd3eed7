"""`benchmarks.security.hostile`: how honest responses are counted, and the committed result."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import tables

hostile = pytest.importorskip("benchmarks.security.hostile", reason="the extra service is not installed")


def test_attacks_do_not_affect_honest_clients_in_the_committed_result() -> None:
    content = json.loads((tables.RESULTS / "hostile.json").read_text())
    during = content["honest"]["during"]
    assert during["correct"] == during["requests"] >= 300
    assert during["wrong"] == during["refused"] == content["tracebacks"] == 0
    assert content["runs"]
    assert {name for name, outcomes in content["attacks"].items() if outcomes} == {*hostile.ATTACKS}
    assert not any("500" in outcomes for outcomes in content["attacks"].values())


def test_counts_correct_wrong_and_refused_responses() -> None:
    text, evidence = "a", {"planner": 0.0}

    class FixedClient(hostile.Client):  # type: ignore[name-defined, misc]
        def post(self, path: str, body: bytes, media: str = "", accept: str = "") -> tuple[int, bytes]:
            if path.endswith("batch"):
                return 200, b'{"status": 503, "error": "busy"}\n'
            if accept == "text/html":
                return 200, b"<!doctype html>"
            return 200, json.dumps({"evidence": evidence}).encode()

    client = FixedClient(1, "")
    outcomes, seconds = hostile.send(client, {text: evidence}, random.Random(1), lambda n: n == 10)
    assert outcomes == {"correct": 9, "refused": 1}
    assert len(seconds) == 10
    outcomes, _ = hostile.send(client, {text: {"critic": 0.0}}, random.Random(1), lambda n: n == 5)
    assert outcomes == {"wrong": 5}
