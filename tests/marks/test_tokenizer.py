"""The tokenizer: sources, digests, offsets into the original text, rejected input."""

from __future__ import annotations

import json
import pathlib
import unicodedata
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from iet.errors import InputError, TokenizerMismatch
from iet.marks.scheme import canonical_digest
from iet.marks.tokenizer import INVISIBLE, Tokenizer, _ordered, _visible
from tests.support.letters import LETTERS
from tests.support.teams import byte_tokenizer

CORPUS = ["The planner hands the plan to the critic.", "The critic hands it back, naïvely."] * 5


BACKEND = byte_tokenizer(corpus=CORPUS, special_tokens=["<eos>", "<pad>"])
TOKENIZER = Tokenizer(BACKEND)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    BACKEND.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def edited(path: pathlib.Path, **changes: Any) -> Tokenizer:
    """The tokenizer with top-level fields of its file replaced."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return Tokenizer(path)


# Finding it


def test_sources_are_equivalent(path: pathlib.Path) -> None:
    class Fast:  # as transformers has it
        backend_tokenizer = BACKEND

    for source in (path, str(path), path.parent, BACKEND, Fast()):
        tokenizer = Tokenizer(source)
        assert tokenizer.digest == TOKENIZER.digest
        assert tokenizer.vocab_size == 280
        assert tokenizer.special_ids == (0, 1)
    assert Tokenizer(str(path)).source == str(path)
    assert Tokenizer(BACKEND).source is None


@pytest.mark.parametrize("source", [None, 3, b"x", object(), models.BPE()])
def test_rejects_other_objects(source: Any) -> None:
    with pytest.raises(InputError, match="expected a path, a tokenizers"):
        Tokenizer(source)


def test_rejects_unreadable_files(tmp_path: pathlib.Path) -> None:
    for long in ("x" * 5000, "{" + "x" * 100_000, "a\0b"):
        with pytest.raises(TokenizerMismatch, match="does not exist or cannot be read") as refused:
            Tokenizer(long)
        assert len(str(refused.value)) < 400
    with pytest.raises(
        TokenizerMismatch, match=r"does not exist or cannot be read; expected a tokenizer\.json"
    ):
        Tokenizer(tmp_path / "nothing.json")
    with pytest.raises(TokenizerMismatch, match=r"got the folder .*, in which there is no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "bad.json").write_text('{"model": 3}')
    with pytest.raises(TokenizerMismatch, match=r"is no tokenizer\.json"):
        Tokenizer(tmp_path / "bad.json")


# Digest


def test_digest_survives_saving(path: pathlib.Path) -> None:
    Tokenizer(path).backend.save(str(path), pretty=False)
    assert Tokenizer(path).digest == TOKENIZER.digest


def test_digest_ignores_the_form_of_merges(path: pathlib.Path) -> None:
    content = json.loads(path.read_text())
    assert isinstance(content["model"]["merges"][0], list)
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    path.write_text(json.dumps(content))
    assert Tokenizer(path).digest == TOKENIZER.digest


def test_ignores_truncation_padding_and_templates(path: pathlib.Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    backend.post_processor = processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    changed = Tokenizer(backend)
    text = CORPUS[0]
    assert changed.digest == TOKENIZER.digest
    assert changed.encode(text).token_ids.tolist() == TOKENIZER.encode(text).token_ids.tolist()
    assert len(backend.encode(text).ids) == 64  # the caller's own is as it was


def test_digests_are_cached(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iet.marks.tokenizer._TRAITS", {})  # of this test alone
    first = Tokenizer(path)
    monkeypatch.setattr("iet.marks.tokenizer._content_digest", lambda content: "made anew")
    second = Tokenizer(path)
    assert (second.digest, second.special_ids) == (first.digest, first.special_ids)
    assert second.encode(CORPUS[0]).token_ids.tolist() == first.encode(CORPUS[0]).token_ids.tolist()
    assert edited(path, normalizer={"type": "Lowercase"}).digest == "made anew"
    monkeypatch.setattr("iet.marks.tokenizer._TRAITS", dict.fromkeys(map(bytes, [[n] for n in range(64)])))
    assert Tokenizer(path).digest == "made anew"  # no more than 64 are kept


def test_digest_covers_all_that_changes_ids(path: pathlib.Path) -> None:
    content = json.loads(path.read_text())
    merges = content["model"]["merges"]
    special = [{**content["added_tokens"][0], "special": False}, content["added_tokens"][1]]
    digests = {
        TOKENIZER.digest,
        edited(path, normalizer={"type": "Lowercase"}).digest,
        edited(path, normalizer=None, pre_tokenizer={"type": "Whitespace"}).digest,
        edited(path, pre_tokenizer=content["pre_tokenizer"], added_tokens=special).digest,
        edited(
            path, added_tokens=content["added_tokens"], model={**content["model"], "merges": merges[:-1]}
        ).digest,
        edited(path, model={**content["model"], "merges": [merges[1], merges[0], *merges[2:]]}).digest,
    }
    assert len(digests) == 6
    assert edited(path, model=content["model"]).digest == TOKENIZER.digest


def test_canonical_digest_is_frozen() -> None:
    # The order of keys does not matter; the bytes are those of compact UTF-8 JSON.
    assert canonical_digest({"b": [1, 0.8], "a": "ü"}) == canonical_digest({"a": "ü", "b": [1, 0.8]})
    assert canonical_digest({"b": [1, 0.8], "a": "ü"})[:16] == "c3f84dfe648dd58b"


# Offsets


@given(st.text(LETTERS, max_size=60))
def test_offsets_tile_the_text(text: str) -> None:
    encoding = TOKENIZER.encode(text)
    visible = "".join(character for character in text if ord(character) not in INVISIBLE)
    assert encoding.skipped == len(text) - len(visible)
    covered: set[int] = set()
    last = 0
    for start, end in zip(encoding.char_starts.tolist(), encoding.char_ends.tolist(), strict=True):
        assert last <= start < end <= len(text)
        last = start
        covered.update(range(start, end))
    assert {i for i, character in enumerate(text) if ord(character) not in INVISIBLE} <= covered
    if "<" not in text:  # no special token spelled out
        assert TOKENIZER.decode(encoding.token_ids.tolist()) == visible


def with_and_without_spelling(source: Any) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer that derives offsets from the bytes of its tokens, and one that asks the backend."""
    spelling, asking = Tokenizer(source), Tokenizer(source)
    spelling._characters = 1 << 40
    asking._byte_level = False
    return spelling, asking


