"""How a text is marked, and how it is scored under the keys of all agents.

A mark is a processor of logits, called as those of transformers are: `(input_ids [B, T], logits [B, V])` ->
logits. "raw" comes before the temperature, all others after temperature and top-p. What reads a mark takes
`Keys`: scores [T, A], numbers of pairs [T], and the family whose null law the scores have, which is all that
`iet.decoding.decode` needs.

*Keys.* Every record has keys of its own, so that an interval over records holds the luck of the keys, too
(with "unigram" it is not small). They follow from the setting's seed, the record and the agent, and are
therefore not secret. Agents beyond the setting's n are spurious: their keys are registered, but nobody
writes with them. (The paper's keys are the ids 42, 43, ... of the agents in all records.)

*Green lists* (γ = 1/2; "kgw", "unigram"): δ is added to the logits of a list of ids, and a token's score is
+1 on the list and -1 off it. A list holds ⌊V/2⌋ ids: without a mark a score has mean 0 (for odd V -1/V) and
variance 1, the law of `GREEN`: ±1 tilted by exp(λ·x) is what a logit raised by δ = 2λ makes of likely tokens.
Other γ would need a law of their own, and are not offered.
V is the tokenizer's vocabulary with added tokens; the lists are made by the CPU's generator, wherever the
model runs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, softmax

import iet
from benchmarks.paper import needed
from benchmarks.paper.conversations.logs import Setting
from iet.errors import InputError
from iet.kernels import embed_, pair_numbers
from iet.marks.families import FAMILIES, BernoulliSum, Family, sum_family
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
"""δ of the main results of KGW and of Unigram, both with γ = 1/2."""

GREEN = sum_family("green list", BernoulliSum((1,), GAMMA, -1.0, 2.0))
"""The law of ±1 scores of green lists."""

Green = Callable[[int, int, int], npt.NDArray[np.bool_]]
Processor = Callable[[Any, Any], Any]


def kgw_green(key: int, previous: int, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return the green list [V] behind one token, as LeftHash with h = 1 in transformers 5 has it on a CPU.

        seed = key · previous mod (2^64 - 1);  green = the first ⌊V/2⌋ of torch.randperm(V) with that seed

    Kirchenbauer et al. 2023, "A Watermark for Large Language Models", Algorithm 2.
    """
    torch = needed("torch", "bench")
    generator = torch.Generator().manual_seed(key * previous % (2**64 - 1))
    green = np.zeros(vocab_size, np.bool_)
    green[torch.randperm(vocab_size, generator=generator)[: int(vocab_size * GAMMA)].numpy()] = True
    return green


