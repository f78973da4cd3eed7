"""Tokenizers of other libraries: equal ids, stable digests, and what to do if a file cannot be converted."""

from __future__ import annotations

import base64
import itertools
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import iet
from iet.errors import BackendUnavailable, TokenizerMismatch
from iet.marks import tokenizer_formats
from iet.marks.tokenizer import DEMO_MODEL, Tokenizer
from iet.marks.word_cache import SPLITS

PATTERN = next(pattern for pattern, name in SPLITS.items() if name == "Llama 3")
PATTERNS = {name: pattern for pattern, name in SPLITS.items()}
TEXTS = [
    "The planner's plan: 12345 steps,\n\n  then   the critic reads it -- twice.\t",
    " leading space", "  two", "trailing ", "   ", "", "don't DON'T I'LL",
    "Zażółć gęślą jaźń, Größe, ÉCOLE. Привет, мир! 你好，世界。 안녕하세요 नमस्ते مرحبا",
    "👍🏽 👨‍👩‍👧 x\u00a0y\u2003z\u3000w\u0085v ١٢٣ ²½",
    "aaaaaaaaaaaaaaaaaaaaaa =========------ //////\n\n\n\n",
    "def f(x):\n    return {'a': [1, 2, 3]}  # a comment\n",
]  # fmt: skip


def demo_ranks() -> dict[bytes, int]:
    """The byte tokens of the demo tokenizer in their order, which is that of their merges."""
    model = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    special = {token["content"] for token in model["added_tokens"]}
    names = sorted(model["model"]["vocab"], key=model["model"]["vocab"].__getitem__)
    byte_of = {character: byte for byte, character in enumerate(tokenizer_formats.BYTES)}
    tokens = (bytes(byte_of[c] for c in name) for name in names if name not in special)
    return {token: rank for rank, token in enumerate(tokens)}


RANKS = demo_ranks()


def tiktoken_ids(text: str, ranks: Mapping[bytes, int] = RANKS, pattern: str = PATTERN) -> list[int]:
    """Ids as tiktoken defines them: merge the first pair of the lowest rank, repeatedly."""
    regex, ids = pytest.importorskip("regex"), list[int]()
    for word in regex.findall(pattern, text):
        parts = [bytes([byte]) for byte in word.encode()]
        if word.encode() in ranks:
            parts = [word.encode()]
        while True:
            pairs = [a + b for a, b in itertools.pairwise(parts)]
            known = [(ranks[pair], at) for at, pair in enumerate(pairs) if pair in ranks]
            if not known:
                break
            at = min(known)[1]
            parts[at : at + 2] = [pairs[at]]
        ids += [ranks[part] for part in parts]
    return ids


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.backend.encode(text, add_special_tokens=False).ids
    return ids


def write_ranks(path: pathlib.Path, ranks: Mapping[bytes, int] = RANKS) -> pathlib.Path:
    path.write_bytes(b"".join(base64.b64encode(t) + f" {rank}\n".encode() for t, rank in ranks.items()))
    return path


def write_tekken(path: pathlib.Path, special: Sequence[str] = ("<unk>", "<s>", "the"), **config: Any) -> Any:
    vocabulary = [{"rank": r, "token_bytes": base64.b64encode(t).decode()} for t, r in RANKS.items()]
    content = {
        "config": {"pattern": PATTERN, "default_num_special_tokens": 10, **config},
        "vocab": vocabulary,
        "special_tokens": [{"rank": rank, "token_str": name} for rank, name in enumerate(special)],
    }
    path.write_text(json.dumps(content))
    return path


def assert_stable(path: pathlib.Path, tokenizer: Tokenizer, tmp_path: pathlib.Path) -> None:
    tokenizer.backend.save(str(tmp_path / "saved.json"))
    assert Tokenizer(path).digest == tokenizer.digest == Tokenizer(tmp_path / "saved.json").digest


# tekken.json


def test_tekken_has_the_ids_of_its_ranks_after_the_special_ones(tmp_path: pathlib.Path) -> None:
    path = write_tekken(tmp_path / "any-name.json")
    tokenizer = Tokenizer(path)
    assert tokenizer.vocab_size == 10 + len(RANKS)
    assert tokenizer.special_ids == tuple(range(10))
    for text in TEXTS:
        assert ids_of(tokenizer, text) == [10 + id for id in tiktoken_ids(text)]
        assert tokenizer.decode(ids_of(tokenizer, text)) == text
    # A special token whose name is also a token of text must not take its place.
    assert [tokenizer.backend.id_to_token(id) for id in range(4)] == [
        "<unk>", "<s>", "<SPECIAL_2>", "<SPECIAL_3>",
    ]  # fmt: skip
    assert_stable(path, tokenizer, tmp_path)


def test_a_token_with_the_name_of_tekkens_field_is_no_tekken(tmp_path: pathlib.Path) -> None:
    vocabulary = {"token_bytes": 0, "[UNK]": 1}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    )
    assert Tokenizer(tmp_path / "tokenizer.json").encode("token_bytes").token_ids.tolist() == [0]


