"""How much of a text an alteration left: ROUGE-L of the words, SemSim of the meaning."""

from __future__ import annotations

import functools
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper.reading.similarity import (
    TF_IDF,
    Embedder,
    common_words,
    embedder,
    rouge_l,
    semantic_similarity,
)
from iet.errors import BackendUnavailable, InputError, ShapeError


def naive_common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    @functools.cache
    def length(i: int, j: int) -> int:
        if not i or not j:
            return 0
        if a[i - 1] == b[j - 1]:
            return length(i - 1, j - 1) + 1
        return max(length(i - 1, j), length(i, j - 1))

    return length(len(a), len(b))


words = st.lists(st.sampled_from("abcd"), max_size=25).map(tuple)


@settings(deadline=None)
@given(a=words, b=words)
def test_common_words_equal_the_recursion(a, b):
    common = naive_common(a, b)
    assert common_words(a, b) == common_words(b, a) == common
    expected = 2 * common / (len(a) + len(b)) if a or b else 1
    assert rouge_l(" ".join(a).upper(), " - ".join(b)) == pytest.approx(expected)
    assert rouge_l(" ".join(a), " ".join(a)) == 1


def test_long_texts():
    a = [str(i % 997) for i in range(5000)]
    assert common_words(a, [*a[:2000], "x", *a[2500:]]) == 4500
    assert rouge_l(" ".join(a), " ".join(a[:4500])) == pytest.approx(2 * 0.9 / 1.9)
    assert rouge_l("", "a") == 0


def test_semantic_similarity_is_the_cosine_of_the_given_vectors():
    vectors = {"a": [1, 0], "b": [1, 1], "c": [-2, 0], "d": [0, 0]}
    seen: list[list[str]] = []

    def embed(texts: list[str]) -> Any:
        seen.append(texts)
        return [vectors[text] for text in texts]

    pairs = [("a", "b"), ("a", "c"), ("b", "b"), ("a", "d")]
    assert semantic_similarity(pairs, embed) == pytest.approx([math.sqrt(0.5), -1, 1, 0])
    assert seen == [["a", "b", "c", "d"]]
    assert semantic_similarity(pairs, None) == [None] * 4
    assert semantic_similarity([], embed) == []
    with pytest.raises(ShapeError, match="embed: got"):
        semantic_similarity(pairs, lambda texts: np.zeros((1, 3)))


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model that has learnt nothing and reads 16 tokens at once."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import tokenizers

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(50))]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = tmp_path_factory.mktemp("bert")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_an_embedding_is_the_mean_over_all_tokens_of_all_blocks(tiny_bert):
    import torch
    import transformers

    numbers = [(7 * i) % 50 for i in range(33)]
    texts = [" ".join(f"w{i}" for i in numbers), "w1 w2", ""]
    found = Embedder(tiny_bert)(texts)
    model = transformers.AutoModel.from_pretrained(tiny_bert).eval()
    for row, ids in zip(found, [numbers, [1, 2], []], strict=True):
        states = []
        for start in range(0, max(1, len(ids)), 14):  # with both special tokens 16
            block = torch.tensor([[2, *(4 + i for i in ids[start : start + 14]), 3]])
            with torch.inference_mode():
                states.append(model(block).last_hidden_state[0])
        np.testing.assert_allclose(row, torch.cat(states).mean(0).numpy(), atol=1e-5)
    np.testing.assert_allclose(found, Embedder(tiny_bert, batch=1)(texts), atol=1e-5)
    assert Embedder(tiny_bert)([]).shape == (0, 8)
    end_changed = texts[0].rsplit(" ", 1)[0] + " w49"
    (similar,) = semantic_similarity([(texts[0], end_changed)], Embedder(tiny_bert))
    assert 0.5 < similar < 0.99999  # sees the end of a text that is longer than the model reads
    with pytest.raises(InputError, match="longest: got 2"):
        Embedder(tiny_bert, longest=2)


def test_without_an_embedding_model_there_is_a_sentence(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with pytest.raises(BackendUnavailable, match="give the folder or id of a model of transformers"):
        Embedder(tmp_path)
    with pytest.raises(InputError, match="batch: got 0"):
        Embedder(tmp_path, batch=0)


def test_tf_idf_sees_words_and_how_rare_they_are():
    pytest.importorskip("sklearn")
    pairs = [("the cat sat", "sat the cat"), ("the cat sat", "the dog ran"), ("the cat sat", "a cat sat")]
    same, common, rare = semantic_similarity(pairs, embedder(TF_IDF))
    assert same == pytest.approx(1)
    assert 0 < common < 1 / 3 < rare < 1
