"""Scheme `waterfall`: NumPy's permutations in C++, and the Waterfall package, number for number."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from benchmarks.security.foreign_marks import waterfall_scores
from iet import kernels
from iet.cli import main
from iet.demo.conversation import MODEL, TASK
from iet.errors import InputError, RegistryError, ShapeError, TokenizerMismatch
from iet.marks.foreign import waterfall
from iet.native.reference import SPAN_UNIT
from tests.support.conditions import each_isa, needs_native
from tests.support.permutations import numpys
from tests.support.shipped import shipped_model

VOCAB_SIZES = (1, 2, 3, 31, 32, 33, 63, 64, 65, 257, 4096, 32000, 32003, 128256)


# The permutations, against NumPy


@needs_native
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_permutations_equal_numpy(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    for n_gram in (2, 3, 5, 16):
        for key in (0, 42, 2**31, 2**32 - 1):
            context = rng.integers(0, vocab_size, n_gram - 1)
            expected = numpys(key, context, vocab_size)
            for isa in each_isa():
                shuffle = waterfall.waterfall_permutation(key, context.tolist(), vocab_size)
                assert np.array_equal(shuffle, expected), isa


@needs_native
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("n_gram", [2, 3, 4, 5])
def test_ranks_of_few_tokens_equal_numpy(vocab_size: int, n_gram: int) -> None:
    """Numbers of tokens around the change to a whole shuffle, and the first and last ids."""
    rng = np.random.default_rng(vocab_size + n_gram)
    keys = np.array([0, 42, 2**32 - 1], dtype=np.uint32)
    counts = [1] * (200 if vocab_size < 300 else 12) + [2, 3, 23, 24, 25, 26, 100]
    contexts = rng.integers(0, vocab_size, (len(counts), n_gram - 1)).astype(np.uint32)
    after = [np.sort(rng.choice(vocab_size, min(count, vocab_size), replace=False)) for count in counts]
    after += [np.array([0]), np.unique([0, vocab_size - 1]), np.array([vocab_size - 1])]
    after += [
        np.arange(min(24, vocab_size)),
        np.arange(max(0, vocab_size - 24), vocab_size),
        np.array([], int),
    ]
    extra = rng.integers(0, vocab_size, (6, n_gram - 1)).astype(np.uint32)
    contexts = np.ascontiguousarray(np.concatenate([contexts, extra]))
    offsets = np.cumsum([0, *map(len, after)]).astype(np.int64)
    tokens = np.concatenate(after).astype(np.uint32)
    expected = np.concatenate(
        [
            [numpys(key, context, vocab_size)[ids] for key in keys]
            for context, ids in zip(contexts, after, strict=True)
        ],
        axis=1,
    )
    for isa in each_isa():
        assert np.array_equal(waterfall._ranks(vocab_size, keys, contexts, offsets, tokens, 3), expected), isa


@needs_native
@pytest.mark.parametrize("vocab_size", [2, 3, 5, 17, 24, 47, 48, 49, 50, 97, 130])
def test_ranks_in_small_permutations_equal_numpy(vocab_size: int) -> None:
    """Permutations that are shorter than a block of random draws."""
    contexts, keys = np.arange(100, dtype=np.uint32)[:, None], np.arange(5, dtype=np.uint32)
    offsets = np.arange(len(contexts) + 1, dtype=np.int64)
    expected = np.array([[numpys(key, context, vocab_size) for context in contexts] for key in keys])
    for isa in each_isa():
        for token in range(vocab_size):
            tokens = np.full(len(contexts), token, dtype=np.uint32)
            ranks = waterfall._ranks(vocab_size, keys, contexts, offsets, tokens, 3)
            assert np.array_equal(ranks, expected[:, :, token]), (isa, token)


# Scores


def some_text(vocab_size: int, length: int = 150) -> np.ndarray[Any, Any]:
    """Ids with repeated contexts, ids at and above V, and negative ones."""
    rng = np.random.default_rng(vocab_size)
    ids = rng.integers(0, vocab_size, length)
    ids[60:80:2] = ids[60]
    ids[80:100] = ids[80]
    ids[[5, 40]] = vocab_size, vocab_size + 2**33
    ids[110] = -1
    return ids


@needs_native
@pytest.mark.parametrize("vocab_size", [3, 31, 32, 33, 257, 32000, 128256])
@pytest.mark.parametrize("n_gram", [2, 3, 5])
def test_scores_equal_the_reference(vocab_size: int, n_gram: int) -> None:
    ids, half = some_text(vocab_size), (vocab_size - 1) // 2
    keys = [42, 2**32 - 1]
    for k_p in (1, half, half + 1, 2 * half) if vocab_size < 1000 else (2 * half,):
        expected = waterfall_scores(ids, n_gram, keys=np.array(keys), k_p=k_p, vocab_size=vocab_size)
        for isa in each_isa():
            scores = iet.score_tokens(
                ids, iet.WaterfallKeys.unnamed(keys, vocab_size=vocab_size, n_gram=n_gram, k_p=k_p)
            )
            assert scores.dtype == np.float64
            assert np.array_equal(scores, expected), isa


def test_contexts_with_ids_out_of_range_are_not_scored() -> None:
    keys = iet.WaterfallKeys({"a": 1, "b": 2}, vocab_size=257, n_gram=3)
    ids = some_text(257)
    scored, repeated = iet.positions(ids, keys)
    inside = (ids >= 0) & (ids < 257)
    assert np.array_equal(scored[2:], inside[2:] & inside[1:-1] & inside[:-2])
    assert not scored[:2].any()
    scores = iet.score_tokens(ids, keys)
    assert (scores[6] == scores[6, 0]).all()  # ids[5] is V: φ of the id itself, under every key
    assert scores[6, 0] == waterfall.waterfall_phi(257, 1)[ids[6]]
    assert repeated.sum() > 10


def test_subset_of_keys() -> None:
    keys = iet.WaterfallKeys({"a": 42, "b": 43, "c": 44}, vocab_size=257)
    digest = keys.digest
    subset = keys.subset(np.array([1, 2]))
    assert [subset.key(name) for name in "bc"] == [43, 44]
    with pytest.raises(RegistryError, match="'a' is not among b, c"):
        subset.key("a")
    assert repr(subset) == "WaterfallKeys(b=43, c=44; waterfall, n 2, k_p 1, V 257)"
    assert subset.digest == iet.WaterfallKeys({"b": 43, "c": 44}, vocab_size=257).digest != digest
    assert keys.subset(slice(0, 3)).digest == keys.digest == digest
    assert [subset.names[owner] for owner in subset.owners] == ["b", "c"]
    ids = some_text(257)
    for columns in (slice(None, None, 2), slice(None, None, -1), slice(1, None)):
        scores = iet.score_tokens(ids, keys.subset(columns))
        assert np.array_equal(scores, iet.score_tokens(ids, keys)[:, columns])


def test_span_sums_equal_sums_of_scores() -> None:
    keys = iet.WaterfallKeys({f"agent {i}": i for i in range(40)}, vocab_size=257)
    ids, cuts = some_text(257), [0, 1, 40, 40, 120, 150]
    counted = np.arange(len(ids)) % 7 != 0
    sums = kernels.score_spans(ids, cuts, keys, counted=counted)
    scores = iet.score_tokens(ids, keys) * (counted & iet.positions(ids, keys)[0])[:, None]
    for s, (start, end) in enumerate(itertools.pairwise(cuts)):
        assert np.allclose(sums[s], scores[start:end].sum(axis=0), atol=150 * SPAN_UNIT)
        units = np.rint(scores[start:end] / SPAN_UNIT).sum(axis=0)
        assert np.array_equal(sums[s], units * SPAN_UNIT)


def test_short_texts() -> None:
    for ids in ([], [3], [3, 5]):
        scores = iet.score_tokens(ids, iet.WaterfallKeys.unnamed([42], vocab_size=100, n_gram=3))
        assert scores.shape == (len(ids), 1)
        assert not scores.any()


# The package itself


@pytest.fixture(scope="module")
def package() -> Iterator[Any]:
    environment = dict(os.environ)  # importing the package changes it
    pytest.importorskip("psutil")  # needed by the package, but not installed with it
    yield pytest.importorskip("waterfall.WatermarkerBase")
    os.environ.clear()
    os.environ.update(environment)


def packages_processor(package: Any, key: int, vocab_size: int, n_gram: int, k_p: int, kappa: float) -> Any:
    function = package.WatermarkingFnFourier(id=key, k_p=k_p, N=vocab_size, kappa=kappa)
    processor = package.PerturbationProcessor(N=vocab_size, id=key)
    processor.set_phi(function.phi)
    processor.reset(n_gram)
    return processor


@pytest.mark.parametrize("vocab_size", [257, 1000, 32003])
@pytest.mark.parametrize("n_gram", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_marked_logits_equal_the_packages(package: Any, vocab_size: int, n_gram: int, dtype: str) -> None:
    import torch

    draw = torch.Generator().manual_seed(vocab_size)
    for k_p in (1, (vocab_size - 1) // 2 + 2):
        keys = iet.WaterfallKeys({"a": 42}, vocab_size=vocab_size, n_gram=n_gram, k_p=k_p)
        ours = iet.WaterfallLogitsProcessor(keys, "a", prompt_length=7, kappa=0.8)
        theirs = packages_processor(package, 42, vocab_size, n_gram, k_p, 0.8)
        ids = torch.randint(0, vocab_size, (3, 7 + n_gram + 2), generator=draw)
        ids[0, -2] = vocab_size + 3  # a special token: the identity permutation
        marked = []
        for length in range(7, ids.shape[1] + 1):  # the prompt alone first, as `generate` calls it
            logits = torch.randn(3, vocab_size + 5, generator=draw).to(getattr(torch, dtype))
            logits[:, 3] = -torch.inf
            original = logits.clone()
            marked_logits = ours(ids[:, :length], logits)
            assert torch.equal(logits, original)
            expected = theirs(ids[:, :length], logits)
            assert torch.equal(marked_logits, expected)
            marked.append(not torch.equal(marked_logits, original))
        assert marked == [False] * (n_gram - 1) + [True] * 4


def test_verification_equals_the_packages(package: Any) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)  # the package changes its padding
    for n_gram, k_p in ((2, 1), (3, 5), (2, 2500)):
        watermarker = package.Watermarker(tokenizer=tokenizer, id=42, kappa=0.8, k_p=k_p, n_gram=n_gram)
        keys = iet.WaterfallKeys({"a": 42, "b": 43}, tokenizer=tokenizer, n_gram=n_gram, k_p=k_p)
        assert keys.profile.vocab_size == watermarker.N
        ids = keys.open_tokenizer().encode(TASK).token_ids
        assert len(ids) > 60
        result = watermarker.verify(TASK, id=[42, 43], return_unshuffled_indices=True)
        for column, key in enumerate((42, 43)):
            ranks = [
                waterfall.waterfall_permutation(key, ids[j - n_gram + 1 : j].tolist(), watermarker.N)[ids[j]]
                for j in range(n_gram - 1, len(ids))
            ]
            assert np.array_equal(result["unshuffled_indices"][0][column], ranks)
        means = iet.score_tokens(ids, keys)[n_gram - 1 :].mean(axis=0)
        # Theirs is a float32 of a Fourier transform in float64.
        assert result["q_score"][0, :, 0] == pytest.approx(means, rel=1e-6, abs=1e-9)


def test_generated_text_equals_the_packages(package: Any) -> None:
    """Text of the package's own `generate` is our processor's text, token for token."""
    import torch
    import transformers

    model, _ = shipped_model()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    ids = tokenizer(TASK, return_tensors="pt", add_special_tokens=False).input_ids
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=tokenizer.vocab_size)
    theirs = packages_processor(package, 42, tokenizer.vocab_size, 2, 1, 2.0)
    ours = iet.WaterfallLogitsProcessor(keys, "a", prompt_length=ids.shape[1], kappa=2.0)
    outputs = []
    for processor in (theirs, ours):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            warpers = [transformers.TemperatureLogitsWarper(0.9), transformers.TopPLogitsWarper(0.95)]
            outputs.append(
                model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    logits_processor=[*warpers, processor],
                    do_sample=True,
                    top_k=0,
                    min_new_tokens=60,
                    max_new_tokens=60,
                    pad_token_id=tokenizer.pad_token_id,
                )
            )
    assert torch.equal(*outputs)
    new = outputs[0][0, ids.shape[1] :].numpy()
    assert iet.score_tokens(new, keys)[1:].mean() > 0.2


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": {}}, "keys: got {}"),
        ({"keys": [42]}, r"keys: got \[42\]"),
        ({"keys": {"a": 42, "b": 42}}, "the id 42 twice"),
        ({"keys": {"a": -1}}, "'a': got -1, expected an integer from 0 to 4294967295"),
        ({"keys": {"a": 1 << 32}}, "'a': got 4294967296"),
        ({"keys": {"a": 4.0}}, "'a': got 4.0"),
        ({"keys": {"a": True}}, "'a': got True"),
        ({"keys": {" a": 1}}, "agent name: got ' a'"),
        ({"keys": {3: 1}}, "agent name: got int"),
        ({"vocab_size": None}, "vocab_size: got neither"),
        ({"vocab_size": 2}, "vocab_size: got 2, expected an integer from 3"),
        ({"vocab_size": (1 << 24) + 1}, "vocab_size: got 16777217"),
        ({"n_gram": 1}, "n_gram: got 1, expected an integer from 2 to 16"),
        ({"n_gram": 17}, "n_gram: got 17"),
        ({"k_p": 0}, "k_p: got 0, expected an integer from 1 to 98"),
        ({"k_p": 99}, "k_p: got 99"),
    ],
)
def test_rejects_invalid_keys(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"keys": {"a": 42}, "vocab_size": 100, **change}
    with pytest.raises(InputError, match=message):
        iet.WaterfallKeys(arguments.pop("keys"), **arguments)


@pytest.mark.parametrize("k_p", [10_000, 14_999 + 10_000], ids=["cosine", "sine"])
def test_rejects_auditing_marks_of_few_values(k_p: int) -> None:
    with pytest.raises(InputError, match=r"k_p: got 10000 .* the mark takes 3 values, expected at least 64"):
        iet.Auditor(iet.WaterfallKeys({"a": 42}, vocab_size=30_000, k_p=k_p))
    iet.Auditor(iet.WaterfallKeys({"a": 42}, vocab_size=30_000, k_p=10_001))


def test_rejects_invalid_calls() -> None:
    for nothing in (None, [42], "waterfall"):
        with pytest.raises(InputError, match=r"registry: got .*, expected iet\.Registry"):
            iet.score_tokens([1, 2], nothing)  # type: ignore[call-overload]
    with pytest.raises(InputError, match=r"scheme: got 'unigram', expected one of \['kgw', "):
        iet.EngineKeys.unnamed("unigram", [42], vocab_size=100)
    for unnamed in (iet.WaterfallKeys.unnamed, functools.partial(iet.EngineKeys.unnamed, "kgw")):
        with pytest.raises(InputError, match=r"keys: got .*, expected a list of keys"):
            unnamed(42, vocab_size=100)
    for keys, size, message in (
        ([42], None, "vocab_size: got none"),
        ([42, 42], 100, "an id twice"),
        ([-1], 100, "got -1"),
    ):
        with pytest.raises(InputError, match=message):
            iet.WaterfallKeys.unnamed(keys, vocab_size=size)
    with pytest.raises(ShapeError, match="token_ids"):
        iet.score_tokens([[1, 2]], iet.WaterfallKeys.unnamed([42], vocab_size=100))
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    with pytest.raises(InputError, match="WaterfallLogitsProcessor"):
        iet.embed_(np.zeros((1, 100), np.float32), [[1]], [0], keys)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="profile: got 'x'"):
        iet.Auditor(keys, profile="x")
    with pytest.raises(TokenizerMismatch, match="token ids only"):
        iet.Auditor(keys).audit("text")
    for wrong, message in (
        ((-1, [1], 100), "key: got -1"),
        ((1, [-1], 100), "context: got -1"),
        ((1, [], 100), "context: got 0 ids, expected 1 to 15"),
        ((1, [1.5], 100), r"got \d+\.5, expected an integer"),
        ((1.5, [1], 100), r"got \d+\.5, expected an integer"),
        ((1, [1], 100.5), r"got \d+\.5, expected an integer"),
        ((1, [1], 0), "vocab_size: got 0"),
    ):
        with pytest.raises(InputError, match=message):
            waterfall.waterfall_permutation(*wrong)  # type: ignore[arg-type]


def test_rejects_another_tokenizer(tmp_path: pathlib.Path) -> None:
    import tokenizers

    second = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>")
    )
    keys = iet.WaterfallKeys({"a": 42}, tokenizer=MODEL)
    with pytest.raises(TokenizerMismatch, match="got digest"):
        iet.Auditor(keys, tokenizer=second).audit("a b")
    second.add_tokens(["added"])
    assert iet.WaterfallKeys({"a": 42}, tokenizer=second).profile.vocab_size == 3  # without added tokens


@pytest.mark.parametrize(
    "arguments",
    [
        ["--keys", "a=42"],
        ["--parameter", "n_gram=3"],
        ["--scheme", "waterfall", "--keys", "a=42"],
        ["--scheme", "waterfall", "--tokenizer", str(MODEL)],
        ["--scheme", "waterfall", "--keys", "a=42", "--tokenizer", str(MODEL), "-r", "team.json"],
        ["--scheme", "unigram", "--keys", "a=42", "--tokenizer", str(MODEL)],
    ],
)
def test_command_rejects_conflicting_options(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["audit", "-", *arguments])
    assert stop.value.code == 2
    assert "--" in capsys.readouterr().err


@pytest.mark.parametrize("keys", ["", "a", "a=", "=42", "a=x", "a=1,a=2", "a=-1"])
def test_command_rejects_invalid_ids(keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "-", "--scheme", "waterfall", "--tokenizer", str(MODEL), f"--keys={keys}"]) == 3
    error = capsys.readouterr().err
    assert "--keys: got" in error
    assert ("each agent once" in error) is (keys == "a=1,a=2")
