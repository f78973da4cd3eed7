"""Marks of serving engines: known answers, instruction sets, null laws, audits, rejected input."""

from __future__ import annotations

import itertools
import json
import math
import os
import pathlib
import pickle
import traceback
from typing import Any

import numpy as np
import pytest

import iet
from benchmarks.security import foreign_marks
from iet import evidence, kernels
from iet.cli import main
from iet.demo.conversation import MODEL
from iet.errors import IetError, InputError, RegistryError, ShapeError
from iet.marks.families import BernoulliSum, sum_family
from iet.marks.foreign import engines, kgw, prf, synthid
from tests.support.conditions import each_isa, needs_native
from tests.support.engine_texts import V, keys_of, options_of, text, written_by
from tests.support.known_answers import vectors

# Known answers, and one answer on every path


@pytest.mark.parametrize("case", vectors("engines_v1")["cases"], ids=lambda case: case["name"])
def test_scores_equal_known_answers(case: dict[str, Any]) -> None:
    result = iet.score_tokens(
        case["ids"], iet.EngineKeys.unnamed(case["scheme"], case["keys"], **case["parameters"])
    )
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, case["scores"], rtol=4e-7, atol=2e-6)


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "vllm-gumbel": [*({"n_gram": n} for n in (2, 4, 5, 6, 9, 65)), {"prf": "hmac_sha256", "n_gram": 17}],
    "vllm-red-green": [{"n_gram": 2, "gamma": 0.5}, {"prf": "hmac_sha256"}],
    "vllm-synthid": [{}, {"n_gram": 7, "depth": 1}, {"n_gram": 2, "depth": 33}, {"n_gram": 65, "depth": 100}],
    "vllm-sbw": [
        *({"n_gram": n} for n in (1, 2, 16)),
        *({"seeding_scheme": "lefthash", "n_gram": n, "gamma": 0.1} for n in (2, 17)),
    ],
    "sglang-gumbel": [{"n_gram": n} for n in (2, 5, 65)],
    "kgw": [
        {"vocab_size": 2, "greenlist_ratio": 0.5},
        {"vocab_size": 33, "greenlist_ratio": 0.9},
        {"vocab_size": 257, "seeding_scheme": "selfhash", "n_gram": 3},
        {"vocab_size": 1500, "greenlist_ratio": 0.99},
    ],
    "synthid": [
        {"sampling_table_size": 2},
        {"sampling_table_size": 1 << 9, "n_gram": 2},
        {},
        {"weighted": True},
    ],
}


def green_by_reference(seeds: Any, offsets: Any, tokens: Any, *rest: int) -> np.ndarray[Any, Any]:
    return foreign_marks.green_tokens(np.repeat(seeds, np.diff(offsets)), tokens, *rest[:2])


def words_by_reference(
    scheme: prf.PrfScheme, ids: Any, scored: Any, keys: Any, *_: Any
) -> np.ndarray[Any, Any]:
    words = np.concatenate([np.full(scheme.n_gram - 1, -1), ids]).astype(np.uint32)
    numbers = foreign_marks.key_numbers(keys)
    return foreign_marks.engine_scores(scheme.code, scheme.rule(), words, scheme.n_gram, scored, numbers)


def synthid_by_reference(
    scheme: synthid.SynthId, ids: Any, scored: Any, keys: Any, *_: Any
) -> np.ndarray[Any, Any]:
    table = synthid.synthid_table(scheme.sampling_table_size, scheme.sampling_table_seed)
    bits = scheme.law(0).bits
    assert bits is not None
    return foreign_marks.synthid_scores(
        ids, scheme.n_gram, scored, keys, table, np.array(bits.weights), bits.step, bits.low
    )


