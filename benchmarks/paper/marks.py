"""Marks of texts, and scores of texts under the keys of all agents.

A mark is a logits processor like those of transformers: `(input_ids [B, T], logits [B, V])` -> logits.
"raw" is applied before the temperature, all others after temperature and top-p.

*Keys.* Every record has its own keys, so that an interval over records includes the variation between keys.
They follow from the setting's seed, the record and the agent, so they are not secret. Agents beyond the
setting's n are spurious: their keys are registered, but no text is written with them. (The paper uses the ids
42, 43, ... of the agents as keys in all records.)

*Green lists* (γ = 1/2; "kgw", "unigram"): δ is added to the logits of a list of ⌊V/2⌋ ids, and a token's
score is +1 on the list and -1 off it. Without a mark a score has mean 0 (-1/V for odd V) and variance 1,
the law of `GREEN`: ±1 tilted by exp(λ·x) corresponds to logits raised by δ = 2λ. V is the size of the
tokenizer's vocabulary with added tokens. The CPU's generator makes the lists, also for a model on a GPU.

*SynthID-Text* (Dathathri et al. 2024, "Scalable watermarking for identifying large language model outputs"):
non-distortionary tournaments of two, with the hash, table, depth 30 and contexts of four ids that
`SynthIDTextWatermarkLogitsProcessor` of transformers has. A repeated context is left unmarked, here also if
it occurred in the prompt. It is read as `iet` reads this mark.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import rel_entr, softmax

import iet
from benchmarks.paper import needed
from benchmarks.paper.conversations.logs import Setting
from iet.errors import InputError
from iet.kernels import embed_, pair_numbers
from iet.marks.families import FAMILIES, BernoulliSum, Family, sum_family
from iet.marks.foreign.engines import EngineKeys
from iet.marks.foreign.synthid import SynthId, synthid_hash, synthid_table
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme, canonical_digest
from iet.marks.tokenizer import Tokenizer
from iet.native import reference
from iet.native.pairs import number_pairs

if TYPE_CHECKING:
    from benchmarks.writing.models import Loaded

KAPPA = 0.8
GAMMA = 0.5
PUBLISHED = 2.0
"""δ of the main results of KGW and Unigram, both with γ = 1/2."""

GREEN = sum_family("green list", BernoulliSum((1,), GAMMA, -1.0, 2.0))
"""The law of ±1 scores of green lists."""

SYNTHID = SynthId()

Green = Callable[[int, int, int], npt.NDArray[np.bool_]]
Processor = Callable[[Any, Any], Any]


def kgw_green(key: int, previous: int, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return the green list [V] after one token: LeftHash with h = 1 of transformers 5 on a CPU.

        seed = key · previous mod (2^64 - 1);  green = the first ⌊V/2⌋ of torch.randperm(V) with that seed

    Kirchenbauer et al. 2023, "A Watermark for Large Language Models", Algorithm 2.
    """
    torch = needed("torch")
    generator = torch.Generator().manual_seed(key * previous % (2**64 - 1))
    green = np.zeros(vocab_size, np.bool_)
    green[torch.randperm(vocab_size, generator=generator)[: int(vocab_size * GAMMA)].numpy()] = True
    return green


