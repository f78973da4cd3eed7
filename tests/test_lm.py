"""The model that ships with the package, and the baseline it is measured against."""

from __future__ import annotations

import itertools
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lm.kneser_ney import KneserNey
from iet.demo.conversation import MODEL
from iet.tokenizer import DEMO_SOURCE, Tokenizer

RESULTS = pathlib.Path(__file__).parent.parent / "benchmarks" / "results" / "lm.json"


def test_kneser_ney_is_a_distribution_after_every_history() -> None:
    vocabulary, order, boundary = 5, 4, 4
    rng = np.random.default_rng(0)
    sequences = [rng.integers(boundary, size=60) ** 2 % boundary for _ in range(3)]
    model = KneserNey(sequences, vocabulary=vocabulary, boundary=boundary, order=order)
    for history in itertools.product(range(vocabulary), repeat=order - 1):
        assert model.distribution(history).sum() == pytest.approx(1.0, abs=1e-12)


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


def test_the_model_is_as_good_as_the_committed_figures_say() -> None:
    # A text that was written for this test, of the kind that was held out: 1.34 bits per byte.
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    results = json.loads(RESULTS.read_text())
    text = (
        "The committee met on Monday to discuss the new proposal. Some members said that the change would "
        "break existing code, and others answered that the old behaviour had never been documented. In the "
        "end they agreed to keep the name, to add a warning, and to look at the matter again next year."
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = torch.tensor([[0, *tokenizer(text, add_special_tokens=False).input_ids]])
    with torch.no_grad():
        nats = model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    bits_per_byte = nats / np.log(2) / len(text.encode())
    assert bits_per_byte == pytest.approx(results["bits_per_byte"]["model"], rel=0.2)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_the_tokenizer_spells_every_text(text: str) -> None:
    backend = Tokenizer(DEMO_SOURCE).backend
    ids = backend.encode(text, add_special_tokens=False).ids
    assert backend.decode(ids, skip_special_tokens=False) == text
