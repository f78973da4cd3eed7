"""What a mark is: `Scheme` (the choices), `Profile` (a scheme bound to one vocabulary), the families.

A profile is a file format. Its digest covers everything that changes a single logit or score, so two
hosts with the same digest mark and read alike.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from iet.errors import InputError, SchemeMismatch
from iet.native.load import SCHEME_VERSION
from iet.native.marking import MAX_VOCAB_SIZE as MAX_VOCAB_SIZE

MIN_N_GRAM, MAX_N_GRAM = 2, 16


@dataclasses.dataclass(frozen=True)
class Draws:
    """A score that is a weighted sum of draws: low + step·Σ_d weights[d]·g_d, with g_d 1 or 0.

    Attributes:
        weights: positive integers.
        chance: of a 1 in unmarked text, 0 < chance < 1.
        low: the score where every draw is 0.
        step: of the score, for each unit of the sum.
    """

    weights: tuple[int, ...]
    chance: float
    low: float
    step: float


@dataclasses.dataclass(frozen=True)
class Family:
    """A perturbation φ with what its scores look like with and without a mark.

    Tokens drawn from softmax(logits + κ·φ) follow, when many tokens are likely, the null law of the score
    tilted by exp(λ·x) with λ = κ; predictable text has a smaller λ. So the log-likelihood ratio of one
    score x is λ·x - log_mgf(λ), and `mean(λ)`, the derivative of `log_mgf`, is the expected score.

    Attributes:
        name: key in `FAMILIES`.
        code: the number that the native modules know it by.
        version: version of this family's φ and score, part of every profile digest. 0 is a draft.
        variance: variance of an unmarked score (its mean is 0, for odd V and `square` 1/V).
        log_mgf: λ -> log E[exp(λ·x)] of an unmarked score; a number, or elementwise on an array.
        mean: λ -> expected score at strength λ; likewise. `mean(0)` is that of an unmarked score.
        strength_limit: `log_mgf` is finite for λ below it.
        n_gram: of a `Scheme` that names none.
        kappa: likewise. Where it is fixed, no other is accepted.
        fixed_kappa: κ, k_p and placement have no meaning: they are this `kappa`, 1 and "final".
        draws: what the scores are sums of, if they are (`drawn_family`); None for all of `FAMILIES`.
    """

    name: str
    code: int
    version: int
    variance: float
    log_mgf: Callable[[Any], Any]
    mean: Callable[[Any], Any]
    strength_limit: float = math.inf
    n_gram: int = 2
    kappa: float = 0.8
    fixed_kappa: bool = False
    draws: Draws | None = None


def _log_i0(x: Any) -> Any:
    size = np.abs(x)
    large = size - 0.5 * np.log(2 * np.pi * np.maximum(size, 500.0))
    return np.where(size < 500, np.log(np.i0(np.minimum(size, 500.0))), large)[()]


def _i1_over_i0(x: Any) -> Any:
    # I1(x)/I0(x) by Perron's continued fraction, evaluated backwards: exact to rounding for |x| <= 500.
    ratio = 0.0
    for order in range(int(np.max(np.abs(x), initial=0.0)) + 40, 0, -1):
        ratio = x / (2.0 * order + x * ratio)
    return ratio


def _log_cosh(x: Any) -> Any:
    return np.abs(x) + np.log1p(np.exp(-2 * np.abs(x))) - np.log(2.0)


def _exponential_log_mgf(x: Any) -> Any:
    return -np.log1p(-x)


def _exponential_mean(x: Any) -> Any:
    return 1 / (1 - x)


FAMILIES: Mapping[str, Family] = {
    # φ(r) = cos(2π·k_p·r/V): the paper's choice. Its null law is the arcsine law on [-1, 1].
    "fourier": Family("fourier", 0, 1, 0.5, _log_i0, _i1_over_i0),
    # φ(r) = ±1: null law two points of weight one half.
    "square": Family("square", 1, 1, 1.0, _log_cosh, np.tanh),
    # Keyed Gumbel-max sampling: the token is argmax(logits - log(-log u)), its score -log(1 - u), and the
    # null law Exp(1). The tilt is a summary there: a token of probability p has u^(1/p) uniform.
    "gumbel": Family(
        "gumbel",
        2,
        1,
        1.0,
        _exponential_log_mgf,
        _exponential_mean,
        strength_limit=1.0,
        n_gram=4,
        kappa=1.0,
        fixed_kappa=True,
    ),
}


@functools.cache
def drawn_family(name: str, draws: Draws) -> Family:
    """Return the family of scores that are sums of draws, such as those of serving engines, under a name.

    log_mgf(λ) = λ·low + Σ_d log(1 - q + q·exp(λ·step·weights[d])),    q the chance
    """
    counted = collections.Counter(draws.weights)
    values = [(draws.step * weight, count) for weight, count in sorted(counted.items())]
    odds = math.log(draws.chance / (1 - draws.chance))

    def log_mgf(x: Any) -> Any:
        base = math.log1p(-draws.chance)
        return x * draws.low + sum(n * (base + np.logaddexp(0.0, odds + x * value)) for value, n in values)

    def mean(x: Any) -> Any:
        # 1 / (1 + exp(-z)) without overflow
        tilted = ((np.tanh((odds + x * value) / 2) + 1) / 2 * (n * value) for value, n in values)
        return draws.low + sum(tilted)

    variance = draws.chance * (1 - draws.chance) * sum(n * value**2 for value, n in values)
    return Family(name, -1, 1, variance, log_mgf, mean, draws=draws)


_OF_FAMILY: Any = None  # stands for the family's own value in the arguments of a Scheme, and is never kept


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The choices behind a mark (§ Keyed Implicit Embedding).

    Attributes:
        kappa: κ, strength of the perturbation in units of the final logits (after temperature), 0 to 20;
            None: 0.8, as in the paper. Kernels use its nearest float32. In family "gumbel" it is 1: noise of
            any other size would change the distribution of tokens.
        n_gram: n, 2 to 16; None: 2, as in the paper, and 4 in family "gumbel". The n-1 ids before a position
            seed its permutation.
        k_p: frequency of φ, or "per-agent": 1 + h_p(a) mod max(1, ⌊(V-1)/2⌋), the paper's equation. The
            paper's experiments use 1, the default. In family "gumbel", which has no frequency, it is 1.
        family: a key of `FAMILIES`.
        placement: "final" (κ counts after temperature), or "raw": κ is added to the model's raw logits as
            the paper does, whatever the temperature. Named in every report. Family "gumbel" needs "final".
        version: version of the format.
    """

    kappa: float = _OF_FAMILY
    n_gram: int = _OF_FAMILY
    k_p: int | Literal["per-agent"] = 1
    family: str = "fourier"
    placement: Literal["final", "raw"] = "final"
    version: int = SCHEME_VERSION

    def __post_init__(self) -> None:
        # First, because another version may accept other values. `False` and 0.0 equal 0 but not in a digest.
        if not _is_int(self.version) or self.version != SCHEME_VERSION:
            draft = " (0 was a draft, and its marks are lost)" if self.version == 0 else ""
            raise SchemeMismatch(
                f"scheme version {self.version!r}{draft} cannot be read here:"
                f" this release knows {SCHEME_VERSION}"
            )
        if not isinstance(self.family, str) or self.family not in FAMILIES:
            raise InputError(f"family: got {self.family!r}, expected one of {sorted(FAMILIES)}")
        family = FAMILIES[self.family]
        for field in ("kappa", "n_gram"):
            if getattr(self, field) is None:
                object.__setattr__(self, field, getattr(family, field))
        if (
            isinstance(self.kappa, bool)
            or not isinstance(self.kappa, (int, float))
            or not 0 <= self.kappa <= 20
        ):
            raise InputError(f"kappa: got {self.kappa!r}, expected a number from 0 to 20")
        object.__setattr__(self, "kappa", float(self.kappa) + 0.0)  # -0.0 becomes 0.0: one digest
        if not _is_int(self.n_gram) or not MIN_N_GRAM <= self.n_gram <= MAX_N_GRAM:
            why = " (n = 1 would be one permutation for all text)" if self.n_gram == 1 else ""
            raise InputError(
                f"n_gram: got {self.n_gram!r}, expected an int from {MIN_N_GRAM} to {MAX_N_GRAM}{why}"
            )
        if self.k_p != "per-agent" and (not _is_int(self.k_p) or self.k_p < 1):
            raise InputError(f'k_p: got {self.k_p!r}, expected an int of at least 1, or "per-agent"')
        if self.placement not in ("final", "raw"):
            raise InputError(f'placement: got {self.placement!r}, expected "final" or "raw"')
        if family.fixed_kappa:
            only: dict[str, Any] = {"kappa": family.kappa, "k_p": 1, "placement": "final"}
            for field, value in only.items():
                if getattr(self, field) != value:
                    raise InputError(
                        f"{field}: got {getattr(self, field)!r}, expected {value!r}: in family"
                        f" {family.name!r} it has no other meaning"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which `Scheme(**d)` reads back."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.family}, κ {self.kappa:g} {self.placement}, n {self.n_gram}, k_p {self.k_p}"


@dataclasses.dataclass(frozen=True)
class Profile:
    """A scheme bound to one vocabulary: all that marking and reading must agree on, but for the keys.

    Attributes:
        scheme: the choices.
        vocab_size: V, 1 to 2^24. Stored, never read off the logits, which are often padded beyond it.
        tokenizer_digest: digest of the tokenizer's canonical content, or None (token ids only).
        unmarked_ids: special and padding ids below V, ascending: their logits stay as they are (but for
            family "gumbel"), and a position at or after one of them is not scored.
        tokenizer_source: where the tokenizer was found; a hint, not part of the digest.
    """

    scheme: Scheme
    vocab_size: int
    tokenizer_digest: str | None = None
    unmarked_ids: tuple[int, ...] = ()
    tokenizer_source: str | None = None

    def __post_init__(self) -> None:
        if not _is_int(self.vocab_size) or not 1 <= self.vocab_size <= MAX_VOCAB_SIZE:
            raise InputError(
                f"vocab_size: got {self.vocab_size!r}, expected an int from 1 to {MAX_VOCAB_SIZE}"
            )
        if self.scheme.k_p != "per-agent" and self.scheme.k_p > self.max_frequency:
            raise InputError(
                f"k_p: got {self.scheme.k_p}, expected at most {self.max_frequency}"
                f" (half of vocab_size {self.vocab_size})"
            )
        if not all(_is_int(i) and 0 <= i < self.vocab_size for i in self.unmarked_ids):
            raise InputError(
                f"unmarked_ids: got {self.unmarked_ids}, expected ids from 0 to {self.vocab_size - 1}"
            )
        ids = tuple(sorted(set(self.unmarked_ids)))
        object.__setattr__(self, "unmarked_ids", ids)
        for field in ("tokenizer_digest", "tokenizer_source"):
            value = getattr(self, field)
            if value is not None and not isinstance(value, str):
                raise InputError(f"{field}: got {value!r}, expected a str or None")

    @property
    def max_frequency(self) -> int:
        """The largest k_p: max(1, ⌊(V-1)/2⌋)."""
        return max(1, (self.vocab_size - 1) // 2)

    @property
    def family(self) -> Family:
        """The entry of `FAMILIES` that the scheme names."""
        return FAMILIES[self.scheme.family]

    @functools.cached_property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of everything that changes a logit or a score."""
        content = {
            "scheme": self.scheme.to_dict(),
            "family_version": self.family.version,
            "vocab_size": self.vocab_size,
            "tokenizer_digest": self.tokenizer_digest,
            "unmarked_ids": list(self.unmarked_ids),
        }
        return canonical_digest(content)

    @property
    def id(self) -> str:
        """The first 16 hex digits of the digest: the profile's name in a registry and in reports."""
        return self.digest[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, which `from_dict` reads back."""
        return {**dataclasses.asdict(self), "unmarked_ids": list(self.unmarked_ids)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """Read the JSON form.

        Raises:
            InputError: a field is missing, unknown or out of range.
            SchemeMismatch: the version is not one that this release reads.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"profile: got {type(data).__name__}, expected a JSON object")
        try:
            fields = dict(data)
            scheme = Scheme(**fields.pop("scheme"))
            return cls(scheme=scheme, unmarked_ids=tuple(fields.pop("unmarked_ids", ())), **fields)
        except (TypeError, KeyError) as error:
            raise InputError(f"profile: fields {sorted(map(str, data))} do not form one ({error})") from None


FEWEST_VALUES, FEWEST_ODD = 64, 4096
"""Of φ, for text to be audited, see `few_values`."""


def few_values(vocab_size: int, frequencies: Any, family: Family) -> Any:
    """Tell of which k_p [K] the scores do not follow the family's null law: chance would pass for evidence.

    φ takes q = V / gcd(V, k_p) values. Family "fourier" follows the arcsine law from a few dozen on. The mean
    of "square" is 0 for even q and 1/q for odd q, which adds √n/q standard deviations to a sum of n scores.

    Returns:
        bool [K]: 1 < gcd(V, k_p) and q < `FEWEST_VALUES`, or for "square" q is odd and below `FEWEST_ODD`.
        "gumbel" has no frequency.
    """
    shared = np.gcd(vocab_size, np.asarray(frequencies, np.int64))
    values = vocab_size // shared
    few = (shared > 1) & (values < FEWEST_VALUES)
    if family.name == "square":
        few |= (values % 2 == 1) & (values < FEWEST_ODD)
    return few & (family.name != "gumbel")


def canonical_json(content: object) -> bytes:
    """Return the one form of `content` that is hashed and signed: sorted keys, no spaces, UTF-8.

    Raises:
        ValueError: a number is NaN or infinite, for which JSON has no form.
    """
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def canonical_digest(content: object) -> str:
    """Return BLAKE2b-256 in hex of `canonical_json`."""
    return hashlib.blake2b(canonical_json(content), digest_size=32).hexdigest()


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