def unigram_green(key: int, previous: int, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return the green list [V] of a key, the same behind every token, as in the authors' code.

        rng = default_rng(first 4 bytes of SHA-256(key as int64), little-endian)
        rng.shuffle(⌊V/2⌋ ones, then zeros)

    Zhao et al. 2024, "Provable Robust Watermarking for AI-Generated Text"; `previous` is not read.
    """
    seed = int.from_bytes(hashlib.sha256(np.int64(key).tobytes()).digest()[:4], "little")
    green = np.arange(vocab_size) < int(vocab_size * GAMMA)
    np.random.default_rng(seed).shuffle(green)
    return green


@dataclasses.dataclass(frozen=True)
class Mark:
    family: Family  # the law of its scores
    source: str  # where it is defined
    # Strength -> Scheme, for iet's own; also what unmarked text is read with
    scheme: Callable[[float | None], Scheme] | None = None
    green: Green | None = None  # (key, previous id, V) -> green list, for the others
    n_gram: int = 2  # tokens that a score depends on
    # What is taken if none is given: κ; None: it has none, or δ is to be found (`equal_delta`)
    strength: float | None = None
    raw: bool = False  # added before the temperature
    marks: bool = True  # False: text is left as it is


MARKS: Mapping[str, Mark] = {
    "fourier": Mark(
        FAMILIES["fourier"],
        "IET, κ in final logits",
        lambda kappa: Scheme(kappa=KAPPA if kappa is None else kappa, n_gram=2),
        strength=KAPPA,
    ),
    "raw": Mark(
        FAMILIES["fourier"],
        "IET as in the paper, κ in raw logits",
        lambda kappa: Scheme(kappa=KAPPA if kappa is None else kappa, n_gram=2, placement="raw"),
        strength=KAPPA,
        raw=True,
    ),
    "gumbel": Mark(
        FAMILIES["gumbel"],
        "iet's keyed Gumbel-max sampling, docs/internals/gumbel.md",
        lambda _: Scheme(family="gumbel", n_gram=4),
        n_gram=4,
    ),
    "kgw": Mark(GREEN, "Kirchenbauer et al. 2023, LeftHash, h = 1, γ = 1/2", green=kgw_green),
    "unigram": Mark(GREEN, "Zhao et al. 2024, γ = 1/2", green=unigram_green, n_gram=1),
    "kgw_published": Mark(
        GREEN, "KGW with the δ of its authors' main results", green=kgw_green, strength=PUBLISHED
    ),
    "unigram_published": Mark(
        GREEN,
        "Unigram with the δ of its authors' main results",
        green=unigram_green,
        n_gram=1,
        strength=PUBLISHED,
    ),
    "none": Mark(
        FAMILIES["fourier"], "unmarked text, read as fourier", lambda _: Scheme(n_gram=2), marks=False
    ),
}
"""Name -> mark."""


def agent_name(record: int, agent: int) -> str:
    """Return the name under which an agent of a record's conversation is marked."""
    return f"record-{record} agent-{agent}"


def profile_digest(mark: str, strength: float | None, tokenizer: Tokenizer) -> str:
    """Return the digest of all that marking and reading must agree on, but for the keys."""
    entry = mark_of(mark)
    if entry.scheme is not None:
        return _registry(entry.scheme(strength), tokenizer).profile.digest
    return canonical_digest(
        {
            "mark": mark,
            "gamma": GAMMA,
            "delta": strength,
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_digest": tokenizer.digest,
        }
    )


def made_by(loaded: Loaded, mark: str, strength: float | None = None) -> dict[str, Any]:
    """Return what a setting says of the model that writes and of its mark; None: the usual strength."""
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
    """The keys of one record's agents, and how a text is read under them."""

    names: tuple[str, ...]  # of the agents, in the order of the columns
    family: Family  # the law of the scores
    registry: Registry | None  # for iet's own marks, so that an `Auditor` can be made; else None
    _mark: Mark
    _numbers: tuple[int, ...] = dataclasses.field(repr=False)
    _tokenizer: Tokenizer = dataclasses.field(repr=False)

    def scores(self, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the scores [T, A] of a text's ids, 0 where not scored.

        Costs, for green lists, a list for every distinct id and agent: O(V·A·min(T, V)).
        """
        if self.registry is not None:
            found: npt.NDArray[np.float32] = iet.score_tokens(np.asarray(ids, np.int64), self.registry)
            return found
        tokens, green = np.asarray(ids, np.int64), self._mark.green
        assert green is not None
        scored, size = self._scored(tokens), self._tokenizer.vocab_size
        scores = np.zeros((len(tokens), len(self._numbers)), np.float32)
        if self._mark.n_gram == 1:
            groups = {0: np.flatnonzero(scored)}
        else:
            places = np.flatnonzero(scored)
            groups = {int(p): places[tokens[places - 1] == p] for p in np.unique(tokens[places - 1])}
        for previous, where in groups.items():
            for column, number in enumerate(self._numbers):
                on = _cached_green(green, number, previous, size)[tokens[where]]
                scores[where, column] = np.where(on, 1.0, -1.0)
        return scores

    def pairs(self, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return `iet.kernels.pair_numbers` [T]: equal where context and token are, -1 where not scored."""
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
        """Return the keys of a record's agents, and of some that did not write, behind them."""
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

    def processor(self, agents: Sequence[str | None]) -> Processor | None:
        """Return what marks rows that these agents write (`agent_name`, None: unmarked), None where nothing
        does.
        """
        names = tuple(dict.fromkeys(name for name in agents if name is not None))
        if not self.mark.marks or not names:
            return None
        registry = self.registry(names)
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
        every = FreeTokens(0, 0.0)  # every token is marked, as by the other marks
        made: Processor = WatermarkingConfig(registry, list(agents), free=every).construct_processor(
            size, "cpu"
        )
        return made

    def registry(self, names: Sequence[str]) -> Registry | None:
        """Return the keys of some agents, whatever their names, as `iet` reads them; None for green lists."""
        if self.mark.scheme is None:
            return None
        registry = _registry(self.mark.scheme(self.setting.strength), self.tokenizer)
        for name in names:
            registry.add(name, secret=self._drawn(name, 32))
        return registry

    def _number(self, name: str) -> int:
        # torch seeds its generator with 32 bits: odd keys below 2^32 keep the previous ids apart.
        return int.from_bytes(self._drawn(name, 4), "little") | 1

    def _drawn(self, name: str, size: int) -> bytes:
        text = f"iet paper/{self.setting.seed}/{name}"
        return hashlib.blake2b(text.encode(), digest_size=size).digest()


class GreenLists:
    """Add δ to the logits of each row's green list: what transformers' WatermarkLogitsProcessor does.

    There is a key per row, None for an unmarked one.
    """

    def __init__(self, green: Green, keys: Sequence[int | None], delta: float, vocab_size: int) -> None:
        self._green, self._keys, self._delta, self._size = green, keys, delta, vocab_size

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return `scores` [B, >= V] with marks, for the position after `input_ids` [B, T]."""
        torch = needed("torch", "bench")
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._green.__name__}, {len(self._keys)} rows)"


# ---------------------------------------------------------------- equal strength


def mean_kl(logits: npt.NDArray[np.float32], kappa: float, *, draws: int = 8, seed: int = 0) -> float:
    """Return the mean over rows and keys of KL(marked ‖ unmarked) in nats, for fourier.

    The logits [N, V] are final, that is after temperature and top-p; -inf where nothing is drawn.
    """
    rows, size = logits.shape
    # Any context is as good as another; three ids give enough of them, however small V is.
    registry = Registry.create(None, vocab_size=size, scheme=Scheme(kappa=kappa, n_gram=4))
    secret = hashlib.blake2b(f"iet paper KL/{seed}".encode(), digest_size=32).digest()
    slot = registry.add("anybody", secret=secret)
    contexts = np.random.default_rng(seed).integers(0, size, (draws, rows, 3))
    log_p = log_softmax(logits.astype(np.float64), axis=1)
    total = 0.0
    for context in contexts:
        marked = np.ascontiguousarray(logits, np.float32).copy()
        embed_(marked, context, np.full(rows, slot), registry)
        total += _divergence(log_softmax(marked.astype(np.float64), axis=1), log_p).mean()
    return float(total / draws)


def equal_delta(logits: npt.NDArray[np.float32], kappa: float = KAPPA, *, draws: int = 8) -> float:
    """Return the δ of a green list whose KL per token equals that of κ.

        KL(marked ‖ unmarked) = δ·G·e^δ/Z - log Z,   Z = 1 + G·(e^δ - 1)

    averaged over rows and lists, G being the probability of the list; it grows with δ, so bisection finds
    it to 1e-6. Lists are KGW's of drawn keys; over keys, Unigram's are the same.
    """
    if not len(logits):
        raise InputError("logits: got no rows, expected some of the model's distributions")
    target = mean_kl(logits, kappa, draws=draws)
    p = softmax(logits.astype(np.float64), axis=1)
    rng, size = np.random.default_rng(0), logits.shape[1]
    mass = np.array(
        [row[kgw_green(int(key) | 1, 1, size)].sum() for row in p for key in rng.integers(0, 2**32, draws)]
    )
    mass = mass.clip(0.0, 1.0)

    def divergence(delta: float) -> float:
        z = 1 + mass * np.expm1(delta)
        return float((delta * mass * np.exp(delta) / z - np.log(z)).mean())

    low, high = 0.0, 20.0
    if target <= 0 or divergence(high) < target:
        raise InputError(
            f"logits: κ has a KL of {target:.3g} nats per token, expected one that a δ up to {high} reaches"
        )
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) < target else (low, middle)
    return (low + high) / 2


def _divergence(log_q: npt.NDArray[np.float64], log_p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Where q is 0 both logs are -inf, and the term is 0.
    gap = np.subtract(log_q, log_p, out=np.zeros_like(log_q), where=np.isfinite(log_q))
    found: npt.NDArray[np.float64] = (np.exp(log_q) * gap).sum(axis=1)
    return found


# ---------------------------------------------------------------- what they share


def mark_of(mark: str) -> Mark:
    if mark not in MARKS:
        raise InputError(f"mark: got {mark!r}, expected one of {list(MARKS)}")
    return MARKS[mark]


def _registry(scheme: Scheme, tokenizer: Tokenizer) -> Registry:
    # From an object, which a registry keeps: from a path every auditor would read it again.
    return Registry.create(None, tokenizer=tokenizer, scheme=scheme)


# KGW draws its list in 0.1 ms. 96 records of five agents have half a million of them, a bit for each id.
@functools.lru_cache(maxsize=1 << 19)
def _packed_green(green: Green, key: int, previous: int, size: int) -> bytes:
    return np.packbits(green(key, previous, size)).tobytes()


def _cached_green(green: Green, key: int, previous: int, size: int) -> npt.NDArray[np.bool_]:
    if green is unigram_green:
        previous = 0  # the same list behind every token: made once for a key
    packed = np.frombuffer(_packed_green(green, key, previous, size), np.uint8)
    return np.unpackbits(packed, count=size).view(np.bool_)
