"""The file of a registry: its content, and how it replaces an older file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from iet.errors import RegistryError, SchemeMismatch
from iet.marks.derivation import checked_secret
from iet.marks.files import alone_in, write_file
from iet.marks.keys import AgentKey, Secret
from iet.marks.names import checked_name
from iet.marks.registry_state import Agent, RegistryState
from iet.marks.scheme import Profile, canonical_digest

FORMAT = "iet.registry/1"
"""First field of a registry file."""

ABSENT = ""
"""The fingerprint of a file that does not exist."""


def dump(state: RegistryState) -> Secret:
    """Return the content of the file. It holds every secret.

    Raises:
        RegistryError: the file format cannot hold the state: a string has no UTF-8 form, or the keys are of a
            session whose agents have frequencies of their own. The error quotes no content.
    """
    if any(key.k_p is not None for agent in state.agents.values() for key in agent.keys):
        raise RegistryError(
            'keys of a session under k_p "per-agent" have the frequencies of their agents, which a registry'
            " file cannot hold: save the registry, and take the session from it"
        )
    data = _encoded(state)
    if data is None:
        raise RegistryError("a name or a path has no UTF-8 form, so no registry file can hold it")
    return data


def _encoded(state: RegistryState) -> Secret | None:
    content: dict[str, Any] = {
        "format": FORMAT,
        "profiles": {id: _fields(profile) for id, profile in state.profiles.items()},
        "agents": {
            name: {
                "profile": agent.profile,
                "keys": [
                    {"epoch": key.epoch, "created": key.created, "secret": key.secret.hex()}
                    for key in agent.keys
                ],
            }
            for name, agent in state.agents.items()
        },
    }
    try:
        content["checksum"] = canonical_digest(content)
        return Secret(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
    except UnicodeEncodeError:  # The error holds the whole content, so it must not be raised or chained.
        return None


def _fields(profile: Profile) -> dict[str, Any]:
    fields = profile.to_dict()
    try:
        (profile.tokenizer_source or "").encode()
    except UnicodeEncodeError:  # a path in another encoding; it is only a hint, so the file omits it
        fields["tokenizer_source"] = None
    return fields


def parse(data: Secret) -> RegistryState:
    """Return the state that a file's content describes, or raise an error that quotes none of it."""
    try:
        content = json.loads(data.decode())
    except UnicodeDecodeError:
        raise RegistryError("not UTF-8, so no registry file") from None
    except json.JSONDecodeError as error:
        raise RegistryError(
            f"not JSON from line {error.lineno} on; is it cut off, or another file?"
        ) from None
    except (ValueError, RecursionError):
        raise RegistryError("not JSON that can be read, so no registry file") from None
    if not isinstance(content, dict) or not re.fullmatch(
        r"iet\.registry/\d{1,9}", str(content.get("format"))
    ):
        raise RegistryError(f'no registry file: its field "format" is not "{FORMAT}"')
    if content["format"] != FORMAT:
        raise RegistryError(
            f"format {content['format']}, of a draft or a later release; this release reads {FORMAT}"
        )
    checksum = content.pop("checksum", None)
    try:
        intact = checksum == canonical_digest(content)
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise RegistryError("its checksum does not fit: it was edited or damaged; take a copy from a backup")
    try:
        profiles = _parse_profiles(content["profiles"])
        return RegistryState(profiles, _parse_agents(content["agents"], profiles))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RegistryError("its profiles or agents are not as a registry file has them") from None


def _parse_profiles(content: dict[str, Any]) -> dict[str, Profile]:
    profiles = {}
    for id, fields in content.items():
        profile = Profile.from_dict(fields)
        if profile.id != id:
            raise SchemeMismatch(
                f"profile {id:.16} has id {profile.id} here: it was made by a release that marks differently"
            )
        profiles[id] = profile
    return profiles


def _parse_agents(content: dict[str, Any], profiles: Mapping[str, Profile]) -> dict[str, Agent]:
    agents = {}
    for name, fields in content.items():
        checked_name(name)
        keys: list[AgentKey] = []
        for key in fields["keys"]:
            epoch, created = key["epoch"], key["created"]
            if type(epoch) is not int or not (keys[-1].epoch if keys else -1) < epoch < 1 << 31:
                raise ValueError("epochs")
            if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created):
                raise ValueError("created")
            keys.append(AgentKey(name, epoch, created, checked_secret(bytes.fromhex(key["secret"]))))
        if not keys or fields["profile"] not in profiles:
            raise ValueError("keys or profile")
        agents[name] = Agent(fields["profile"], tuple(keys))
    return agents


def alone(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of the registry's folder, so that no other process changes a registry in it.

    Use it to read a registry, change it and save it. In a folder that cannot be locked (Windows, some network
    file systems) there is no waiting, and the second of two changes is refused.
    """
    return alone_in(pathlib.Path(os.path.realpath(path)).parent)


def fingerprint(data: bytes) -> str:
    """Return a digest that differs between any two contents of the file."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


_EXISTS = (
    "it exists, and its keys would be lost; expected another path (iet keys add adds to a registry, iet keys"
    " export --replace renews an export)"
)


def replace(path: pathlib.Path, data: Secret, expected: str | None) -> str:
    """Write the file, and return its new fingerprint.

    The file has mode 0600. If the path is a link, its target is replaced.

    Args:
        path: the file.
        data: its new content.
        expected: fingerprint that the present file must have; None: any.

    Raises:
        RegistryError: the file has another fingerprint, or cannot be written.
    """
    target = pathlib.Path(os.path.realpath(path))

    def check() -> None:
        present = fingerprint(target.read_bytes()) if target.exists() else ABSENT
        if expected is None or present == expected:
            return
        if expected == ABSENT:
            problem = _EXISTS
        elif present == ABSENT:
            problem = "gone from the disk since it was loaded; Registry.save takes another path"
        else:
            problem = "changed on disk since it was loaded; load it again and repeat the change"
        raise RegistryError(f"{path}: {problem}")

    try:
        write_file(target, data, mode=0o600, check=check)
    except OSError as error:
        raise RegistryError(f"{path}: cannot be written ({error.strerror or error})") from error
    return fingerprint(data)