def test_tekken_is_cut_to_its_vocabulary_size(tmp_path: pathlib.Path) -> None:
    path = write_tekken(tmp_path / "tekken.json", special=["<unk>"], default_vocab_size=1000)
    tokenizer = Tokenizer(path)
    cut = {token: rank for token, rank in RANKS.items() if rank < 990}
    assert tokenizer.vocab_size == 1000
    for text in TEXTS:
        assert ids_of(tokenizer, text) == [10 + id for id in tiktoken_ids(text, cut)]


def test_registry_keeps_and_opens_a_folder_with_tekken(tmp_path: pathlib.Path) -> None:
    write_tekken(tmp_path / "tekken.json")
    registry = iet.Registry.create(tmp_path / "team.json", tokenizer=tmp_path)
    registry.add("planner")
    opened = iet.Registry.load(tmp_path / "team.json")
    assert opened.open_tokenizer(opened.profile.id).digest == registry.profile.tokenizer_digest
    assert opened.profile.unmarked_ids == tuple(range(10))
    report = iet.Auditor(opened, level=1e-4).audit("The planner wrote this text, or so it says. " * 5)
    assert {segment.agent for segment in report.segments} == {None}


# Ranks of tiktoken


def test_ranks_without_a_known_pattern_name_the_command_that_converts(tmp_path: pathlib.Path) -> None:
    path = write_ranks(tmp_path / "model.tiktoken")
    with pytest.raises(TokenizerMismatch, match="it holds ranks, but not the regular expression") as error:
        Tokenizer(path)
    command = shlex.split(str(error.value).split("with that: ")[1].replace("\\'", "'"))
    assert command[:2] == ["python", "-c"]
    code = command[2].replace("PATTERN", PATTERN)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.vocab_size == len(RANKS)
    for text in TEXTS:
        assert ids_of(tokenizer, text) == tiktoken_ids(text)
    assert_stable(tmp_path / "tokenizer.json", tokenizer, tmp_path)


@pytest.mark.parametrize("name", ["Llama 3", "Qwen 2", "o200k"])
def test_known_ranks_split_as_their_tokenizer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = write_ranks(tmp_path / "tokenizer.model")
    digest = tokenizer_formats.hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(tokenizer_formats._RANKS, digest, name)
    tokenizer = Tokenizer(tmp_path)
    for text in TEXTS:
        assert ids_of(tokenizer, text) == tiktoken_ids(text, pattern=PATTERNS[name])
        assert tokenizer.encode(text).token_ids.tolist() == ids_of(tokenizer, text)


def test_ranks_equal_tiktoken(tmp_path: pathlib.Path) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="pip install tiktoken")
    encoding = tiktoken.Encoding("x", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens={})
    converted = tokenizer_formats.of_ranks(write_ranks(tmp_path / "x"), PATTERN)
    for text in TEXTS:
        assert converted.encode(text).ids == encoding.encode(text) == tiktoken_ids(text)


def test_rejects_ranks_with_a_gap(tmp_path: pathlib.Path) -> None:
    ranks = {token: rank + (rank > 500) for token, rank in RANKS.items()}
    with pytest.raises(iet.InputError, match="its ids are not 0, 1, 2"):
        tokenizer_formats.of_ranks(write_ranks(tmp_path / "x", ranks), PATTERN)


# SentencePiece


