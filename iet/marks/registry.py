"""Who holds which key: agents, secrets, profiles and epochs. It is one file because it is one class, of whose
lines more than half say what its methods promise.

A secret leaves it in two ways only: into a registry file, and as the sub-keys of a `KeyTable`.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
import types
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from iet.errors import IetError, InputError, RegistryError, TokenizerMismatch, check_path
from iet.marks.commitment import Leaf, Opening, commitment, open_leaf, registry_digest
from iet.marks.derivation import ENGINE_KEY_BYTES, check_frequency, derive_engine_key, new_secret
from iet.marks.files import read_private
from iet.marks.keys import (
    AgentKey,
    EngineKey,
    KeyTable,
    Secret,
)
from iet.marks.members import Member, merged, refuse_shared_secrets
from iet.marks.names import checked_session, new_name, skeleton
from iet.marks.registry_file import ABSENT, check_absent, dump, fingerprint, parse, replace
from iet.marks.scheme import Profile, Scheme
from iet.marks.sessions import session_key, with_sessions
from iet.marks.tokenizer import Tokenizer
from iet.marks.tokenizer_files import SUFFIX, is_path, save

ENVIRONMENT_VARIABLE = "IET_REGISTRY"
"""Names the file that `Registry.load()` reads."""


class Registry:
    """Agents with their keys, and the profiles they mark under.

    `Registry()` is empty and lives in memory; `create`, `load` and `loads` are the usual ways in. With a
    file, every change is on disk before the call returns, or nothing has changed, neither there nor here:
    to add thousands of agents, take `add_many`. The slot of an agent is its index in `names(profile)`. Where
    a method takes a profile id, None means the only profile. Threads may share a registry: they change it one
    after the other. Of two processes that load a file and change it, the second one is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held from what a change is made from to where it is kept
        self._profiles: dict[str, Profile] = {}
        self._agents: dict[str, Member] = {}
        self._path: pathlib.Path | None = None
        self._fingerprint = ABSENT
        self._read_only = False
        self._tokenizers: dict[str, Tokenizer] = {}  # handed over as objects, by digest; not saved
        self._slots: dict[str, dict[str, int]] = {}
        self._marking: dict[str, KeyTable] = {}
        self._scoring: dict[str, KeyTable] = {}
        self._session: tuple[Registry, str] | None = None  # of which registry this is one

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        unmarked_ids: Iterable[int] | None = None,
        scheme: Scheme = Scheme(),  # noqa: B008 - frozen
        overwrite: bool = False,
    ) -> Registry:
        """Make a registry with one profile and no agents, and write it to `path`, mode 0600.

        >>> registry = Registry.create(None, vocab_size=50257)
        >>> registry.add("planner")
        0
        >>> registry
        Registry(in memory, agents: planner; profiles: 1)

        Args:
            path: the new file. None: in memory only.
            tokenizer: anything that `iet.marks.tokenizer.Tokenizer` takes.
            vocab_size: V, 1 to 2^24. Default: that of the tokenizer. Alone: only token ids can be audited.
            unmarked_ids: special and padding ids below V. Default: those of the tokenizer, or none.
            scheme: the choices behind the mark.
            overwrite: replace an existing file, whose keys are lost.

        Returns:
            The registry.

        Raises:
            InputError: neither a tokenizer nor a vocabulary size, or a value out of range.
            RegistryError: `path` exists or cannot be written.
            TokenizerMismatch: no tokenizer can be read there.
        """
        registry = cls()
        registry.add_profile(
            tokenizer=tokenizer, vocab_size=vocab_size, unmarked_ids=unmarked_ids, scheme=scheme
        )
        if path is not None:
            registry._save_as(path, None if overwrite else ABSENT)
        return registry

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, *, secret_mount: bool = False) -> Registry:
        """Read a registry file. Links are followed.

        Args:
            path: the file. Default: the one that the environment variable `IET_REGISTRY` names.
            secret_mount: accept a mode other than 0600 where this process cannot write the file, as with
                the secrets that Kubernetes and Docker mount. The registry is then read-only.

        Returns:
            The registry.

        Raises:
            RegistryError: the file is missing, readable by others, damaged or of another format version.
            SchemeMismatch: it holds a profile that this release would read differently.
        """
        if path is None:
            path = os.environ.get(ENVIRONMENT_VARIABLE)
            if not path:
                raise RegistryError(
                    f"no registry: pass a path, or set {ENVIRONMENT_VARIABLE}, as in:"
                    f" export {ENVIRONMENT_VARIABLE}=team.json"
                )
        registry = cls()
        registry._path = _absolute(path)
        registry._read_only = secret_mount
        data = read_private(registry._path, secret_mount)
        registry._read(data, str(registry._path))
        registry._fingerprint = fingerprint(data)
        return registry

    @classmethod
    def loads(cls, data: str | bytes) -> Registry:
        """Read what `dumps` returned, or the content of a registry file, into memory.

        Args:
            data: the content.

        Raises:
            InputError: `data` is neither str nor bytes.
            RegistryError: it is damaged or of another format version.
            SchemeMismatch: it holds a profile that this release would read differently.
        """
        if not isinstance(data, (str, bytes)):
            raise InputError(f"data: got {type(data).__name__}, expected str or bytes")
        data = Secret(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
        registry = cls()
        registry._read(data, "registry")
        return registry

    def dumps(self) -> str:
        """Return the content of the registry file. It holds every secret: keep it as you keep the file."""
        with self._lock:
            return bytes(dump(self._profiles, self._agents)).decode()

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write the file, atomically: it holds the old content or the new one, never a part.

        Args:
            path: a new file, where the registry lives from then on. Default: the one it has; changes are
                saved as they are made, so that is rarely needed.

        Raises:
            RegistryError: the path exists, or cannot be written, or the file changed since it was loaded.
        """
        with self._lock:
            if path is not None and _absolute(path) != self._path:
                self._save_as(path, ABSENT)
            elif self._path is None:
                raise RegistryError("this registry is in memory only: pass a path")
            else:
                self._commit(self._profiles, self._agents)

    def add_profile(
        self,
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        unmarked_ids: Iterable[int] | None = None,
        scheme: Scheme = Scheme(),  # noqa: B008 - frozen
    ) -> str:
        """Add a profile, for agents that use another model or scheme.

        Args:
            tokenizer: as in `create`.
            vocab_size: as in `create`.
            unmarked_ids: as in `create`.
            scheme: as in `create`.

        Returns:
            The profile's id. One that is already here keeps its place.

        Raises:
            InputError, TokenizerMismatch, RegistryError: as in `create`.
        """
        if tokenizer is None and vocab_size is None:
            raise InputError("tokenizer and vocab_size: got neither, expected at least one")
        if not isinstance(scheme, Scheme):
            raise InputError(f"scheme: got {type(scheme).__name__}, expected iet.Scheme")
        if tokenizer is None:
            assert vocab_size is not None
            profile = Profile(scheme, vocab_size)
            special: Iterable[int] = ()
        else:
            if not isinstance(tokenizer, Tokenizer):
                tokenizer = Tokenizer(tokenizer)
            source = tokenizer.source
            if source is not None and is_path(source):
                source = os.path.abspath(source)
            size = tokenizer.vocab_size if vocab_size is None else vocab_size
            profile = Profile(scheme, size, tokenizer.digest, tokenizer_source=source)
            if tokenizer.source is None:
                self._tokenizers[tokenizer.digest] = tokenizer
            special = (i for i in tokenizer.special_ids if i < size)
        unmarked = tuple(special if unmarked_ids is None else unmarked_ids)
        profile = dataclasses.replace(profile, unmarked_ids=unmarked)
        check_frequency(profile)
        profile = _with_source_seen_from(profile, None, self._path)
        with self._lock:
            if profile.id not in self._profiles:
                self._commit({**self._profiles, profile.id: profile}, self._agents)
        return profile.id

    def add(self, name: str, *, profile: str | None = None, secret: bytes | None = None) -> int:
        """Add an agent with a fresh key.

        Args:
            name: 1 to 200 characters, kept in NFC; no control or invisible ones, no space at either end, none
                of the words that reports use ("unattributed"). It must not look like the name of an agent
                that is here, by Unicode's table of confusables.
            profile: id of its profile.
            secret: exactly 32 bytes, for tests and demos. Default: drawn from the operating system.

        Returns:
            The agent's slot.

        Raises:
            InputError: the name or the secret is refused, or the profile must be named.
            RegistryError: the name or the secret is taken, the profile is unknown, or saving failed.
        """
        return self._add([name], profile, secret)[0]

    def add_many(self, names: Iterable[str], *, profile: str | None = None) -> list[int]:
        """Add agents, each with a fresh key: all of them, written once, or none.

        Args:
            names: as in `add`, each once.
            profile: as in `add`.

        Returns:
            Their slots.

        Raises:
            InputError, RegistryError: as in `add`. Nothing has changed then.

        O(agents), which each single `add` takes, too.
        """
        if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
            raise InputError(f"names: got {type(names).__name__}, expected names of agents")
        return self._add(list(names), profile, None)

    def _add(self, names: Sequence[str], profile: str | None, secret: bytes | None) -> list[int]:
        with self._lock:
            chosen, agents = self.get_profile(profile), dict(self._agents)
            looks = {skeleton(name): name for name in agents}
            added = []
            for given in names:
                name = new_name(given, looks)
                if name in agents and name not in self._agents:
                    raise InputError(f"agent name: got {name!r} twice, expected each once")
                if name in agents:
                    raise RegistryError(f"agent {name!r} is here already; iet keys rotate gives it a new key")
                key = AgentKey(name, 0, _now(), new_secret(chosen, secret))
                agents[name], looks[skeleton(name)] = Member(chosen.id, (key,)), name
                added.append(name)
            if added:
                self._commit(self._profiles, agents)
            return [self.slot(name) for name in added]

    def rotate(self, name: str, *, secret: bytes | None = None) -> int:
        """Give an agent a new key. The old ones stay, so that text marked under them is still found.

        Args:
            name: the agent.
            secret: as in `add`.

        Returns:
            The new key's epoch.

        Raises:
            InputError: the secret is refused.
            RegistryError: the agent is unknown, the secret is taken, or saving failed.
        """
        with self._lock:
            agent = self._agent(name)
            last = agent.keys[-1]
            secret = new_secret(self._profiles[agent.profile], secret)
            key = AgentKey(last.agent, last.epoch + 1, _now(), secret)
            rotated = Member(agent.profile, (*agent.keys, key))
            self._commit(self._profiles, {**self._agents, key.agent: rotated})
            return key.epoch

    def session(self, session: str) -> Registry:
        """Return the registry of a session: the same agents, slots and profiles, under keys of its own.

        Each secret is replaced by BLAKE2b, keyed with it, of the session's id (docs/how/scheme.md), so that
        whoever knows what was written in other sessions, or their keys, knows nothing of this one. Epochs
        and frequencies are those of the agents' own keys. Mark with it as with any registry; to find
        out which session a text is of, read with `Auditor(registry, sessions=[...])`.

        >>> registry = Registry.create(None, vocab_size=50257)
        >>> registry.add("planner")
        0
        >>> registry.session("run-7").names()
        ('planner',)

        Args:
            session: its id, 1 to 200 characters, none of them a control or invisible one, no space at either
                end. Taken as it is: another case, or another form of Unicode, is another session.

        Returns:
            A registry in memory, of the keys that are here now; agents are added and rotated in this one. A
            host that marks in one session alone can be given its `export`, which opens no other session. It
            has sessions of its own, which are not those of this registry.

        Raises:
            InputError: no such id.

        Deterministic. O(keys).
        """
        found = Registry()
        session = checked_session(session)
        with self._lock:
            profiles, agents = self._profiles, self._agents
        found._profiles = {
            id: _with_source_seen_from(profile, self._path, None) for id, profile in profiles.items()
        }
        found._agents = {
            name: Member(
                agent.profile,
                tuple(session_key(key, session, profiles[agent.profile]) for key in agent.keys),
            )
            for name, agent in agents.items()
        }
        found._tokenizers, found._session = self._tokenizers, (self, session)
        return found

    def export(
        self,
        path: str | os.PathLike[str] | None,
        agents: Sequence[str],
        *,
        all_epochs: bool = False,
        with_tokenizer: bool = False,
    ) -> Registry:
        """Write a registry with the given agents only, for the host that marks as them.

        Args:
            path: a new file. None: in memory only.
            agents: names, in the order of the new slots.
            all_epochs: include keys that no longer mark.
            with_tokenizer: write the tokenizer of each profile beside it, `NAME.PROFILE.tokenizer.json.gz`,
                where it is found wherever both are moved to.

        Returns:
            The new registry. No other secret is in it.

        Raises:
            InputError: `agents` is no sequence of names, or empty, or tokenizers have no file to go with.
            TokenizerMismatch: a tokenizer is not to be found, or is another one.
            RegistryError: an agent is unknown, or `path` exists or cannot be written.
        """
        if isinstance(agents, (str, bytes)) or not isinstance(agents, Sequence) or not agents:
            raise InputError(f"agents: got {type(agents).__name__}, expected a list with at least one name")
        exported = Registry()
        for name in agents:
            agent = self._agent(name)
            keys = agent.keys if all_epochs else agent.keys[-1:]
            exported._agents[keys[-1].agent] = Member(agent.profile, keys)
            profile = _with_source_seen_from(self._profiles[agent.profile], self._path, None)
            exported._profiles[agent.profile] = profile
        exported._tokenizers = dict(self._tokenizers)
        if with_tokenizer:
            if path is None:
                raise InputError("with_tokenizer: got no path, expected one: they are written beside it")
            exported._save_with(_absolute(path), self)
        elif path is not None:
            exported._save_as(path, ABSENT)
        return exported

    def merge(self, other: Registry) -> None:
        """Take over the profiles, agents and epochs of another registry.

        Args:
            other: the other registry, which stays as it is.

        Raises:
            InputError: `other` is no registry.
            RegistryError: an agent has another profile there, or in the same epoch another secret, or saving
                failed. Nothing has changed then.
        """
        if not isinstance(other, Registry):
            raise InputError(f"other: got {type(other).__name__}, expected iet.Registry")
        agents, profiles = other._agents, other._profiles  # in this order: profiles only ever become more
        with self._lock:
            new = {
                id: _with_source_seen_from(profile, other._path, self._path)
                for id, profile in profiles.items()
                if id not in self._profiles
            }
            self._commit({**self._profiles, **new}, merged(self._agents, agents))
            self._tokenizers = {**other._tokenizers, **self._tokenizers}

    @property
    def path(self) -> pathlib.Path | None:
        """The registry's file, or None."""
        return self._path

    @property
    def of_session(self) -> tuple[Registry, str] | None:
        """The registry that this one is a session of, and the session's id; None: it is none."""
        return self._session

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Every profile by its id, read-only."""
        return types.MappingProxyType(self._profiles)

    @property
    def profile(self) -> Profile:
        """The only profile. Raises InputError, with the ids, when there are several."""
        return self.get_profile(None)

    def get_profile(self, profile: str | None) -> Profile:
        """Return the profile with this id, or of None the only one.

        Raises:
            InputError: None was given and there is not exactly one.
            RegistryError: the id is unknown.
        """
        if profile is None:
            if len(self._profiles) != 1:
                raise InputError(f"profile: got None, expected one of {list(self._profiles)}")
            return next(iter(self._profiles.values()))
        if profile not in self._profiles:
            raise RegistryError(f"profile {profile!r} is not in the registry; known: {list(self._profiles)}")
        return self._profiles[profile]

    def profile_of(self, name: str) -> Profile:
        """Return the profile that an agent marks under. Unknown: RegistryError."""
        return self._profiles[self._agent(name).profile]

    def open_tokenizer(self, profile: str | None = None, source: Any = None) -> Tokenizer:
        """Open a profile's tokenizer and compare its digest.

        Args:
            profile: id of the profile.
            source: where it is on this machine. Default: the one that the profile was made with in this
                process, or where it was found then.

        Raises:
            InputError, RegistryError: as in `get_profile`.
            TokenizerMismatch: none is known or there, or it is another one.
        """
        chosen = self.get_profile(profile)
        if chosen.tokenizer_digest is None:
            raise TokenizerMismatch(f"profile {chosen.id} has no tokenizer: it reads token ids only")
        if source is None:
            source = self._tokenizers.get(chosen.tokenizer_digest)
        if source is None:
            source = _with_source_seen_from(chosen, self._path, None).tokenizer_source
        expected = _expected(chosen)
        if source is None:
            raise TokenizerMismatch(f"{expected}, but does not say where it is; pass it: --tokenizer PATH")
        try:
            tokenizer = source if isinstance(source, Tokenizer) else Tokenizer(source)
        except TokenizerMismatch as error:
            raise TokenizerMismatch(
                f"{error}. {expected}; pass it: --tokenizer PATH; a registry for another host takes it along:"
                " iet keys export --with-tokenizer"
            ) from None
        if tokenizer.digest != chosen.tokenizer_digest:
            raise TokenizerMismatch(
                f"tokenizer: got digest {tokenizer.digest[:16]} of {tokenizer.vocab_size:,} tokens"
                f"{'' if tokenizer.source is None else f' ({tokenizer.source})'}. {expected}"
            )
        return tokenizer

    def names(self, profile: str | None = None) -> tuple[str, ...]:
        """Return the agents of a profile in slot order, which is the order they were added in."""
        return tuple(self._slots_of(self.get_profile(profile).id))

    def slot(self, name: str, profile: str | None = None) -> int:
        """Return an agent's slot.

        Args:
            name: the agent.
            profile: id of a profile that it must belong to. Default: its own, whichever that is.

        Raises:
            RegistryError: the agent is unknown, or not of this profile.
        """
        agent = self._agent(name)
        if profile is not None and self.get_profile(profile).id != agent.profile:
            raise RegistryError(f"agent {name!r} has profile {agent.profile}, not {profile}")
        return self._slots_of(agent.profile)[agent.keys[-1].agent]

    def keys(self, name: str) -> tuple[AgentKey, ...]:
        """Return an agent's keys, epochs ascending. Unknown: RegistryError."""
        return self._agent(name).keys

    def marking_keys(self, profile: str | None = None) -> KeyTable:
        """Return the current key of each agent of a profile, in slot order: a slot is a row of the table."""
        chosen = self.get_profile(profile)
        found = self._marking.get(chosen.id)
        if found is None:
            with self._lock:
                found = self._marking.setdefault(chosen.id, self._table(chosen, slice(-1, None)))
        return found

    def scoring_keys(self, profile: str | None = None) -> KeyTable:
        """Return every key of each agent of a profile: agents in slot order, then epochs."""
        chosen = self.get_profile(profile)
        found = self._scoring.get(chosen.id)
        if found is None:
            with self._lock:
                found = self._scoring.setdefault(chosen.id, self._table(chosen, slice(None)))
        return found

    def session_keys(self, sessions: Sequence[str], profile: str | None = None) -> KeyTable:
        """Return every key of each agent of a profile, and those that it has in some sessions.

        Args:
            sessions: ids, each once, as in `session`.
            profile: id of the profile.

        Returns:
            Agents in slot order; of each `scoring_keys`, then those of `session(id)` for one id after the
            other. `KeyTable.sessions` says which is which.

        Raises:
            InputError: an id is none, or the profile must be named.
            RegistryError: the profile is unknown.

        O(sessions·keys), some 4 µs and 48 bytes each.
        """
        checked = [checked_session(session) for session in sessions]
        with self._lock:
            own = self.scoring_keys(profile)
            keys = [key for name in own.names for key in self._agents[name].keys]
        return with_sessions(own, keys, checked)

    def engine_keys(
        self, engine: str, *, agent: str | None = None, profile: str | None = None
    ) -> tuple[EngineKey, ...]:
        """Return the keys that an engine's own watermark takes, for whoever holds this registry.

        Agents in slot order, epochs ascending: entry k belongs to column k of `scoring_keys`. The last epoch
        of an agent is the one to mark with.

        Args:
            engine: whose watermark, a name in `ENGINE_KEY_BYTES`. Each gets keys of its own.
            agent: only this one's keys.
            profile: id of the profile, where the registry has several and no agent is named.

        Raises:
            InputError: no such engine, or the profile must be named.
            RegistryError: the agent or the profile is unknown.
        """
        if not isinstance(engine, str) or engine not in ENGINE_KEY_BYTES:
            raise InputError(f"engine: got {engine!r:.80}, expected one of {', '.join(ENGINE_KEY_BYTES)}")
        names = self.names(profile) if agent is None else (agent,)
        return tuple(
            EngineKey(key.agent, key.epoch, derive_engine_key(key.secret, engine))
            for name in names
            for key in self._agent(name).keys
        )

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, over profiles, names, epochs and a commitment to each secret.

        It says whether two registries hold the same, whatever the order, and reveals no secret. It is made of
        the root of a Merkle tree (`iet.marks.commitment`), so that `open_key` can show of a single key that
        it is in there. O(keys).
        """
        return registry_digest(tuple(self._profiles), self._leaves())

    def open_key(self, name: str, epoch: int | None = None) -> Opening:
        """Return what shows a third party that this registry's digest commits to a key of an agent.

        It holds no secret: pass it on with `export`, which holds that agent's alone. `has_key` tells whether
        they belong together, and `Opening.digest` which registry they were in.

        Args:
            name: the agent.
            epoch: of the key. None: the one that marks.

        Raises:
            RegistryError: the agent is unknown, or has no such epoch.
        """
        agent = self._agent(name)
        keys = {key.epoch: key for key in agent.keys}
        if epoch is not None and epoch not in keys:
            raise RegistryError(f"agent {name!r}: got epoch {epoch!r}, expected one of {list(keys)}")
        leaf = _leaf(agent, agent.keys[-1] if epoch is None else keys[epoch])
        return open_leaf(tuple(self._profiles), self._leaves(), leaf)

    def has_key(self, opening: Opening) -> bool:
        """Tell whether this registry holds the key that was opened, alike in all that `Leaf` says of it."""
        agent = self._agents.get(opening.leaf.agent)
        return agent is not None and opening.leaf in (_leaf(agent, key) for key in agent.keys)

    def _leaves(self) -> list[Leaf]:
        return [_leaf(agent, key) for agent in self._agents.values() for key in agent.keys]

    def __len__(self) -> int:
        return len(self._agents)

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __repr__(self) -> str:
        where = "in memory" if self._path is None else str(self._path)
        if self._session is not None:
            where = f"session {self._session[1]!r}"
        return f"Registry({where}, agents: {_listed(self._agents)}; profiles: {len(self._profiles)})"

    # Generation configs hold a registry and are copied before each call.
    def __copy__(self) -> Registry:
        return self

    def __deepcopy__(self, memo: object) -> Registry:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._session is not None:
            return Registry.session, self._session
        if self._path is None:
            raise RegistryError(
                "a registry in memory is not pickled: the pickle would hold its secrets; save() it first"
            )
        return _load_again, (str(self._path), self._read_only)

    def _find(self, name: str) -> Member | None:
        # Names are kept in NFC, but for some of registries that earlier releases made.
        return self._agents.get(name) or self._agents.get(unicodedata.normalize("NFC", name))

    def _agent(self, name: str) -> Member:
        if not isinstance(name, str):
            raise InputError(f"agent name: got {type(name).__name__}, expected str")
        found = self._find(name)
        if found is not None:
            return found
        import difflib  # here and below: `import iet` is shorter without them

        near = difflib.get_close_matches(name, self._agents, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RegistryError(f"agent {name!r} is not in the registry; {hint}known: {_listed(self._agents)}")

    def _slots_of(self, profile: str) -> dict[str, int]:
        found = self._slots.get(profile)
        if found is None:
            with self._lock:
                members = (name for name, agent in self._agents.items() if agent.profile == profile)
                found = self._slots.setdefault(profile, {name: slot for slot, name in enumerate(members)})
        return found

    def _table(self, profile: Profile, epochs: slice) -> KeyTable:
        names = self.names(profile.id)
        keys = [key for name in names for key in self._agents[name].keys[epochs]]
        return KeyTable.derive(profile, names, keys)

    def _commit(self, profiles: dict[str, Profile], agents: dict[str, Member]) -> None:
        # The one way in which a registry changes: the file comes first, so a failure changes nothing. Tables
        # of before are dropped with the dicts that hold them, and made under the lock: none is kept here.
        if self._session is not None:
            raise RegistryError(
                f"session {self._session[1]!r}: its keys follow from its registry's, expected changes there"
            )
        refuse_shared_secrets(agents)
        if self._path is not None:
            if self._read_only:
                raise RegistryError(f"{self._path}: loaded as a secret mount, so it is read-only")
            self._fingerprint = replace(self._path, dump(profiles, agents), self._fingerprint)
        self._profiles, self._agents = profiles, agents
        self._slots, self._marking, self._scoring = {}, {}, {}

    def _save_as(self, path: str | os.PathLike[str], expected: str | None) -> None:
        target = _absolute(path)
        profiles = {
            id: _with_source_seen_from(profile, self._path, target) for id, profile in self._profiles.items()
        }
        self._fingerprint = replace(target, dump(profiles, self._agents), expected)
        self._profiles, self._path, self._read_only = profiles, target, False

    def _save_with(self, path: pathlib.Path, of: Registry) -> None:
        """Save to a new file, and beside it the tokenizers, which `of` opens; or write nothing."""
        check_absent(path)
        targets = {
            id: (path.with_name(f"{path.stem}.{id}{SUFFIX}"), of.open_tokenizer(id).backend)
            for id, profile in self._profiles.items()
            if profile.tokenizer_digest is not None
        }
        for id, (target, _) in targets.items():
            self._profiles[id] = dataclasses.replace(self._profiles[id], tokenizer_source=str(target))
        written: list[pathlib.Path] = []
        try:
            for target, backend in targets.values():
                if not target.exists():
                    written.append(target)
                save(target, backend)
            self._save_as(path, ABSENT)
        except Exception:
            for target in written:
                target.unlink(missing_ok=True)
            raise

    def _read(self, data: Secret, where: str) -> None:
        problem = None
        try:
            self._profiles, self._agents = parse(data)
        except IetError as error:
            problem = type(error)(f"{where}: {error}")
        if problem is not None:
            # Out here, so that the frames that held the content are not part of it.
            raise problem


def _leaf(agent: Member, key: AgentKey) -> Leaf:
    return Leaf(key.agent, key.epoch, agent.profile, commitment(key.secret))


def _load_again(path: str, secret_mount: bool) -> Registry:
    return Registry.load(path, secret_mount=secret_mount)


def _absolute(path: str | os.PathLike[str]) -> pathlib.Path:
    check_path("path", path)
    return pathlib.Path(path).expanduser().absolute()


def _expected(profile: Profile) -> str:
    """Say whose tokenizer a profile expects."""
    assert profile.tokenizer_digest is not None
    was = (
        ""
        if profile.tokenizer_source is None
        else f", found at {profile.tokenizer_source!r} when it was made"
    )
    return (
        f"profile {profile.id} expects the tokenizer of digest {profile.tokenizer_digest[:16]}, V"
        f" {profile.vocab_size:,}{was}"
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _listed(names: Mapping[str, object]) -> str:
    shown = ", ".join(list(names)[:20]) or "none"
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _with_source_seen_from(profile: Profile, old: pathlib.Path | None, new: pathlib.Path | None) -> Profile:
    # A tokenizer at or below the registry's folder is named from there, so that both can move together.
    source = profile.tokenizer_source
    if source is None or not is_path(source):
        return profile
    where = pathlib.Path(source) if old is None else old.parent / source
    if new is not None and where.is_relative_to(new.parent):
        where = where.relative_to(new.parent)
    return dataclasses.replace(profile, tokenizer_source=where.as_posix())
