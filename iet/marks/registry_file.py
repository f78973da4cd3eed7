"""The file of a registry: its content, and how it takes the place of an older one."""

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
from iet.marks.members import Member, refuse_shared_secrets
from iet.marks.names import checked_name
from iet.marks.scheme import Profile, canonical_digest

FORMAT = "iet.registry/1"
"""First field of a registry file."""

ABSENT = ""
"""The fingerprint of a file that is not there."""


def dump(profiles: Mapping[str, Profile], agents: Mapping[str, Member]) -> Secret:
    """Return the content of the file. It holds every secret.

    Raises:
        RegistryError: something in it has no UTF-8, or it is of a session whose agents have frequencies of
            their own, for which the file has no place. The error quotes nothing of it.
    """
    if any(key.k_p is not None for agent in agents.values() for key in agent.keys):
        raise RegistryError(
            'keys of a session under k_p "per-agent" have the frequencies of their agents, for which a'
            " registry file has no place: save the registry, and take the session from it"
        )
    found = _dumped(profiles, agents)
    if found is None:
        raise RegistryError("a name or a path has no UTF-8, so no registry file can hold it")
    return found


def _dumped(profiles: Mapping[str, Profile], agents: Mapping[str, Member]) -> Secret | None:
    content: dict[str, Any] = {
        "format": FORMAT,
        "profiles": {id: _fields(profile) for id, profile in profiles.items()},
        "agents": {
            name: {
                "profile": agent.profile,
                "keys": [
                    {"epoch": key.epoch, "created": key.created, "secret": key.secret.hex()}
                    for key in agent.keys
                ],
            }
            for name, agent in agents.items()
        },
    }
    try:
        content["checksum"] = canonical_digest(content)
        return Secret(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
    except UnicodeEncodeError:  # it holds all that was to be encoded
        return None


def _fields(profile: Profile) -> dict[str, Any]:
    fields = profile.to_dict()
    try:
        (profile.tokenizer_source or "").encode()
    except UnicodeEncodeError:  # a path of other bytes: a hint, which the file goes without
        fields["tokenizer_source"] = None
    return fields


def parse(data: Secret) -> tuple[dict[str, Profile], dict[str, Member]]:
    """Return the profiles and agents of a file's content, or raise an error that quotes none of it."""
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
        return profiles, _parse_agents(content["agents"], profiles)
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


def _parse_agents(content: dict[str, Any], profiles: Mapping[str, Profile]) -> dict[str, Member]:
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
        agents[name] = Member(fields["profile"], tuple(keys))
    refuse_shared_secrets(agents)
    return agents


def alone(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Wait until no other process changes a registry beside this one, and let none do so meanwhile.

    For what reads a registry, changes it and saves it. Where a folder cannot be locked (Windows, some network
    file systems) nobody waits, and the second of two changes is refused.
    """
    return alone_in(pathlib.Path(os.path.realpath(path)).parent)


def fingerprint(data: bytes) -> str:
    """Return what tells one content of the file from another."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


_EXISTS = "it exists, and its keys would be lost; iet keys add adds to it, or choose another path"


def check_absent(path: pathlib.Path) -> None:
    """Raise a RegistryError where there is a file: for what is written beside a registry, before it is."""
    if path.exists():
        raise RegistryError(f"{path}: {_EXISTS}")


def replace(path: pathlib.Path, data: Secret, expected: str | None) -> str:
    """Write the file, whose fingerprint must be the expected one (None: any), and return the new one.

    The file has mode 0600. A link stays: what it leads to is replaced.

    Raises:
        RegistryError: the file is another one, or cannot be written.
    """
    target = pathlib.Path(os.path.realpath(path))

    def check() -> None:
        found = fingerprint(target.read_bytes()) if target.exists() else ABSENT
        if expected is None or found == expected:
            return
        if expected == ABSENT:
            problem = _EXISTS
        elif found == ABSENT:
            problem = "gone from the disk since it was loaded; Registry.save takes another path"
        else:
            problem = "changed on disk since it was loaded; make the change anew on what is there now"
        raise RegistryError(f"{path}: {problem}")

    try:
        write_file(target, data, mode=0o600, check=check)
    except OSError as error:
        raise RegistryError(f"{path}: cannot be written ({error.strerror or error})") from error
    return fingerprint(data)
