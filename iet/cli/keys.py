"""`iet keys`: make registries, add and rotate agents, pass their keys on."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from iet.cli.options import (
    Commands,
    add_registry,
    load_registry,
    name_and_value,
    refuse_to_replace,
    say,
)
from iet.cli.progress import progress
from iet.cli.texts import decoded, read_bytes
from iet.errors import InputError
from iet.marks.families import FAMILIES
from iet.marks.files import write_file

_READING = "reading the tokenizer"


def add(commands: Commands) -> None:
    """Add `iet keys` and its actions."""
    keys = commands.add_parser("keys", help="create and change registries of keys")
    actions = keys.add_subparsers(required=True, metavar="ACTION")

    init = actions.add_parser("init", help="make a registry without agents")
    init.add_argument("path", metavar="FILE", help="the new file")
    _add_scheme(init)
    init.set_defaults(run=_keys_init)

    profile = actions.add_parser("profile", help="add a profile, for agents of another model or scheme")
    _add_scheme(profile)
    add_registry(profile)
    profile.set_defaults(run=_keys_profile)

    add = actions.add_parser("add", help="add agents, each with a new key")
    add.add_argument("names", nargs="*", metavar="NAME")
    add.add_argument(
        "--from",
        dest="file",
        type=pathlib.Path,
        metavar="FILE",
        help="also add the names in this file, one a line; lines that begin with # are comments",
    )
    add.add_argument("--profile", help="id of the profile, if the registry has several")
    add_registry(add)
    add.set_defaults(run=_keys_add, check=_check_add)

    listing = actions.add_parser("list", help="list agents, epochs and profiles; never keys")
    add_registry(listing)
    listing.add_argument("--json", action="store_true", help="print as JSON")
    listing.set_defaults(run=_keys_list)

    rotate = actions.add_parser("rotate", help="give agents a new key; text under the old one is still found")
    rotate.add_argument("names", nargs="+", metavar="NAME")
    add_registry(rotate)
    rotate.set_defaults(run=_keys_rotate)

    export = actions.add_parser("export", help="write a registry that holds only some agents' keys")
    export.add_argument("path", metavar="FILE", help="the new file")
    export.add_argument("--agents", nargs="+", required=True, metavar="NAME", help="agents to include")
    export.add_argument(
        "--with-tokenizer",
        action="store_true",
        help="also write the tokenizer, to be moved together with the file",
    )
    export.add_argument("--all-epochs", action="store_true", help="also keys that were rotated out")
    export.add_argument(
        "--replace", action="store_true", help="replace FILE if this registry holds all of its keys"
    )
    add_registry(export)
    export.set_defaults(run=_keys_export)

    opening = actions.add_parser(
        "open", help="show that the registry's digest commits to one agent's key, and nothing of the others"
    )
    opening.add_argument("name", metavar="NAME")
    opening.add_argument("--epoch", type=int, help="epoch of the key (default: the one that marks)")
    opening.add_argument(
        "-o", "--output", type=pathlib.Path, help="write it to this file (default: print it)"
    )
    add_registry(opening)
    opening.set_defaults(run=_keys_open)

    stamp = actions.add_parser(
        "timestamp", help="get a time stamp of the registry's digest, which proves that its keys existed then"
    )
    stamp.add_argument("url", metavar="URL", help="time-stamp authority (RFC 3161)")
    stamp.add_argument(
        "-o", "--output", type=pathlib.Path, required=True, metavar="FILE", help="the new file, as *.tsr"
    )
    add_registry(stamp)
    stamp.set_defaults(run=_keys_timestamp)

    merge = actions.add_parser("import", help="take in the agents of another registry file")
    merge.add_argument("path", metavar="FILE", help="the file to read")
    add_registry(merge)
    merge.set_defaults(run=_keys_import)


def _add_scheme(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer",
        help="tokenizer.json (or tekken.json, a SentencePiece .model, .tiktoken or .gguf that converts"
        " exactly), its folder, a model on the Hub (owner/name), or iet:demo",
    )
    parser.add_argument("--vocab-size", type=int, help="V, if there is no tokenizer or the model's V differs")
    parser.add_argument(
        "--kappa", type=float, help="strength in final logits (default: 0.8; gumbel has none)"
    )
    parser.add_argument(
        "--parameter",
        action="append",
        type=name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the scheme; may be repeated: n_gram, 2 to 16 (default: 2; of family gumbel 4);"
        ' k_p, a frequency or "per-agent" (default: 1); placement, final or raw: the logits that κ counts in'
        " (default: final)",
    )
    parser.add_argument(
        "--family",
        default="fourier",
        choices=list(FAMILIES),
        help="fourier: the paper's mark, any decoding; gumbel: for sampled text, however predictable"
        " (default: fourier)",
    )


def _keys_init(arguments: argparse.Namespace) -> int:
    import iet

    with progress(_READING):
        registry = iet.Registry.create(arguments.path, **_profile(arguments))
    say(f"{registry.path}: profile {registry.profile.id}, no agents yet")
    say(f"family {registry.profile.family.name}: {registry.profile.family.summary}")
    return 0


def _keys_profile(arguments: argparse.Namespace) -> int:
    with _to_change(arguments) as registry, progress(_READING):
        profile = registry.add_profile(**_profile(arguments))
    say(f"{registry.path}: profile {profile}; iet keys add --profile {profile} NAME")
    return 0


def _profile(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `Registry.create` and `add_profile` take."""
    import iet
    from iet.marks.tokenizer import Tokenizer

    if FAMILIES[arguments.family].chooses and arguments.kappa is not None:
        raise InputError(
            f"--kappa: got {arguments.kappa:g}, expected none: family {arguments.family} has no strength"
        )
    if arguments.tokenizer is None and arguments.vocab_size is None:
        raise InputError("--tokenizer, --vocab-size: got neither, expected at least one")
    tokenizer = None if arguments.tokenizer is None else Tokenizer(arguments.tokenizer)
    smallest = None if tokenizer is None else tokenizer.vocab_size
    if None not in (smallest, arguments.vocab_size) and arguments.vocab_size < smallest:
        raise InputError(
            f"--vocab-size: got {arguments.vocab_size}, expected at least {smallest}, which its tokenizer has"
        )
    unknown = [name for name, _ in arguments.parameter if name not in ("n_gram", "k_p", "placement")]
    if unknown:
        raise InputError(f"--parameter: got {unknown[0]!r}, expected n_gram, k_p or placement")
    scheme = iet.Scheme(kappa=arguments.kappa, family=arguments.family, **dict(arguments.parameter))
    return {"tokenizer": tokenizer, "vocab_size": arguments.vocab_size, "scheme": scheme}


