"""Convert tokenizers of other libraries: `tekken.json`, tiktoken ranks, SentencePiece models, GGUF files.

The format is recognized by the content. The conversions are the package's own, because a profile stores the
digest of the result: with those of transformers it would change with their version.

All are byte-pair encodings. `tokenizers` takes a list of merges instead of ranks: every way to cut a token
into two others, in the order of the tokens. The ids are those of the other library, with these exceptions:

* A text that spells a control token, such as </s>, becomes that token, as with any `tokenizer.json`.
* If a text offers two overlapping merges to the same token, another one may come first. That needs a run of
  one character, and did not occur in comparisons.
* llama.cpp splits Tekken's and o200k's words differently after combining marks; here the models' own
  regular expression decides.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iet.errors import BackendUnavailable, InputError
from iet.marks.word_cache import SPLITS

if TYPE_CHECKING:
    import tokenizers

NAMES = ("tokenizer.json", "tekken.json", "tokenizer.model", "*.tiktoken", "*.gguf")
"""Files of a tokenizer in a model's folder, the preferred one first."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # types of pieces

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = [chr(byte) if byte in _PRINTABLE else chr(256 + _OTHERS.index(byte)) for byte in range(256)]
"""How a byte-level vocabulary writes each byte: as a printable character, its own or one from U+0100 on."""

_SPLIT = {name: pattern for pattern, name in SPLITS.items()}

_RANKS = {
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": "Llama 3",  # cl100k_base
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": "o200k",
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": "Llama 3",
    "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed": "o200k",  # Llama 4
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": "Qwen 2",  # Qwen 1
}
"""SHA-256 of well-known files of ranks -> how their tokenizer splits texts, which the file does not say."""

_PRE_TOKENIZERS = {
    **dict.fromkeys(["llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"], "Llama 3"),
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen", "megrez"], "Qwen 2"),
    **{"gpt-2": "GPT-2", "qwen35": "Qwen 3.5", "tekken": "Tekken", "gpt-4o": "o200k", "llama4": "o200k"},
}
"""llama.cpp's names of pre-tokenizers whose ids were compared with llama.cpp's."""


def read(path: pathlib.Path) -> tokenizers.Tokenizer | None:
    """Return the tokenizer of a file, or None if the file has another format.

    Raises:
        InputError: the file has one of the formats but cannot be converted exactly; says what can be done.
        BackendUnavailable: a package that reads the file is not installed.
    """
    with path.open("rb") as file:
        start = file.read(1 << 20)
    if start.startswith(b"GGUF"):
        return _of_gguf(path)
    if start.lstrip().startswith(b"{"):
        content = json.loads(path.read_bytes()) if b'"token_bytes"' in start else {}
        return _of_tekken(content) if "config" in content and isinstance(content.get("vocab"), list) else None
    if re.match(rb"[A-Za-z0-9+/]+=* 0\r?\n", start):
        return of_ranks(path)
    return _of_sentencepiece(path) if start.startswith(b"\n") and b"\x15" in start else None


