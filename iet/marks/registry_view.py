"""The part of a registry that only reads: profiles, agents, key tables, digests."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iet.errors import InputError, RegistryError
from iet.marks.commitment import Opening, open_leaf, registry_digest
from iet.marks.derivation import ENGINE_KEY_BYTES, derive_engine_key
from iet.marks.keys import AgentKey, EngineKey, KeyTable
from iet.marks.names import checked_session
from iet.marks.profiles import open_tokenizer, with_relative_source
from iet.marks.registry_state import RegistryState
from iet.marks.scheme import Profile
from iet.marks.sessions import with_sessions
from iet.marks.tokenizer import Tokenizer


class RegistryView:
    """The methods of `iet.Registry` that change nothing.

    Each reads the state once, so it needs no lock while another thread changes the registry.
    """

    def __init__(self) -> None:
        self._state = RegistryState({}, {})
        self._path: pathlib.Path | None = None
        self._tokenizers: dict[str, Tokenizer] = {}  # those passed as objects, by digest; never saved

    @property
    def path(self) -> pathlib.Path | None:
        """The registry's file, or None."""
        return self._path

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Every profile by its id, read-only."""
        return types.MappingProxyType(self._state.profiles)

    @property
    def profile(self) -> Profile:
        """The only profile. Raises InputError, with the ids, if there are several."""
        return self.get_profile(None)

    def get_profile(self, profile: str | None) -> Profile:
        """Return the profile with this id; None: the only profile.

        Raises:
            InputError: `profile` is None and there is not exactly one.
            RegistryError: the id is unknown.
        """
        return self._state.get_profile(profile)

    def profile_of(self, name: str) -> Profile:
        """Return the profile that an agent marks under. Raises RegistryError if the agent is unknown."""
        state = self._state
        return state.profiles[state.agent(name).profile]

    def open_tokenizer(self, profile: str | None = None, source: Any = None) -> Tokenizer:
        """Open a profile's tokenizer and compare its digest.

        Args:
            profile: id of the profile.
            source: path or object. Default: the object that the profile was made with in this process, or the
                path in the registry.

        Raises:
            InputError, RegistryError: as in `get_profile`.
            TokenizerMismatch: the tokenizer is unknown, missing, or has another digest.
        """
        chosen = self.get_profile(profile)
        if source is None:
            source = self._tokenizers.get(chosen.tokenizer_digest or "")
        if source is None:
            source = with_relative_source(chosen, self._path, None).tokenizer_source
        return open_tokenizer(chosen, source)

    def names(self, profile: str | None = None) -> tuple[str, ...]:
        """Return the agents of a profile in slot order: first added first."""
        state = self._state
        return tuple(state.slots(state.get_profile(profile).id))

    def slot(self, name: str, profile: str | None = None) -> int:
        """Return an agent's slot.

        Args:
            name: the agent.
            profile: id of a profile that it must belong to. Default: its own.

        Raises:
            RegistryError: the agent is unknown, or has another profile.
        """
        state = self._state
        agent = state.agent(name)
        if profile is not None and state.get_profile(profile).id != agent.profile:
            raise RegistryError(f"agent {name!r} has profile {agent.profile}, not {profile}")
        return state.slots(agent.profile)[agent.keys[-1].agent]

    def keys(self, name: str) -> tuple[AgentKey, ...]:
        """Return an agent's keys, epochs ascending. Raises RegistryError if the agent is unknown."""
        return self._state.agent(name).keys

    def marking_keys(self, profile: str | None = None) -> KeyTable:
        """Return the current key of each agent of a profile: row s is the key of the agent with slot s."""
        return self._state.table(profile, all_epochs=False)

    def scoring_keys(self, profile: str | None = None) -> KeyTable:
        """Return every key of each agent of a profile: agents in slot order, then epochs."""
        return self._state.table(profile, all_epochs=True)

    def session_keys(self, sessions: Sequence[str], profile: str | None = None) -> KeyTable:
        """Return every key of each agent of a profile, and the keys that it has in some sessions.

        Args:
            sessions: distinct ids, as in `session`.
            profile: id of the profile.

        Returns:
            Agents in slot order; for each agent the rows of `scoring_keys`, then those of `session(id)` for
            each id in order. `KeyTable.sessions` holds the session of each row.

        Raises:
            InputError: an id is invalid, or the profile must be named.
            RegistryError: the profile is unknown.

        O(sessions·keys), about 4 µs and 48 bytes for each.
        """
        checked, state = [checked_session(session) for session in sessions], self._state
        own = state.table(profile, all_epochs=True)
        return with_sessions(own, [key for name in own.names for key in state.agents[name].keys], checked)

    def engine_keys(
        self, engine: str, *, agent: str | None = None, profile: str | None = None
    ) -> tuple[EngineKey, ...]:
        """Return the keys that an engine's own watermark takes.

        Agents in slot order, epochs ascending: entry k belongs to column k of `scoring_keys`. The last epoch
        of an agent is the one to mark with.

        Args:
            engine: a name in `ENGINE_KEY_BYTES`. Keys of different engines are independent.
            agent: return only this agent's keys.
            profile: id of the profile, needed if the registry has several and no agent is named.

        Raises:
            InputError: the engine is unknown, or the profile must be named.
            RegistryError: the agent or the profile is unknown.
        """
        if not isinstance(engine, str) or engine not in ENGINE_KEY_BYTES:
            raise InputError(f"engine: got {engine!r:.80}, expected one of {', '.join(ENGINE_KEY_BYTES)}")
        names = self.names(profile) if agent is None else (agent,)
        return tuple(
            EngineKey(key.agent, key.epoch, derive_engine_key(key.secret, engine))
            for name in names
            for key in self.keys(name)
        )

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, over profiles, names, epochs and a commitment to each secret. O(keys).

        It is equal for registries with the same content in any order, and reveals no secret. It contains the
        root of a Merkle tree (`iet.marks.commitment`), so `open_key` can prove that it covers a single key.
        """
        state = self._state
        return registry_digest(tuple(state.profiles), state.leaves())

    def open_key(self, name: str, epoch: int | None = None) -> Opening:
        """Return a proof for a third party that this registry's digest commits to a key of an agent.

        It holds no secret: pass it on with `export`, which holds the agent's secret. `has_key` checks whether
        they belong together; `Opening.digest` is the digest of this registry.

        Args:
            name: the agent.
            epoch: of the key. None: the one that marks.

        Raises:
            RegistryError: the agent or the epoch is unknown.
        """
        state = self._state
        agent = state.agent(name)
        keys = {key.epoch: key for key in agent.keys}
        if epoch is not None and epoch not in keys:
            raise RegistryError(f"agent {name!r}: got epoch {epoch!r}, expected one of {list(keys)}")
        leaf = agent.leaf(agent.keys[-1] if epoch is None else keys[epoch])
        return open_leaf(tuple(state.profiles), state.leaves(), leaf)

    def has_key(self, opening: Opening) -> bool:
        """Return whether this registry holds the opened key, with every field of its `Leaf` equal."""
        agent = self._state.agents.get(opening.leaf.agent)
        return agent is not None and opening.leaf in map(agent.leaf, agent.keys)

    def __len__(self) -> int:
        return len(self._state.agents)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.agents)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._state.find(name) is not None
