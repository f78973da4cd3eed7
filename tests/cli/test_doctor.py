"""`iet doctor`: the self-test, and its messages on failure."""

from __future__ import annotations

import json

import pytest

import iet
from iet import kernels
from iet.cli import doctor
from tests.support.commands import RunIet, run


def test_a_healthy_installation_passes_its_self_test(run_iet: RunIet) -> None:
    output = run_iet(0, "doctor")
    assert f"iet {iet.__version__}" in output
    assert "FAILED" not in output
    data = json.loads(run_iet(0, "doctor", "--json"))
    assert data["healthy"] is True
    assert data["backends"]["host"] == kernels.backends().host
    assert all(good == total > 0 for good, total in data["checks"].values())
    assert set(data["checks"]) == {"derive", "permute", "score", "embed"}


@pytest.mark.parametrize("altered", ["derive", "permute", "score", "embed"])
def test_a_wrong_answer_fails_the_self_test(
    altered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = doctor._vectors()
    assert vectors is not None
    if altered == "derive":
        vectors["derive"][0]["subkey"] = "00" * 16
    elif altered == "permute":
        vectors["permute"][0]["ranks"][0] ^= 1
    elif altered == "score":
        vectors["ops"][0]["scores"][-1][0] = "0x3F800001"
    else:
        marked = vectors["ops"][0]["embed"]["float32"]["marked"]
        marked[0] = hex(int(marked[0], 16) ^ 1)
    monkeypatch.setattr(doctor, "_vectors", lambda: vectors)
    assert run("doctor") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.endswith("FAILED")] == [f"self-test {altered}"]


def test_missing_answers_fail_the_self_test(monkeypatch: pytest.MonkeyPatch, run_iet: RunIet) -> None:
    monkeypatch.setattr(doctor, "_vectors", lambda: None)
    assert "the known answers are not installed  FAILED" in run_iet(1, "doctor")
    assert json.loads(run_iet(1, "doctor", "--json"))["healthy"] is False