def of_ranks(path: str | pathlib.Path, pattern: str | None = None) -> tokenizers.Tokenizer:
    r"""Convert a file of tiktoken's ranks, lines of a token in base64 and its rank.

    Args:
        path: of the file.
        pattern: regular expression that splits texts, `pat_str` of the `tiktoken.Encoding`. None: that of a
            well-known file.

    Raises:
        InputError: the pattern is not known.
    """
    raw = pathlib.Path(path).read_bytes()
    split_name = _RANKS.get(hashlib.sha256(raw).hexdigest())
    if pattern is None and split_name is None:
        code = f"from iet.marks.tokenizer_formats import of_ranks as o; o(r'{path}', r'''PATTERN''')"
        raise InputError(
            "it holds ranks, but not the regular expression that splits texts, `pat_str` in the model's"
            f" Python code; with that: python -c \"{code}.save(r'tokenizer.json')\""
        )
    lines = (line.split() for line in raw.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return _byte_level(ranks, pattern or _SPLIT[split_name or ""])


def _of_tekken(content: Mapping[str, Any]) -> tokenizers.Tokenizer:
    config, names = (
        content["config"],
        {t["rank"]: t["token_str"] for t in content.get("special_tokens") or ()},
    )
    specials: int = config.get("default_num_special_tokens") or len(names)
    size = config.get("default_vocab_size")
    entries = content["vocab"][: None if size is None else size - specials]
    ranks = {base64.b64decode(entry["token_bytes"]): specials + entry["rank"] for entry in entries}
    special = [names.get(id, f"<SPECIAL_{id}>") for id in range(specials)]
    # Some names are also spellings of other tokens.
    special = [f"<SPECIAL_{id}>" if name.encode() in ranks else name for id, name in enumerate(special)]
    return _byte_level(ranks, config["pattern"], special)


def _byte_level(
    ranks: Mapping[bytes, int], pattern: str, special: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """Return the tokenizer that merges bytes by rank; the ids of special tokens come before the ranks."""
    written = {token: "".join(map(BYTES.__getitem__, token)) for token in ranks}
    vocabulary = {name: id for id, name in enumerate(special)}
    vocabulary |= {written[token]: rank for token, rank in ranks.items()}
    merges = [(written[left], written[right]) for left, right in _merges(ranks)]
    tokenizer = _split_bpe(vocabulary, merges, pattern, ignore_merges=True)
    return _with_tokens(tokenizer, special)


def _merges(ranks: Mapping[Any, float]) -> Iterable[tuple[Any, Any]]:
    """Return every way to cut a token into two others, in the order of the tokens' ranks."""
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in ranks and pair[1] in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _split_bpe(
    vocabulary: dict[str, int], merges: Any, pattern: str, *, ignore_merges: bool
) -> tokenizers.Tokenizer:
    """Return a tokenizer that splits texts by a regular expression and merges bytes."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise InputError("its ids are not 0, 1, 2, …, each once")
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_tokens(
    tokenizer: tokenizers.Tokenizer, special: Iterable[str], user_defined: Iterable[str] = ()
) -> tokenizers.Tokenizer:
    """Add tokens that are found in a text before it is split."""
    from tokenizers import AddedToken

    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in user_defined])
    return tokenizer


def _of_sentencepiece(path: pathlib.Path) -> tokenizers.Tokenizer:
    model = _package("sentencepiece.sentencepiece_model_pb2", "sentencepiece protobuf")
    proto = model.ModelProto()
    proto.ParseFromString(path.read_bytes())
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    kinds = {kind for _, _, kind in pieces}
    spaces = any("▁" in piece or not piece.strip() for piece, _, kind in pieces if kind == _USER_DEFINED)
    if (
        trainer.model_type != trainer.BPE
        or normalizer.precompiled_charsmap
        or normalizer.remove_extra_whitespaces
        or not normalizer.escape_whitespaces
        or trainer.treat_whitespace_as_suffix
        or _UNUSED in kinds
        or (spaces and normalizer.add_dummy_prefix)
    ):
        folder = f"r'{path.parent}'"
        code = f"from transformers import AutoTokenizer as A; A.from_pretrained({folder})"
        raise InputError(
            "it is no byte-pair encoding of the text as it is, so it cannot be converted exactly;"
            f' transformers writes the one that it uses: python -c "{code}.save_pretrained({folder})"'
        )
    return _spelled(pieces, normalizer.add_dummy_prefix, trainer.byte_fallback)


def _of_gguf(path: pathlib.Path) -> tokenizers.Tokenizer:
    fields = _package("gguf", "gguf").GGUFReader(path).fields

    def value(name: str, default: Any = None) -> Any:
        return fields[name].contents() if name in fields else default

    kind, split = value("tokenizer.ggml.model"), value("tokenizer.ggml.pre")
    tokens = value("tokenizer.ggml.tokens", [])
    types = value("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if kind == "llama" and not value("tokenizer.ggml.remove_extra_whitespaces", False):
        pieces = list(zip(tokens, value("tokenizer.ggml.scores"), types, strict=True))
        return _spelled(pieces, value("tokenizer.ggml.add_space_prefix", True), byte_fallback=True)
    if kind == "gpt2" and split in _PRE_TOKENIZERS:
        name, vocabulary = _PRE_TOKENIZERS[split], {token: id for id, token in enumerate(tokens)}
        merges = [tuple(merge.split(" ", 1)) for merge in value("tokenizer.ggml.merges")]
        ignore_merges = name in ("Llama 3", "Tekken")  # as llama.cpp does
        tokenizer = _split_bpe(vocabulary, merges, _SPLIT[name], ignore_merges=ignore_merges)
        added = {of: [t for t, kind in zip(tokens, types, strict=True) if kind == of] for of in set(types)}
        return _with_tokens(tokenizer, added.get(_CONTROL, ()), added.get(_USER_DEFINED, ()))
    origin = value("general.base_model.0.repo_url", "OWNER/NAME").removeprefix("https://huggingface.co/")
    raise InputError(
        f"its tokenizer is {kind!r} with the pre-tokenizer {split!r}, expected 'llama', or 'gpt2' with one of"
        f" {', '.join(sorted(_PRE_TOKENIZERS))}; pass that of the original model: --tokenizer {origin}"
    )


def _package(module: str, packages: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailable(f"tokenizer: to read it: {error}; pip install {packages}") from None


def _spelled(
    pieces: Sequence[tuple[str, float, int]], prefix: bool, byte_fallback: bool
) -> tokenizers.Tokenizer:
    """Return the tokenizer that merges characters by score, as SentencePiece does.

    Args:
        pieces: spelling, score and type of each id.
        prefix: whether a space is put before a text.
        byte_fallback: whether characters without a piece become bytes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    # User-defined pieces are found in the text itself, before its spaces are replaced.
    pieces = [(p.replace("▁", " ") if kind == _USER_DEFINED else p, score, kind) for p, score, kind in pieces]
    vocabulary = {piece: id for id, (piece, _, _) in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        raise InputError("two of its ids have one spelling")
    unknown = next((piece for piece, _, kind in pieces if kind == _UNKNOWN), None)
    ranks = {piece: -score for piece, score, kind in pieces if kind == _NORMAL}
    merges = list(_merges(ranks))
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)
    )
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    start = [decoders.Strip(" ", 1, 0)] if prefix else []
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *start]
    tokenizer.decoder = decoders.Sequence(steps)
    special = (piece for piece, _, kind in pieces if kind in (_CONTROL, _UNKNOWN))
    return _with_tokens(tokenizer, special, (piece for piece, _, kind in pieces if kind == _USER_DEFINED))
