"""The small language models: the one that ships with the package, the second one, and how they are made."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iet
from benchmarks.lm.kneser_ney import KneserNey, largest_order
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


def test_kneser_ney_is_a_distribution_after_every_history() -> None:
    vocabulary, order, boundary = 5, 4, 4
    rng = np.random.default_rng(0)
    sequences = [rng.integers(boundary, size=60) ** 2 % boundary for _ in range(3)]
    model = KneserNey(sequences, vocabulary=vocabulary, boundary=boundary, order=order)
    for history in itertools.product(range(vocabulary), repeat=order - 1):
        assert model.distribution(history).sum() == pytest.approx(1.0, abs=1e-12)


def test_kneser_ney_of_a_large_vocabulary_is_of_a_lower_order() -> None:
    assert [largest_order(size) for size in (257, 4096, 4097, 16384)] == [7, 5, 4, 4]
    seen = np.tile([0, 9_000, 16_382], 50)
    with pytest.raises(ValueError, match="order: got 5, expected 1 to 4"):
        KneserNey([seen], vocabulary=16_384, boundary=16_383)
    model = KneserNey([seen], vocabulary=16_384, boundary=16_383, order=4)
    assert model.distribution([16_382, 0, 9_000]).argmax() == 16_382
    assert model.distribution([16_382, 0, 9_000]).sum() == pytest.approx(1.0, abs=1e-9)


def test_kneser_ney_prefers_what_it_has_seen() -> None:
    seen = np.tile([0, 1, 2], 50)
    model = KneserNey([seen], vocabulary=5, boundary=4, order=3)
    assert model.distribution([0, 1]).argmax() == 2
    assert model.log2_probabilities(seen)[3:].mean() > model.log2_probabilities(seen[::-1])[3:].mean()


def test_the_model_is_small_has_long_positions_and_loads() -> None:
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


def test_the_model_is_as_good_as_the_committed_figures_say() -> None:
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
def test_the_tokenizer_spells_every_text(backend: Any, text: str) -> None:
    ids = backend.encode(text, add_special_tokens=False).ids
    assert backend.decode(ids, skip_special_tokens=False) == text


# The second model


def test_the_second_model_shares_neither_architecture_nor_tokenizer() -> None:
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


def test_the_second_model_saw_nothing_but_gsm8k_and_is_as_good_as_its_figures_say() -> None:
    record = json.loads((SECOND / "training.json").read_text())
    results = json.loads(SECOND_RESULTS.read_text())
    assert record["shares"] == {"gsm8k": 1.0}
    assert results["model"]["training"] == record
    # A problem that was written for this test.
    found = bits_per_byte(SECOND, Tokenizer(SECOND).encode("\n").token_ids.tolist(), PROBLEM)
    assert found == pytest.approx(results["bits_per_byte"]["model"], rel=0.2)


def test_the_tokens_of_the_second_model_tile_a_text_and_carry_marks() -> None:
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
@pytest.mark.parametrize("name", ["demo", "second", "larger"])
def test_a_training_run_that_was_stopped_goes_on(name, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from benchmarks.lm import evaluate, train
    from benchmarks.lm.corpus import load_documents
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
    vocabulary = {"demo": 300, "second": 200, "larger": 300}[name]
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
    options["device"] = "cpu"

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
    loaded = Tokenizer(tmp_path / "whole").backend
    packed = evaluate.pack(loaded, load_documents(tmp_path / "data", ["gsm8k"])[:5], recipe)
    texts = [document.text for document in load_documents(tmp_path / "data", ["gsm8k"])[:5]]
    assert packed.sizes.sum() == sum(len(text.encode()) for text in texts)
    bits = evaluate.model_bits(model, packed).sum() / packed.sizes.sum()
    assert bits < np.log2(vocabulary) * (packed.sizes > 0).sum() / packed.sizes.sum()


def test_much_held_out_text_is_thinned_evenly() -> None:
    pytest.importorskip("torch")
    from benchmarks.lm import evaluate
    from benchmarks.lm.corpus import Document

    documents = [Document("gsm8k", str(number), "x" * 100) for number in range(10)]
    assert evaluate.thinned(documents, 1000) == documents
    assert evaluate.thinned(documents, 999) == documents[::2]
    assert evaluate.thinned(documents, 300) == documents[::4]


def test_muon_steps_the_layers_and_adamw_the_rest() -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from benchmarks.lm import train, training

    usual = train.RECIPES["larger"].config()
    small = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2}
    small["tie_word_embeddings"] = False  # so that both embeddings are asked about
    model = transformers.AutoModelForCausalLM.from_config(
        type(usual)(**{**usual.to_dict(), **small, "head_dim": 8})
    )
    adamw, muon = training.optimizers_of(model, 1e-3, 0.95, 0.1, muon=True)
    names = {id(weight): name for name, weight in model.named_parameters()}
    stepped = [
        [names[id(weight)] for group in optimizer.param_groups for weight in group["params"]]
        for optimizer in (adamw, muon)
    ]
    assert sorted(stepped[0] + stepped[1]) == sorted(names.values())
    assert sorted(stepped[1]) == sorted(name for name in names.values() if "proj" in name)
    assert {"model.embed_tokens.weight", "lm_head.weight"} < set(stepped[0])
    decayed = {group["weight_decay"] for group in adamw.param_groups if group["params"][0].ndim == 1}
    assert decayed == {0.0}


def test_what_stood_earlier_in_a_text_is_counted_in_each_text_alone() -> None:
    pytest.importorskip("torch")
    from benchmarks.lm.evaluate import seen_before

    circle = np.tile([1, 2, 3], 4)[None]
    assert seen_before(circle, 1) == pytest.approx(9 / 12)
    assert seen_before(circle, 4) == pytest.approx(6 / 9)
    assert seen_before(np.concatenate([circle, np.arange(12)[None] + 1]), 1) == pytest.approx(9 / 24)
    drawn = np.random.default_rng(0).integers(0, 50, (400, 100))
    assert seen_before(drawn, 1) == pytest.approx(1 - 50 * (1 - (1 - 1 / 50) ** 100) / 100, abs=0.005)


def test_all_answers_to_an_instruction_keep_it_and_stay_on_one_side(tmp_path, monkeypatch):
    from benchmarks.lm import corpus

    monkeypatch.setattr(corpus, "ANSWERING", ("one", "other"))
    asked = [f"Tell me at length and in order what the number {n} is good for, please." for n in range(200)]
    for model in corpus.ANSWERING:
        folder = tmp_path / "alpaca_eval" / "results" / model
        folder.mkdir(parents=True)
        answers = [{"instruction": f" {text}", "output": f"{model} says: {text}\n"} for text in asked]
        (folder / "model_outputs.json").write_text(json.dumps(answers))
    documents = corpus.load_documents(tmp_path, ["answers"])
    assert [document.text for document in documents] == [
        f"Question: {text}\n\nAnswer: {model} says: {text}\n" for model in corpus.ANSWERING for text in asked
    ]
    train, held_out = corpus.split(documents)
    assert train
    assert held_out
    assert not {document.group for document in train} & {document.group for document in held_out}
