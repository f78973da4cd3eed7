"""Scheme `waterfall`: NumPy's permutations in C++, and the Waterfall package, number for number."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.cli import main
from iet.demo.conversation import MODEL, TASK
from iet.errors import InputError, RegistryError, ShapeError, TokenizerMismatch
from iet.marks.foreign import waterfall
from iet.native import foreign
from iet.native import load as native
from iet.native.reference import SPAN_UNIT
from iet.report import terminal

VOCAB_SIZES = (1, 2, 3, 31, 32, 33, 63, 64, 65, 257, 4096, 32000, 32003, 128256)
ISAS = iet.backends().isas
needs_native = pytest.mark.skipif(not ISAS, reason="needs the compiled module")


def each_isa() -> Iterator[str]:
    """Select every instruction set of this machine in turn; NumPy's answer, which is slow, serves all."""
    before = native.cpu.isa()
    for isa in ISAS:
        assert native.cpu.select_isa(isa)
        yield isa
    native.cpu.select_isa(before)


# The permutations, against NumPy


def numpys(key: int, context: Any, vocab_size: int) -> np.ndarray[Any, Any]:
    return np.random.RandomState([int(key), *(int(id) for id in context)]).permutation(vocab_size)


@needs_native
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_shuffles_are_numpys(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    for n_gram in (2, 3, 5, 16):
        for key in (0, 42, 2**31, 2**32 - 1):
            context = rng.integers(0, vocab_size, n_gram - 1)
            expected = numpys(key, context, vocab_size)
            for isa in each_isa():
                found = waterfall.waterfall_permutation(key, context.tolist(), vocab_size)
                assert np.array_equal(found, expected), isa


@needs_native
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("n_gram", [2, 3, 4, 5])
def test_ranks_of_few_tokens_are_numpys(vocab_size: int, n_gram: int) -> None:
    """Each context with its own number of tokens: one, the first and last ids, and around the change to a
    whole shuffle."""
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
def test_every_rank_of_small_permutations(vocab_size: int) -> None:
    """All tokens one by one, where a block of draws is longer than the whole shuffle."""
    contexts, keys = np.arange(100, dtype=np.uint32)[:, None], np.arange(5, dtype=np.uint32)
    offsets = np.arange(len(contexts) + 1, dtype=np.int64)
    expected = np.array([[numpys(key, context, vocab_size) for context in contexts] for key in keys])
    for isa in each_isa():
        for token in range(vocab_size):
            tokens = np.full(len(contexts), token, dtype=np.uint32)
            found = waterfall._ranks(vocab_size, keys, contexts, offsets, tokens, 3)
            assert np.array_equal(found, expected[:, :, token]), (isa, token)


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
def test_native_scores_are_the_references(vocab_size: int, n_gram: int) -> None:
    ids, most = some_text(vocab_size), (vocab_size - 1) // 2
    keys = [42, 2**32 - 1]
    for k_p in (1, most, most + 1, 2 * most) if vocab_size < 1000 else (2 * most,):
        expected = foreign.waterfall_scores(ids, n_gram, keys=np.array(keys), k_p=k_p, vocab_size=vocab_size)
        for isa in each_isa():
            found = iet.score_tokens(
                ids, iet.WaterfallKeys.unnamed(keys, vocab_size=vocab_size, n_gram=n_gram, k_p=k_p)
            )
            assert found.dtype == np.float64
            assert np.array_equal(found, expected), isa


@pytest.mark.parametrize("n_gram", [2, 4])
def test_scores_are_the_formula(n_gram: int) -> None:
    ids, vocab_size = some_text(257), 257
    found = iet.score_tokens(
        ids, iet.WaterfallKeys.unnamed([7, 42], vocab_size=vocab_size, n_gram=n_gram, k_p=3)
    )
    for j, id in enumerate(ids):
        context = ids[max(0, j - n_gram + 1) : j]
        for column, key in enumerate((7, 42)):
            if len(context) < n_gram - 1 or not 0 <= id < vocab_size or (context < 0).any():
                expected = 0.0
            else:
                rank = id if (context >= vocab_size).any() else numpys(key, context, vocab_size)[id]
                expected = np.cos(2 * np.pi * 3 * rank / vocab_size)
            assert found[j, column] == pytest.approx(expected, abs=1e-13)


def test_positions_after_an_id_from_beyond_v_are_not_scored() -> None:
    keys = iet.WaterfallKeys({"a": 1, "b": 2}, vocab_size=257, n_gram=3)
    ids = some_text(257)
    scored, repeated = iet.positions(ids, keys)
    inside = (ids >= 0) & (ids < 257)
    assert np.array_equal(scored[2:], inside[2:] & inside[1:-1] & inside[:-2])
    assert not scored[:2].any()
    scores = iet.score_tokens(ids, keys)
    assert (scores[6] == scores[6, 0]).all()  # ids[5] is V: φ of the id itself, under every key
    assert scores[6, 0] == foreign.waterfall_phi(257, 1)[ids[6]]
    assert repeated.sum() > 10


def test_some_of_the_keys_are_keys_of_their_own() -> None:
    keys = iet.WaterfallKeys({"a": 42, "b": 43, "c": 44}, vocab_size=257)
    whole = keys.digest
    some = keys.subset(np.array([1, 2]))
    assert [some.key(name) for name in "bc"] == [43, 44]
    with pytest.raises(RegistryError, match="'a' is not among b, c"):
        some.key("a")
    assert repr(some) == "WaterfallKeys(b=43, c=44; waterfall, n 2, k_p 1, V 257)"
    assert some.digest == iet.WaterfallKeys({"b": 43, "c": 44}, vocab_size=257).digest != whole
    assert keys.subset(slice(0, 3)).digest == keys.digest == whole
    assert [some.names[owner] for owner in some.owners] == ["b", "c"]


def test_sums_over_spans_are_those_of_the_scores() -> None:
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


def test_the_reference_backend_scores_and_audits_alike(tmp_path: pathlib.Path) -> None:
    script = """
import numpy as np, iet, sys
assert iet.backends().host == sys.argv[1], iet.backends()
ids = np.random.default_rng(0).integers(0, 400, 120)
keys = iet.WaterfallKeys({"a": 42, "b": 43}, vocab_size=400)
np.save(sys.argv[2], iet.score_tokens(ids, keys))
print(iet.Auditor(keys).audit(token_ids=ids).to_json())
"""
    outputs, scores = [], []
    for backend in ("reference", iet.backends().host):
        path = tmp_path / f"{backend}.npy"
        run = subprocess.run(
            [sys.executable, "-c", script, backend, str(path)],
            env={**os.environ, "IET_BACKEND": backend},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(run.stdout)
        scores.append(np.load(path))
    assert outputs[0] == outputs[1]
    assert np.array_equal(scores[0], scores[1])
    assert scores[0].any()


# The package itself


@pytest.fixture(scope="module")
def package() -> Iterator[Any]:
    environment = dict(os.environ)  # importing the package changes it
    pytest.importorskip("psutil")  # which the package needs, and is not installed with it here
    yield pytest.importorskip("waterfall.WatermarkerBase")
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="module")
def shipped() -> Iterator[tuple[Any, Any]]:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if not (MODEL / "model.safetensors").is_file():
        pytest.skip("the model that ships with the package is not in this checkout")
    from iet.demo.conversation import load_model

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model()
    torch.set_num_threads(threads)


def packages_processor(package: Any, key: int, vocab_size: int, n_gram: int, k_p: int, kappa: float) -> Any:
    function = package.WatermarkingFnFourier(id=key, k_p=k_p, N=vocab_size, kappa=kappa)
    processor = package.PerturbationProcessor(N=vocab_size, id=key)
    processor.set_phi(function.phi)
    processor.reset(n_gram)
    return processor


@pytest.mark.parametrize("vocab_size", [257, 1000, 32003])
@pytest.mark.parametrize("n_gram", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_marked_logits_are_the_packages(package: Any, vocab_size: int, n_gram: int, dtype: str) -> None:
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
            before = logits.clone()
            found = ours(ids[:, :length], logits)
            assert torch.equal(logits, before)
            expected = theirs(ids[:, :length], logits)
            assert torch.equal(found, expected)
            marked.append(not torch.equal(found, before))
        assert marked == [False] * (n_gram - 1) + [True] * 4


def test_verification_is_the_packages(package: Any, shipped: tuple[Any, Any]) -> None:
    import transformers

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


def test_the_packages_own_generation_is_read(package: Any, shipped: tuple[Any, Any]) -> None:
    """Text of the package's own `generate` is our processor's text, token for token."""
    import torch
    import transformers

    model, _ = shipped
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


# Closed loop


def turns(shipped: tuple[Any, Any], agents: list[str | None], tokens: int, kappa: float) -> list[str]:
    """One turn per agent, all from the task, marked under the ids 42 and 43."""
    import torch

    model, tokenizer = shipped
    ids = tokenizer([TASK] * len(agents), return_tensors="pt", add_special_tokens=False).input_ids
    keys = iet.WaterfallKeys({"planner": 42, "critic": 43}, tokenizer=MODEL)
    processor = iet.WaterfallLogitsProcessor(keys, agents, prompt_length=ids.shape[1], kappa=kappa)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[pickle.loads(pickle.dumps(processor))],
            do_sample=True,
            top_k=0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
    return [tokenizer.decode(row[ids.shape[1] :], skip_special_tokens=True).strip() for row in output]


@pytest.fixture(scope="module")
def written(shipped: tuple[Any, Any]) -> list[str]:
    return turns(shipped, ["planner", "critic", None], 200, 2.0)


def test_two_agents_are_told_apart(
    written: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, unmarked = written
    text = f"{first} {second}"
    keys = iet.WaterfallKeys({"planner": 42, "critic": 43, "writer": 44}, tokenizer=MODEL)
    report = pickle.loads(pickle.dumps(iet.Auditor(keys))).audit(text)
    assert [segment.agent for segment in report.segments] == ["planner", "critic"]
    assert abs(report.segments[0].char_end - len(first)) < 60
    assert all(segment.log_p < -20 for segment in report.segments)
    assert "waterfall, n 2, k_p 1, V 4096" in str(report)
    assert report.registry_digest == keys.digest
    for decoder in ("cusum", "window"):
        found = iet.Auditor(keys, decoder, allow_unattributed=False).audit(text).char_agents
        assert {run.agent for run in found} <= {"planner", "critic"}
    others = iet.WaterfallKeys({"planner": 52, "critic": 53}, tokenizer=MODEL)
    assert iet.Auditor(others).audit(text).coverage == 0
    assert iet.Auditor(keys).audit(unmarked).coverage == 0

    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(pathlib.Path(terminal.__file__).with_name("schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(report.to_json()))
    assert report.to_dict()["profiles"][0]["scheme"] == {
        "name": "waterfall",
        "n_gram": 2,
        "k_p": 1,
        "version": 1,
    }
    assert not report.to_dict()["draft"]

    (tmp_path / "final.txt").write_text(text, encoding="utf-8")
    command = ["audit", str(tmp_path / "final.txt"), "--scheme", "waterfall", "--tokenizer", str(MODEL)]
    assert main([*command, "--keys", "planner=42, critic=43,writer=44", "--json"]) == 0
    by_command = json.loads(capsys.readouterr().out)
    assert by_command["segments"] == json.loads(report.to_json())["segments"]
    assert by_command["profiles"][0]["id"] == report.profile.id


def test_our_own_keys_do_not_find_its_marks(written: list[str]) -> None:
    registry = iet.Registry.create(None, tokenizer=MODEL)
    registry.add("planner")
    assert iet.Auditor(registry).audit(" ".join(written)).coverage == 0


def test_an_unmarked_row_and_rows_of_one_prompt(shipped: tuple[Any, Any]) -> None:
    import torch

    keys = iet.WaterfallKeys({"a": 42, "b": 43}, vocab_size=300)
    processor = iet.WaterfallLogitsProcessor(keys, ["a", None, "b"], prompt_length=2, kappa=1.0)
    ids = torch.tensor([[1, 2, 3]] * 6)
    found = processor(ids, torch.zeros(6, 310))
    for row, key in enumerate([42, 42, None, None, 43, 43]):
        expected = np.zeros(310, dtype=np.float32)
        if key is not None:
            expected[:300] = foreign.waterfall_phi(300, 1)[numpys(key, [3], 300)]
        assert np.array_equal(found[row].numpy(), expected)


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
def test_keys_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"keys": {"a": 42}, "vocab_size": 100, **change}
    with pytest.raises(InputError, match=message):
        iet.WaterfallKeys(arguments.pop("keys"), **arguments)


def test_calls_that_cannot_be_are_refused() -> None:
    for nothing in (None, [42], "waterfall"):
        with pytest.raises(InputError, match="registry: got .*, expected iet.Registry"):
            iet.score_tokens([1, 2], nothing)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="vocab_size: got none"):
        iet.WaterfallKeys.unnamed([42])
    with pytest.raises(InputError, match=r"scheme: got 'unigram', expected one of \['kgw', "):
        iet.EngineKeys.unnamed("unigram", [42], vocab_size=100)
    for unnamed in (iet.WaterfallKeys.unnamed, functools.partial(iet.EngineKeys.unnamed, "kgw")):
        with pytest.raises(InputError, match="keys: got .*, expected a list of keys"):
            unnamed(42, vocab_size=100)
    with pytest.raises(InputError, match="an id twice"):
        iet.WaterfallKeys.unnamed([42, 42], vocab_size=100)
    with pytest.raises(InputError, match="got -1"):
        iet.WaterfallKeys.unnamed([-1], vocab_size=100)
    with pytest.raises(ShapeError, match="token_ids"):
        iet.score_tokens([[1, 2]], iet.WaterfallKeys.unnamed([42], vocab_size=100))
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    with pytest.raises(InputError, match="WaterfallLogitsProcessor"):
        iet.embed_(np.zeros((1, 100), np.float32), [[1]], [0], keys)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="profile: got 'x'"):
        iet.Auditor(keys, profile="x")
    with pytest.raises(TokenizerMismatch, match="token ids only"):
        iet.Auditor(keys).audit("text")
    with pytest.raises(InputError, match="key: got -1"):
        waterfall.waterfall_permutation(-1, [1], 100)
    with pytest.raises(InputError, match="context: got -1"):
        waterfall.waterfall_permutation(1, [-1], 100)
    with pytest.raises(InputError, match="context: got 0 ids, expected 1 to 15"):
        waterfall.waterfall_permutation(1, [], 100)
    for wrong in ((1, [1.5], 100), (1.5, [1], 100), (1, [1], 100.5)):
        with pytest.raises(InputError, match=r"got \d+\.5, expected an integer"):
            waterfall.waterfall_permutation(*wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="vocab_size: got 0"):
        waterfall.waterfall_permutation(1, [1], 0)


def test_another_tokenizer_is_refused(tmp_path: pathlib.Path) -> None:
    import tokenizers

    other = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    keys = iet.WaterfallKeys({"a": 42}, tokenizer=MODEL)
    with pytest.raises(TokenizerMismatch, match="got digest"):
        iet.Auditor(keys, tokenizer=other).audit("a b")
    other.add_tokens(["added"])
    assert iet.WaterfallKeys({"a": 42}, tokenizer=other).profile.vocab_size == 3  # without added tokens


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": None}, "keys: got NoneType, expected iet.WaterfallKeys"),
        ({"agents": []}, "agents: got"),
        ({"prompt_length": -1}, "prompt_length: got -1"),
        ({"prompt_length": 2.0}, "prompt_length: got 2.0"),
        ({"prompt_length": True}, "prompt_length: got True"),
        ({"kappa": "1"}, "kappa: got '1'"),
        ({"kappa": -0.1}, "kappa: got -0.1"),
        ({"kappa": float("nan")}, "kappa: got nan"),
    ],
)
def test_processors_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    pytest.importorskip("transformers")
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    arguments: dict[str, Any] = {"keys": keys, "agents": "a", "prompt_length": 3, "kappa": 0.8, **change}
    with pytest.raises(InputError, match=message):
        iet.WaterfallLogitsProcessor(arguments.pop("keys"), arguments.pop("agents"), **arguments)


