"""Marking in transformers' `generate`: `WatermarkingConfig` after sampling warpers, `LogitsProcessor` before.

Both are stateless: the context of a position is read off `input_ids`, so interleaved calls, beams that swap
rows and assisted decoding, which shows several positions of one row, need no bookkeeping.

On a CUDA device nothing waits for a step. What a kernel refused there (see `iet.kernels.raise_if_refused`) is
raised by a later step, the next one that finds it written; what the last step of a `generate` refused is
raised by `iet.kernels.raise_if_refused(device)`, or not at all.

Continuous batching (`generate_batch`) shows a processor the last id of each row only, not its context. A
`WatermarkingConfig` in its generation config is refused before it starts: transformers asks each processor
whether it supports that, and would drop one that says no with a warning, so the question itself raises here.
It ignores `logits_processor=` unasked; all that shows it is that the processor is never called.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError, SchemeMismatch, ShapeError, missing
from iet.generation.checks import (
    before_temperature,
    check_model_vocabulary,
    check_registry,
    names_of_rows,
)
from iet.generation.free import FreeTokens, check_seed
from iet.generation.sessions import RowSessions
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry

try:
    import torch
    import transformers
    from transformers.generation.configuration_utils import BaseWatermarkingConfig
except ImportError as error:
    raise missing(f"marking in transformers: {error}", "transformers") from None

from iet.generation.processors import KeyedSampler, Processor, Untouched


class LogitsProcessor(Processor):
    """Mark raw logits, before temperature, top-k and top-p: for `generate(logits_processor=[...])`.

    κ counts in final logits, so it is multiplied by the temperature that the sampler will divide by. Where
    nothing speaks against it prefer `WatermarkingConfig`: it sees the final logits itself. With a scheme of
    placement "raw", the paper's, κ is added as it is.

    `generate_batch` ignores its `logits_processor=`, and the text carries no mark. So a processor that was
    never called, copied or pickled warns when nothing refers to it any more, or at exit.

    One processor serves many calls, so it cannot tell which rows share a prompt: two agents for four rows
    mark two rows each, whatever the prompts. (`WatermarkingConfig` refuses that where prompts differ.) Use
    one of the two, not both: each adds its mark.

    Args:
        registry: holds the agents' keys.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        temperature: of the sampler, > 0; needed unless the placement is "raw". 1.0 where nothing divides.
        profile: id of the profile, where the registry has several.
        session: id of the session under whose keys all rows are marked (`Registry.session`); or one id, or
            None, per row of the prompt batch. None: agents' own keys.

    Raises:
        RegistryError: unknown agent.
        InputError: no agents, no temperature, or a temperature out of range; or a scheme of family "gumbel",
            which chooses among the tokens that temperature, top-k and top-p leave.

    Calls cost O(B·V), leave `scores` as they are and are deterministic. A copy or pickle finds the keys
    through the registry's file and holds none.
    """

    def __init__(
        self,
        registry: Registry,
        agents: str | Sequence[str | None],
        temperature: float | None = None,
        *,
        profile: str | None = None,
        session: str | Sequence[str | None] | None = None,
    ) -> None:
        keys, slots, sessions = _marking(registry, agents, profile, session)
        if keys.profile.family.chooses:
            raise InputError(
                'family: got "gumbel", which chooses the token after temperature, top-k and top-p, while this'
                " processor runs before them: use iet.WatermarkingConfig"
            )
        scale = before_temperature(keys.profile.scheme, temperature)
        super().__init__(keys, slots, scale, False, sessions)
        self._rebuild = functools.partial(
            type(self), registry, agents, scale, profile=profile, session=session
        )
        caller = sys._getframe(1)
        self._unused = weakref.finalize(self, _warn_unused, caller.f_code.co_filename, caller.f_lineno)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return `scores` [B, >= V] with marks, for the position after `input_ids` [B, T]."""
        self._unused.detach()
        return super().__call__(input_ids, scores)

    def __reduce__(self) -> tuple[Any, ...]:
        self._unused.detach()
        return self._rebuild, ()


_warned: dict[str | tuple[str, type[Warning], int], int] = {}
"""Lines that made unused processors, for `warnings`: each is warned of once."""


def _warn_unused(filename: str, line: int) -> None:
    message = (
        "this iet.LogitsProcessor was never called, so it marked nothing. generate_batch ignores"
        " logits_processor=: use generate, or a server (iet.generation.vllm, iet.generation.sglang)"
    )
    warnings.warn_explicit(message, RuntimeWarning, filename, line, registry=_warned)


