"""Back-translation by models of transformers."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest

from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.transforms.rewriting import back_translated
from benchmarks.paper.transforms.translators import APERTIUM, Apertium, Translator, translator
from iet.errors import BackendUnavailable, InputError
from tests.support import paper_logs


def log_of(turns: list[tuple[int, str]], joiner: str = " ") -> Log:
    return paper_logs.log_of(turns, 3, joiner=joiner)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model that has learnt nothing, and a tokenizer of 30 words."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import tokenizers

    words = ["<pad>", "</s>", "<unk>", *(f"{letter}{i}" for letter in "abc" for i in range(9))]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    folder = tmp_path_factory.mktemp("t5")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(words), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_a_translation_does_not_depend_on_the_batch(tiny_t5):
    sentences = ["a1 a2 a3 b4 b5", "c1", "a1 a2", "c1", "b1 b2 b3 b4 b5 b6 b7 c1 c2 c3"]
    found = Translator(tiny_t5, batch=2)(sentences)
    assert found == [Translator(tiny_t5, batch=1)([sentence])[0] for sentence in sentences]
    assert found[1] == found[3]
    assert len({*found}) > 1
    assert Translator(tiny_t5)([]) == []


def test_what_is_too_long_for_the_model_stays(tiny_t5):
    translator = Translator(tiny_t5)
    assert translator(["a1 " * 600, "a1"])[0] == ""
    log = log_of([(0, "a1 a2. " + "a1" * 600)])
    altered = back_translated(log, rng(), forth=translator, back=translator)
    assert altered.spans == ((0, len(altered.text), 0),)


def test_without_a_model_there_is_a_sentence(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with pytest.raises(BackendUnavailable, match="give the folder or id of a sequence-to-sequence model"):
        Translator(tmp_path)
    with pytest.raises(InputError, match="beams: got 0"):
        Translator(tmp_path, beams=0)


def test_an_unknown_language_is_refused(tiny_t5):
    with pytest.raises(InputError, match="languages: got 'fra_Latn'"):
        Translator(tiny_t5, languages=("eng_Latn", "fra_Latn"))


needs_apertium = pytest.mark.skipif(shutil.which("apertium") is None, reason="apertium is not installed")


@needs_apertium
def test_apertium_translates_each_sentence_by_itself():
    forth, back = translator("en_es", APERTIUM), translator("es_en", APERTIUM)
    sentences = [
        "The agent will send the report tomorrow.",
        "a [b] ^c$ {d} <e> @ \\ /",
        "no end",
        "zzqx  zzqy.",
    ]
    spanish = forth(sentences)
    assert spanish[0] == "El agente enviará el informe mañana."
    assert spanish == [forth([sentence])[0] for sentence in sentences]
    assert spanish[3] == "zzqx zzqy."
    assert "report" in back(spanish)[0]
    assert forth([]) == []


def test_apertium_that_is_not_there(monkeypatch):
    if shutil.which("apertium"):
        with pytest.raises(BackendUnavailable, match="apertium: got eng-zho, installed are "):
            Apertium("en", "zh")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailable, match="apt-get install apertium"):
        Apertium("en", "es")
