"""What the environment says about marking in vLLM, and what a request may say."""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
from collections.abc import Mapping
from typing import Any

from iet.errors import IetError, InputError
from iet.generation.agents import AGENT_FIELD as AGENT
from iet.generation.agents import SESSION_FIELD as SESSION
from iet.generation.agents import UNMARKED_FIELD as UNMARKED
from iet.generation.agents import session_of_request
from iet.generation.checks import shown, switch
from iet.generation.free import FreeTokens, check_seed, free_of_environment, request_key
from iet.generation.vllm.refusals import REFUSED, tell
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry

GREEDY_BELOW = 1e-5
"""vLLM's own limit: logits of a request with a lower temperature are divided by nothing."""

PLACEHOLDER = (
    "a placeholder (-1) stands in the context of {where}, where a token should: vLLM's asynchronous"
    " scheduling leaves it to processors whose token lists it does not repair (vllm-project/vllm#52461), and"
    " hashing it would lose the mark. Pass the processor by --logits-processors"
    " iet.generation.vllm:IETLogitsProcessor (LLM(logits_processors=[...])), not as an entry point; or start"
    " vLLM with --no-async-scheduling"
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the environment says, read once per process."""

    keys: KeyTable
    slots: Mapping[str, int]
    require_agent: bool
    default: int  # the slot of a request that names no agent; -1: it is not marked
    digest: str = ""  # of the registry
    registry: Registry | None = None  # that the keys are of; without it no request has a session
    free: FreeTokens = FreeTokens()  # noqa: RUF009  # frozen

    def slot_of(self, params: Any) -> int:
        """Return the slot of a request's agent, -1 for an unmarked one, or raise InputError."""
        given: Mapping[str, Any] = getattr(params, "extra_args", None) or {}
        if not isinstance(given, Mapping):
            raise InputError(f"extra_args: got {type(given).__name__}, expected a dict")
        ours = (name for name in given if isinstance(name, str) and name.startswith("iet_"))
        unknown = next((name for name in ours if name not in (AGENT, SESSION, UNMARKED)), None)
        if unknown is not None:
            raise InputError(
                f"{shown(unknown)[1:-1]}: expected {AGENT}, {SESSION} or {UNMARKED}, and nothing else of this"
                " prefix"
            )
        agent, unmarked = given.get(AGENT), given.get(UNMARKED, False)
        # HTTP turns true into 1.
        if not isinstance(unmarked, (bool, int)) or unmarked not in (0, 1):
            raise InputError(f"{UNMARKED}: got {shown(unmarked)}, expected true or false")
        if unmarked and agent is not None:
            raise InputError(f"{AGENT} and {UNMARKED}: got both, expected one of them")
        if agent is None:
            slot = -1 if unmarked else self.default
            if slot < 0 and self.require_agent:
                raise InputError(
                    f"{AGENT}: got {'an opt-out' if unmarked else 'none'}, but this server marks every text:"
                    f' expected the name of an agent, over HTTP as "vllm_xargs": {{"{AGENT}": NAME}}'
                )
            return slot
        # Whoever may ask need not know who else is served here, so no names are listed.
        if not isinstance(agent, str) or agent not in self.slots:
            raise InputError(
                f"{AGENT}: got {shown(agent)}, expected the name of an agent in this server's registry"
            )
        return self.slots[agent]

    def session_of(self, params: Any) -> str | None:
        """Return the id of a request's session, None without one, or raise InputError."""
        session = (getattr(params, "extra_args", None) or {}).get(SESSION)
        return None if session is None else session_of_request(session)

    @property
    def chooses(self) -> bool:
        """Whether the mark chooses tokens instead of changing logits."""
        return self.keys.profile.family.chooses

    def check(self, params: Any) -> None:
        """Raise an InputError for a request that is refused."""
        slot = self.slot_of(params)
        if self.session_of(params) is not None and slot < 0:
            raise InputError(f"{SESSION}: got one for text that is not marked, expected {AGENT} beside it")
        if slot >= 0 and not self._draws(params):
            raise InputError(
                f"temperature: got {params.temperature:g}, expected more than 0 for a text that is marked:"
                ' family "gumbel" marks by the way in which tokens are drawn, and greedy decoding draws none'
            )
        if slot >= 0:
            check_seed(params.seed)
        limit = getattr(params, "max_tokens", None)
        if slot >= 0 and self.chooses and limit is not None and limit <= self.free.first:
            _warn_of_limit(limit, self.free.first)

    def marking_slot(self, params: Any) -> int:
        """Return the slot of a request that was admitted, -1 for one that is not marked.

        `REFUSED` for one that should not have been: whoever admitted it may have read another registry.
        vLLM's own warm-up requests never were: they name nobody, and may be greedy.
        """
        try:
            slot = self.default if self.require_agent and not params.extra_args else self.slot_of(params)
            return slot if self._draws(params) else -1
        except Exception as error:
            tell(f"a request that was admitted cannot be marked, and is ended: {error}")
            return REFUSED

    def _draws(self, params: Any) -> bool:
        """Tell whether tokens of the request are drawn in a way that the mark can use."""
        return not self.chooses or params.temperature >= GREEDY_BELOW

    def temperature_of(self, params: Any) -> float:
        """Return what κ is multiplied by: where vLLM divides by a temperature after the processor, that."""
        raw = self.keys.profile.scheme.placement == "raw"
        if raw or self.chooses or params.temperature < GREEDY_BELOW:
            return 1.0
        return float(params.temperature)


class RequestKeys:
    """Names requests, so that each chooses free tokens of its own, the same on every rank.

    A request with a seed is named by it. Another one is named by its number among the requests of this
    engine, which all ranks count alike. A request that vLLM preempts and takes up again gets another name,
    which changes nothing: its committed tokens are not sampled again.

    Args:
        engine: the name of this engine, and of no other: `VllmConfig.instance_id`. None: one is drawn.
    """

    def __init__(self, engine: str | None) -> None:
        self._engine = secrets.token_hex(16) if engine is None else engine
        self._count = 0

    def next(self, seed: int | None) -> int:
        """Return the key of the next request, see `request_key`, or raise InputError."""
        self._count += 1
        check_seed(seed)
        return request_key(f"{self._engine}/{self._count}" if seed is None else f"seed {seed}")


@functools.cache
def _warn_of_limit(limit: int, first: int) -> None:
    """Write once to the log that answers of this length are not marked."""
    tell(
        f"requests with max_tokens {limit} are not marked: the first {first} tokens of an answer are free;"
        " ask for more tokens, or start the server with fewer free tokens (IET_FREE_FIRST)"
    )


def preload() -> None:
    """Read what the environment says when the process loads this, so that all of a server read the same file.

    vLLM's frontend loads it before it starts the engine, whose processes compare what they read. Where it
    cannot be read, requests and the engine say so.
    """
    try:
        digest = read_settings().digest
    except IetError:
        return
    before = os.environ.setdefault(_DIGEST, digest)
    if before != digest:
        tell(
            f"the registry has changed since this server was started (digest {before[:16]}, now"
            f" {digest[:16]}): requests for agents that only one of its processes knows are refused; start it"
            " again"
        )


_DIGEST = "IET_SERVED_DIGEST"
"""In the environment of a server's processes, set by the first of them: the digest of its registry."""


def read_settings() -> Settings:
    """Return what the environment says.

    Raises:
        InputError, RegistryError, SchemeMismatch: a variable is out of range, or the registry cannot be read.
    """
    path, profile, default = (
        os.environ.get(name) or None for name in ("IET_REGISTRY", "IET_PROFILE", "IET_DEFAULT_AGENT")
    )
    free = free_of_environment()
    return _read(path, switch("IET_SECRET_MOUNT"), profile, switch("IET_REQUIRE_AGENT"), default, free)


@functools.lru_cache(maxsize=1)
def _read(
    path: str | None,
    secret_mount: bool,
    profile: str | None,
    require: bool,
    default: str | None,
    free: FreeTokens,
) -> Settings:
    registry = Registry.load(path, secret_mount=secret_mount)
    keys = registry.marking_keys(profile)
    slots = {name: slot for slot, name in enumerate(registry.names(profile))}
    if default is not None and default not in slots:
        raise InputError(f"IET_DEFAULT_AGENT: got {default!r:.80}, expected one of {list(slots)}")
    marked_for = -1 if default is None else slots[default]
    return Settings(keys, slots, require, marked_for, registry.digest, registry, free)
