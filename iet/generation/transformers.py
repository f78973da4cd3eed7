"""Marking in transformers' `generate`: `WatermarkingConfig` after sampling warpers, `LogitsProcessor` before.

Both are stateless: they read contexts from `input_ids`, so interleaved calls, beams that swap rows and
assisted decoding, which shows several positions of one row, need no bookkeeping.

On a CUDA device the host does not wait for a step. An error that a kernel finds there is raised by a later
step; after the last step of a `generate`, `iet.kernels.raise_if_refused(device)` raises it.

Continuous batching (`generate_batch`) shows a processor only the last id of each row, not its context. So a
`WatermarkingConfig` raises an error before it starts: transformers asks each processor whether it supports
continuous batching, and would drop it with a warning. `generate_batch` ignores `logits_processor=`; the only
sign is that the processor is never called.
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
    MIN_TEMPERATURE,
    MIN_TOP_P,
    Floor,
    before_temperature,
    check_model_vocabulary,
    check_registry,
    names_of_rows,
)
from iet.generation.free import FreeTokens, check_seed
from iet.generation.sessions import keys_of_rows
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

    κ is in units of final logits, so it is multiplied by the temperature that the sampler will divide by.
    Prefer `WatermarkingConfig`, which sees the final logits. With placement "raw", as in the paper, κ is not
    scaled.

    `generate_batch` ignores its `logits_processor=`, and the text carries no mark. So a processor that was
    never called, copied or pickled warns when it is deleted, or at exit.

    One processor serves many calls, so it cannot know which rows share a prompt: two agents for four rows
    mark two rows each, even if the prompts differ (`WatermarkingConfig` raises an error then). Use only one
    of the two, because each adds its mark.

    Args:
        registry: holds the agents' keys.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        temperature: of the sampler, > 0; required unless the placement is "raw". 1.0 if there is none.
        profile: id of the profile, if the registry has several.
        session: id of the session whose keys mark all rows (`Registry.session`); or one id, or None, per row
            of the prompt batch. None: agents' own keys.

    Raises:
        RegistryError: an agent is unknown.
        InputError: there are no agents, the temperature is missing or out of range, or the scheme is of
            family "gumbel", which needs the logits after temperature, top-k and top-p.

    Calls cost O(B·V), do not change `scores` and are deterministic. A copy or pickle holds no keys; it loads
    them from the registry's file.
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
        keys, slots = _marking(registry, agents, profile, session)
        if keys.profile.family.chooses:
            raise InputError(
                'family: got "gumbel", which chooses the token after temperature, top-k and top-p, while this'
                " processor runs before them: use iet.WatermarkingConfig"
            )
        scale = before_temperature(keys.profile.scheme, temperature)
        if scale < Floor.temperature:
            warnings.warn(
                f"hardly anything is marked: temperature is {scale:g}, at which the likeliest token is nearly"
                f" certain: sample with at least {Floor.temperature:g}, or pass 1.0 if the sampler does not"
                " divide",
                stacklevel=2,
            )
        super().__init__(keys, slots, scale, False)
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
"""Lines that made unused processors, for `warnings`, which warns once for each."""


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
    nothing could be marked: `generate` then warns and its logits stay as they are. In every family it does so
    if it samples with `top_k=1`, a temperature or `top_p` below 0.1 or a `min_p` above 0.9 (0.01 and 0.99
    for other families than "gumbel").

    In family "gumbel" the first tokens of an answer, and a small share of the others, are left to the sampler
    (`FreeTokens`), so that the same prompt gets different answers. Rows differ in their free tokens.

    `to_dict` and `to_json_file` write the registry's path, digests and agent names, never a key; `from_dict`
    loads the registry from its path.

    A generation config, or a model, is saved without it, with a warning: transformers can load only its own
    watermarks, so the saved model could not be loaded otherwise.

    Args:
        registry: holds the agents' keys.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        profile: id of the profile, if the registry has several.
        free: the free tokens of family "gumbel".
        seed: any integer, selects the free tokens after the first ones, equally in every call. None: the
            state of torch's generator selects them, so `torch.manual_seed` reproduces an answer. The state
            does not change.
        session: id of the session whose keys mark all rows (`Registry.session`); or one id, or None, per row
            of the prompt batch. None: agents' own keys.

    Raises:
        RegistryError: an agent is unknown.
        InputError: there are no agents, the placement is "raw", or `free` or `seed` has a wrong type.
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
            registry, session = registry.of_session  # so that `to_dict` can name them
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
        """Return a new processor, which `generate` appends after its warpers in each call.

        Args:
            vocab_size: of the model, at least V.
            device: of the model; not used, because the logits determine the device.

        Raises:
            ShapeError: the model's vocabulary is smaller than V.
        """
        keys, slots = self._marking()
        check_model_vocabulary(vocab_size, keys.profile.vocab_size)
        of_prompts = len(slots) > 1 or not isinstance(self.agents, str)
        config = self._config_of_caller()
        reason = None if config is None else _why_unmarked(config, keys.profile.family.chooses)
        if reason is not None:
            warnings.warn(f"nothing is marked: {reason}", stacklevel=2)
            return Untouched()
        rows = None if config is None else max(config.num_beams or 1, config.num_return_sequences or 1)
        if not keys.profile.family.chooses:
            return Processor(keys, slots, 1.0, of_prompts, rows)
        limit = None if config is None else config.max_new_tokens
        if limit is not None and limit <= self.free.first:
            warnings.warn(
                f"nothing is marked: max_new_tokens is {limit}, and the first {self.free.first} tokens of an"
                " answer are free; allow more tokens, or pass iet.FreeTokens(first=...) with fewer",
                stacklevel=2,
            )
        return KeyedSampler(keys, slots, of_prompts, self.free, self.seed, rows)

    def _marking(self) -> tuple[KeyTable, NDArray[np.int32]]:
        return _marking(self.registry, self.agents, self.profile, self.session)

    def _config_of_caller(self) -> Any:
        """Return the generation config of the running `generate`, or None.

        transformers does not pass it, so it is read from the nearest caller whose `generation_config` holds
        this object. Without one, the caller is assumed to sample.
        """
        frame = sys._getframe(1)
        while frame is not None:
            config = frame.f_locals.get("generation_config")
            if config is not None and getattr(config, "watermarking_config", None) is self:
                return config
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: path, digests, names, and seed and session if set.

        While a generation config is saved, it returns None with a warning: see the class.
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
            registry: to use instead of the one at the saved path (or at $IET_REGISTRY, if it was in memory),
                for example if the file has another path on this machine.

        Raises:
            InputError: `config_dict` has another form.
            RegistryError: the registry cannot be loaded, or lacks an agent.
            SchemeMismatch: the registry's profile has changed.
        """
        fields = (_FORMAT_KEY, "registry", "profile", "profile_digest", "agents")
        if not isinstance(config_dict, Mapping) or any(field not in config_dict for field in fields):
            raise InputError(
                f"config_dict: got {type(config_dict).__name__} without some of {fields}, expected what"
                " iet.WatermarkingConfig.to_dict returns"
            )
        if registry is None:
            registry = Registry.load(config_dict["registry"])
        digests = {profile.digest for profile in registry.profiles.values()}
        if config_dict["profile_digest"] not in digests:
            raise SchemeMismatch(
                f"profile digest: got {sorted(digests)} in the registry,"
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


def _why_unmarked(config: Any, chooses: bool) -> str | None:
    """Return why `generate` with this generation config would leave a mark nothing to change, or None."""
    reason = None
    if chooses and (config.num_beams or 1) > 1:
        reason = f"num_beams is {config.num_beams}"
    elif chooses and config.do_sample is not True:
        reason = f"do_sample is {config.do_sample}"
    if reason is not None:
        return (
            f"{reason}, but family gumbel marks by sampling tokens: pass do_sample=True and num_beams=1 to"
            " generate, or use another family"
        )
    if config.do_sample is not True:  # then top_k and temperature have no effect
        return None
    of_beams = (config.num_beams or 1) > 1  # they keep at least two tokens
    if config.top_k == 1 and not of_beams:
        return "top_k is 1, which leaves no choice between tokens: pass a larger one to generate, or 0"
    floor = Floor() if chooses else Floor(MIN_TEMPERATURE, MIN_TOP_P)
    if config.temperature is not None and config.temperature < floor.temperature:
        return (
            f"temperature is {config.temperature:g}, at which the likeliest token is nearly certain: pass at"
            f" least {floor.temperature:g} to generate"
        )
    if config.top_p is not None and config.top_p < floor.top_p and not of_beams:
        return f"top_p is {config.top_p:g}, which leaves hardly a choice: pass at least {floor.top_p:g}"
    if config.min_p is not None and config.min_p > 1 - floor.top_p + 1e-9 and not of_beams:
        return f"min_p is {config.min_p:g}, which leaves hardly a choice: pass at most {1 - floor.top_p:g}"
    return None


def _is_saved_with_a_generation_config() -> bool:
    """Return whether transformers is writing a generation config to a file."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "to_json_file" and isinstance(
            frame.f_locals.get("self"), transformers.GenerationConfig
        ):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _marking(
    registry: Registry,
    agents: str | Sequence[str | None],
    profile: str | None,
    session: str | Sequence[str | None] | None,
) -> tuple[KeyTable, NDArray[np.int32]]:
    """Return keys, and the row of the key of each row of the prompt batch."""
    check_registry(registry)
    slots = [-1 if name is None else registry.slot(name, profile) for name in names_of_rows(agents)]
    keys = registry.marking_keys(profile)
    if session is not None and (isinstance(session, str) or not isinstance(session, Sequence)):
        keys = registry.session(session).marking_keys(profile)
    elif session is not None:
        if isinstance(session, bytes) or not len(session):
            raise InputError(
                f"session: got {session!r:.80}, expected one id (or None) per row of the prompt batch, or one"
                " for all"
            )
        if isinstance(agents, str):
            slots *= len(session)
        if len(slots) != len(session):
            raise ShapeError(
                "session",
                got=f"{len(session)} sessions for {len(slots)} agents",
                expected="one session (or None) per row of the prompt batch, or one for all",
            )
        keys, slots = keys_of_rows(registry, keys, slots, session)
    return keys, np.array(slots, dtype=np.int32)
