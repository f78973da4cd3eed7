"""The registry: agents, their secret keys, and the profiles that they mark under.

A secret leaves a registry in two ways only: into a registry file, and as the sub-keys of a `KeyTable`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from iet.errors import IetError, InputError, RegistryError, check_path
from iet.marks.derivation import new_secret
from iet.marks.files import read_private
from iet.marks.keys import AgentKey, Secret
from iet.marks.names import checked_session, new_name, skeleton
from iet.marks.profiles import make_profile, with_relative_source
from iet.marks.registry_file import ABSENT, dump, fingerprint, parse, replace
from iet.marks.registry_state import Agent, RegistryState
from iet.marks.registry_view import RegistryView
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import Tokenizer
from iet.marks.tokenizer_files import SUFFIX, save

ENVIRONMENT_VARIABLE = "IET_REGISTRY"
"""Names the file that `Registry.load()` reads."""


class Registry(RegistryView):
    """Agents with their keys, and the profiles that they mark under.

    `Registry()` is empty and in memory; use `create`, `load` or `loads`. If the registry has a file, every
    change is on disk before the call returns. A change that fails leaves the file and the object as they
    were. Use `add_many` to add thousands of agents. An agent's slot is its index in `names(profile)`. In all
    methods, None as a profile id means the only profile. Threads may share a registry. If two processes load
    a file and change it, the second change is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()  # held while a change is made
        self._fingerprint = ABSENT
        self._read_only = False
        self._session: tuple[Registry, str] | None = None

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
        """Make a registry with one profile and no agents, and write it to `path` with mode 0600.

        >>> registry = Registry.create(None, vocab_size=50257)
        >>> registry.add("planner")
        0
        >>> registry
        Registry(in memory, agents: planner; profiles: 1)

        Args:
            path: the new file. None: in memory only.
            tokenizer: anything that `iet.marks.tokenizer.Tokenizer` accepts.
            vocab_size: V, 1 to 2^24. Default: that of the tokenizer. Without a tokenizer, only token ids can
                be audited.
            unmarked_ids: special and padding ids below V. Default: those of the tokenizer, or none.
            scheme: the parameters of the mark.
            overwrite: replace an existing file, whose keys are lost.

        Returns:
            The registry.

        Raises:
            InputError: there is neither a tokenizer nor a vocabulary size, or a value is out of range.
            RegistryError: `path` exists or cannot be written.
            TokenizerMismatch: the tokenizer cannot be read.
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
            secret_mount: accept any mode if this process cannot write the file, as with the secrets that
                Kubernetes and Docker mount. The registry is then read-only.

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
        registry._state = _parsed(data, str(registry._path))
        registry._fingerprint = fingerprint(data)
        return registry

    @classmethod
    def loads(cls, data: str | bytes) -> Registry:
        """Read the content of a registry file, or the return value of `dumps`, into memory.

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
        registry._state = _parsed(data, "registry")
        return registry

    def dumps(self) -> str:
        """Return the content of the registry file. It holds every secret: protect it like the file."""
        return bytes(dump(self._state)).decode()

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write the file atomically.

        Args:
            path: a new file, which becomes the registry's file. Default: the present file; changes are saved
                there anyway.

        Raises:
            RegistryError: the file exists, has changed on disk since it was loaded, or cannot be written.
        """
        with self._lock:
            if path is not None and _absolute(path) != self._path:
                self._save_as(path, ABSENT)
            elif self._path is None:
                raise RegistryError("this registry is in memory only: pass a path")
            else:
                self._commit(self._state)

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
            tokenizer, vocab_size, unmarked_ids, scheme: as in `create`.

        Returns:
            The profile's id. If the registry has this profile already, nothing changes.

        Raises:
            InputError, TokenizerMismatch, RegistryError: as in `create`.
        """
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            tokenizer = Tokenizer(tokenizer)
        profile = make_profile(tokenizer, vocab_size, unmarked_ids, scheme)
        if tokenizer is not None and tokenizer.source is None:
            self._tokenizers[tokenizer.digest] = tokenizer
        with self._lock:
            if profile.id not in self._state.profiles:
                self._commit(self._state.with_profile(with_relative_source(profile, None, self._path)))
        return profile.id

    def add(self, name: str, *, profile: str | None = None, secret: bytes | None = None) -> int:
        """Add an agent with a fresh key.

        Args:
            name: 1 to 200 characters, stored in NFC; no control or invisible characters, no space at either
                end, none of the words that reports use ("unattributed"). It must not look like the name of
                another agent, by Unicode's table of confusables.
            profile: id of its profile.
            secret: exactly 32 bytes, for tests and demos. Default: drawn from the operating system.

        Returns:
            The agent's slot.

        Raises:
            InputError: the name or the secret is invalid, or the profile must be named.
            RegistryError: the name or the secret is taken, the profile is unknown, or saving failed.
        """
        return self._add([name], profile, secret)[0]

    def add_many(self, names: Iterable[str], *, profile: str | None = None) -> list[int]:
        """Add agents, each with a fresh key, and write the file once: all are added or none. O(agents).

        Args:
            names: as in `add`, without repeats.
            profile: as in `add`.

        Returns:
            Their slots.

        Raises:
            InputError, RegistryError: as in `add`. Nothing has changed then.
        """
        if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
            raise InputError(f"names: got {type(names).__name__}, expected names of agents")
        return self._add(list(names), profile, None)

    def _add(self, names: Sequence[str], profile: str | None, secret: bytes | None) -> list[int]:
        with self._lock:
            state, chosen, added = self._state, self._state.get_profile(profile), dict[str, Agent]()
            skeletons = {skeleton(name): name for name in state.agents}
            for requested in names:
                name = new_name(requested, skeletons)
                if name in added:
                    raise InputError(f"agent name: got {name!r} twice, expected each once")
                if name in state.agents:
                    raise RegistryError(
                        f"agent {name!r} exists; iet keys rotate gives it a new key (not in an export: the"
                        " registry's auditors would not know it)"
                    )
                key = AgentKey(name, 0, _now(), new_secret(chosen, secret))
                added[name], skeletons[skeleton(name)] = Agent(chosen.id, (key,)), name
            if added:
                self._commit(state.with_agents(added))
            return [self.slot(name) for name in added]

    def rotate(self, name: str, *, secret: bytes | None = None) -> int:
        """Give an agent a new key. It keeps the old ones, so text marked under them is still attributed.

        Args:
            name: the agent.
            secret: as in `add`.

        Returns:
            The new key's epoch.

        Raises:
            InputError: the secret is invalid.
            RegistryError: the agent is unknown, the secret is taken, or saving failed.
        """
        with self._lock:
            agent = self._state.agent(name)
            last = agent.keys[-1]
            secret = new_secret(self._state.profiles[agent.profile], secret)
            key = AgentKey(last.agent, last.epoch + 1, _now(), secret)
            self._commit(self._state.with_agents({key.agent: Agent(agent.profile, (*agent.keys, key))}))
            return key.epoch

    def session(self, session: str) -> Registry:
        """Return the registry of a session: the same agents, slots and profiles, under keys of the session.

        Each secret is replaced by BLAKE2b, keyed with it, of the session's id (docs/internals/scheme.md).
        Text or keys of other sessions reveal nothing about this one. Epochs and frequencies are
        those of the agents' own keys. Use the result to mark. To find out which session a text
        was written in, use `Auditor(registry, sessions=[...])`. Deterministic. O(keys).

        >>> registry = Registry.create(None, vocab_size=50257)
        >>> registry.add("planner")
        0
        >>> registry.session("run-7").names()
        ('planner',)

        Args:
            session: its id, 1 to 200 characters without control or invisible ones and without a space at
                either end. It is hashed as it is: another case or Unicode form is another session.

        Returns:
            A registry in memory with the keys as they are now; agents can be added and rotated in this
            registry only. Its `export` suits a host that marks in one session, because it reveals no other
            session. Its own `session` derives further keys, which differ from those of this registry.

        Raises:
            InputError: the id is invalid.
        """
        registry = Registry()
        registry._session = self, checked_session(session)
        registry._state = self._state.in_session(session).moved(self._path, None)
        registry._tokenizers = self._tokenizers
        return registry

    def export(
        self,
        path: str | os.PathLike[str] | None,
        agents: Sequence[str],
        *,
        all_epochs: bool = False,
        with_tokenizer: bool = False,
        replace: bool = False,
    ) -> Registry:
        """Write a registry with the given agents only, for the host that marks as them.

        Args:
            path: a new file, or with `replace` an earlier export. None: in memory only.
            agents: names, in the order of the new slots.
            all_epochs: include keys that no longer mark.
            with_tokenizer: write the tokenizer of each profile to the same folder, as
                `NAME.PROFILE.tokenizer.json.gz`. The two files can be moved together.
            replace: replace the file if it exists and all of its keys are in this registry, as those of an
                earlier export are.

        Returns:
            The new registry. It holds no other agent's secret.

        Raises:
            InputError: `agents` is not a sequence of names, or is empty; or `with_tokenizer` without a path.
            TokenizerMismatch: a tokenizer is missing or has another digest.
            RegistryError: an agent is unknown, or `path` may not be replaced, or cannot be written.
        """
        if isinstance(agents, (str, bytes)) or not isinstance(agents, Sequence) or not agents:
            raise InputError(f"agents: got {type(agents).__name__}, expected a list with at least one name")
        expected = ABSENT if path is None else self._check_replaceable(_absolute(path), replace)
        exported = Registry()
        exported._state = self._state.selected(agents, all_epochs=all_epochs).moved(self._path, None)
        exported._tokenizers = dict(self._tokenizers)
        if with_tokenizer:
            if path is None:
                raise InputError("with_tokenizer: got no path, expected the file to write tokenizers next to")
            exported._save_with_tokenizers(_absolute(path), self, expected)
        elif path is not None:
            exported._save_as(path, expected)
        return exported

    def _check_replaceable(self, path: pathlib.Path, replace: bool) -> str:
        """Return the fingerprint of an export that may be replaced, or `ABSENT`; or raise a RegistryError."""
        if not path.exists():
            return ABSENT
        if self._path is not None and self._path.exists() and path.samefile(self._path):
            raise RegistryError(f"{path}: it is the registry itself, expected another file")
        if not replace:
            raise RegistryError(
                f"{path}: it exists; iet keys export --replace replaces an earlier export of this registry"
            )
        earlier = Registry.load(path)
        lost = set(earlier._state.leaves()) - set(self._state.leaves())
        if lost:
            raise RegistryError(
                f"{path}: it holds a key of {min(leaf.agent for leaf in lost)!r} that this registry lacks and"
                " that would be lost; expected an earlier export of this registry"
            )
        assert earlier._fingerprint is not None
        return earlier._fingerprint

    def merge(self, other: Registry) -> None:
        """Add the profiles, agents and epochs of another registry.

        Args:
            other: the other registry, which does not change.

        Raises:
            InputError: `other` is not a registry.
            RegistryError: an agent has another profile there, or another secret in the same epoch, or saving
                failed. Nothing has changed then.
        """
        if not isinstance(other, Registry):
            raise InputError(f"other: got {type(other).__name__}, expected iet.Registry")
        with self._lock:
            self._commit(self._state.merged(other._state.moved(other._path, self._path)))
            self._tokenizers = {**other._tokenizers, **self._tokenizers}

    @property
    def of_session(self) -> tuple[Registry, str] | None:
        """The registry that `session` was called on, and the id; None if this is not a session's registry."""
        return self._session

    def __repr__(self) -> str:
        origin = "in memory" if self._path is None else str(self._path)
        if self._session is not None:
            origin = f"session {self._session[1]!r}"
        state = self._state
        return f"Registry({origin}, agents: {state.listed_agents()}; profiles: {len(state.profiles)})"

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

    def _commit(self, state: RegistryState) -> None:
        """Write a new state to the file and then adopt it. Registries change in no other way."""
        if self._session is not None:
            raise RegistryError(
                f"session {self._session[1]!r}: its keys follow from its registry's, expected changes there"
            )
        if self._path is not None:
            if self._read_only:
                raise RegistryError(f"{self._path}: loaded as a secret mount, so it is read-only")
            self._fingerprint = replace(self._path, dump(state), self._fingerprint)
        self._state = state

    def _save_as(self, path: str | os.PathLike[str], expected: str | None) -> None:
        target = _absolute(path)
        state = self._state.moved(self._path, target)
        self._fingerprint = replace(target, dump(state), expected)
        self._state, self._path, self._read_only = state, target, False

    def _save_with_tokenizers(self, path: pathlib.Path, opener: Registry, expected: str) -> None:
        """Save, and to the file's folder the tokenizers, which `opener` opens; or write nothing."""
        tokenizers = {}
        for id, profile in self._state.profiles.items():
            if profile.tokenizer_digest is not None:
                target = path.with_name(f"{path.stem}.{id}{SUFFIX}")
                tokenizers[target] = opener.open_tokenizer(id).backend
                profile = dataclasses.replace(profile, tokenizer_source=str(target))
                self._state = self._state.with_profile(profile)
        with contextlib.ExitStack() as undo:
            for target, backend in tokenizers.items():
                if not target.exists():
                    undo.callback(target.unlink, missing_ok=True)
                save(target, backend)
            self._save_as(path, expected)
            undo.pop_all()


def _parsed(data: Secret, origin: str) -> RegistryState:
    problem = None
    try:
        return parse(data)
    except IetError as error:
        problem = type(error)(f"{origin}: {error}")
    raise problem  # outside of `except`, so that its traceback has no frame that holds the content


def _load_again(path: str, secret_mount: bool) -> Registry:
    return Registry.load(path, secret_mount=secret_mount)


def _absolute(path: str | os.PathLike[str]) -> pathlib.Path:
    check_path("path", path)
    return pathlib.Path(path).expanduser().absolute()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
