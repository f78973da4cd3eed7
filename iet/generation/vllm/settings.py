"""Settings of marking in vLLM: the server's environment, and the arguments of a request."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import secrets
from collections.abc import Mapping
from typing import Any

from iet.errors import IetError, InputError, check_number, shown
from iet.generation.agents import AGENT_FIELD as AGENT
from iet.generation.agents import SESSION_FIELD as SESSION
from iet.generation.agents import UNMARKED_FIELD as UNMARKED
from iet.generation.agents import session_of_request
from iet.generation.checks import MAX_TEMPERATURE, Floor, switch
from iet.generation.free import FreeTokens, check_seed, free_of_environment, request_key, warn_of_limit
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry

_log = logging.getLogger("iet.generation.vllm")

REFUSED = -2
"""Instead of a slot: the request was admitted but cannot be marked, so its text ends."""

GREEDY_BELOW = 1e-5
"""vLLM's own limit: at lower temperatures it decodes greedily and does not divide the logits."""

PLACEHOLDER = (
    "a placeholder (-1) is in the context of {where} instead of a token: vLLM's asynchronous scheduling"
    " leaves it to processors whose token lists it does not repair (vllm-project/vllm#52461), and hashing it"
    " would lose the mark. Pass the processor by --logits-processors"
    " iet.generation.vllm:IETLogitsProcessor (LLM(logits_processors=[...])), not as an entry point; or start"
    " vLLM with --no-async-scheduling"
)


def report(problem: object) -> None:
    """Write to the server's log why requests end or cannot be marked."""
    _log.error("%s", problem)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a server, read from the environment once per process."""

    keys: KeyTable
    slots: Mapping[str, int]
    require_agent: bool
    default: int  # the slot of a request that names no agent; -1: it is not marked
    digest: str = ""  # of the registry
    registry: Registry | None = None  # of the keys; without it, no request can have a session
    free: FreeTokens = FreeTokens()  # noqa: RUF009  # frozen
    floor: Floor = Floor()  # noqa: RUF009  # frozen

    def slot_of(self, params: Any) -> int:
        """Return the slot of a request's agent, -1 for an unmarked one, or raise InputError."""
        arguments: Mapping[str, Any] = getattr(params, "extra_args", None) or {}
        if not isinstance(arguments, Mapping):
            raise InputError(f"extra_args: got {type(arguments).__name__}, expected a dict")
        ours = (name for name in arguments if isinstance(name, str) and name.startswith("iet_"))
        unknown = next((name for name in ours if name not in (AGENT, SESSION, UNMARKED)), None)
        if unknown is not None:
            raise InputError(
                f"{shown(unknown)[1:-1]}: expected {AGENT}, {SESSION} or {UNMARKED}, and nothing else of this"
                " prefix"
            )
        agent, unmarked = arguments.get(AGENT), arguments.get(UNMARKED, False)
        # HTTP turns true into 1.
        if not isinstance(unmarked, (bool, int)) or unmarked not in (0, 1):
            raise InputError(f"{UNMARKED}: got {shown(unmarked)}, expected true or false")
        if unmarked and agent is not None:
            raise InputError(f"{AGENT} and {UNMARKED}: got both, expected one of them")
        if agent is None:
            slot = -1 if unmarked or _is_of_beams(params) else self.default
            if self.require_agent and slot < 0:
                raise InputError(
                    f"{AGENT}: got {'an opt-out' if unmarked else 'none'}, but this server marks every text:"
                    f' expected the name of an agent, over HTTP as "vllm_xargs": {{"{AGENT}": NAME}}. A beam'
                    " search loses the name, and its text cannot be marked"
                )
            return slot
        # The message lists no names, because clients need not know which other agents are served.
        if not isinstance(agent, str) or agent not in self.slots:
            raise InputError(
                f"{AGENT}: got {shown(agent)}, expected the name of an agent in this server's registry"
            )
        return self.slots[agent]

    def session_of(self, params: Any) -> str | None:
        """Return the id of a request's session, or None; or raise InputError."""
        session = (getattr(params, "extra_args", None) or {}).get(SESSION)
        return None if session is None else session_of_request(session)

    @property
    def chooses(self) -> bool:
        """Whether the mark chooses tokens instead of changing logits."""
        return self.keys.profile.family.chooses

    def check(self, params: Any) -> None:
        """Raise an InputError if a request cannot be marked as it asks."""
        slot = self.slot_of(params)
        if self.session_of(params) is not None and slot < 0:
            raise InputError(f"{SESSION}: got one for text that is not marked, expected {AGENT} beside it")
        if slot >= 0 and self.chooses:
            self.floor.check(params.temperature, params.top_k, params.top_p, params.min_p)
            check_number("temperature", params.temperature, 0, MAX_TEMPERATURE, integer=False)
        elif slot >= 0 and params.temperature != 0 and self.keys.profile.scheme.placement != "raw":
            self.floor.check_shifted(params.temperature)  # 0 is greedy, and shifted as at temperature 1
        if slot >= 0:
            check_seed(params.seed)
        limit = getattr(params, "max_tokens", None)
        if slot >= 0 and self.chooses and limit is not None and limit <= self.free.first:
            warn_of_limit(_log, "max_tokens", limit, self.free.first)

    def marking_slot(self, params: Any) -> int:
        """Return the slot of an admitted request, -1 for an unmarked one, `REFUSED` for an invalid one.

        The frontend may have admitted it with another registry. vLLM's warm-up requests are not checked by
        the frontend: they name no agent and may be greedy.
        """
        try:
            slot = self.default if self.require_agent and not params.extra_args else self.slot_of(params)
            return slot if self._draws(params) else -1
        except Exception as error:
            report(f"a request that was admitted cannot be marked, and is ended: {error}")
            return REFUSED

    def _draws(self, params: Any) -> bool:
        """Return whether the request samples its tokens, or the mark does not need that."""
        return not self.chooses or (params.temperature >= GREEDY_BELOW and params.top_k != 1)

    def temperature_of(self, params: Any) -> float:
        """Return T of a request, the factor of κ: its temperature; 1 if greedy, or for placement raw."""
        if self.keys.profile.scheme.placement == "raw" or params.temperature < GREEDY_BELOW:
            return 1.0
        return float(params.temperature)


