"""The small language models: the one that ships with the package, the second one, and how they are made."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iet
from iet.audit.metrics import token_labels
from iet.demo.conversation import MODEL
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer
from tests.support.letters import LETTERS

BENCHMARKS = pathlib.Path(__file__).resolve().parents[3] / "benchmarks"
RESULTS = BENCHMARKS / "results" / "lm.json"
SECOND = BENCHMARKS / "accuracy" / "model"
SECOND_RESULTS = BENCHMARKS / "results" / "lm_second.json"
PROBLEM = (
    "Question: Ella has 4 bags with 20 apples in each bag and six bags with 25 apples in each bag. If Ella "
    "sells 200 apples, how many apples does Ella have left?\n\nAnswer: Ella has 4 * 20 = 80 apples in the "
    "first bags and 6 * 25 = 150 apples in the others. So she has 80 + 150 = 230 apples. She has 230 - 200 = "
    "30 apples left.\nThe answer is 30.\n"
)


def test_model_is_small_and_has_long_positions() -> None:
    transformers = pytest.importorskip("transformers")
    assert 2e6 < (MODEL / "model.safetensors").stat().st_size < 6e6
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL)
    assert model.config.model_type == "llama"
    assert model.config.max_position_embeddings >= 4096
    assert str(model.dtype) == "torch.bfloat16"
    tokenizer = Tokenizer(DEMO_SOURCE)
    assert model.config.vocab_size == tokenizer.vocab_size == 4096
    assert tokenizer.special_ids == (0, 1, 2)


def bits_per_byte(folder: pathlib.Path, prefix: list[int], text: str) -> float:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([[*prefix, *tokenizer(text, add_special_tokens=False).input_ids]])
    with torch.no_grad():
        nats = model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    return float(nats / np.log(2) / len(text.encode()))


def test_models_loss_equals_the_committed_result() -> None:
    # A text that was written for this test, of the kind that was held out: 1.34 bits per byte.
    results = json.loads(RESULTS.read_text())
    text = (
        "The committee met on Monday to discuss the new proposal. Some members said that the change would "
        "break existing code, and others answered that the old behaviour had never been documented. In the "
        "end they agreed to keep the name, to add a warning, and to look at the matter again next year."
    )
    assert bits_per_byte(MODEL, [0], text) == pytest.approx(results["bits_per_byte"]["model"], rel=0.2)


@pytest.fixture(scope="module")
def backend() -> Any:
    return Tokenizer(DEMO_SOURCE).backend


@given(st.text(LETTERS))
@settings(max_examples=200)
def test_tokenizer_encodes_every_text(backend: Any, text: str) -> None:
    ids = backend.encode(text, add_special_tokens=False).ids
    assert backend.decode(ids, skip_special_tokens=False) == text


# The second model


def test_second_model_has_another_architecture_and_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    assert sum(path.stat().st_size for path in SECOND.iterdir()) < 3e6
    model = transformers.AutoModelForCausalLM.from_pretrained(SECOND)
    assert model.config.model_type == "gpt_neox"
    assert model.config.max_position_embeddings >= 1024
    assert str(model.dtype) == "torch.bfloat16"
    tokenizer = Tokenizer(SECOND)
    assert model.config.vocab_size == tokenizer.vocab_size == 2048
    assert tokenizer.special_ids == (0, 1, 2, 3)
    content = json.loads(tokenizer.backend.to_str())
    assert content["model"]["type"] == "Unigram"
    assert json.loads(Tokenizer(DEMO_SOURCE).backend.to_str())["model"]["type"] == "BPE"


def test_second_model_is_trained_on_gsm8k_and_has_the_committed_loss() -> None:
    record = json.loads((SECOND / "training.json").read_text())
    results = json.loads(SECOND_RESULTS.read_text())
    assert record["shares"] == {"gsm8k": 1.0}
    assert results["model"]["training"] == record
    # A problem that was written for this test.
    rate = bits_per_byte(SECOND, Tokenizer(SECOND).encode("\n").token_ids.tolist(), PROBLEM)
    assert rate == pytest.approx(results["bits_per_byte"]["model"], rel=0.2)


def test_tokens_of_the_second_model_tile_a_text_and_carry_marks() -> None:
    registry = iet.Registry.create(None, tokenizer=SECOND)
    registry.add("solver", secret=bytes(32))
    tokenizer = registry.open_tokenizer()
    text = PROBLEM + "Half of them cost $1,25 each — that is 50% more…"
    encoded = tokenizer.encode(text)
    assert encoded.char_starts[0] == 0
    assert encoded.char_ends[-1] == len(text)
    assert np.array_equal(encoded.char_starts[1:], encoded.char_ends[:-1])
    assert tokenizer.backend.decode(tokenizer.encode(PROBLEM).token_ids.tolist()) == PROBLEM
    half = len(PROBLEM) // 2
    spans = [(0, half, 0), (half, len(text), 1)]
    assert set(token_labels(spans, encoded.char_ends)) == {0, 1}
    report = iet.Auditor(registry).audit(text)
    assert report.tokens == len(encoded.token_ids)
    assert report.coverage == 0


# Training


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["demo", "second"])
def test_stopped_training_resumes(name, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from benchmarks.lm import train
    from benchmarks.lm.tokenizer import train_tokenizer, train_unigram

    data = tmp_path / "data" / "gsm8k"
    data.mkdir(parents=True)
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("aeioubdklmnrst"), size=rng.integers(2, 9))) for _ in range(400)]
    lines = [
        json.dumps({"question": " ".join(rng.choice(words, 30)), "answer": " ".join(rng.choice(words, 30))})
        for _ in range(150)
    ]
    (data / "train.jsonl").write_text("\n".join(lines) + "\n")
    full = train.RECIPES[name]
    vocabulary = {"demo": 300, "second": 200}[name]
    teach = train_unigram if name == "second" else train_tokenizer

    def config() -> Any:
        usual = full.config()
        small = {"vocab_size": vocabulary, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 1}
        return type(usual)(**{**usual.to_dict(), **small, "num_attention_heads": 6, "head_dim": 8})

    recipe = dataclasses.replace(
        full,
        shares={"gsm8k": 1.0},
        train_tokenizer=lambda texts: teach(texts, vocabulary),
        config=config,
        stages="32:4,64:2",
        batch=4096,
    )
    monkeypatch.setitem(train.RECIPES, name, recipe)
    options: dict[str, Any] = {"data": tmp_path / "data", "recipe": name, "seed": 0, "lr": 1e-2, "warmup": 2}
    options |= {"decay": 0.5, "weight_decay": 0.1, "threads": 1, "save_seconds": 0.0}

    def run(folder: str) -> dict[str, Any]:
        train.train(
            argparse.Namespace(
                **options, stages=None, batch=None, out=tmp_path / folder, work=tmp_path / "work"
            )
        )
        record: dict[str, Any] = json.loads((tmp_path / folder / "training.json").read_text())
        return record

    steps = iter(range(3))
    real = train.batch_loss

    def stop(model: Any, batch: Any) -> Any:
        next(steps)
        return real(model, batch)

    monkeypatch.setattr(train, "batch_loss", stop)
    with pytest.raises((StopIteration, RuntimeError)):
        run("half")
    tokenizer = (tmp_path / "work" / "tokenizer.json").read_bytes()
    monkeypatch.setattr(train, "batch_loss", real)
    record = run("whole")
    assert (tmp_path / "work" / "tokenizer.json").read_bytes() == tokenizer
    assert (record["recipe"], record["steps"], record["stages"]) == (name, 6, "32:4,64:2")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    ids = torch.tensor([Tokenizer(tmp_path / "whole").encode("ab " * 20).token_ids.tolist()])
    assert model(ids, labels=ids).loss.item() < 2 * np.log(vocabulary)
