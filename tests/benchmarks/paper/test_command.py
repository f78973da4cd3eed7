"""`python -m benchmarks.paper`: what it refuses, what it asks, and what its tables say of their making."""

from __future__ import annotations

import functools
import json
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.chat_server import serving

torch = pytest.importorskip("torch")
for needed in ("transformers", "matplotlib", "sklearn", "openai"):
    pytest.importorskip(needed)

from benchmarks.paper import __main__ as command  # noqa: E402
from benchmarks.paper import quoted  # noqa: E402
from benchmarks.paper.experiments import sweeps, table1  # noqa: E402
from benchmarks.paper.experiments.study import Study  # noqa: E402
from iet.demo.conversation import MODEL  # noqa: E402
from tests.support.mama import write_mills  # noqa: E402

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
def extract(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_mills(tmp_path / "extract.csv", "Ada Berg", "Otto Lind", "Ines Roth", "Karl Voss")


@pytest.fixture
def run(extract: pathlib.Path, out: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An experiment on two short conversations; Table 1 in one setting, by few methods."""
    ours, read = "IET fourier, posterior", ("hmm", "chatgpt", "deepseek", "bedrock")
    few = tuple(m for m in table1.METHODS if m.name == ours or m.baseline in read)
    monkeypatch.setattr(table1, "METHODS", few)
    monkeypatch.setattr(table1, "EQUAL_KL", (ours,))
    monkeypatch.setattr(table1, "run", functools.partial(table1.run, settings=[("chain", 4)]))
    usual = ["--data", str(extract), "--out", str(out), "--any-rows", "--quick", "--rounds", "1"]
    usual += ["--turn-tokens", "24", "24", "--prompt-tokens", "160", "--records", "2"]
    return lambda experiment, *more: command.main([experiment, *usual, *map(str, more)])


def content(out: pathlib.Path, name: str = "table1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_a_dead_endpoint_is_no_row(run, out, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda *_: 500) as server:
        pass
    assert run("table1", "--chatgpt", "tiny", "--chatgpt-url", server.url) == 1
    said = capsys.readouterr()
    assert "no answer to 2 questions in a row" in said.err
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


def test_bedrock_is_a_row(run: Run, out: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")

    def form(text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": [{"text": text}]}
        return {"output": {"message": message}, "stopReason": "end_turn", "usage": {}, "metrics": {}}

    with serving(lambda *_: "no idea", form) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", server.url)
        assert run("table1", "--bedrock", "some.model-v1") == 0
    assert server.requests[0]["path"] == "/model/some.model-v1/converse"
    shown = (out / "table1.md").read_text(encoding="utf-8")
    assert "| LLM of --bedrock (some.model-v1) | TokenAcc |" in shown
    assert "LLM of --bedrock (some.model-v1): the prompts of § LLM Baseline Prompts, verbatim" in shown
    assert "HMM / Viterbi: Rabiner 1989" in shown
    assert "no endpoint was given: ChatGPT, DeepSeek." in shown


@pytest.mark.parametrize("chat", [False, True])
def test_quick_shortens_turns_only_where_nothing_ends_them(extract, out, tmp_path, monkeypatch, capsys, chat):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    if chat:
        path = model / "tokenizer_config.json"
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    seen: list[Study] = []
    monkeypatch.setattr(sweeps, "spurious", seen.append)
    usual = ["--data", str(extract), "--out", str(out), "--any-rows", "--quick", "--records", "2"]
    assert command.main(["spurious", *usual, "--model", str(model)]) == 0
    assert seen[0].options.turn_tokens == (None if chat else (48, 144))
    assert ("has no chat template" in capsys.readouterr().out) != chat


@pytest.mark.parametrize(
    ("experiment", "more", "words"),
    [
        ("table1", ["--records", "1"], "records: got 1, expected at least 2: table1's HMM"),
        ("spurious", ["--seed", "-1"], "seed: got -1, expected at least 0"),
        ("restore", ["--repetition-penalty", "1.2"], "repetition_penalty: got 1.2 for restore, expected 1"),
        ("spurious", ["--device", "foo"], "device: got 'foo', expected one that torch can use here"),
        ("table1", ["--chatgpt"], "OPENAI_API_KEY: got nothing from the environment"),
        ("table1", ["--chatgpt", "--chatgpt-url", "secret@nowhere"], "base_url: got no address"),
        ("all", ["--en-fr", "no/such/model"], "translation model 'no/such/model'"),
        ("all", ["--embedder", "no/such/model"], "embedding model 'no/such/model'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_generated(run, out, capsys, experiment, more, words):
    assert run(experiment, *more) == 1
    said = capsys.readouterr().err
    assert words in said
    assert "secret" not in said
    assert not (out / "logs").exists()


def test_cuda_is_refused_where_there_is_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert run("spurious", "--device", "cuda") == 1
    assert "device: got 'cuda', expected one that torch can use here" in capsys.readouterr().err


def test_presidio_is_refused_without_the_package(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    assert run("pii", "--presidio") == 1
    assert "pip install presidio-analyzer" in capsys.readouterr().err


def test_a_human_text_must_be_text_and_long_enough(run, out, tmp_path, capsys):
    human = tmp_path / "human.txt"
    human.write_bytes(b"caf\xe9")
    assert run("transforms", "--human", human) == 1
    assert "human.txt: byte 3 is no UTF-8" in capsys.readouterr().err
    assert not (out / "logs").exists()
    human.write_text("too short", encoding="utf-8")
    assert run("all", "--human", human) == 1
    assert "human: got 9 characters, expected at least" in capsys.readouterr().err
    assert len(list((out / "logs").glob("*.jsonl"))) == 1  # of chain_4, which tells how long it must be


def test_a_folder_that_cannot_be_written_to_is_refused(run, out, capsys):
    out.write_text("a file")
    assert run("spurious") == 1
    assert f"out: nothing can be written to {out}" in capsys.readouterr().err


def test_a_table_says_how_it_was_made_and_is_not_overwritten_by_another(run, out, capsys):
    assert run("table1") == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "iet:demo has no chat template: prompts are plain text, which it continues"
    shown = (out / "table1.md").read_text(encoding="utf-8")
    assert "Model iet:demo (no chat template: prompts are plain text" in shown
    assert "round-major, turns of 24 tokens from prompts of at most 160," in shown
    first = content(out)
    told = {"turn_tokens": [24, 24], "prompt_tokens": 160, "device": "cpu", "quick": True, "endpoints": {}}
    assert told.items() <= first["configuration"].items()
    assert run("table1") == 0
    assert content(out)["digest"] == first["digest"]
    before = (out / "table1.json").read_bytes()
    capsys.readouterr()
    assert run("table1", "--rounds", "0") == 1
    said = capsys.readouterr().err
    assert f"holds a run of configuration {first['digest'][:16]}" in said
    assert "they differ in rounds; choose another --out, or --overwrite" in said
    assert (out / "table1.json").read_bytes() == before
    assert run("table1", "--rounds", "0", "--overwrite") == 0
    assert content(out)["configuration"]["rounds"] == 0
    found = content(out)
    del found["configuration"]["device"]  # as in what an older version wrote
    (out / "table1.json").write_text(json.dumps({**found, "digest": "0" * 64}))
    assert run("table1", "--rounds", "0") == 1
    assert "they differ in device;" in capsys.readouterr().err
    (out / "table1.json").write_text("{}")
    assert run("table1") == 1
    assert "table1.json: no result of an experiment" in capsys.readouterr().err


def test_some_settings_of_the_table_may_be_asked_for(run, out, capsys):
    assert run("table1", "--settings", "tree_5", "--under", "fourier", "--tuning", "1") == 0
    found = content(out)
    assert {name for row in found["table"] for name in row} & {"tree 5", "chain 4"} == {"tree 5"}
    assert found["configuration"]["settings"] == [["tree", 5]]
    assert len(found["configuration"]["records_for_options"]) == 1
    for wrong in ("ring_4", "chain", "chain_x"):
        with pytest.raises(SystemExit):
            run("table1", "--settings", wrong)
        assert f"got '{wrong}', expected one of" in capsys.readouterr().err
    for experiment, name, value, takers in (
        ("kappa", "settings", "tree_5", "table1, pii, oracle or all"),
        ("restore", "under", "fourier", "table1, pii, transforms or all"),
    ):
        assert run(experiment, f"--{name}", value) == 1
        assert f"{name}: got one for {experiment}, expected {takers}" in capsys.readouterr().err
    assert run("table1", "--tuning", "0") == 1
    assert "tuning: got 0, expected at least 1" in capsys.readouterr().err