def test_processors_take_numbers_of_numpy() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    ids, logits = torch.tensor([[1, 2, 3, 4]]), torch.zeros(1, 100)
    plain = iet.WaterfallLogitsProcessor(keys, "a", prompt_length=2, kappa=0.5)
    numpys = iet.WaterfallLogitsProcessor(keys, "a", prompt_length=np.int64(2), kappa=np.float32(0.5))
    assert plain(ids, logits).any()
    assert torch.equal(numpys(ids, logits), plain(ids, logits))


def test_processor_calls_that_cannot_be_are_refused() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    with pytest.raises(RegistryError, match="'b' is not among a"):
        iet.WaterfallLogitsProcessor(keys, "b", prompt_length=3, kappa=0.8)
    two = iet.WaterfallLogitsProcessor(keys, ["a", None], prompt_length=3, kappa=0.8)
    ids, logits = torch.tensor([[1, 2, 3, 4]] * 2), torch.zeros(2, 100)
    with pytest.raises(ShapeError, match="agents: got 2 agents for 3 rows"):
        two(torch.cat([ids, ids[:1]]), torch.zeros(3, 100))
    with pytest.raises(ShapeError, match="input_ids"):
        two(ids[:, :2], logits)
    with pytest.raises(ShapeError, match="scores"):
        two(ids, logits[:, :99])
    with pytest.raises(ShapeError, match=r"scores: got torch\.int64 \[2, 100\], expected floating-point"):
        two(ids, logits.long())
    with pytest.raises(InputError, match="context: got -1"):
        two(torch.tensor([[1, 2, 3, -1]] * 2), logits)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--keys", "a=42"],
        ["--n-gram", "3"],
        ["--scheme", "waterfall", "--keys", "a=42"],
        ["--scheme", "waterfall", "--tokenizer", str(MODEL)],
        ["--scheme", "waterfall", "--keys", "a=42", "--tokenizer", str(MODEL), "-r", "team.json"],
        ["--scheme", "unigram", "--keys", "a=42", "--tokenizer", str(MODEL)],
    ],
)
def test_the_command_refuses_options_that_do_not_go_together(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["audit", "-", *arguments])
    assert stop.value.code == 2
    assert "--" in capsys.readouterr().err


@pytest.mark.parametrize("keys", ["", "a", "a=", "=42", "a=x", "a=1,a=2", "a=-1"])
def test_the_command_refuses_ids_that_are_none(keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "-", "--scheme", "waterfall", "--tokenizer", str(MODEL), f"--keys={keys}"]) == 3
    assert "--keys: got" in capsys.readouterr().err