class WatermarkingConfig(BaseWatermarkingConfig):
    """Mark final logits, after temperature and top-p: for `generate(watermarking_config=...)`.

    The documented default. With a scheme of family "gumbel" it chooses the token itself
    (docs/internals/gumbel.md): that needs `do_sample=True` and no beams. Under greedy decoding or beam search
    nothing could be marked: `generate` then warns and its logits stay as they are.

    In family "gumbel" the first tokens of an answer, and a small share of the others, are left to the sampler
    (`FreeTokens`), so that the same prompt gets different answers; each row chooses its own.

    Saving it (`to_dict`, `to_json_file`) writes the registry's path, digests and agent names, never a key;
    `from_dict` loads the registry from its path again.

    A generation config, or a model, that holds it is saved without it, with a warning: transformers loads no
    watermark but its own, and whoever gets such a model could not load it.

    Args:
        registry: holds the agents' keys.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        profile: id of the profile, where the registry has several.
        free: the free tokens of family "gumbel".
        seed: any integer, chooses the free tokens after the first ones: every call chooses the same. None: by
            the state of torch's generator, which is read and not changed, so `torch.manual_seed` reproduces
            an answer.
        session: id of the session under whose keys all rows are marked (`Registry.session`); or one id, or
            None, per row of the prompt batch. None: agents' own keys.

    Raises:
        RegistryError: unknown agent.
        InputError: no agents, a scheme of placement "raw", or `free` or a seed of another type.
    """

    def __init__(
        self,
        registry: Registry,
        agents: str | Sequence[str | None],
        *,
        profile: str | None = None,
        free: FreeTokens = FreeTokens(),  # noqa: B008  # frozen
        seed: int | None = None,
        session: str | Sequence[str | None] | None = None,
    ) -> None:
        if session is None and isinstance(registry, Registry) and registry.of_session is not None:
            registry, session = registry.of_session  # which `to_dict` can name
        self.registry = registry
        self.agents = agents
        self.profile = profile
        self.free = free
        self.seed = seed
        self.session = session
        self.validate()
        self.agents = agents if isinstance(agents, str) else list(agents)
        self.session = session if session is None or isinstance(session, str) else list(session)

    def validate(self) -> None:
        """Check agents, sessions, free tokens, seed and placement, as `generate` does before it starts."""
        self._marking()
        if not isinstance(self.free, FreeTokens):
            raise InputError(f"free: got {type(self.free).__name__}, expected iet.FreeTokens")
        check_seed(self.seed)
        if self.registry.get_profile(self.profile).scheme.placement == "raw":
            raise InputError(
                'placement: got "raw", which comes before the temperature: use iet.LogitsProcessor for it'
            )

    def construct_processor(  # type: ignore[override]  # generate passes both
        self, vocab_size: int, device: object
    ) -> transformers.LogitsProcessor:
        """Return the processor that `generate` appends after its warpers, a new one for each call.

        Args:
            vocab_size: of the model, at least V.
            device: of the model; what can be marked is decided when the logits are there.

        Raises:
            ShapeError: the model's vocabulary is smaller than V.
        """
        keys, slots, sessions = self._marking()
        check_model_vocabulary(vocab_size, keys.profile.vocab_size)
        of_prompts = len(slots) > 1 or not isinstance(self.agents, str)
        if not keys.profile.family.chooses:
            return Processor(keys, slots, 1.0, of_prompts, sessions)
        config = self._asking_config()
        why = None
        if config is not None and (config.num_beams or 1) > 1:
            why = f"num_beams is {config.num_beams}"
        elif config is not None and config.do_sample is not True:
            why = f"do_sample is {config.do_sample}"
        if why is not None:
            warnings.warn(
                f"nothing is marked: {why}, but family gumbel marks by the way in which tokens are sampled:"
                " pass do_sample=True and num_beams=1 to generate, or use another family",
                stacklevel=2,
            )
            return Untouched()
        limit = None if config is None else config.max_new_tokens
        if limit is not None and limit <= self.free.first:
            warnings.warn(
                f"nothing is marked: max_new_tokens is {limit}, and the first {self.free.first} tokens of an"
                " answer are free; allow more tokens, or pass iet.FreeTokens(first=...) with fewer",
                stacklevel=2,
            )
        return KeyedSampler(keys, slots, of_prompts, sessions, self.free, self.seed)

    def _marking(self) -> tuple[KeyTable, NDArray[np.int32], RowSessions | None]:
        return _marking(self.registry, self.agents, self.profile, self.session)

    def _asking_config(self) -> Any:
        """Return the generation config of the `generate` that is asking, None if there is none.

        transformers does not pass it to a processor, so it is read from the caller: the nearest one whose
        `generation_config` holds this object. Without one the caller is taken to sample.
        """
        frame = sys._getframe(1)
        while frame is not None:
            config = frame.f_locals.get("generation_config")
            if config is not None and getattr(config, "watermarking_config", None) is self:
                return config
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: path, digests, names, and seed and session if there are some.

        None, with a warning, to a generation config that is being saved: see the class.
        """
        if _is_saved_with_a_generation_config():
            warnings.warn(
                "watermarking_config is left out of the saved generation config, because transformers loads"
                " none but its own: whoever loads the model does not mark; pass an iet.WatermarkingConfig to"
                " generate there (its own to_json_file and from_dict save and load it)",
                stacklevel=2,
            )
            return None  # type: ignore[return-value]  # "watermarking_config": null is what loads
        if self.registry.of_session is not None:
            raise InputError("registry: got a session's session, of which no JSON form is kept")
        profile = self.registry.get_profile(self.profile)
        return {
            _FORMAT_KEY: 1,
            "registry": None if self.registry.path is None else str(self.registry.path),
            "registry_digest": self.registry.digest,
            "profile": profile.id,
            "profile_digest": profile.digest,
            "agents": self.agents if isinstance(self.agents, str) else list(self.agents),
            "free": dataclasses.asdict(self.free),
            **({} if self.seed is None else {"seed": self.seed}),
            **({} if self.session is None else {"session": self.session}),
        }

    @classmethod
    def from_dict(  # type: ignore[override]
        cls, config_dict: Mapping[str, Any], *, registry: Registry | None = None
    ) -> WatermarkingConfig:
        """Read the JSON form. The registry's keys may have changed since, its profile may not.

        Args:
            config_dict: what `to_dict` returned.
            registry: to be used in place of the one at the saved path (or, if that was in memory, at
                $IET_REGISTRY), as where it lies elsewhere on this machine.

        Raises:
            InputError: it is not such a dict.
            RegistryError: the registry cannot be loaded, or an agent is not in it.
            SchemeMismatch: the registry has another profile now.
        """
        fields = (_FORMAT_KEY, "registry", "profile", "profile_digest", "agents")
        if not isinstance(config_dict, Mapping) or any(field not in config_dict for field in fields):
            raise InputError(
                f"config_dict: got {type(config_dict).__name__} without some of {fields}, expected what"
                " iet.WatermarkingConfig.to_dict returns"
            )
        if registry is None:
            registry = Registry.load(config_dict["registry"])
        found = {profile.digest for profile in registry.profiles.values()}
        if config_dict["profile_digest"] not in found:
            raise SchemeMismatch(
                f"profile digest: got {sorted(found)} in the registry,"
                f" expected {config_dict['profile_digest']}"
            )
        options = {name: config_dict.get(name) for name in ("profile", "seed", "session")}
        try:
            free = FreeTokens(**config_dict.get("free", {}))
        except TypeError:
            raise InputError(f"free: got {config_dict['free']!r:.80}, expected first and rate") from None
        return cls(registry, config_dict["agents"], free=free, **options)

    def to_json_string(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __iter__(self) -> Any:
        yield from self.to_dict().items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WatermarkingConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


_FORMAT_KEY = "_iet.WatermarkingConfig"


def _is_saved_with_a_generation_config() -> bool:
    """Tell whether transformers is writing a generation config, which asks for its parts, to a file."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "to_json_file" and isinstance(
            frame.f_locals.get("self"), transformers.GenerationConfig
        ):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _slots(registry: Registry, agents: str | Sequence[str | None], profile: str | None) -> NDArray[np.int32]:
    check_registry(registry)
    names = names_of_rows(agents)
    return np.array([-1 if name is None else registry.slot(name, profile) for name in names], dtype=np.int32)


def _marking(
    registry: Registry,
    agents: str | Sequence[str | None],
    profile: str | None,
    session: str | Sequence[str | None] | None,
) -> tuple[KeyTable, NDArray[np.int32], RowSessions | None]:
    """Return keys, the agents' slots in the prompt batch, and its rows' sessions where each has its own."""
    slots = _slots(registry, agents, profile)
    if session is None:
        return registry.marking_keys(profile), slots, None
    if isinstance(session, str) or not isinstance(session, Sequence):
        return registry.session(session).marking_keys(profile), slots, None
    sessions = RowSessions(registry, session)
    if isinstance(agents, str):
        slots = np.repeat(slots, len(sessions))
    if len(slots) != len(sessions):
        raise ShapeError(
            "session",
            got=f"{len(sessions)} sessions for {len(slots)} agents",
            expected="one session (or None) per row of the prompt batch, or one for all",
        )
    return registry.marking_keys(profile), slots, sessions