@needs_native
@pytest.mark.parametrize("scheme", engines.SCHEMES)
def test_instruction_sets_equal_the_reference(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in OPTIONS[scheme]:
        ids = text(300 if scheme == "kgw" else 1300, options.get("vocab_size", 50_000))
        ids[[5, 40]] = -1, options.get("vocab_size", 1 << 24)
        keys = keys_of(scheme, 3 if scheme == "kgw" else 18)
        with monkeypatch.context() as patched:
            patched.setattr(prf.PrfScheme, "scores", words_by_reference)
            patched.setattr(kgw, "_green_tokens", green_by_reference)
            patched.setattr(synthid.SynthId, "scores", synthid_by_reference)
            expected = iet.score_tokens(ids, iet.EngineKeys.unnamed(scheme, keys, **options))
        cuts = np.array([0, 3, 3, 100, 290])
        for isa in each_isa():
            for threads in (1, 3):
                result = iet.score_tokens(
                    ids, iet.EngineKeys.unnamed(scheme, keys, **options), num_threads=threads
                )
                assert np.array_equal(result, expected), (isa, options)
        table = iet.EngineKeys.unnamed(scheme, keys, **options)
        scored, repeated = iet.positions(ids, table)
        assert (expected[~scored] == 0).all() or scheme == "kgw"
        sums = kernels.score_spans(ids, cuts, table, counted=~repeated)
        fresh = np.where((scored & ~repeated)[:, None], expected, 0).astype(np.float64)
        parts = [fresh[a:b].sum(axis=0) for a, b in itertools.pairwise(cuts)]
        np.testing.assert_allclose(sums, parts, rtol=1e-9, atol=1e-4)


def test_empty_and_short_texts() -> None:
    for scheme in engines.SCHEMES:
        options = options_of(scheme)
        for length in (0, 1, 2):
            scores = iet.score_tokens(
                list(range(1, length + 1)), iet.EngineKeys.unnamed(scheme, keys_of(scheme, 2), **options)
            )
            assert scores.shape == (length, 2)
            padded = getattr(engines.SCHEMES[scheme], "padded", False) and length > 0
            assert (scores != 0).any() <= padded or scheme == "kgw"


# The laws of unmarked scores


@pytest.mark.parametrize("scheme", engines.SCHEMES)
def test_unmarked_scores_follow_the_null_law(scheme: str) -> None:
    options = options_of(scheme)
    ids = np.random.default_rng(3).permutation(V)[:200]
    names = {f"a{i}": key for i, key in enumerate(keys_of(scheme, 400))}
    keys = iet.EngineKeys(scheme, names, **options)
    scored, repeated = iet.positions(ids, keys)
    x = iet.score_tokens(ids, keys)[scored & ~repeated].astype(np.float64)
    family = keys.profile.family
    assert x.mean() == pytest.approx(float(family.mean(0.0)), abs=5 * math.sqrt(family.variance / x.size))
    # Tokens after one context have lists in common, and n-grams one table: sums of a text are what counts.
    sums = x.sum(axis=0)
    assert sums.var() == pytest.approx(len(x) * family.variance, rel=0.3)
    log_p = evidence.log_tails(sums, np.full(len(sums), len(x)), family)
    for level in (0.5, 0.1, 0.02):
        assert (log_p <= math.log(level)).mean() <= level + 4 * math.sqrt(level / len(sums))
    for strength in (0.3, 0.6):
        assert np.exp(strength * x).mean() == pytest.approx(math.exp(family.log_mgf(strength)), rel=0.05)
        slope = (family.log_mgf(strength + 1e-5) - family.log_mgf(strength - 1e-5)) / 2e-5
        assert family.mean(strength) == pytest.approx(slope, rel=1e-5)


def test_tails_are_binomial() -> None:
    for chance, depth in ((0.25, 1), (0.4999, 30), (0.9, 2)):
        draws = BernoulliSum((1,) * depth, chance, -1.0, 0.5)
        family = sum_family("kgw", draws)
        for count in (1, 7, 200):
            trials = count * depth
            terms = np.array(
                [
                    math.lgamma(trials + 1) - math.lgamma(j + 1) - math.lgamma(trials - j + 1)
                    + j * math.log(chance) + (trials - j) * math.log(1 - chance)
                    for j in range(trials + 1)
                ]
            )  # fmt: skip
            counts = range(0, trials + 1, max(1, trials // 9))
            exact = [float(np.logaddexp.reduce(terms[k:])) for k in counts]
            totals = -count + 0.5 * np.array(counts)
            log_p = evidence.log_tails(totals, np.full(len(totals), count), family)
            np.testing.assert_allclose(log_p, exact, rtol=1e-9, atol=1e-9)


def test_weighted_tails_are_valid() -> None:
    weights = tuple(range(290, 28, -9))
    norm = math.sqrt(sum(w * w for w in weights))
    draws = BernoulliSum(weights, 0.498, -sum(weights) / norm, 2 / norm)
    family = sum_family("synthid", draws)
    rng = np.random.default_rng(5)
    for count in (5, 40, 100):
        g = rng.random((6000, count, len(weights)), dtype=np.float32) < draws.chance
        totals = count * draws.low + draws.step * (g @ np.array(weights, np.float32)).sum(axis=1)
        log_p = evidence.log_tails(totals, np.full(len(totals), count), family)
        for level in (0.2, 0.05, 0.01):
            share = (log_p <= math.log(level)).mean()
            assert share <= level + 4 * math.sqrt(level / len(totals))
            assert count < 20 or share >= 0.9 * level - 4 * math.sqrt(level / len(totals))


# The audit


@pytest.mark.parametrize("scheme", engines.SCHEMES)
@pytest.mark.parametrize("decoder", ["posterior", "cusum", "window"])
def test_audit_finds_the_writers(scheme: str, decoder: str) -> None:
    options = options_of(scheme)
    planner, critic, *other_keys = keys_of(scheme, 6)
    ids = written_by(scheme, [(planner, 200), (critic, 150), (planner, 150)], options, 1)
    agents = {"planner": planner, "critic": critic, **{f"other {i}": key for i, key in enumerate(other_keys)}}
    keys = iet.EngineKeys(scheme, agents, **options)
    report = iet.Auditor(keys, decoder).audit(token_ids=ids)
    named = [segment for segment in report.segments if segment.agent is not None]
    if decoder == "cusum":  # it misses hand-overs between agents of similar strength
        assert {segment.agent for segment in named} <= {"planner", "critic"}
        assert named[0].agent == "planner"
        return
    assert [segment.agent for segment in named] == ["planner", "critic", "planner"]
    assert abs(named[1].start - 204) <= 32
    assert abs(named[1].end - 354) <= 32
    assert all(segment.log_p < -20 for segment in named)
    assert report.log_p < -20
    if decoder == "posterior":
        unmarked = iet.Auditor(keys).audit(token_ids=np.random.default_rng(9).integers(1, V, 500))
        assert all(segment.agent is None for segment in unmarked.segments)
    assert keys.profile.digest in json.dumps(report.to_dict()) or report.profile.id == keys.profile.id
    output = repr(keys) + str(report) + json.dumps(report.to_dict())
    for key in (planner, critic):
        assert not any(str(number) in output for number in (key if isinstance(key, list) else [key]))


@pytest.mark.parametrize("scheme", engines.SCHEMES)
def test_audit_with_many_keys(scheme: str) -> None:
    options = options_of(scheme)
    agents = {f"agent {i}": key for i, key in enumerate(keys_of(scheme, 70))}
    ids = written_by(scheme, [(agents["agent 69"], 150)], options, 2)
    report = iet.Auditor(iet.EngineKeys(scheme, agents, **options)).audit(token_ids=ids)
    assert {segment.agent for segment in report.segments} - {None} == {"agent 69"}


def test_agents_with_several_keys() -> None:
    keys = iet.EngineKeys("vllm-gumbel", {"planner": [3, 4], "critic": 5})
    assert keys.owners.tolist() == [0, 0, 1]
    assert len(keys) == 3
    ids = written_by("vllm-gumbel", [(3, 120), (4, 120)], {}, 3)
    report = iet.Auditor(keys).audit(token_ids=ids)
    assert [s.agent for s in report.segments if s.agent] == ["planner"]
    layers = keys_of("synthid", 3)
    several = iet.EngineKeys("synthid", {"planner": layers[:2], "critic": layers[2]})
    arrays = {"planner": np.array(layers[:2]), "critic": np.array(layers[2])}
    assert iet.EngineKeys("synthid", arrays).digest == several.digest
    assert several.owners.tolist() == [0, 0, 1]
    assert several.scheme.depth == 30


@pytest.mark.parametrize("scheme", OPTIONS)
def test_subset_scores_equal_columns(scheme: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 200, 60)
    for parameters in OPTIONS[scheme]:
        keys = iet.EngineKeys.unnamed(scheme, keys_of(scheme, 5), **parameters)
        scores = iet.score_tokens(ids, keys)
        for columns in (slice(None, None, 2), slice(None, None, -1), slice(1, 4)):
            assert np.array_equal(iet.score_tokens(ids, keys.subset(columns)), scores[:, columns])


def test_false_positives_of_kgw_and_synthid_match_the_level() -> None:
    """Audits of unmarked text under random keys have false positives at most at the level."""
    for scheme in ("kgw", "synthid"):
        options = options_of(scheme)
        log_p = []
        for seed in range(60):
            agents = {f"a{i}": key for i, key in enumerate(keys_of(scheme, 8, seed + 1))}
            ids = np.random.default_rng(seed).integers(1, V, 300)
            log_p.append(iet.Auditor(iet.EngineKeys(scheme, agents, **options)).audit(token_ids=ids).log_p)
        shares = [(np.array(log_p) <= math.log(level)).mean() for level in (0.2, 0.05)]
        assert shares[0] <= 0.36, scheme
        assert shares[1] <= 0.17, scheme


# Input, secrets, files, the command line


@pytest.mark.parametrize(
    ("scheme", "keys", "options", "message"),
    [
        ("vllm", [1], {}, "expected one of"),
        ("vllm-gumbel", [2**64], {}, "an integer out of range, expected an integer from 0"),
        ("vllm-gumbel", [-1], {}, "expected an integer from 0"),
        ("vllm-gumbel", ["1f"], {}, "got a str, expected an integer"),
        ("vllm-gumbel", [True], {}, "got a bool"),
        ("vllm-gumbel", [7, 7], {}, "expected one of its own"),
        ("vllm-gumbel", [], {}, "no agents"),
        ("vllm-gumbel", "7", {}, "expected a list of keys"),
        ("vllm-gumbel", [7], {"n_gram": 1}, "n_gram: got 1"),
        ("vllm-gumbel", [7], {"n_gram": 66}, "n_gram: got 66"),
        ("vllm-gumbel", [7], {"k_p": 1}, "k_p: scheme 'vllm-gumbel' has no such parameter"),
        ("vllm-gumbel", [7], {"vocab_size": 1}, "vocab_size: got 1"),
        ("sglang-gumbel", [7], {}, "got a int, expected a str of 1 to 16 hex digits"),
        ("sglang-gumbel", ["xyz"], {}, "got another str"),
        ("sglang-gumbel", ["0" * 17], {}, "hex digits"),
        ("sglang-gumbel", ["ab", "0xAB"], {}, "expected one of its own"),
        ("kgw", [7], {}, "vocab_size: got none"),
        ("kgw", [0], {"vocab_size": V}, "expected an integer from 1"),
        ("kgw", [7], {"vocab_size": V, "n_gram": 3}, "n_gram: got 3"),
        ("kgw", [7], {"vocab_size": V, "greenlist_ratio": 1.0}, "greenlist_ratio: got 1.0"),
        ("kgw", [7], {"vocab_size": 3}, "which makes 0 of 3 ids green"),
        ("kgw", [7], {"vocab_size": V, "seeding_scheme": "right"}, "seeding_scheme: got 'right'"),
        ("synthid", [7], {}, "expected a list of 1 integers"),
        ("synthid", [np.array(7)], {}, "got a ndarray, expected a list of 1 integers"),
        ("synthid", [[1, 2], [3]], {}, "got 1 of them, expected a list of 2 integers"),
        ("synthid", [[1, 2]], {"sampling_table_size": 3}, "expected a power of two"),
        ("synthid", [[1, 2]], {"sampling_table_size": 1 << 17}, "expected an integer from 2 to 65536"),
        ("synthid", [[1] * 101], {}, "depth: got 101"),
        ("synthid", [[1, 2]], {"weighted": 1}, "weighted: got 1"),
        *(
            ("synthid", [[1, 2]], {"sampling_table_size": 2, "sampling_table_seed": seed}, "table of 2")
            for seed in (1, 3)
        ),
    ],
)
def test_rejects_invalid_keys_and_options(
    scheme: str, keys: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        iet.score_tokens([1, 2, 3], iet.EngineKeys.unnamed(scheme, keys, **options))


def test_rejects_unsupported_calls() -> None:
    keys = iet.EngineKeys("vllm-gumbel", {"planner": 42})
    with pytest.raises(InputError, match="decoys"):
        iet.Auditor(keys, decoys=10_000)
    with pytest.raises(InputError, match=r"expected iet\.Registry"):
        iet.embed_(np.zeros((1, 8), np.float32), [[0]], [0], keys)  # type: ignore[arg-type]
    with pytest.raises(ShapeError):
        iet.score_tokens([[1]], keys)
    with pytest.raises(InputError, match="no agents"):
        iet.EngineKeys("vllm-gumbel", {})
    with pytest.raises(InputError, match="vocab_size: got 10, expected at least 4096, as its tokenizer has"):
        iet.EngineKeys("kgw", {"planner": 42}, tokenizer="iet:demo", vocab_size=10)


@pytest.mark.parametrize(
    ("scheme", "first", "second", "options"),
    [
        ("kgw", [7], [7 + 2**32], {"vocab_size": V}),
        ("kgw", [7], [8], {"vocab_size": V}),
        ("synthid", [[1, 2, 3]], [[3, 1, 65538]], {}),
        ("synthid", [[1, 2, 3]], [[3, 1, 65538]], {"weighted": True}),
        ("synthid", [[1, 2, 3]], [[1, 2, 65539]], {"weighted": True}),
    ],
)
def test_rejects_keys_with_equal_scores(
    scheme: str, first: Any, second: Any, options: dict[str, Any]
) -> None:
    ids = np.random.default_rng(0).integers(1, 1000, 400)
    scores = [
        iet.score_tokens(ids, iet.EngineKeys.unnamed(scheme, pair, **options)) for pair in (first, second)
    ]
    keys = {"planner": first[0], "critic": second[0]}
    if np.array_equal(*scores):
        with pytest.raises(
            InputError, match="'critic': got one that marks as that of 'planner', expected one"
        ):
            iet.EngineKeys(scheme, keys, **options)
    else:
        assert iet.EngineKeys(scheme, keys, **options).names == ("planner", "critic")
    together = iet.score_tokens(ids, iet.EngineKeys.unnamed(scheme, [*first, *second], **options))
    assert np.array_equal(together, np.concatenate(scores, axis=1))


def test_errors_from_a_key_file_contain_no_key(tmp_path: pathlib.Path) -> None:
    path, secret = tmp_path / "keys.json", 987654321987
    for content in (
        {"planner": secret, "critic": -1},
        {"planner": secret, "critic": secret},
        {"a\0": secret},
    ):
        path.touch(0o600)
        path.write_text(json.dumps(content))
        with pytest.raises(IetError) as caught:
            iet.EngineKeys.load(path, "vllm-gumbel")
        assert str(secret) not in "".join(
            traceback.TracebackException.from_exception(
                caught.value.with_traceback(caught.value.__traceback__.tb_next), capture_locals=True
            ).format()
        )
        assert caught.value.__context__ is None


def test_rejected_keys_have_a_repr() -> None:
    with pytest.raises(InputError) as caught:
        iet.EngineKeys("vllm-gumbel", {"planner": -1})
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    reprs = [repr(frame.f_locals["self"]) for frame in frames if "self" in frame.f_locals]
    assert "EngineKeys(refused)" in reprs


def test_errors_and_reprs_contain_no_key() -> None:
    secret = 987654321987
    for scheme, key in (("vllm-gumbel", secret), ("sglang-gumbel", f"{secret:x}"), ("synthid", [secret, 5])):
        keys = iet.EngineKeys(scheme, {"planner": key})
        for wrong in (str(secret), secret * 2**64, [secret, "x"], {"key": secret}, float(secret), -secret):
            with pytest.raises(InputError) as caught:
                iet.EngineKeys(scheme, {"planner": key, "critic": wrong, "again": key})
            assert str(secret) not in str(caught.value)
            assert f"{secret:x}" not in str(caught.value)
        assert str(secret) not in repr(keys)
        assert f"{secret:x}" not in repr(keys)
        assert (
            keys.digest == iet.EngineKeys(scheme, {"planner": [key] if scheme != "synthid" else key}).digest
        )
        with pytest.raises(RegistryError, match="not pickled"):
            pickle.dumps(keys)


@pytest.fixture
def key_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"planner": 3, "critic": 4}))
    path.chmod(0o600)
    return path


def test_keys_from_a_file(key_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    keys = iet.EngineKeys.load(key_file, "vllm-gumbel", n_gram=4)
    assert keys.names == ("planner", "critic")
    assert keys.scheme.n_gram == 4
    copied = pickle.loads(pickle.dumps(iet.Auditor(keys)))
    ids = written_by("vllm-gumbel", [(3, 100)], {"n_gram": 4}, 4)
    assert copied.audit(token_ids=ids).to_dict() == iet.Auditor(keys).audit(token_ids=ids).to_dict()
    for content in ("[1]", "{", '{"a": 918273, "a": 5}', '{"a": 918273'):
        bad = tmp_path / "bad.json"
        bad.write_text(content)
        bad.chmod(0o600)
        with pytest.raises(RegistryError, match="expected a JSON object of agents") as caught:
            iet.EngineKeys.load(bad, "vllm-gumbel")
        assert "918273" not in "".join(map(str, (caught.value, caught.value.__cause__)))
    with pytest.raises(RegistryError, match="cannot be read"):
        iet.EngineKeys.load(tmp_path / "none.json", "vllm-gumbel")
    if os.name == "posix":
        key_file.chmod(0o644)
        with pytest.raises(RegistryError, match="chmod 600"):
            iet.EngineKeys.load(key_file, "vllm-gumbel")


def test_audit_command(
    key_file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "text.txt"
    document.write_text("The plan is to read the whole report first, and then to write. " * 6)
    tokenizer = str(MODEL.parent / "tokenizer.json") if MODEL.is_file() else "iet:demo"
    common = ["audit", str(document), "--keys", str(key_file), "--tokenizer", tokenizer, "--json"]
    assert main([*common, "--scheme", "vllm-gumbel", "--parameter", "n_gram=3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["profiles"][0]["scheme"]["name"] == "vllm-gumbel"
    assert report["profiles"][0]["scheme"]["n_gram"] == 3
    vocab = ["--parameter", "vocab_size=5000", "--parameter", "seeding_scheme=lefthash"]
    assert main([*common, "--scheme", "kgw", *vocab]) == 0
    capsys.readouterr()
    assert main([*common, "--scheme", "sglang-gumbel"]) == 3
    assert "expected a str of 1 to 16 hex digits" in capsys.readouterr().err
    assert main([*common, "--scheme", "kgw"]) == 3
    assert "expected --parameter vocab_size=N" in capsys.readouterr().err
    assert main([*common, "--scheme", "kgw", *vocab, "--parameter", "vocab_size=6000"]) == 3
    assert "--parameter: got 'vocab_size' twice, expected each once" in capsys.readouterr().err
    for wrong in ([*common, "--parameter", "n_gram=3"], [*common, "--scheme", "kgw", "--parameter", "k_p"]):
        with pytest.raises(SystemExit):
            main(wrong)