class RequestKeys:
    """Keys of requests that select their free tokens, equal on every rank.

    The key depends on the request's seed. Without a seed it depends on the request's number in this engine,
    which is equal on all ranks. A request that vLLM preempts and resumes gets another key. That is harmless,
    because its committed tokens are not sampled again.

    Args:
        engine: a unique name of this engine: `VllmConfig.instance_id`. None: a random one.
    """

    def __init__(self, engine: str | None) -> None:
        self._engine = secrets.token_hex(16) if engine is None else engine
        self._count = 0

    def next(self, seed: int | None) -> int:
        """Return the key of the next request, see `request_key`, or raise InputError."""
        self._count += 1
        check_seed(seed)
        return request_key(f"{self._engine}/{self._count}" if seed is None else f"seed {seed}")


def _is_of_beams(params: Any) -> bool:
    """Return whether a request is a step of a beam search, which lacks the client's fields."""
    return bool(params.max_tokens == 1 and params.logprobs and params.detokenize is False)


def preload() -> None:
    """Read the settings when a process loads this module, and compare the registries of a server's processes.

    vLLM's frontend loads the module before it starts the engine. If the settings cannot be read, requests and
    the engine report it.
    """
    try:
        digest = read_settings().digest
    except IetError:
        return
    first = os.environ.setdefault(_DIGEST, digest)
    if first != digest:
        report(
            f"the registry has changed since this server was started (digest {first[:16]}, now"
            f" {digest[:16]}): requests for agents that only one of its processes knows are refused; start it"
            " again"
        )


_DIGEST = "IET_SERVED_DIGEST"
"""Environment variable with the digest of the server's registry, set by its first process."""


def read_settings() -> Settings:
    """Return the settings of the environment.

    Raises:
        InputError, RegistryError, SchemeMismatch: a variable is out of range, or the registry cannot be read.
    """
    path, profile, default = (
        os.environ.get(name) or None for name in ("IET_REGISTRY", "IET_PROFILE", "IET_DEFAULT_AGENT")
    )
    free, floor = free_of_environment(), Floor.of_environment()
    return _read(path, switch("IET_SECRET_MOUNT"), profile, switch("IET_REQUIRE_AGENT"), default, free, floor)


@functools.lru_cache(maxsize=1)
def _read(
    path: str | None,
    secret_mount: bool,
    profile: str | None,
    require: bool,
    default: str | None,
    free: FreeTokens,
    floor: Floor,
) -> Settings:
    registry = Registry.load(path, secret_mount=secret_mount)
    keys = registry.marking_keys(profile)
    slots = {name: slot for slot, name in enumerate(registry.names(profile))}
    if default is not None and default not in slots:
        raise InputError(f"IET_DEFAULT_AGENT: got {default!r:.80}, expected one of {list(slots)}")
    marked_for = -1 if default is None else slots[default]
    return Settings(keys, slots, require, marked_for, registry.digest, registry, free, floor)