def assert_same_encodings(spelling: Tokenizer, asking: Tokenizer, texts: list[str]) -> list[bool]:
    """Compare everything; return which texts were spelled out."""
    spelled = spelling.encode_batch(texts)
    for encoding, expected in zip(spelled, asking.encode_batch(texts), strict=True):
        assert encoding.token_ids.tolist() == expected.token_ids.tolist()
        tokens = list(range(0, len(encoding.token_ids), 2))
        for order in (range(len(encoding.token_ids)), tokens, tokens[::-1]):
            assert encoding.characters(order).tolist() == expected.characters(order).tolist()
    assert "_spelling" not in vars(asking)
    return [
        spelling._byte_level and spelling._spelling.offsets(encoding.token_ids, _visible(text)[0]) is not None
        for encoding, text in zip(spelled, texts, strict=True)
    ]


SPELLING, ASKING = with_and_without_spelling(BACKEND)
AWKWARD = [
    "naïve 😀 <eos>x<pad>",
    "\u00ad\ufeffThe\u200b plan",
    "",
    " ",
    "\n\n\t é",
    "日本語のテキスト",
    "a\u0301b",
]


@given(st.lists(st.text(LETTERS, max_size=40), max_size=4))
def test_spelled_offsets_equal_the_tokenizers(texts: list[str]) -> None:
    assert all(assert_same_encodings(SPELLING, ASKING, texts + AWKWARD))


