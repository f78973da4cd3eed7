"""vLLM's red-green lists and SynthID-Text, and the green lists of SBW."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from iet.errors import InputError
from iet.marks.families import BernoulliSum, Family, sum_family
from iet.marks.foreign.keys import Ids, checked_integer
from iet.marks.foreign.prf import BELOW, ONES, SBW_LEFT, SBW_SELF, PrfScheme, Rule, VllmPrf, checked_share
from iet.marks.foreign.scheme import Mask
from iet.marks.foreign.synthid import MAX_DEPTH
from iet.native.pairs import number_pairs_of
from iet.native.texts import Texts


def _green_law(limit: int) -> Family:
    # A token is green if its 32-bit word is below `limit`.
    return sum_family("kgw", BernoulliSum((1,), limit / 2**32, 0.0, 1.0), strengths=(0.5, 1.0, 2.0))


@dataclasses.dataclass(frozen=True)
class VllmRedGreen(VllmPrf):
    """vLLM's `algorithm: red_green`: a token is green if its uniform number is below γ.

    Attributes:
        n_gram, prf: as in `VllmPrf`.
        gamma: γ, above 0 and below 1.
        version: as in `EngineScheme`.
    """

    gamma: float = 0.25

    name = "vllm-red-green"

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_share("gamma", self.gamma)
        if not 0 < self._green() < 1 << 24:
            raise InputError(f"gamma: got {self.gamma}, which makes all ids green or none")

    def _green(self) -> int:
        # Number of m in [0, 2^24) with (m + 1) / (2^24 + 1) below γ, both rounded to float32 as torch does.
        near = int(self.gamma * (2**24 + 1)) - 1 + np.arange(-4, 5)
        near = near[(near >= 0) & (near < 1 << 24)]
        below = ((near + 1) / (2**24 + 1)).astype(np.float32) < np.float32(self.gamma)
        return int(near[0] + below.sum())

    def rule(self) -> Rule:
        """Return how a word becomes a score."""
        return Rule(BELOW, self._green() << 8)

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores."""
        return _green_law(self._green() << 8)


@dataclasses.dataclass(frozen=True)
class VllmSynthId(PrfScheme):
    """vLLM's `algorithm: synthid_text`: g-values are bits of Philox words, standardised and summed.

        x = Σ_d (g_d - 1/2) / (1/2·√D)

    Attributes:
        n_gram: as in `PrfScheme`: `context_width` + 1.
        depth: D, 1 to 100.
        version: as in `EngineScheme`.
    """

    depth: int = 32

    name = "vllm-synthid"

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_integer("depth", self.depth, 1, MAX_DEPTH)

    def rule(self) -> Rule:
        """Return how a word becomes a score."""
        return Rule(ONES, self.depth, 2 / math.sqrt(self.depth), -math.sqrt(self.depth))

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores."""
        bits = BernoulliSum((1,) * self.depth, 0.5, -math.sqrt(self.depth), 2 / math.sqrt(self.depth))
        return sum_family("synthid", bits)


@dataclasses.dataclass(frozen=True)
class VllmSbw(PrfScheme):
    """Stateless Bernoulli Watermarking, of the package `sbw` and of vLLM's `algorithm: sbw`.

    Attributes:
        n_gram: with "selfhash" `context_width`, 1 to 16: the token itself is one of the ids that are hashed.
            With "lefthash" `context_width` + 1, 2 to 17. Default: 4 and 2.
        gamma: γ, above 0 and below 1.
        seeding_scheme: "selfhash" or "lefthash".
        version: as in `EngineScheme`.
    """

    n_gram: int = 0
    gamma: float = 0.5
    seeding_scheme: str = "selfhash"

    name = "vllm-sbw"
    padded = False

    def __post_init__(self) -> None:
        if self.seeding_scheme not in ("lefthash", "selfhash"):
            raise InputError(
                f'seeding_scheme: got {self.seeding_scheme!r:.80}, expected "lefthash" or "selfhash"'
            )
        left = self.seeding_scheme == "lefthash"
        if self.n_gram == 0:
            object.__setattr__(self, "n_gram", 2 if left else 4)
        checked_integer("n_gram", self.n_gram, *((2, 17) if left else (1, 16)))
        checked_share("gamma", self.gamma)
        if self._green() == 0:
            raise InputError(f"gamma: got {self.gamma}, which makes no id green")

    def _green(self) -> int:
        return int(self.gamma * (2**31 - 1))

    @property
    def code(self) -> int:
        """Number of the pseudorandom function."""
        return SBW_LEFT if self.seeding_scheme == "lefthash" else SBW_SELF

    @property
    def evidence_ids(self) -> int:
        """1: the least hash may be that of the token itself, and contexts with one sum seed alike."""
        return 1

    def rule(self) -> Rule:
        """Return how a word becomes a score."""
        return Rule(BELOW, self._green() << 1)

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores."""
        return _green_law(self._green() << 1)

    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        return (checked_integer(argument, key, 1, (1 << 63) - 1, secret=True),)

    def _context_sums(self, texts: Texts) -> Ids:
        total = np.append(0, np.cumsum(texts.ids))
        last = np.arange(len(texts.ids))
        return np.asarray(total[last] - total[np.maximum(last - self.n_gram + 1, 0)])

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Return which positions [N] are scored, with scores that differ between keys."""
        scored = super().scored(texts, vocab_size)
        # After ids of 0 alone the list is the same under every key.
        return scored if self.code == SBW_SELF else scored & (self._context_sums(texts) != 0)

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the tokens, or the sums of the context with the token; see `EngineScheme.pair_numbers`."""
        ids = texts.ids
        if self.code == SBW_LEFT:
            ids = np.where(counting, self._context_sums(texts) << 24 | ids, -1)
        return number_pairs_of(ids, counting, texts.starts, texts.ends, 1)