@contextlib.contextmanager
def _to_change(arguments: argparse.Namespace) -> Iterator[Any]:
    """Lock the registry's folder, and load the registry that is changed."""
    from iet.marks.registry_file import alone

    path = load_registry(arguments).path
    with alone(path):
        yield load_registry(arguments)


def _check_add(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if not arguments.names and arguments.file is None:
        parser.error("expected a NAME, or --from FILE")


def _keys_add(arguments: argparse.Namespace) -> int:
    names = list(arguments.names)
    if arguments.file is not None:
        names += _names_in(arguments.file)
    if not names:
        raise InputError(f"{arguments.file}: got no name, expected one on each line")
    with _to_change(arguments) as registry:
        registry.add_many(names, profile=arguments.profile)
    say(f"{registry.path}: {len(registry)} agents")
    return 0


def _names_in(file: pathlib.Path) -> list[str]:
    """Return the names in a file. A file of keys is refused: everybody sees names."""
    text, content = decoded(read_bytes(file), None, file), None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(text)
    if isinstance(content, dict):
        raise InputError(f"{file}: got a JSON object, as keys of engines are, expected a name on each line")
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _keys_list(arguments: argparse.Namespace) -> int:
    registry = load_registry(arguments)
    if arguments.json:
        agents = {
            name: {
                "profile": registry.profile_of(name).id,
                "epochs": [{"epoch": key.epoch, "created": key.created} for key in registry.keys(name)],
            }
            for name in registry
        }
        profiles = {profile_id: profile.to_dict() for profile_id, profile in registry.profiles.items()}
        print(json.dumps({"digest": registry.digest, "profiles": profiles, "agents": agents}, indent=1))
        return 0
    for profile_id, profile in registry.profiles.items():
        scheme = profile.scheme
        say(
            f"profile {profile_id}: {scheme.family}, κ {scheme.kappa:g}, n {scheme.n_gram}, k_p {scheme.k_p},"
            f" V {profile.vocab_size}, tokenizer {profile.tokenizer_source or 'none'}"
        )
        for name in registry.names(profile_id):
            keys = registry.keys(name)
            say(f"  {name}  epoch {keys[-1].epoch}, made {keys[-1].created}, keys: {len(keys)}")
    return 0


def _keys_rotate(arguments: argparse.Namespace) -> int:
    import iet

    with _to_change(arguments) as registry:
        named = [registry.keys(name)[-1].agent for name in arguments.names]
        for name in named:
            if named.count(name) > 1:
                raise InputError(f"agent name: got {name!r} twice, expected each once")
        rotated = iet.Registry.loads(registry.dumps())  # merged back, all is saved at once, or nothing
        for name in arguments.names:
            rotated.rotate(name)
        registry.merge(rotated)
    for name in arguments.names:
        say(f"{name}: epoch {registry.keys(name)[-1].epoch}")
    return 0


def _keys_export(arguments: argparse.Namespace) -> int:
    import iet

    registry, replaced = load_registry(arguments), arguments.replace and os.path.exists(arguments.path)
    before = list(iet.Registry.load(arguments.path)) if replaced else []
    exported = registry.export(
        arguments.path,
        arguments.agents,
        all_epochs=arguments.all_epochs,
        with_tokenizer=arguments.with_tokenizer,
        replace=arguments.replace,
    )
    say(f"{exported.path}: {', '.join(exported)}")
    if dropped := [name for name in before if name not in exported]:
        say(f"no longer in it: {', '.join(dropped)}")
    if arguments.with_tokenizer:
        for profile in exported.profiles.values():
            say(f"its tokenizer goes with it: {profile.tokenizer_source or 'none'}")
    return 0


def _keys_open(arguments: argparse.Namespace) -> int:
    registry = load_registry(arguments)
    if arguments.output is not None:
        refuse_to_replace(arguments, [], [arguments.output], registry)
    opening = json.dumps(registry.open_key(arguments.name, arguments.epoch).to_dict(), indent=1)
    if arguments.output is None:
        print(opening)
    else:
        write_file(arguments.output, opening.encode() + b"\n")
    return 0


def _keys_timestamp(arguments: argparse.Namespace) -> int:
    from iet.report.sign import request_timestamp

    registry = load_registry(arguments)
    refuse_to_replace(arguments, [], [arguments.output], registry)
    write_file(arguments.output, request_timestamp(arguments.url, registry.digest.encode()))
    say(f"{arguments.output}: time stamp of the digest {registry.digest}")
    return 0


def _keys_import(arguments: argparse.Namespace) -> int:
    import iet

    with _to_change(arguments) as registry:
        registry.merge(iet.Registry.load(arguments.path))
    say(f"{registry.path}: {len(registry)} agents")
    return 0
