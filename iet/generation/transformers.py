"""Marking in transformers' `generate`: `WatermarkingConfig` after sampling warpers, `LogitsProcessor` before.

Both are stateless: the context of a position is read off `input_ids`, so interleaved calls, beams that swap
rows and assisted decoding, which shows several positions of one row, need no bookkeeping.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import BackendUnavailable, InputError, SchemeMismatch, ShapeError
from iet.kernels import embed_
from iet.registry import KeyTable, Registry

try:
    import torch
    import transformers
    from transformers.generation.configuration_utils import BaseWatermarkingConfig
except ImportError as error:
    raise BackendUnavailable(
        f'marking in transformers: {error}; pip install "implicit-execution-tracing[transformers]"'
    ) from None


class _Processor(transformers.LogitsProcessor):
    """Adds κ·temperature·φ to the rows of a batch."""

    # Continuous batching shows a processor the last id of each row only, not its context.
    supports_continuous_batching = False

    def __init__(self, keys: KeyTable, slots: NDArray[np.int32], temperature: float) -> None:
        self._keys = keys
        self._slots = slots
        self._temperature = temperature

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Mark `scores` [B, >= V] in place, for the position after `input_ids` [B, T], and return it."""
        if input_ids.dim() != 2:
            raise ShapeError(
                "input_ids",
                got=f"shape {list(input_ids.shape)}",
                expected="[B, T]: continuous batching hides the context that a mark is made from",
            )
        rows, length = input_ids.shape
        repeats, rest = divmod(rows, len(self._slots))
        if rest or repeats == 0:
            raise ShapeError(
                "agents",
                got=f"{len(self._slots)} agents for {rows} rows",
                expected="one agent per row of the prompt",
            )
        words = self._keys.profile.scheme.n_gram - 1
        if length >= words:  # before that, no context: such a position is not scored either
            # Beams and num_return_sequences repeat each prompt, neighbours together.
            slots = np.repeat(self._slots, repeats)
            embed_(scores, input_ids[:, length - words :], slots, self._keys, temperature=self._temperature)
        return scores


class LogitsProcessor(_Processor):
    """Mark raw logits, before temperature, top-k and top-p: for `generate(logits_processor=[...])`.

    κ counts in final logits, so it is multiplied by the temperature that the sampler will divide by. Where
    nothing speaks against it prefer `WatermarkingConfig`: it sees the final logits itself. With a scheme of
    placement "raw", the paper's, κ is added as it is.

    Args:
        registry: holds the agents' keys.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        temperature: of the sampler, > 0; needed unless the placement is "raw". 1.0 where nothing divides.
        profile: id of the profile, where the registry has several.

    Raises:
        RegistryError: unknown agent.
        InputError: no agents, no temperature, or one out of range.

    Calls cost O(B·V), change `scores` in place and are deterministic.
    """

    def __init__(
        self,
        registry: Registry,
        agents: str | Sequence[str | None],
        temperature: float | None = None,
        *,
        profile: str | None = None,
    ) -> None:
        keys = registry.marking_keys(profile)
        if keys.profile.scheme.placement == "raw":
            temperature = 1.0
        elif temperature is None:
            raise InputError(
                "temperature: got None, expected the sampler's: this processor runs before it, κ counts after"
            )
        elif not 0 < temperature < float("inf"):
            raise InputError(f"temperature: got {temperature!r}, expected a finite number above 0")
        super().__init__(keys, _slots(registry, agents, profile), float(temperature))


class WatermarkingConfig(BaseWatermarkingConfig):
    """Mark final logits, after temperature and top-p: for `generate(watermarking_config=...)`.

    The documented default. Saving it (`to_dict`, a saved generation config) writes the registry's path,
    digests and agent names, never a key; `from_dict` loads the registry from its path again.

    Args:
        registry: holds the agents' keys.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        profile: id of the profile, where the registry has several.

    Raises:
        RegistryError: unknown agent.
        InputError: no agents, or a scheme of placement "raw".
    """

    def __init__(
        self, registry: Registry, agents: str | Sequence[str | None], *, profile: str | None = None
    ) -> None:
        self._registry = registry
        self._agents = agents if isinstance(agents, str) else list(agents)
        self._profile = profile
        self.validate()

    def validate(self) -> None:
        """Check agents and placement, as `generate` does before it starts."""
        _slots(self._registry, self._agents, self._profile)
        if self._registry.get_profile(self._profile).scheme.placement == "raw":
            raise InputError(
                'placement: got "raw", which comes before the temperature: use iet.LogitsProcessor for it'
            )

    def construct_processor(  # type: ignore[override]  # generate passes both
        self, vocab_size: int, device: object
    ) -> transformers.LogitsProcessor:
        """Return the processor that `generate` appends after its warpers."""
        profile = self._registry.get_profile(self._profile)
        if vocab_size < profile.vocab_size:
            raise ShapeError(
                "the model's vocabulary",
                got=vocab_size,
                expected=f"at least {profile.vocab_size}, V of the profile",
            )
        slots = _slots(self._registry, self._agents, self._profile)
        return _Processor(self._registry.marking_keys(self._profile), slots, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: path, digests and names."""
        profile = self._registry.get_profile(self._profile)
        return {
            "watermark": "iet",
            "registry": None if self._registry.path is None else str(self._registry.path),
            "registry_digest": self._registry.digest,
            "profile": profile.id,
            "profile_digest": profile.digest,
            "agents": self._agents,
        }

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> WatermarkingConfig:
        """Load the registry from its path (or $IET_REGISTRY) and check its profile against the saved digest.

        Raises:
            SchemeMismatch: the registry's profile is another one now.
        """
        registry = Registry.load(config_dict["registry"])
        config = cls(registry, config_dict["agents"], profile=config_dict["profile"], **kwargs)
        found = registry.get_profile(config_dict["profile"]).digest
        if found != config_dict["profile_digest"]:
            raise SchemeMismatch(f"profile digest: got {found}, expected {config_dict['profile_digest']}")
        return config

    def to_json_string(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __iter__(self) -> Any:
        yield from self.to_dict().items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WatermarkingConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def _slots(registry: Registry, agents: str | Sequence[str | None], profile: str | None) -> NDArray[np.int32]:
    names = [agents] if isinstance(agents, str) else list(agents)
    if not names:
        raise InputError("agents: got none, expected one name (or None) per row of the prompt batch")
    return np.array([-1 if name is None else registry.slot(name, profile) for name in names], dtype=np.int32)
