"""Train the tokenizers: the demo model's byte-level BPE, and a Unigram for the second model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 4096
BOS, EOS, PAD, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
BOS_ID, EOS_ID, PAD_ID = 0, 1, 2
UNIGRAM_VOCABULARY_SIZE = 2048
CONTEXT = 4096


def train_tokenizer(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    """A byte-level BPE without normalizer or template: decoding an encoding gives the text back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=_special_tokens(BOS, EOS, PAD),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _of_size(tokenizer, vocabulary_size)


def train_unigram(texts: Iterable[str], vocabulary_size: int = UNIGRAM_VOCABULARY_SIZE) -> Tokenizer:
    """A Unigram over words that begin with their space; every digit and every line break is a token.

    Characters beyond ASCII that the texts lack become ``<unk>``. Training sums in the order of hash tables,
    so that two runs give pieces that differ a little.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="never"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary_size,
        special_tokens=_special_tokens(BOS, EOS, PAD, UNKNOWN),
        unk_token=UNKNOWN,
        initial_alphabet=["▁", "\n", *map(chr, range(33, 127))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _of_size(tokenizer, vocabulary_size)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int = CONTEXT) -> None:
    """Write ``tokenizer.json`` and what transformers needs to load it with its special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _special_tokens(*tokens: str) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def _of_size(tokenizer: Tokenizer, vocabulary_size: int) -> Tokenizer:
    if tokenizer.get_vocab_size() != vocabulary_size:
        raise ValueError(f"vocabulary has {tokenizer.get_vocab_size()} entries, not {vocabulary_size}")
    return tokenizer
