"""The agents of a registry with their keys: what no two share, and how those of two registries join."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from iet.errors import RegistryError
from iet.marks.keys import AgentKey


@dataclasses.dataclass(frozen=True)
class Member:
    """An agent of a registry.

    Attributes:
        profile: id of its profile.
        keys: epochs ascending; the last one marks.
    """

    profile: str
    keys: tuple[AgentKey, ...]


def refuse_shared_secrets(agents: Mapping[str, Member]) -> None:
    """Raise a RegistryError if two keys have one secret."""
    owners: dict[bytes, AgentKey] = {}
    for agent in agents.values():
        for key in agent.keys:
            first = owners.setdefault(key.secret, key)
            if first is not key:
                raise RegistryError(
                    f"agent {key.agent!r} epoch {key.epoch} has the secret of agent {first.agent!r} epoch"
                    f" {first.epoch}, so their texts could not be told apart"
                )


def merged(here: Mapping[str, Member], there: Mapping[str, Member]) -> dict[str, Member]:
    """Return the agents of both, each with the epochs of both.

    Raises:
        RegistryError: an agent has another profile there, or in the same epoch another secret.
    """
    agents = dict(here)
    for name, theirs in there.items():
        ours = agents.get(name, theirs)
        if ours.profile != theirs.profile:
            raise RegistryError(
                f"agent {name!r} has profile {ours.profile} here and {theirs.profile} there;"
                " nothing was merged"
            )
        keys = {key.epoch: key for key in theirs.keys}
        for key in ours.keys:
            same = keys.get(key.epoch, key)
            if same.secret != key.secret:
                raise RegistryError(
                    f"agent {name!r} has another secret in epoch {key.epoch} there; nothing was merged"
                )
            keys[key.epoch] = key
        agents[name] = Member(ours.profile, tuple(keys[epoch] for epoch in sorted(keys)))
    return agents
