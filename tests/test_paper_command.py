"""`python -m benchmarks.paper`: what it refuses, what it asks, and what its tables say of their making."""

from __future__ import annotations

import csv
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from chat_server import serving

torch = pytest.importorskip("torch")
for needed in ("transformers", "matplotlib", "sklearn", "openai"):
    pytest.importorskip(needed)

from benchmarks.paper import __main__ as command  # noqa: E402
from benchmarks.paper import quoted, table1  # noqa: E402
from benchmarks.paper.records import COLUMNS  # noqa: E402

Run = Callable[..., int]
KEY = "sk-a-key-that-nobody-may-see"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and no key or address of whoever runs the tests."""
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def out(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "out"


@pytest.fixture
def run(out: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An experiment on two short conversations; Table 1 in one setting, by few methods."""
    path = tmp_path / "extract.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for i, name in enumerate(("Ada Berg", "Otto Lind", "Ines Roth", "Karl Voss")):
            background, question = f"The mill of village {i} is closed.", f"Who repairs mill {i}?"
            task = f" [Task background]: {background}\n\n[Question]: {question}"
            pii = [{"entity": name, "types": ["name"]}]
            rows.writerow((f"{name} writes.", repr(pii), task, background, question))
    ours, read = "IET fourier, posterior", ("hmm", "chatgpt", "deepseek", "bedrock")
    few = tuple(m for m in table1.METHODS if m.name == ours or m.baseline in read)
    monkeypatch.setattr(table1, "METHODS", few)
    monkeypatch.setattr(table1, "EQUAL_KL", (ours,))
    monkeypatch.setattr(table1, "run", functools.partial(table1.run, settings=[("chain", 4)]))
    usual = ["--data", str(path), "--out", str(out), "--any-rows", "--quick", "--rounds", "1"]
    usual += ["--turn-tokens", "24", "24", "--prompt-tokens", "160", "--records", "2"]
    return lambda experiment, *more: command.main([experiment, *usual, *map(str, more)])


def content(out: pathlib.Path, name: str = "table1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_a_dead_endpoint_is_no_row(
    run: Run, out: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda *_: 500) as server:
        pass
    assert run("table1", "--chatgpt", "tiny", "--chatgpt-url", server.url) == 1
    said = capsys.readouterr()
    assert "no answer to 2 logs in a row" in said.err
    assert KEY not in said.out + said.err
    assert not (out / "table1.json").exists()


@pytest.mark.parametrize(
    ("model", "asked", "sent", "said"),
    [
        ("gpt-5-mini", [], 0.0, "temperature 0, top_p 1"),
        ("tiny", ["--llm-temperature", "none"], None, "temperature left out, top_p 1"),
    ],
)
def test_a_row_names_the_model_and_only_the_usual_one_stands_beside_the_papers(
    run: Run,
    out: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    asked: list[str],
    sent: float | None,
    said: str,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda *_: "no idea") as server:
        address = server.url.replace("//", "//user:secret@")
        assert run("table1", "--chatgpt", model, "--chatgpt-url", f"{address}/v1/", *asked) == 0
    assert {request["body"].get("temperature") for request in server.requests} == {sent}
    shown = (out / "table1.md").read_text(encoding="utf-8")
    row = next(x for x in shown.splitlines() if x.startswith("| ") and f"({model}) | TokenAcc |" in x)
    printed = f"{quoted.TABLE1['ChatGPT']['token_accuracy'][quoted.SETTINGS.index(('chain', 4))]:.3f}"
    usual = model == "gpt-5-mini"
    assert row.startswith("| ChatGPT (gpt-5-mini) |") == row.endswith(f"| {printed} |") == usual
    assert f"({model}): asked at {server.url}/v1, {said}." in shown
    assert "Left out, because no endpoint was given: DeepSeek." in shown
    found = content(out)["configuration"]["endpoints"]["chatgpt"]
    assert found == {"model": model, "address": f"{server.url}/v1", "temperature": sent, "top_p": 1.0}
    assert not [path for path in out.glob("*.*") if b"secret" in path.read_bytes()]


def test_a_temperature_is_a_number_or_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("warm", "-1", "nan"):
        with pytest.raises(SystemExit):
            run("table1", f"--llm-temperature={word}")
        assert "--llm-temperature" in capsys.readouterr().err