def test_offsets_fall_back_to_the_tokenizer(path: pathlib.Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.normalizer = normalizers.NFKC()
    spelled = assert_same_encodings(*with_and_without_spelling(backend), ["ﬁ plan", "a plan"])
    assert spelled == [False, True]
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert assert_same_encodings(*with_and_without_spelling(backend), ["The plan", " The"]) == [False, True]
    backend.add_tokens([tokenizers.AddedToken("critic", lstrip=True)])  # swallows the space before it
    assert not any(assert_same_encodings(*with_and_without_spelling(backend), [" the  critic", "a critic"]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # not byte-level: spaces belong to no token
    assert not any(assert_same_encodings(*with_and_without_spelling(backend), ["The plan", "plan"]))


def test_vocabulary_bytes_are_listed_for_long_texts_only() -> None:
    tokenizer = Tokenizer(BACKEND)
    assert tokenizer.encode("a plan").char_starts.tolist()
    assert "_spelling" not in vars(tokenizer)
    assert tokenizer.encode("a plan " * 400).char_starts.tolist()
    assert "_spelling" in vars(tokenizer)


def test_offsets_keep_the_leading_space(path: pathlib.Path) -> None:
    # This post-processor trims spaces off the offsets, so that no token would cover them.
    trimming = processors.ByteLevel(trim_offsets=True)
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.post_processor = trimming
    encoding = Tokenizer(backend).encode("The plan é")
    assert encoding.char_starts[0] == 0
    assert encoding.char_starts[1:].tolist()[:1] == encoding.char_ends[:1].tolist()
    assert set(range(10)) == {
        i for s, e in zip(encoding.char_starts, encoding.char_ends, strict=True) for i in range(s, e)
    }


def test_tokens_of_one_character_all_cover_it() -> None:
    encoding = TOKENIZER.encode("😀")
    assert len(encoding.token_ids) == 4
    assert encoding.char_starts.tolist() == [0] * 4
    assert encoding.char_ends.tolist() == [1] * 4


@pytest.mark.parametrize("mark", sorted({min(INVISIBLE), 0x200B, 0xFEFF, 0xFE0F, 0xE0041, 0xE01EF}))
def test_invisible_characters_do_not_move_ids(mark: int) -> None:
    plain = "The planner"
    text = chr(mark) + "The" + chr(mark) * 2 + " plan" + chr(mark) + "ner" + chr(mark)
    clean, marked = TOKENIZER.encode(plain), TOKENIZER.encode(text)
    assert marked.token_ids.tolist() == clean.token_ids.tolist()
    assert marked.skipped == 5
    visible = [i for i, character in enumerate(text) if ord(character) != mark]
    assert marked.char_starts.tolist() == [visible[i] for i in clean.char_starts.tolist()]
    assert marked.char_ends.tolist() == [visible[i - 1] + 1 for i in clean.char_ends.tolist()]


COMPOSED = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    "éầçḍ̇각힣क़ำ🙂 a\u0301\u0327\u09be\u09c7"
)


@given(st.text(COMPOSED, max_size=40))
def test_decomposed_text_has_the_ids_of_composed_text(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    decomposed = unicodedata.normalize("NFD", text)
    result, expected = TOKENIZER.encode(decomposed), TOKENIZER.encode(composed)
    assert result.token_ids.tolist() == expected.token_ids.tolist()
    assert result.skipped == expected.skipped
    spans = result.characters(range(len(result.token_ids)))
    assert (np.diff(spans[:, 0]) >= 0).all()
    assert ((spans >= 0) & (spans <= len(decomposed))).all()


def test_characters_that_nfc_would_replace_are_kept() -> None:
    for text in ("\u0958", "\u212b", "\uf900", "\u2126 a"):
        assert unicodedata.normalize("NFC", text) != text
        assert TOKENIZER.decode(TOKENIZER.encode(text).token_ids.tolist()) == text


@given(st.text("aé\u0301\u0316\u0327\u0344\u0345\u1161\u11a8가", min_size=33))
def test_long_runs_of_marks_are_ordered_as_in_nfc(marks: str) -> None:
    text = "e" + marks
    for same in ("NFC", "NFD"):
        assert unicodedata.normalize(same, _ordered(text)) == unicodedata.normalize(same, text)


def test_ordering_marks_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its insertion sort takes quadratic time in the number of marks that are out of order.
    passed = list[int]()

    def normalize(form: str, text: str) -> str:
        classes = np.array([unicodedata.combining(character) for character in text])
        passed.append(int((classes[1:] < classes[:-1]).sum()))
        return original(form, text)

    original = unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", normalize)
    for marks in ("\u0301\u0316", "\u0301\u0327\u0316"):
        TOKENIZER.encode("a" + marks * 1000)
    assert passed
    assert max(passed) <= 1


def test_composed_characters_cover_their_parts() -> None:
    text = "e\u0301te\u0301\u200b x"
    encoding = TOKENIZER.encode(text)
    assert encoding.skipped == 1
    assert TOKENIZER.decode(encoding.token_ids.tolist()) == "été x"
    assert {text[start] for start, _ in encoding.characters(range(len(encoding.token_ids))).tolist()} <= set(
        "et x"
    )
    assert encoding.char_ends[-1] == len(text)


@pytest.mark.parametrize("joiner", ["\u200c", "\u200d"])
def test_joiners_are_kept(joiner: str) -> None:
    assert TOKENIZER.encode(f"a{joiner}b").skipped == 0


@pytest.mark.parametrize(("text", "skipped"), [("", 0), ("\u200b", 1), ("\ufeff\u00ad\u2060", 3)])
def test_empty_texts_have_no_tokens(text: str, skipped: int) -> None:
    encoding = TOKENIZER.encode(text)
    assert encoding.skipped == skipped
    for array in (encoding.token_ids, encoding.char_starts, encoding.char_ends):
        assert array.shape == (0,)
        assert str(array.dtype) == "int64"


def test_a_normalizer_that_changes_lengths_keeps_offsets(path: pathlib.Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.normalizer = normalizers.NFKC()
    encoding = Tokenizer(backend).encode("ﬁ plan")  # a ligature: one character, two letters
    assert encoding.char_starts[0] == 0
    assert encoding.char_ends.max() == 6
    assert (encoding.char_ends > encoding.char_starts).all()


@pytest.mark.parametrize(("text", "index"), [("\ud800", 0), ("ab\udfff", 2), ("\u200b\ud83d", 1)])
def test_rejects_lone_surrogates(text: str, index: int) -> None:
    with pytest.raises(InputError, match=rf"character {index} is the lone surrogate U\+D"):
        TOKENIZER.encode(text)


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["text"]])
def test_rejects_other_types(text: Any) -> None:
    with pytest.raises(InputError, match=r"text: got .*, expected str"):
        TOKENIZER.encode(text)
