"""Parameters of a mark: `Scheme`, and `Profile`, a scheme bound to one vocabulary.

A profile is a file format. Its digest covers everything that changes a logit or a score, so two hosts with
the same digest mark and read texts identically.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

from iet.errors import InputError, SchemeMismatch, shown
from iet.marks.families import FAMILIES, Family
from iet.native.load import SCHEME_VERSION as SCHEME_VERSION
from iet.native.marking import MAX_VOCAB_SIZE as MAX_VOCAB_SIZE

MIN_N_GRAM, MAX_N_GRAM = 2, 16

_OF_FAMILY: Any = None  # replaced by the family's default


class AnyScheme(abc.ABC):
    """The parameters of a mark that a reader must know: the base of `Scheme` and of foreign schemes.

    Attributes:
        n_gram: n; a score depends on a token and at most the n-1 ids before it.
    """

    n_gram: int

    @property
    def evidence_ids(self) -> int:
        """Number of trailing ids, including the token, that the score always depends on: n."""
        return self.n_gram

    @abc.abstractmethod
    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores, and the family's other properties."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        fields: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]  # all are dataclasses
        return fields


@dataclasses.dataclass(frozen=True)
class Scheme(AnyScheme):
    """The parameters of a mark (§ Keyed Implicit Embedding).

    Attributes:
        kappa: κ, strength of the perturbation in units of the final logits (after temperature), 0 to 20;
            None: 0.8, as in the paper. Kernels round it to float32. In family "gumbel" it is 1: noise of any
            other size would change the distribution of tokens.
        n_gram: n, 2 to 16; None: 2, as in the paper, and 4 in family "gumbel". The n-1 ids before a position
            seed its permutation.
        k_p: frequency of φ, or "per-agent": 1 + h_p(a) mod max(1, ⌊(V-1)/2⌋), the paper's equation. The
            paper's experiments use 1, the default. It is 1 in family "gumbel", which has no frequency.
        family: a key of `FAMILIES`.
        placement: "final": κ applies to the logits after temperature. "raw": κ is added to the model's raw
            logits, as in the paper, at any temperature. Reports name it. Family "gumbel" needs "final".
        version: of the format of marks: 1.
    """

    kappa: float = _OF_FAMILY
    n_gram: int = _OF_FAMILY
    k_p: int | Literal["per-agent"] = 1
    family: str = "fourier"
    placement: Literal["final", "raw"] = "final"
    version: int = 1

    def __post_init__(self) -> None:
        # Check this first, because another version may accept other values. True and 1.0 equal 1, but have
        # another digest.
        if not _is_int(self.version) or self.version != 1:
            raise SchemeMismatch(
                f"scheme version {self.version!r:.80} is of a draft or a later release; this release reads 1"
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
            raise InputError(f'k_p: got {shown(self.k_p):.80}, expected an int of at least 1, or "per-agent"')
        if self.placement not in ("final", "raw"):
            raise InputError(f'placement: got {self.placement!r}, expected "final" or "raw"')
        if family.chooses:
            only: dict[str, Any] = {"kappa": family.kappa, "k_p": 1, "placement": "final"}
            for field, value in only.items():
                if getattr(self, field) != value:
                    raise InputError(
                        f"{field}: got {getattr(self, field)!r}, expected {value!r}: in family"
                        f" {family.name!r} no other value is valid"
                    )

    @property
    def counted(self) -> bool:
        """Whether seeds hold how often the context occurred earlier in the sequence."""
        return FAMILIES[self.family].chooses

    def law(self, vocab_size: int) -> Family:
        """Return the entry of `FAMILIES`, the same for all sizes `vocab_size`."""
        return FAMILIES[self.family]

    def __str__(self) -> str:
        return f"{self.family}, κ {self.kappa:g} {self.placement}, n {self.n_gram}, k_p {self.k_p}"


S_co = TypeVar("S_co", bound=AnyScheme, covariant=True)


@dataclasses.dataclass(frozen=True)
class BaseProfile(Generic[S_co]):
    """A scheme bound to one vocabulary, without checks: the base of `Profile`, and the form of foreign marks.

    Attributes:
        scheme, vocab_size, tokenizer_digest, unmarked_ids, tokenizer_source: as in `Profile`.
    """

    scheme: S_co
    vocab_size: int
    tokenizer_digest: str | None = None
    unmarked_ids: tuple[int, ...] = ()
    tokenizer_source: str | None = None

    @property
    def family(self) -> Family:
        """The null distribution of the scores, and the family's other properties."""
        return self.scheme.law(self.vocab_size)

    @functools.cached_property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of everything that changes a logit or a score."""
        content = self.to_dict()
        del content["tokenizer_source"]
        return canonical_digest(content)

    @property
    def id(self) -> str:
        """The first 16 hex digits of the digest: the profile's name in a registry and in reports."""
        return self.digest[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "scheme": self.scheme.to_dict(), "unmarked_ids": list(self.unmarked_ids)}


@dataclasses.dataclass(frozen=True)
class Profile(BaseProfile[Scheme]):
    """A scheme bound to one vocabulary: all that marking and auditing must agree on, except the keys.

    Attributes:
        scheme: the parameters of the mark.
        vocab_size: V, 1 to 2^24. It is stored because logits are often padded beyond it.
        tokenizer_digest: digest of the tokenizer's canonical content, or None (token ids only).
        unmarked_ids: special and padding ids below V, ascending. Their logits do not change (except in
            family "gumbel"), and a position is not scored if the token or its context is one of them.
        tokenizer_source: path of the tokenizer; a hint, not part of the digest.
    """

    def __post_init__(self) -> None:
        if not _is_int(self.vocab_size) or not 1 <= self.vocab_size <= MAX_VOCAB_SIZE:
            raise InputError(
                f"vocab_size: got {self.vocab_size!r}, expected an int from 1 to {MAX_VOCAB_SIZE}"
            )
        if self.scheme.k_p != "per-agent" and self.scheme.k_p > self.max_frequency:
            raise InputError(
                f"k_p: got {shown(self.scheme.k_p)}, expected at most {self.max_frequency}"
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


AnyProfile = BaseProfile[Any]


def canonical_json(content: object) -> bytes:
    """Return `content` as hashed and signed: JSON with sorted keys, without spaces, in UTF-8.

    Raises:
        ValueError: a number is NaN or infinite, which JSON cannot hold.
    """
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def canonical_digest(content: object) -> str:
    """Return BLAKE2b-256 in hex of `canonical_json`."""
    return hashlib.blake2b(canonical_json(content), digest_size=32).hexdigest()


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