def trained(folder: pathlib.Path, **options: Any) -> Any:
    """A SentencePiece model of the texts, written to a folder."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="pip install sentencepiece protobuf")
    pytest.importorskip("google.protobuf")
    settings = {
        "vocab_size": 420,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "hard_vocab_limit": False,
        "minloglevel": 9,
        **options,
    }
    prefix = folder / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in TEXTS for line in text.splitlines() if line),
        model_prefix=str(prefix),
        **settings,
    )
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_dummy_prefix": False},
        {"byte_fallback": False},
        {"add_dummy_prefix": False, "user_defined_symbols": ["<tab>", "▁▁", "▁▁▁"]},
        {"control_symbols": ["[INST]"], "user_defined_symbols": ["[REF]"]},
    ],
)
def test_sentencepiece_models_keep_their_ids(tmp_path: pathlib.Path, options: Any) -> None:
    model = trained(tmp_path, **options)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.vocab_size == model.get_piece_size()
    control = [id for id in range(tokenizer.vocab_size) if model.is_control(id) or model.is_unknown(id)]
    assert list(tokenizer.special_ids) == control
    for text in TEXTS:
        assert ids_of(tokenizer, text) == model.encode(text)
    assert tokenizer.encode(TEXTS[0]).char_ends[-1] == len(TEXTS[0])
    assert_stable(tmp_path / "tokenizer.model", tokenizer, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"normalization_rule_name": "nmt_nfkc"},
        {"remove_extra_whitespaces": True},
        {"treat_whitespace_as_suffix": True},
        {"user_defined_symbols": ["▁▁"]},
    ],
)
def test_refuses_what_sentencepiece_does_beyond_merges(tmp_path: pathlib.Path, options: Any) -> None:
    trained(tmp_path, **options)
    with pytest.raises(TokenizerMismatch, match="cannot be converted exactly; transformers writes") as error:
        Tokenizer(tmp_path)
    if options.get("model_type") != "unigram":
        return
    pytest.importorskip("transformers")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    (tmp_path / "tokenizer.model").rename(tmp_path / "spiece.model")
    command = shlex.split(str(error.value).split("it uses: ")[1])
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True)
    assert Tokenizer(tmp_path).vocab_size >= 300


# GGUF


REPOSITORY = "https://huggingface.co/Qwen/Qwen2-7B"


def write_gguf(path: pathlib.Path, model: str, **fields: Any) -> pathlib.Path:
    gguf = pytest.importorskip("gguf", reason="pip install gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(*value if isinstance(value, tuple) else [value])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def demo_fields() -> dict[str, Any]:
    """The demo tokenizer as GGUF stores it, with a token that a user defined."""
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1])
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    return {
        "token_list": [*(token for token, _ in vocabulary), "<think>"],
        "token_types": [*(3 if id in special else 1 for _, id in vocabulary), 4],
        "token_merges": merges,
    }


def test_gguf_with_bytes_reads_as_its_own_tokenizer(tmp_path: pathlib.Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "gpt2", tokenizer_pre="gpt-2", **demo_fields())
    tokenizer, demo = Tokenizer(path), Tokenizer("iet:demo")
    assert tokenizer.special_ids == demo.special_ids
    assert tokenizer.vocab_size == demo.vocab_size + 1
    for text in TEXTS:
        assert ids_of(tokenizer, text) == ids_of(demo, text)
    assert ids_of(tokenizer, "<think>") == [demo.vocab_size]
    assert_stable(path, tokenizer, tmp_path)
    assert Tokenizer(tmp_path).digest == tokenizer.digest


def test_gguf_of_a_sentencepiece_model_reads_as_that(tmp_path: pathlib.Path) -> None:
    model = trained(tmp_path, control_symbols=["[INST]"])
    ids = range(model.get_piece_size())
    kinds = {"is_unknown": 2, "is_control": 3, "is_byte": 6}
    types = [next((kind for name, kind in kinds.items() if getattr(model, name)(id)), 1) for id in ids]
    pieces = [model.id_to_piece(id) for id in ids], [model.get_score(id) for id in ids], types
    fields = dict(zip(("token_list", "token_scores", "token_types"), pieces, strict=True))
    path = write_gguf(tmp_path / "model.gguf", "llama", **fields)
    assert Tokenizer(path).digest == Tokenizer(tmp_path / "tokenizer.model").digest
    without = Tokenizer(write_gguf(tmp_path / "bare.gguf", "llama", add_space_prefix=False, **fields))
    assert ids_of(without, " " + TEXTS[0]) == model.encode(TEXTS[0])


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (
            "gpt2",
            {"tokenizer_pre": "poro"},
            "'gpt2' with the pre-tokenizer 'poro', expected 'llama', or 'gpt2'",
        ),
        ("gpt2", {}, r"pre-tokenizer None.*: --tokenizer OWNER/NAME$"),
        (
            "t5",
            {"base_model_repo_url": (0, REPOSITORY)},
            r"its tokenizer is 't5'.*: --tokenizer Qwen/Qwen2-7B$",
        ),
        ("llama", {"remove_extra_whitespaces": True}, "its tokenizer is 'llama'"),
    ],
)
def test_refuses_other_gguf_files(tmp_path: pathlib.Path, model: str, fields: Any, message: str) -> None:
    with pytest.raises(TokenizerMismatch, match=message):
        Tokenizer(write_gguf(tmp_path / "model.gguf", model, **fields))


# Refusals


@pytest.mark.parametrize(
    ("start", "package", "command"),
    [
        (b"GGUF", "gguf", "pip install gguf"),
        (
            b"\n\x0e\n\x05<unk>\x15",
            "sentencepiece.sentencepiece_model_pb2",
            "pip install sentencepiece protobuf",
        ),
    ],
)
def test_names_the_package_that_is_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, start: bytes, package: str, command: str
) -> None:
    (tmp_path / "file").write_bytes(start + bytes(100))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailable, match=command):
        Tokenizer(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"token_bytes": 1}',
        b"hello 5\n",
        b"IQ== 0\n!\n",
        b"\n\x15\xff",
        b"GGUF\xff",
        b"\xff" * 99,
    ],
)
def test_rejects_broken_files(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises((TokenizerMismatch, BackendUnavailable), match="tokenizer: "):
        Tokenizer(tmp_path / "file")


def test_folder_needs_one_file(tmp_path: pathlib.Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(TokenizerMismatch, match=r"in which there are a\.gguf, b\.gguf, expected one"):
        Tokenizer(tmp_path)
    write_tekken(tmp_path / "tekken.json")
    assert Tokenizer(tmp_path).vocab_size == 10 + len(RANKS)
