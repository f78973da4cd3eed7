"""The content of a registry: its profiles and its agents with their keys. A state never changes."""

from __future__ import annotations

import dataclasses
import pathlib
import unicodedata
from collections.abc import Mapping, Sequence

from iet.errors import InputError, RegistryError
from iet.marks.commitment import Leaf, commitment
from iet.marks.keys import AgentKey, KeyTable
from iet.marks.profiles import with_relative_source
from iet.marks.scheme import Profile
from iet.marks.sessions import session_key


@dataclasses.dataclass(frozen=True)
class Agent:
    """An agent of a registry.

    Attributes:
        profile: id of its profile.
        keys: epochs ascending; the last key marks.
    """

    profile: str
    keys: tuple[AgentKey, ...]

    def leaf(self, key: AgentKey) -> Leaf:
        """Return the leaf of one of its keys in the registry's hash tree."""
        return Leaf(key.agent, key.epoch, self.profile, commitment(key.secret))


class RegistryState:
    """Profiles and agents, with tables that are derived on first use and then cached.

    Every change of a registry makes a new state, so cached tables cannot be stale and readers need no lock.

    Args:
        profiles: by id.
        agents: by name, first added first.

    Raises:
        RegistryError: two keys have one secret.
    """

    def __init__(self, profiles: Mapping[str, Profile], agents: Mapping[str, Agent]) -> None:
        self.profiles, self.agents = profiles, agents
        self._slots: dict[str, dict[str, int]] = {}
        self._tables: dict[tuple[str, bool], KeyTable] = {}
        owners: dict[bytes, AgentKey] = {}
        for agent in agents.values():
            for key in agent.keys:
                first = owners.setdefault(key.secret, key)
                if first is not key:
                    raise RegistryError(
                        f"agent {key.agent!r} epoch {key.epoch} has the secret of agent {first.agent!r} epoch"
                        f" {first.epoch}, so their texts could not be told apart; expected distinct secrets"
                    )

    def get_profile(self, profile: str | None) -> Profile:
        """Return the profile with this id; None: the only profile."""
        if profile is None:
            if len(self.profiles) != 1:
                raise InputError(f"profile: got None, expected one of {list(self.profiles)}")
            return next(iter(self.profiles.values()))
        if profile not in self.profiles:
            raise RegistryError(f"profile {profile!r} is not in the registry; known: {list(self.profiles)}")
        return self.profiles[profile]

    def find(self, name: str) -> Agent | None:
        """Return an agent, None if it is unknown."""
        # Names are stored in NFC, except for some in registries that earlier releases made.
        return self.agents.get(name) or self.agents.get(unicodedata.normalize("NFC", name))

    def agent(self, name: str) -> Agent:
        """Return an agent, or raise a RegistryError that suggests a similar name."""
        if not isinstance(name, str):
            raise InputError(f"agent name: got {type(name).__name__}, expected str")
        agent = self.find(name)
        if agent is not None:
            return agent
        import difflib  # not at the top: it would slow `import iet` down

        similar = difflib.get_close_matches(name, self.agents, 1)
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        raise RegistryError(f"agent {name!r} is not in the registry; {hint}known: {self.listed_agents()}")

    def listed_agents(self) -> str:
        """Return the names of the first 20 agents, and how many more there are."""
        names = ", ".join(list(self.agents)[:20]) or "none"
        return names if len(self.agents) <= 20 else f"{names} and {len(self.agents) - 20} more"

    def slots(self, profile: str) -> dict[str, int]:
        """Return the slot of each agent of a profile, by name, in slot order."""
        if profile not in self._slots:
            names = (name for name, agent in self.agents.items() if agent.profile == profile)
            self._slots.setdefault(profile, {name: slot for slot, name in enumerate(names)})
        return self._slots[profile]

    def table(self, profile: str | None, *, all_epochs: bool) -> KeyTable:
        """Return the current key, or all keys, of each agent of a profile in slot order."""
        chosen = self.get_profile(profile)
        cached = self._tables.get((chosen.id, all_epochs))
        if cached is None:
            names = tuple(self.slots(chosen.id))
            epochs = slice(None) if all_epochs else slice(-1, None)
            keys = [key for name in names for key in self.agents[name].keys[epochs]]
            table = KeyTable.derive(chosen, names, keys)
            cached = self._tables.setdefault((chosen.id, all_epochs), table)
        return cached

    def leaves(self) -> list[Leaf]:
        """Return a leaf for every key."""
        return [agent.leaf(key) for agent in self.agents.values() for key in agent.keys]

    def with_agents(self, agents: Mapping[str, Agent]) -> RegistryState:
        """Return this state with these agents added or replaced."""
        return RegistryState(self.profiles, {**self.agents, **agents})

    def with_profile(self, profile: Profile) -> RegistryState:
        """Return this state with a profile added or replaced."""
        return RegistryState({**self.profiles, profile.id: profile}, self.agents)

    def moved(self, old: pathlib.Path | None, new: pathlib.Path | None) -> RegistryState:
        """Return the state for another registry file: paths of tokenizers are relative to the file's folder.

        Args:
            old: the file that they are relative to now; None: they are absolute.
            new: the file that they will be relative to; None: make them absolute.
        """
        profiles = {id: with_relative_source(p, old, new) for id, p in self.profiles.items()}
        return RegistryState(profiles, self.agents)

    def selected(self, names: Sequence[str], *, all_epochs: bool) -> RegistryState:
        """Return some agents only, in this order, with their profiles."""
        agents = {}
        for name in names:
            agent = self.agent(name)
            keys = agent.keys if all_epochs else agent.keys[-1:]
            agents[keys[-1].agent] = Agent(agent.profile, keys)
        profiles = {agent.profile: self.profiles[agent.profile] for agent in agents.values()}
        return RegistryState(profiles, agents)

    def in_session(self, session: str) -> RegistryState:
        """Return the same agents and profiles with the keys that the agents have in a session.

        Args:
            session: a checked id.
        """
        agents = {}
        for name, agent in self.agents.items():
            profile = self.profiles[agent.profile]
            keys = tuple(session_key(key, session, profile) for key in agent.keys)
            agents[name] = Agent(agent.profile, keys)
        return RegistryState(self.profiles, agents)

    def merged(self, other: RegistryState) -> RegistryState:
        """Return the profiles, agents and epochs of both states; this one's profiles win.

        Raises:
            RegistryError: an agent has another profile in `other`, or another secret in the same epoch.
        """
        agents = dict(self.agents)
        for name, incoming in other.agents.items():
            present = agents.get(name, incoming)
            if present.profile != incoming.profile:
                raise RegistryError(
                    f"agent {name!r} has profile {present.profile} here and {incoming.profile} there;"
                    " nothing was merged"
                )
            keys = {key.epoch: key for key in incoming.keys}
            for key in present.keys:
                if keys.get(key.epoch, key).secret != key.secret:
                    raise RegistryError(
                        f"agent {name!r} has another secret in epoch {key.epoch} there; nothing was merged"
                    )
                keys[key.epoch] = key
            agents[name] = Agent(present.profile, tuple(keys[epoch] for epoch in sorted(keys)))
        return RegistryState({**other.profiles, **self.profiles}, agents)
