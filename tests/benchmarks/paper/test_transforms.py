"""Changes after generation: the text, the truth about it, and the similarity to the text before."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest

from benchmarks.paper.reading.similarity import embedder, rouge_l, semantic_similarity
from benchmarks.paper.transforms import (
    MIN_CHANGED,
    TRANSFORMS,
    Apertium,
    Context,
    Place,
    Translator,
    personal_data,
    redacted,
    with_entities,
)
from iet.errors import BackendUnavailable
from tests.support.paper_logs import log_of

TURNS = [
    (0, "Ada Berg pays the mill. The bill goes to m0@mill.org, as always."),
    (1, "I asked for it twice. It was not there."),
    (2, "We wait. Berger is not Ada Berg."),
    (0, "The end."),
]
ENTITIES = ({"entity": "Ada Berg", "types": ["name"]}, {"entity": "m0@mill.org", "types": ["email"]})


@pytest.fixture
def context(tokenizer) -> Context:
    return Context(tokenizer, ENTITIES, regenerate=lambda log, turn: f"Turn {turn} again.")


def apply(name, log, context, seed=0):
    return TRANSFORMS[name].apply(log, np.random.default_rng(seed), context)


def agents_of(text) -> list[int]:
    """The agent of every character."""
    return [agent for start, end, agent in text.spans for _ in range(start, end)]


def test_unchanged_text_keeps_labels_and_edges(context):
    log = log_of(TURNS, 3)
    same = apply("none", log, context)
    assert (same.text, agents_of(same), same.changed) == (log.text, agents_of(log), 0)
    np.testing.assert_array_equal(same.edges(3), log.edges)


@pytest.mark.parametrize(("name", "share_kept"), [("truncation-90", 0.9), ("truncation-75", 0.75)])
def test_truncation_keeps_the_first_tokens(name, share_kept, context, tokenizer):
    log = log_of(TURNS, 3)
    text = apply(name, log, context)
    assert log.text.startswith(text.text)
    assert agents_of(text) == agents_of(log)[: len(text.text)]
    tokens = len(tokenizer.encode(log.text).token_ids)
    assert len(tokenizer.encode(text.text).token_ids) == int(share_kept * tokens)


def test_regenerates_a_tenth_of_the_turns_and_keeps_their_agents(context):
    log = log_of([(i % 3, f"Words of turn {i}.") for i in range(12)], 3)
    texts = [apply("regeneration-10", log, context, seed) for seed in range(200)]
    assert np.mean([text.changed for text in texts]) == pytest.approx(0.1, abs=0.01)
    for text in texts[:9]:
        assert text.text.count("again.") == round(12 * text.changed)
        assert [agent for _, _, agent in text.spans] == [turn.agent for turn in log.turns]


def test_back_translates_sentences_within_turns(context):
    log = log_of(TURNS, 3)
    sentences_asked: list[str] = []

    def forth(sentences):
        sentences_asked.extend(sentences)
        return [sentence.upper() for sentence in sentences]

    def back(sentences):
        return ["" if sentence == "WE WAIT." else f"{sentence.lower()}!" for sentence in sentences]

    text = apply(
        "backtranslation-fr", log, dataclasses.replace(context, translators={"en_fr": forth, "fr_en": back})
    )
    assert sentences_asked[2:6] == [
        "I asked for it twice.",
        "It was not there.",
        "We wait.",
        "Berger is not Ada Berg.",
    ]
    assert "i asked for it twice.! it was not there.!\n\nWe wait. berger" in text.text  # an empty one stays
    assert [agent for _, _, agent in text.spans] == [0, 1, 2, 0]
    with pytest.raises(BackendUnavailable, match="needs a model for en_zh, zh_en"):
        apply("backtranslation-zh", log, context)


def test_apertium_translates_as_many_sentences_as_it_gets(monkeypatch):
    with monkeypatch.context() as without:
        without.setenv("PATH", "")
        with pytest.raises(BackendUnavailable, match="apt-get install apertium"):
            Apertium("eng-spa")
    if shutil.which("apertium") is None:
        pytest.skip("apertium is not installed")
    first, second, third = Apertium("eng-spa")(["The cat: it", "", "sleeps\nby the house"])
    assert "gato" in first
    assert second == ""
    assert "casa" in third
    assert "\n" not in third
    with pytest.raises(BackendUnavailable, match="eng-xyz does not exist"):
        Apertium("eng-xyz")(["We wait."])


def test_personal_data_are_whole_words_and_overlaps_are_merged():
    text = "Ada Berg and Berger: m0@mill.org"
    assert personal_data(text, ENTITIES) == [Place(0, 8, "NAME"), Place(21, 32, "EMAIL")]
    values = personal_data(text, ENTITIES, lambda _: [Place(4, 12, "PERSON"), Place(13, 19, "PERSON")])
    assert values == [Place(0, 12, "NAME"), Place(13, 19, "PERSON"), Place(21, 32, "EMAIL")]


def test_redaction_keeps_agents_of_replaced_entities(context, tokenizer):
    log = log_of(TURNS, 3)
    text = redacted(log, context)
    assert text.text.startswith("[NAME] pays the mill. The bill goes to [EMAIL], as always.")
    assert "Berger is not [NAME]." in text.text
    assert [agent for _, _, agent in text.spans] == [0, 1, 2, 0]
    ends = tokenizer.encode(log.text).char_ends
    positions = personal_data(log.text, ENTITIES)
    inside = sum(any(p.start < end <= p.end for p in positions) for end in ends)
    assert text.changed == pytest.approx(inside / len(ends))


def test_inserts_entities_up_to_the_minimum_share_of_every_turn(context):
    log = log_of(TURNS, 3)
    text = with_entities(log, np.random.default_rng(0), context)
    assert [agent for _, _, agent in text.spans] == [0, 1, 2, 0]
    assert text.changed == 0.5  # two turns had no entity
    for start, end, agent in text.spans:
        turn = log_of([(agent, text.text[start:end])], 3)
        assert redacted(turn, context).changed >= MIN_CHANGED
    without = with_entities(log, np.random.default_rng(0), dataclasses.replace(context, entities=()))
    assert without.text == log.text


def lcs(a: list[str], b: list[str]) -> int:
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i, j] = table[i - 1, j - 1] + 1 if x == y else max(table[i - 1, j], table[i, j - 1])
    return int(table[-1, -1])


def test_rouge_l_equals_its_definition():
    rng = np.random.default_rng(0)
    for _ in range(30):
        a, b = (list(rng.choice(list("abcd"), rng.integers(1, 40))) for _ in range(2))
        expected = 2 * lcs(a, b) / (len(a) + len(b))
        assert rouge_l(" ".join(a), " ".join(b)) == pytest.approx(expected)
    assert rouge_l("", "...") == 1
    assert rouge_l("a", "") == 0


def test_semantic_similarity_is_the_cosine():
    vectors = {"a": [1, 0], "b": [0, 2], "c": [3, 3], "": [0, 0]}
    pairs = [("a", "a"), ("a", "b"), ("a", "c"), ("a", "")]
    values = semantic_similarity(pairs, lambda texts: [vectors[text] for text in texts])
    assert values == pytest.approx([1, 0, 0.5**0.5, 0])
    assert semantic_similarity(pairs, None) == [None] * 4
    pytest.importorskip("sklearn")
    same, different = semantic_similarity(
        [("one mill", "mill one"), ("one mill", "two seas")], embedder("tf-idf")
    )
    assert (same, different) == (pytest.approx(1), 0)


def test_translation_does_not_depend_on_the_batch(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from iet.demo.conversation import MODEL

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.T5Config(vocab_size=4096, decoder_start_token_id=0, pad_token_id=2, **sizes)
        transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(MODEL).save_pretrained(tmp_path)
    sentences = ["One mill.", "Two mills and a bridge.", "Three."]
    answers = Translator(str(tmp_path), batch=2, max_tokens=8)(sentences)
    assert len(answers) == 3
    assert answers[0] == Translator(str(tmp_path), max_tokens=8)(["One mill."])[0]
    with pytest.raises(BackendUnavailable, match="translation model 'no/such/model'"):
        Translator("no/such/model")