def unigram_green(key: int, previous: int, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return the green list [V] of a key, the same after every token, as in the authors' code.

        rng = default_rng(first 4 bytes of SHA-256(key as int64), little-endian)
        rng.shuffle(⌊V/2⌋ ones, then zeros)

    Zhao et al. 2024, "Provable Robust Watermarking for AI-Generated Text". `previous` is not used.
    """
    seed = int.from_bytes(hashlib.sha256(np.int64(key).tobytes()).digest()[:4], "little")
    green = np.arange(vocab_size) < int(vocab_size * GAMMA)
    np.random.default_rng(seed).shuffle(green)
    return green


@dataclasses.dataclass(frozen=True)
class Mark:
    family: Family  # law of the scores
    # Strength -> scheme, for iet's own marks and for reading unmarked text
    scheme: Callable[[float | None], Scheme] | None = None
    green: Green | None = None  # (key, previous id, V) -> green list
    n_gram: int = 2  # tokens that a score depends on
    # Default κ or δ; None: the mark has no strength, or `equal_delta` gives δ
    strength: float | None = None
    raw: bool = False  # applied before the temperature
    marks: bool = True  # False: unmarked text
    is_synthid: bool = False


def _fourier(placement: Literal["final", "raw"], kappa: float | None) -> Scheme:
    return Scheme(kappa=KAPPA if kappa is None else kappa, n_gram=2, placement=placement)


MARKS: Mapping[str, Mark] = {
    "fourier": Mark(FAMILIES["fourier"], functools.partial(_fourier, "final"), strength=KAPPA),
    # The paper's placement
    "raw": Mark(FAMILIES["fourier"], functools.partial(_fourier, "raw"), strength=KAPPA, raw=True),
    "gumbel": Mark(FAMILIES["gumbel"], lambda _: Scheme(family="gumbel", n_gram=4), n_gram=4),
    # Kirchenbauer et al. 2023, LeftHash, h = 1; Zhao et al. 2024
    "kgw": Mark(GREEN, green=kgw_green),
    "unigram": Mark(GREEN, green=unigram_green, n_gram=1),
    "kgw_published": Mark(GREEN, green=kgw_green, strength=PUBLISHED),
    "unigram_published": Mark(GREEN, green=unigram_green, n_gram=1, strength=PUBLISHED),
    "synthid": Mark(SYNTHID.law(1 << 24), n_gram=SYNTHID.n_gram, is_synthid=True),
    # Unmarked text, read as fourier
    "none": Mark(FAMILIES["fourier"], lambda _: Scheme(n_gram=2), marks=False),
}
"""Name -> mark."""


def agent_name(record: int, agent: int) -> str:
    """Return the registered name of an agent in the conversation of a record."""
    return f"record-{record} agent-{agent}"


def profile_digest(mark: str, strength: float | None, tokenizer: Tokenizer) -> str:
    """Return the digest of the parameters, other than keys, on which writer and reader must agree."""
    entry = mark_of(mark)
    if entry.scheme is not None:
        return _registry(entry.scheme(strength), tokenizer).profile.digest
    return canonical_digest(
        {
            "mark": mark,
            "gamma": GAMMA,
            "delta": strength,
            **({"depth": SYNTHID.depth, "n_gram": SYNTHID.n_gram} if entry.is_synthid else {}),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_digest": tokenizer.digest,
        }
    )


def made_by(loaded: Loaded, mark: str, strength: float | None = None) -> dict[str, Any]:
    """Return the fields of a setting that describe model and mark; None: the default strength."""
    entry = mark_of(mark)
    if strength is not None and entry.green is None and entry.strength is None:
        raise InputError(f"strength: got {strength}, expected none: mark {mark!r} has no strength")
    strength = entry.strength if strength is None else float(strength)
    return {
        "mark": mark,
        "model": loaded.digest,
        "model_name": loaded.name,
        "strength": strength,
        "profile": profile_digest(mark, strength, loaded.reader),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Keys:
    """The keys of the agents of one record, and the scores of texts under them."""

    names: tuple[str, ...]  # agents, in the order of the columns
    family: Family  # law of the scores
    registry: Registry | EngineKeys | None  # None for green lists
    _mark: Mark
    _numbers: tuple[int, ...] = dataclasses.field(repr=False)
    _tokenizer: Tokenizer = dataclasses.field(repr=False)

    def scores(self, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the scores [T, A] of a text's ids, 0 if not scored.

        Green lists cost O(V·A·min(T, V)): a list for every distinct id and agent.
        """
        if self.registry is not None:
            return np.asarray(iet.score_tokens(np.asarray(ids, np.int64), self.registry), np.float32)
        tokens, green = np.asarray(ids, np.int64), self._mark.green
        assert green is not None
        scored, size = self._scored(tokens), self._tokenizer.vocab_size
        scores = np.zeros((len(tokens), len(self._numbers)), np.float32)
        if self._mark.n_gram == 1:
            groups = {0: np.flatnonzero(scored)}
        else:
            positions = np.flatnonzero(scored)
            contexts = tokens[positions - 1]
            groups = {int(p): positions[contexts == p] for p in np.unique(contexts)}
        for previous, scored_positions in groups.items():
            for column, number in enumerate(self._numbers):
                on = _cached_green(green, number, previous, size)[tokens[scored_positions]]
                scores[scored_positions, column] = np.where(on, 1.0, -1.0)
        return scores

    def pairs(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return numbers [T] that are equal for equal (context, token) pairs, -1 if a token is not scored."""
        tokens = np.asarray(ids, np.int64)
        if self.registry is not None:
            return pair_numbers(tokens, self.registry)
        return number_pairs(tokens, self._scored(tokens), self._mark.n_gram)

    def _scored(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return reference.is_scored(
            tokens, self._mark.n_gram, self._tokenizer.vocab_size, self._tokenizer.special_ids
        )


class Marker:
    def __init__(self, setting: Setting, tokenizer: Tokenizer) -> None:
        self.mark, self.setting, self.tokenizer = mark_of(setting.mark), setting, tokenizer
        if self.mark.green is not None and setting.strength is None:
            raise InputError(f"strength: got None, expected δ for {setting.mark!r}; see `equal_delta`")

    def keys(self, record: int, spurious: int = 0) -> Keys:
        """Return the keys of a record's agents, followed by keys of agents that did not write."""
        agents = range(self.setting.agents + spurious)
        names = tuple(agent_name(record, agent) for agent in agents)
        return Keys(
            names,
            self.mark.family,
            self.registry(names),
            self.mark,
            tuple(self._number(name) for name in names),
            self.tokenizer,
        )

    def processor(
        self, agents: Sequence[str | None], seeds: Sequence[int] | None = None, start: int = 0
    ) -> Processor | None:
        """Return the processor for rows of these agents (None: unmarked); None if no row is marked.

        With `gumbel`, tokens are left free as an engine leaves them (`FreeTokens`): `seeds` name the rows,
        and answers begin after `start` ids. Without `seeds` every token is marked.
        """
        names = tuple(dict.fromkeys(name for name in agents if name is not None))
        if not self.mark.marks or not names:
            return None
        registry = self.registry(names)
        if isinstance(registry, EngineKeys):
            return SynthIdTournament([None if name is None else self._synthid_key(name) for name in agents])
        if registry is None:
            assert self.mark.green is not None
            assert self.setting.strength is not None
            numbers = [None if name is None else self._number(name) for name in agents]
            return GreenLists(self.mark.green, numbers, self.setting.strength, self.tokenizer.vocab_size)
        from iet.generation.free import FreeTokens
        from iet.generation.transformers import LogitsProcessor, WatermarkingConfig

        if self.mark.raw:
            return LogitsProcessor(registry, list(agents))
        size = registry.profile.vocab_size
        # The positions in an answer are known here, not in a processor that serves a part of the rows.
        config = WatermarkingConfig(registry, list(agents), free=FreeTokens(0, 0.0))
        processor: Processor = config.construct_processor(size, "cpu")
        if seeds is not None and registry.profile.family.chooses:
            return LeftFree(processor, seeds, start)
        return processor

    def registry(self, names: Sequence[str]) -> Registry | EngineKeys | None:
        """Return the keys of agents as an auditor reads them; None for green lists."""
        if self.mark.is_synthid:
            keys = {name: self._synthid_key(name) for name in names}
            return EngineKeys(SYNTHID.name, keys, tokenizer=self.tokenizer.backend)
        if self.mark.scheme is None:
            return None
        registry = _registry(self.mark.scheme(self.setting.strength), self.tokenizer)
        for name in names:
            registry.add(name, secret=self._drawn(name, 32))
        return registry

    def _number(self, name: str) -> int:
        # torch seeds its generator with 32 bits: with odd keys below 2^32, previous ids give different seeds.
        return int.from_bytes(self._drawn(name, 4), "little") | 1

    def _synthid_key(self, name: str) -> list[int]:
        return [int(number) for number in np.frombuffer(self._drawn(name, 2 * SYNTHID.depth), np.uint16)]

    def _drawn(self, name: str, size: int) -> bytes:
        text = f"iet paper/{self.setting.seed}/{name}"
        return hashlib.blake2b(text.encode(), digest_size=size).digest()


class LeftFree:
    """Mark all tokens but those that `iet.FreeTokens` leaves to the sampler."""

    def __init__(self, mark: Processor, seeds: Sequence[int], start: int) -> None:
        self._mark, self._start = mark, start
        self._seeds = np.array(seeds, np.uint64).view(np.int64)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the logits [B, >= V], marked in the rows whose next token is not free."""
        positions = np.full_like(self._seeds, input_ids.shape[1] - self._start)
        free = iet.FreeTokens().are_free(self._seeds, positions)
        marked = self._mark(input_ids, scores)
        marked[free] = scores[free]
        return marked


class GreenLists:
    """Add δ to the logits of each row's green list, like transformers' WatermarkLogitsProcessor.

    Each row has a key, or None if it is unmarked.
    """

    def __init__(self, green: Green, keys: Sequence[int | None], delta: float, vocab_size: int) -> None:
        self._green, self._keys, self._delta, self._size = green, keys, delta, vocab_size

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the logits [B, >= V] with marks, for the position after `input_ids` [B, T]."""
        torch = needed("torch")
        bias = np.zeros((len(self._keys), self._size), np.float32)
        previous = input_ids[:, -1].tolist()
        for row, key in enumerate(self._keys):
            if key is not None:
                np.multiply(
                    _cached_green(self._green, key, previous[row], self._size), self._delta, out=bias[row]
                )
        marked = scores.clone()
        marked[:, : self._size] += torch.from_numpy(bias).to(scores.device)
        return marked


_MULTIPLIER = np.uint64(6364136223846793005)
"""Of the hash of `synthid_hash`."""


class SynthIdTournament:
    """Draw the next token by SynthID-Text's tournaments; `keys` has a list of numbers for each row, or None.

    With a table of 2^16 entries, the g-values of a token are those of the low 16 bits of the hash of its
    n-gram. So they are tabulated once for each key.
    """

    def __init__(self, keys: Sequence[Sequence[int] | None]) -> None:
        self._tables = [None if key is None else _synthid_values(tuple(key)) for key in keys]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return logits [B, V] after the tournaments, for the position after `input_ids` [B, T]."""
        torch = needed("torch")
        marked, size = scores.clone(), SYNTHID.n_gram - 1
        for row, table in enumerate(self._tables):
            ids = input_ids[row].cpu().numpy()
            windows = np.lib.stride_tricks.sliding_window_view(ids, size)
            if table is None or (windows[:-1] == windows[-1]).all(axis=1).any():
                continue
            p = softmax(scores[row].cpu().numpy().astype(np.float64))
            alive = np.flatnonzero(p)
            context = synthid_hash(windows[-1:])[0]
            hashes = (context + alive.astype(np.uint64)) * _MULTIPLIER + np.uint64(1)
            low = (hashes & np.uint64(SYNTHID.sampling_table_size - 1)).astype(np.int64)
            q = p[alive]
            for bits in np.ascontiguousarray(table[low].T):
                g = bits.astype(np.float64)
                q = q * (1 - q @ g + g)
                q = q.clip(0) / q.sum()  # rounded, a sum above 1 would leave probabilities below 0
            p[alive] = q
            with np.errstate(divide="ignore"):
                marked[row] = torch.from_numpy(np.log(p)).to(scores.dtype)
        return marked


@functools.lru_cache(maxsize=64)
def _synthid_values(key: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return the g-values [H, D] of every hash of an n-gram, modulo H."""
    size = SYNTHID.sampling_table_size
    hashes = np.arange(size, dtype=np.uint64)[:, None] + np.array(key, np.uint64)
    rows = (hashes * _MULTIPLIER + np.uint64(1)) & np.uint64(size - 1)
    return synthid_table(size, SYNTHID.sampling_table_seed)[rows.astype(np.int64)]


def mean_kl(logits: npt.NDArray[np.float32], kappa: float, *, draws: int = 8, seed: int = 0) -> float:
    """Return the mean over rows and keys of KL(marked ‖ unmarked) in nats, for family `fourier`.

    The logits [N, V] are final, after temperature and top-p; -inf for ids that cannot be drawn.
    """
    rows, size = logits.shape
    # Contexts of three random ids are enough different ones, however small V is.
    registry = Registry.create(None, vocab_size=size, scheme=Scheme(kappa=kappa, n_gram=4))
    secret = hashlib.blake2b(f"iet paper KL/{seed}".encode(), digest_size=32).digest()
    slot = registry.add("anybody", secret=secret)
    contexts = np.random.default_rng(seed).integers(0, size, (draws, rows, 3))
    p = softmax(logits.astype(np.float64), axis=1)
    total = 0.0
    for context in contexts:
        marked = np.ascontiguousarray(logits, np.float32).copy()
        embed_(marked, context, np.full(rows, slot), registry)
        total += rel_entr(softmax(marked.astype(np.float64), axis=1), p).sum(axis=1).mean()
    return float(total / draws)


def equal_delta(logits: npt.NDArray[np.float32], kappa: float = KAPPA, *, draws: int = 8) -> float:
    """Return the δ of a green list whose KL divergence per token equals that of κ.

        KL(marked ‖ unmarked) = δ·G·e^δ/Z - log Z,   Z = 1 + G·(e^δ - 1)

    averaged over rows and lists, where G is the probability of the list. The lists are those of KGW for
    random keys; Unigram's have the same law over keys.
    """
    target = mean_kl(logits, kappa, draws=draws)
    p = softmax(logits.astype(np.float64), axis=1)
    rng, size = np.random.default_rng(0), logits.shape[1]
    mass = np.array(
        [row[kgw_green(int(key) | 1, 1, size)].sum() for row in p for key in rng.integers(0, 2**32, draws)]
    ).clip(0.0, 1.0)

    def excess(delta: float) -> float:
        z = 1 + mass * np.expm1(delta)
        return float((delta * mass * np.exp(delta) / z - np.log(z)).mean()) - target

    if target <= 0 or excess(20.0) < 0:
        raise InputError(f"logits: no δ up to 20 has the KL of κ, {target:.3g} nats per token")
    return float(brentq(excess, 0.0, 20.0, xtol=1e-6))


def mark_of(mark: str) -> Mark:
    if mark not in MARKS:
        raise InputError(f"mark: got {mark!r}, expected one of {list(MARKS)}")
    return MARKS[mark]


def _registry(scheme: Scheme, tokenizer: Tokenizer) -> Registry:
    # A registry keeps a tokenizer object; given a path, every auditor would read the file again.
    return Registry.create(None, tokenizer=tokenizer, scheme=scheme)


# KGW draws a list in 0.1 ms. 96 records of five agents have half a million lists; one bit for each id.
@functools.lru_cache(maxsize=1 << 19)
def _packed_green(green: Green, key: int, previous: int, size: int) -> bytes:
    return np.packbits(green(key, previous, size)).tobytes()


def _cached_green(green: Green, key: int, previous: int, size: int) -> npt.NDArray[np.bool_]:
    if green is unigram_green:
        previous = 0  # one list for a key
    packed = np.frombuffer(_packed_green(green, key, previous, size), np.uint8)
    return np.unpackbits(packed, count=size).view(np.bool_)
