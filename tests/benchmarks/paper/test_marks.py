"""The marks of the paper's experiments: green lists against transformers' own, scores, and equal strength."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from benchmarks.paper import marks
from benchmarks.paper.conversations.logs import Setting
from benchmarks.paper.marks import MARKS, Marker, agent_name
from iet.errors import InputError
from iet.kernels import embed_
from iet.marks.families import FAMILIES
from iet.marks.tokenizer import Tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.generation.logits_process import (  # noqa: E402 - after the skips
    SynthIDTextWatermarkLogitsProcessor,
    WatermarkLogitsProcessor,
)

KEYS = (15485863, 3, 2**32 - 5)
DELTA = 2.0


def setting(mark: str, **fields: Any) -> Setting:
    strength = DELTA if MARKS[mark].green else MARKS[mark].strength
    base = {"topology": "chain", "agents": 4, "mark": mark, "model": ""}
    defaults = {"temperature": 0.7, "top_p": 1.0, "joiner": " ", "seed": 3, "strength": strength}
    return Setting(**{**base, **defaults, **fields})


@pytest.fixture(scope="module")
def ids() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(3, 300, 600)  # few enough for pairs to come again


def theirs(vocab_size: int, key: int) -> WatermarkLogitsProcessor:
    return WatermarkLogitsProcessor(vocab_size, "cpu", 0.5, DELTA, key, "lefthash", 1)


# ---------------------------------------------------------------- green lists


@pytest.mark.parametrize("vocab_size", [4096, 1001, 50257])
@pytest.mark.parametrize("key", KEYS)
def test_kgw_green_lists_equal_transformers(vocab_size: int, key: int) -> None:
    processor = theirs(vocab_size, key)
    for previous in (0, 1, 17, vocab_size - 1):
        expected = np.zeros(vocab_size, np.bool_)
        expected[processor._get_greenlist_ids(torch.tensor([5, previous])).numpy()] = True
        assert np.array_equal(marks.kgw_green(key, previous, vocab_size), expected)


def test_green_lists_mark_as_transformers_processor() -> None:
    logits, context = torch.randn(3, 1000), torch.randint(0, 1000, (3, 5))
    marked = marks.GreenLists(marks.kgw_green, KEYS, DELTA, 1000)(context, logits.clone())
    for row, key in enumerate(KEYS):
        expected = theirs(1000, key)(context[row : row + 1], logits[row : row + 1])
        assert torch.equal(marked[row], expected[0])


def test_unmarked_rows_and_padded_columns_stay() -> None:
    logits, context = torch.randn(2, 1040), torch.randint(0, 1000, (2, 5))
    marked = marks.GreenLists(marks.kgw_green, [None, 5], DELTA, 1000)(context, logits)
    assert torch.equal(marked[0], logits[0])
    assert torch.equal(marked[1, 1000:], logits[1, 1000:])
    assert ((marked[1, :1000] - logits[1, :1000]).abs() > 1).sum() == 500


@pytest.mark.parametrize("vocab_size", [4096, 1001])
def test_unigram_green_list_equals_the_authors(vocab_size: int) -> None:
    # As `GPTWatermarkBase.__init__` of the published code builds it.
    for key in (0, 42, 2**32 - 1):
        seed = int.from_bytes(hashlib.sha256(np.int64(key)).digest()[:4], "little")  # type: ignore[arg-type]
        half = int(0.5 * vocab_size)
        mask = np.array([True] * half + [False] * (vocab_size - half))
        np.random.default_rng(seed).shuffle(mask)
        for previous in (0, 9):
            assert np.array_equal(marks.unigram_green(key, previous, vocab_size), mask)


# ---------------------------------------------------------------- reading


def test_kgw_scores_equal_transformers_green_lists(tokenizer, ids):
    marker = Marker(setting("kgw"), tokenizer)
    scores = marker.keys(7).scores(ids)
    assert scores.shape == (600, 4)
    assert scores.dtype == np.float32
    assert not scores[0].any()
    for agent in (0, 3):
        processor = theirs(tokenizer.vocab_size, marker._number(agent_name(7, agent)))
        for t in range(1, 60):
            green = ids[t] in processor._get_greenlist_ids(torch.tensor([ids[t - 1]])).tolist()
            assert scores[t, agent] == (1 if green else -1)


def test_unigram_scores_depend_on_the_token_alone(tokenizer: Tokenizer, ids: np.ndarray[Any, Any]) -> None:
    marker = Marker(setting("unigram"), tokenizer)
    scores = marker.keys(7).scores(ids)
    for agent in range(4):
        green = marks.unigram_green(marker._number(agent_name(7, agent)), 0, tokenizer.vocab_size)
        assert np.array_equal(scores[:, agent], np.where(green[ids], 1, -1))


@pytest.mark.parametrize("mark", list(MARKS))
def test_scores_of_unmarked_ids_follow_the_family(tokenizer: Tokenizer, mark: str) -> None:
    ids = np.random.default_rng(1).integers(3, 4096, 3000)
    keys = Marker(setting(mark), tokenizer).keys(0)
    family = keys.family
    scores = keys.scores(ids)[8:]
    assert np.abs(scores.mean(0) - family.mean(0.0)).max() < 5 * np.sqrt(family.variance / len(scores))
    assert np.abs(scores.var(0) - family.variance).max() < 0.25 * family.variance


@pytest.mark.parametrize("mark", ["kgw", "unigram", "fourier", "gumbel"])
def test_pairs_are_numbered_where_a_score_stands(tokenizer, ids, mark):
    ids = ids.copy()
    ids[100] = tokenizer.special_ids[0]
    keys = Marker(setting(mark), tokenizer).keys(0)
    pairs, scores, n = keys.pairs(ids), keys.scores(ids), MARKS[mark].n_gram
    assert np.array_equal(pairs >= 0, scores.any(axis=1))
    assert not scores[100 : 100 + n].any()
    low, high = (n - 1, 0) if mark == "gumbel" else (n - 1, 1)
    grams = {t: tuple(ids[t - low : t + high]) for t in np.flatnonzero(pairs >= 0)}
    numbers: dict[Any, int] = {}
    assert all(pairs[t] == numbers.setdefault(gram, len(numbers)) for t, gram in grams.items())


def test_keys_belong_to_seed_record_and_agent(tokenizer: Tokenizer, ids: np.ndarray[Any, Any]) -> None:
    for mark in MARKS:
        keys = Marker(setting(mark), tokenizer).keys(1)
        scores = keys.scores(ids)
        assert np.array_equal(Marker(setting(mark), tokenizer).keys(1, spurious=3).scores(ids)[:, :4], scores)
        assert Marker(setting(mark), tokenizer).keys(1, spurious=3).scores(ids).shape == (600, 7)
        for other_keys in (
            Marker(setting(mark), tokenizer).keys(2),
            Marker(setting(mark, seed=4), tokenizer).keys(1),
        ):
            assert not np.array_equal(other_keys.scores(ids), scores)
        assert all(not np.array_equal(scores[:, 0], scores[:, a]) for a in range(1, 4))
        assert "_numbers" not in repr(keys)


# ---------------------------------------------------------------- marking


@pytest.mark.parametrize(("mark", "kappa"), [("fourier", 0.8), ("raw", 0.8)])
def test_own_marks_add_what_embed_adds(tokenizer: Tokenizer, mark: str, kappa: float) -> None:
    names = [agent_name(0, 2), None, agent_name(5, 0)]
    processor = Marker(setting(mark), tokenizer).processor(names)
    assert processor is not None
    context, logits = torch.randint(3, 4096, (3, 6)), torch.randn(3, 4096)
    marked = processor(context, logits)
    for row, (record, agent) in {0: (0, 2), 2: (5, 0)}.items():
        keys = Marker(setting(mark), tokenizer).keys(record)
        expected = logits[row : row + 1].clone()
        assert keys.registry is not None
        embed_(expected, context[row : row + 1, -1:], np.array([agent]), keys.registry)
        assert torch.equal(marked[row : row + 1], expected)
        assert (expected - logits[row]).abs().max() == pytest.approx(kappa, abs=0.02)
    assert torch.equal(marked[1], logits[1])


def test_gumbel_forces_one_token(tokenizer: Tokenizer) -> None:
    processor = Marker(setting("gumbel"), tokenizer).processor([agent_name(0, 1), None])
    assert processor is not None
    context, logits = torch.arange(10, 22).reshape(2, 6), torch.randn(2, 4096)
    logits[:, 100:] = -torch.inf
    marked = processor(context, logits)
    assert marked[0].softmax(dim=-1).max() == 1
    assert int(marked[0].argmax()) < 100
    assert torch.equal(marked[1], logits[1])


def test_synthid_draws_as_transformers_processor() -> None:
    keys, vocab_size = list(range(7, 37)), 2000
    context, logits = torch.randint(3, vocab_size, (2, 9)), torch.randn(2, vocab_size)
    logits[:, 500:] = -torch.inf
    marked = marks.SynthIdTournament([keys, None])(context, logits)
    processor = SynthIDTextWatermarkLogitsProcessor(5, keys, 1 << 16, 0, 1024, torch.device("cpu"))
    processor._init_state(1)
    processor.state.context = context[:1, -5:-1]  # a call appends the last id
    expected = processor(context[:1], logits[:1])
    torch.testing.assert_close(marked[:1, :500].softmax(-1), expected[:, :500].softmax(-1))
    assert torch.isneginf(marked[0, 500:]).all()
    assert torch.equal(marked[1], logits[1])


def test_synthid_keeps_the_distribution_over_contexts() -> None:
    p = np.array([0.4, 0.2, 0.1, *[0.02] * 15])
    logits = torch.from_numpy(np.log(p)[None]).float()
    tournament = marks.SynthIdTournament(
        [[int(key) for key in np.random.default_rng(1).integers(0, 65536, 30)]]
    )
    contexts = torch.randint(0, 49152, (2000, 1, 4), generator=torch.Generator().manual_seed(0))
    marked = torch.cat([tournament(context, logits) for context in contexts]).double().softmax(-1).numpy()
    assert np.abs(marked.mean(0) - p).max() < 4 * marked.std(0).max() / np.sqrt(len(marked))


def test_synthid_leaves_repeated_contexts_unmarked() -> None:
    context, logits = torch.tensor([[1, 2, 3, 4, 9, 1, 2, 3, 4]]), torch.randn(1, 100)
    tournament = marks.SynthIdTournament([list(range(30))])
    assert torch.equal(tournament(context, logits), logits)
    assert not torch.equal(tournament(context[:, :4], logits), logits)


def test_synthid_is_read_in_text_that_the_tournaments_drew(tokenizer: Tokenizer) -> None:
    marker, rng = Marker(setting("synthid"), tokenizer), torch.Generator().manual_seed(0)
    processor = marker.processor([agent_name(0, 2)])
    assert processor is not None
    ids = torch.randint(3, 4096, (1, 8), generator=rng)
    for _ in range(300):
        logits = processor(ids, 2 * torch.randn(1, 4096, generator=rng))
        ids = torch.cat([ids, logits.softmax(-1).multinomial(1, generator=rng)], dim=1)
    keys = marker.keys(0)
    scores = keys.scores(ids[0].numpy())[8:].mean(0)
    assert scores.argmax() == 2
    assert scores[2] - np.delete(scores, 2).max() > 0.5 * np.sqrt(keys.family.variance)


def test_none_marks_nothing_and_unknown_marks_are_rejected(tokenizer: Tokenizer) -> None:
    assert Marker(setting("none"), tokenizer).processor([agent_name(0, 0)]) is None
    assert Marker(setting("fourier"), tokenizer).processor([None, None]) is None
    with pytest.raises(InputError, match="mark: got 'blue', expected one of"):
        marks.mark_of("blue")
    with pytest.raises(InputError, match="strength: got None, expected δ for 'kgw'"):
        Marker(setting("kgw", strength=None), tokenizer)


def test_profiles_differ_where_reading_does(tokenizer: Tokenizer) -> None:
    digests = {marks.profile_digest(mark, DELTA, tokenizer) for mark in ("kgw", "unigram", "gumbel")}
    digests |= {marks.profile_digest("fourier", 0.8, tokenizer), marks.profile_digest("raw", 0.8, tokenizer)}
    assert len(digests) == 5
    assert marks.profile_digest("kgw", 1.0, tokenizer) not in digests
    assert marks.profile_digest("none", None, tokenizer) in digests  # read as fourier


# ---------------------------------------------------------------- equal strength


def test_delta_for_uniform_logits_follows_from_the_families() -> None:
    # KL of a law tilted by λ is λ·mean(λ) - log_mgf(λ): that of ±1 at λ = δ/2, of the arcsine law at κ.
    fourier = FAMILIES["fourier"]

    def kl(family: Any, strength: float) -> float:
        return float(strength * family.mean(strength) - family.log_mgf(strength))

    flat = np.zeros((6, 4096), np.float32)
    assert marks.mean_kl(flat, 0.8) == pytest.approx(kl(fourier, 0.8), rel=0.01)
    delta = marks.equal_delta(flat, 0.8)
    assert kl(marks.GREEN, delta / 2) == pytest.approx(kl(fourier, 0.8), rel=0.01)


def test_delta_gives_the_divergence_of_the_mark() -> None:
    rng = np.random.default_rng(2)
    logits = (3 * rng.standard_normal((60, 512))).astype(np.float32)
    logits[:20, 9:] = -np.inf  # a nucleus of nine
    delta = marks.equal_delta(logits, 0.8, draws=16)
    target = marks.mean_kl(logits, 0.8, draws=16)
    divergences = []
    for key in range(24):
        # Measured on marked logits themselves, with lists that the search has not seen.
        processor = marks.GreenLists(marks.kgw_green, [2 * key + 1] * 60, delta, 512)
        marked = processor(torch.randint(0, 512, (60, 2)), torch.from_numpy(logits))
        log_q, log_p = marked.log_softmax(-1), torch.from_numpy(logits).log_softmax(-1)
        gap = torch.where(log_q.isfinite(), log_q - log_p, torch.zeros(()))
        divergences.append(float((log_q.exp() * gap).sum(-1).mean()))
    spread = np.std(divergences) / np.sqrt(len(divergences))
    assert np.mean(divergences) == pytest.approx(target, abs=4 * spread + 0.02 * target)
    assert marks.equal_delta(logits, 0.5) < delta < marks.equal_delta(logits, 1.2)


def test_rejects_deterministic_logits() -> None:
    certain = np.full((4, 64), -np.inf, np.float32)
    certain[:, 7] = 0
    with pytest.raises(InputError, match="no δ up to 20"):
        marks.equal_delta(certain)
