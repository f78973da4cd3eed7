"""Every backend and instruction set against the reference and the known answers, to the bit."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.errors import BackendUnavailable, IetError, InputError, ShapeError
from iet.marks.derivation import derive_frequency, derive_subkey
from iet.marks.families import FAMILIES
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import SCHEME_VERSION, Profile, Scheme
from iet.native import host, reference
from iet.native.pairs import repeats
from iet.native.texts import Texts
from tests.support.conditions import each_isa, needs_native
from tests.support.keys import key_table
from tests.support.known_answers import FOLDER, from_bits, vectors
from tests.vectors import make

VECTORS, GUMBEL = vectors(f"scheme_v{SCHEME_VERSION}"), vectors(f"gumbel_v{SCHEME_VERSION}")
VOCAB_SIZES = (1, 2, 31, 32, 33, 255, 257, 32000, 32003, 128256, 151936, 262144)


# ---------------------------------------------------------------- known answers


@pytest.mark.parametrize("name", make.FILES)
def test_vectors_equal_the_reference(name: str) -> None:
    assert (FOLDER / name).read_text() == make.text(make.FILES[name]())


@pytest.mark.parametrize("entry", VECTORS["derive"])
def test_derived_keys_equal_the_vectors(entry: dict[str, Any]) -> None:
    secret = bytes.fromhex(entry["secret"])
    assert derive_subkey(secret).hex() == entry["subkey"]
    assert {bound: derive_frequency(secret, int(bound)) for bound in entry["k_p"]} == entry["k_p"]


@pytest.mark.parametrize("entry", VECTORS["profile"] + GUMBEL["profile"])
def test_profile_digests_equal_the_vectors(entry: dict[str, Any]) -> None:
    assert Profile.from_dict(entry["profile"]).digest == entry["digest"]
    content = {key: value for key, value in entry["profile"].items() if key != "tokenizer_source"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert hashlib.blake2b(text.encode(), digest_size=32).hexdigest() == entry["digest"]


def test_permutations_equal_the_vectors(isa: str) -> None:
    for entry in VECTORS["permute"]:
        seeds = np.full(len(entry["ids"]), int(entry["seed"], 16), dtype=np.uint64)
        assert kernels.permute(entry["ids"], seeds, entry["vocab_size"]).tolist() == entry["ranks"]


@pytest.mark.gpu
def test_permutations_on_cuda_equal_the_vectors() -> None:
    if iet.backends().cuda_devices == 0:
        pytest.skip("no CUDA device")
    for entry in VECTORS["permute"]:
        seeds = np.full(len(entry["ids"]), int(entry["seed"], 16), dtype=np.uint64)
        ranks, phis = kernels.permute_cuda(entry["ids"], seeds, entry["vocab_size"])
        assert ranks.tolist() == entry["ranks"]
        assert np.array_equal(phis, reference.phi(ranks, 1, entry["vocab_size"]))


def vector_keys(entry: dict[str, Any]) -> KeyTable:
    unmarked, scheme = tuple(entry["unmarked_ids"]), {key: entry[key] for key in ("n_gram", "family", "k_p")}
    registry = Registry.create(
        None, vocab_size=entry["vocab_size"], unmarked_ids=unmarked, scheme=Scheme(**scheme)
    )
    for derived in VECTORS["derive"]:
        registry.add(derived["subkey"], secret=bytes.fromhex(derived["secret"]))
    keys = registry.marking_keys()
    assert [key.tobytes().hex() for key in keys.subkeys] == entry["subkeys"]
    return keys


@pytest.mark.parametrize(
    "entry", VECTORS["ops"] + GUMBEL["ops"], ids=lambda entry: f"{entry['family']}, V{entry['vocab_size']}"
)
def test_ops_equal_the_vectors(isa: str, entry: dict[str, Any]) -> None:
    keys = vector_keys(entry)
    assert kernels.positions(entry["token_ids"], keys)[0].tolist() == entry["scored"]
    expected = np.array([from_bits(row, "float32") for row in entry["scores"]])
    assert np.array_equal(kernels.score_tokens(entry["token_ids"], keys), expected)
    for dtype in ("float32", "float16"):
        inputs, after = (
            from_bits(entry["embed"][dtype][k], dtype).reshape(4, -1) for k in ("logits", "marked")
        )
        logits = inputs.copy()
        temperature = from_bits(entry["kappas"], "float32") / np.float32(keys.profile.scheme.kappa)
        options: Any = {"temperature": temperature, "counts": entry.get("counts")}
        kernels.embed_(logits, entry["contexts"], entry["slots"], keys, **options)
        assert np.array_equal(logits, after)


# ---------------------------------------------------------------- backends agree


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_embed_equals_the_reference(vocab_size: int, family: str) -> None:
    rng = np.random.default_rng(vocab_size)
    n_gram = int(rng.integers(2, 6))
    k_p = max(1, min(1 if FAMILIES[family].chooses else 7, (vocab_size - 1) // 2))
    unmarked = tuple(range(min(3, vocab_size // 2)))
    keys = key_table(vocab_size, n_gram=n_gram, family=family, k_p=k_p, unmarked_ids=unmarked)
    contexts = rng.integers(min(3, vocab_size // 2), vocab_size, (5, n_gram - 1))
    contexts[3, 0] = vocab_size  # a padding id: this row carries no mark
    slots = np.array([2, -1, 0, 1, 1])
    values = 8 * rng.standard_normal((5, vocab_size + 3))
    values[0, 0], values[2, vocab_size // 2], values[4, -1] = np.nan, -np.inf, np.inf
    for dtype in (np.float32, np.float16):
        converted = values.astype(dtype)
        expected = converted.copy()
        kappas = np.full(5, np.float32(keys.profile.scheme.kappa))
        with np.errstate(over="ignore"):
            reference.embed_(keys.marking, expected, contexts, slots, kappas)
        for isa in each_isa():
            logits = converted.copy()
            kernels.embed_(logits, contexts, slots, keys)
            assert np.array_equal(logits.view(np.uint8), expected.view(np.uint8)), isa
            same = [1, 3]
            assert np.array_equal(logits[same], converted[same], equal_nan=True), isa
            padding = np.array_equal(logits[:, vocab_size:], converted[:, vocab_size:], equal_nan=True)
            assert padding is not FAMILIES[family].chooses, isa


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n_gram", [2, 3, 4, 5, 16])
def test_scores_equal_the_reference(n_gram: int, family: str) -> None:
    rng = np.random.default_rng(n_gram)
    for vocab_size in VOCAB_SIZES:
        keys = key_table(
            vocab_size, n_gram=n_gram, family=family, unmarked_ids=(0,) if vocab_size > 2 else ()
        )
        for length in (0, 1, n_gram - 1, n_gram, 300):
            ids = rng.integers(1, vocab_size + 1, length)
            expected = reference.score_tokens(keys.marking, ids)
            for isa in each_isa():
                scores = kernels.score_tokens(ids, keys)
                assert np.array_equal(scores.view(np.uint32), expected.view(np.uint32)), isa  # no -0.0 either


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_embed_accepts_torch_tensors_and_strides(isa: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    keys = key_table(257)
    contexts, slots = rng.integers(0, 257, (4, 1)), np.array([0, 1, -1, 2])
    values = torch.tensor(4 * rng.standard_normal((4, 300)), dtype=getattr(torch, dtype))
    expected = values.clone()
    bits = expected.view(torch.uint16).numpy() if dtype == "bfloat16" else expected.numpy()
    reference.embed_(keys.marking, bits, contexts, slots, np.full(4, np.float32(0.8)))
    everything = torch.zeros(9, 900, dtype=values.dtype)
    for view in (
        torch.zeros_like(values),
        everything[1:5, 10:310],  # longer rows
        everything[::2, ::3][:4, :300],  # an element stride, as llama.cpp's 12 bytes
        torch.zeros(300, 4, dtype=values.dtype).t(),  # column-major
    ):
        everything.zero_()
        view.copy_(values)
        kernels.embed_(view, torch.tensor(contexts), torch.tensor(slots), keys)
        assert torch.equal(view, expected)
        view.zero_()
        assert not everything.any()  # nothing was written between the elements


def test_half_types_round_once_to_nearest_even(isa: str) -> None:
    torch = pytest.importorskip("torch")
    # Every finite and infinite bit pattern, cut into rows of 256 ids.
    keys = key_table(256, agents=1)
    contexts, slots = np.arange(256)[:, None], np.zeros(256, dtype=int)
    shifts = np.zeros((256, 256), dtype=np.float32)
    kernels.embed_(shifts, contexts, slots, keys)
    for dtype in (torch.float16, torch.bfloat16):
        patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(256, 256)
        expected = (patterns.float() + torch.tensor(shifts)).to(dtype)
        logits = patterns.clone()
        kernels.embed_(logits, contexts, slots, keys)
        same = (logits == expected) | (logits.isnan() & expected.isnan())
        assert bool(same.all())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_embed_leaves_its_inputs_unchanged(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    keys, values = key_table(300), torch.randn(4, 310).to(getattr(torch, dtype))
    contexts, slots = [[5], [6], [7], [8]], [0, -1, 2, 1]
    for logits in (values, values.t().contiguous().t(), values[:, ::2].repeat_interleave(2, dim=1)[:, :310]):
        original, want = logits.clone(), logits.clone()
        iet.embed_(want, contexts, slots, keys, temperature=0.7)
        marked = kernels.embed(logits, contexts, slots, keys, temperature=0.7)
        assert torch.equal(marked, want)
        assert torch.equal(logits, original)
        assert not torch.equal(marked, original)
    overlapping = values[:1].expand(4, -1)  # four rows in one place
    marked = kernels.embed(overlapping, contexts, slots, keys)
    assert torch.equal(marked[1], overlapping[0])
    assert not torch.equal(marked[0], marked[2])


def test_native_arguments_are_built_once_and_show_no_key() -> None:
    keys = key_table(100)
    assert keys.marking is keys.marking
    assert "subkeys" not in repr(keys.marking)
    with pytest.raises(IetError, match="not pickled"):
        pickle.dumps(keys.marking)


@pytest.mark.parametrize("n_gram", [2, 3, 16])
def test_pairs_are_numbered_as_they_first_occur(n_gram: int) -> None:
    registry = Registry.create(None, vocab_size=7, scheme=Scheme(n_gram=n_gram))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ids = np.concatenate(
            [rng.integers(-1, 8 if seed % 2 else 3, rng.integers(0, 400)), [1] * 40, [2] * 40]
        )
        numbers: dict[tuple[int, ...], int] = {}
        expected, repeated = [], []
        for t in range(len(ids)):
            pair = tuple(ids[max(0, t - n_gram + 1) : t + 1].tolist())
            scored = len(pair) == n_gram and all(0 <= i < 7 for i in pair)
            repeated.append(scored and pair in numbers)
            expected.append(numbers.setdefault(pair, len(numbers)) if scored else -1)
        actual = kernels.pair_numbers(ids, registry)
        assert actual.tolist() == expected
        assert repeats(actual).tolist() == repeated
    assert kernels.pair_numbers([], registry).shape == (0,)


@pytest.mark.parametrize("family", FAMILIES)
def test_spans_hold_the_sums_of_their_scores(isa: str, family: str) -> None:
    keys = key_table(32003, n_gram=3, family=family)
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 32010, 1000)
    cuts = np.array([3, 3, 10, 11, 300, 900])
    counted = rng.random(1000) < 0.7
    rounded = np.rint(kernels.score_tokens(ids, keys).astype(np.float64) * 2**22) / 2**22 * counted[:, None]
    expected = np.array([rounded[a:b].sum(axis=0) for a, b in itertools.pairwise(cuts)])
    assert np.array_equal(kernels.score_spans(ids, cuts, keys, counted=counted), expected)
    if family == "gumbel":
        _check_weighted_sums(keys, ids, cuts, rng)
    assert kernels.score_spans(ids[:0], [0], keys).shape == (0, len(keys))
    far = [2**63 - 10**8, -(2**63)]  # their difference wraps, and would seem to ascend
    for bad in ([0, 1001], [5, 4], [-1, 3], far, [0, *far, 3], np.array([0, 2**64 - 1], np.uint64)):
        with pytest.raises(InputError, match="boundaries"):
            kernels.score_spans(ids, bad, keys)
    for bad in ([], [[0, 1]], [0.0, 1.0]):
        with pytest.raises(ShapeError, match="boundaries"):
            kernels.score_spans(ids, bad, keys)
    with pytest.raises(ShapeError, match="counted"):
        kernels.score_spans(ids, cuts, keys, counted=np.ones(3, bool))


def _check_weighted_sums(keys: Any, ids: Any, cuts: Any, rng: np.random.Generator) -> None:
    weights = rng.integers(0, 17, len(ids)).astype(np.uint8)
    weighted = keys.sums(ids, cuts, weights, 1)
    times = keys.times_before(Texts.single(ids))
    assert np.array_equal(weighted, reference.score_spans(keys.marking, ids, cuts, weights, times))
    scores = kernels.score_tokens(ids, keys).astype(np.float64)
    expected = [weights[a:b] @ scores[a:b] for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(weighted, expected, atol=1e-3)


def shifted(values: Any, dtype: type) -> np.ndarray[Any, Any]:
    """Copy the numbers to an address that is off alignment by one byte."""
    array = np.asarray(values, dtype)
    numbers = np.zeros(array.nbytes + 1, np.uint8)[1:].view(dtype).reshape(array.shape)
    numbers[...] = array
    assert not numbers.flags.aligned
    return numbers


@needs_native
def test_copies_misaligned_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys, addresses = key_table(100), list[int]()

    class Recorder:
        # Stands before the compiled marking, and writes down the addresses that it is given.
        def __init__(self, native: Any) -> None:
            self.native = native

        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> Any:
                addresses.extend(value for value in arguments if isinstance(value, int) and value > 1 << 20)
                return getattr(self.native, name)(*arguments)

            return call

    native = host.native
    monkeypatch.setattr(host, "native", lambda marking: Recorder(native(marking)))
    ids, cuts = np.arange(50) * 7 % 100, [0, 20, 50]
    assert np.array_equal(kernels.score_tokens(shifted(ids, np.int64), keys), kernels.score_tokens(ids, keys))
    assert np.array_equal(
        kernels.score_spans(shifted(ids, np.int64), shifted(cuts, np.int64), keys),
        kernels.score_spans(ids, cuts, keys),
    )
    marked, expected = np.zeros((2, 2, 100), np.float32)
    kernels.embed_(
        marked,
        shifted([[1], [2]], np.int64),
        shifted([0, 1], np.int32),
        keys,
        temperature=shifted([1, 2], np.float32),
    )
    kernels.embed_(expected, [[1], [2]], [0, 1], keys, temperature=[1, 2])
    assert np.array_equal(marked, expected)
    assert len(addresses) == 2 * (2 + 4 + 4)
    assert [address % 4 for address in addresses] == [0] * len(addresses)
    for array in host.checked_pairs(shifted(ids, np.int64), shifted(ids, np.uint64), 100):
        assert array.flags.aligned
    pairs = kernels.pair_numbers(shifted(ids, np.int64), keys)
    assert np.array_equal(pairs, kernels.pair_numbers(ids, keys))
    with pytest.raises(ShapeError, match="past a multiple of 4"):
        kernels.embed_(shifted(np.zeros((2, 100)), np.float32), [[1], [2]], [0, 1], keys)


# ---------------------------------------------------------------- bad input


def test_rejects_invalid_logits() -> None:
    keys = key_table(100)
    good = np.zeros((2, 100), dtype=np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    for logits, words in (
        (np.zeros((2, 99), dtype=np.float32), r"\[2, 99\].*>= 100"),
        (np.zeros(100, dtype=np.float32), r"shape \[100\]"),
        (np.zeros((2, 100)), "float64"),
        (np.zeros((2, 100), dtype=np.int32), "int32"),
        (np.broadcast_to(good[:1], (2, 100)), "read-only"),
        (frozen, "read-only"),
        (np.lib.stride_tricks.as_strided(good, (2, 100), (4, 4)), "overlap"),
        (np.lib.stride_tricks.as_strided(good, (2, 100), (0, 4)), "overlap"),
        (np.lib.stride_tricks.as_strided(good, (2, 100), (400, 0)), "overlap"),
        (good.astype(">f4"), "byte order"),
        ([[0.0] * 100] * 2, "list"),
    ):
        with pytest.raises(ShapeError, match=words):
            kernels.embed_(logits, [[1], [2]], [0, 1], keys)  # type: ignore[arg-type]
    for contexts, slots, error, words in (
        ([[1]], [0, 1], ShapeError, r"contexts: got shape \[1, 1\], expected \[2, 1\]"),
        ([[1, 2], [1, 2]], [0, 1], ShapeError, r"expected \[2, 1\]"),
        ([[1], [2]], [0], ShapeError, "slots"),
        ([[1.0], [2.0]], [0, 1], ShapeError, "float64"),
        ([[1], [2]], [0, 3], InputError, "row 1 holds 3.* 0 to 2"),
        ([[1], [2]], [-2, 0], InputError, "row 0 holds -2"),
        ([[1], [2]], [0, 1 << 32], InputError, "4294967296.*int32"),
        (np.array([[1], [1 << 63]], dtype=np.uint64), [0, 1], InputError, "9223372036854775808.*int64"),
        ([[1], [-1]], [0, 1], InputError, "row 1 holds the id -1"),
    ):
        with pytest.raises(error, match=words):
            kernels.embed_(good, contexts, slots, keys)
    for temperature, error in (
        (float("nan"), InputError),
        ("warm", InputError),
        (10**400, InputError),
        ([1, 1, 1], ShapeError),
    ):
        with pytest.raises(error, match="temperature"):
            kernels.embed_(good, [[1], [2]], [0, 1], keys, temperature=temperature)
    with pytest.raises(InputError, match=r"registry: got str, expected iet\.Registry"):
        kernels.embed_(good, [[1], [2]], [0, 1], "team.json")  # type: ignore[arg-type]
    kernels.embed_(good[:0], np.zeros((0, 1), dtype=int), [], keys)
    assert not good.any()
    kernels.embed_(good, [[1], [-1]], [0, -1], keys)  # an unmarked row may hold a placeholder
    assert good[0].any()
    assert not good[1].any()
    for unused in (-1.0, float("nan"), float("inf")):  # and any temperature
        valid = np.zeros((2, 100), np.float32)
        kernels.embed_(valid, [[1], [2]], [0, -1], keys, temperature=[1.0, unused])
        assert np.array_equal(valid, good)
    ragged: Any = [[1], [2, 3]]
    for name, call in (
        ("contexts", lambda: kernels.embed_(good, ragged, [0, 1], keys)),
        ("slots", lambda: kernels.embed_(good, [[1], [2]], ragged, keys)),
        ("rows", lambda: kernels.embed_(good, [[1], [2]], [0, 1], keys, rows=ragged)),
        ("boundaries", lambda: kernels.score_spans([1, 2, 3], ragged, keys)),
        ("counted", lambda: kernels.score_spans([1, 2], [0, 2], keys, counted=ragged)),
        ("token_ids", lambda: kernels.score_tokens(ragged, keys)),
    ):
        with pytest.raises(ShapeError, match=f"{name}: got rows of different lengths, expected"):
            call()
    for temperature in ("1", np.array([1j, 1.0]), [True, False]):
        with pytest.raises(InputError, match=r"temperature: got .*, expected a number or"):
            kernels.embed_(good, [[1], [2]], [0, 1], keys, temperature=temperature)


def test_rejects_tensors_on_other_devices() -> None:
    torch = pytest.importorskip("torch")
    keys = key_table(100)
    with pytest.raises(BackendUnavailable, match="meta"):
        kernels.embed_(torch.zeros(2, 100, device="meta"), [[1], [2]], [0, 1], keys)
    for view in (torch.zeros(1, 100).expand(2, 100), torch.zeros(2, 1).expand(2, 100)):
        with pytest.raises(ShapeError, match="overlap"):
            kernels.embed_(view, [[1], [2]], [0, 1], keys)
    with pytest.raises(ShapeError, match="negated"):
        kernels.embed_(torch._neg_view(torch.zeros(2, 100)), [[1], [2]], [0, 1], keys)
    with pytest.raises(ShapeError, match="grad"):
        kernels.embed_(torch.zeros(2, 100, requires_grad=True), [[1], [2]], [0, 1], keys)
    for ids in (torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.bfloat16)):
        with pytest.raises(ShapeError, match=r"token_ids: got values that NumPy cannot read, expected"):
            kernels.score_tokens(ids, keys)


def test_rejects_invalid_token_ids() -> None:
    keys = key_table(100)
    for ids, words in (([[1, 2]], r"\[1, 2\]"), ([1.5], "float64"), (["a"], "dtype")):
        with pytest.raises(ShapeError, match=words):
            kernels.score_tokens(ids, keys)
    assert kernels.score_tokens([], keys).shape == (0, 3)
    for ids, vocab_size in (([5], 3), ([-1], 3), ([0], 0), ([0], 1 << 25)):
        with pytest.raises(InputError, match="expected"):
            kernels.permute(ids, [0], vocab_size)
    for seeds, error in (([-1], InputError), ([1, 2], ShapeError), ([0.5], ShapeError)):
        with pytest.raises(error, match="seeds: got"):
            kernels.permute([0], seeds, 3)
