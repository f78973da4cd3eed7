"""`iet sign`: add signatures and time stamps to a signed report; and the options for signing keys."""

from __future__ import annotations

import argparse
import getpass
import os
import pathlib
import sys
from typing import Any

from iet.cli.options import Commands, refuse_to_replace
from iet.cli.texts import read_bytes
from iet.errors import InputError, VerificationError
from iet.marks.files import write_file


def add(commands: Commands) -> None:
    """Add `iet sign`."""
    sign = commands.add_parser("sign", help="add signatures or time stamps to a signed report")
    sign.add_argument("file", metavar="REPORT", type=pathlib.Path, help="the signed report (*.dsse.json)")
    add_signing(sign, "--key")
    sign.add_argument(
        "--timestamp",
        metavar="URL",
        help="time-stamp authority (RFC 3161): add a time stamp to each signature that has none",
    )
    sign.add_argument(
        "-o", "--output", type=pathlib.Path, metavar="FILE", help="the new file (default: the report itself)"
    )
    sign.set_defaults(run=_sign, check=_check)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.sign is None and arguments.timestamp is None:
        parser.error("expected --key KEY or --timestamp URL")


def add_signing(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options for signing keys: private keys under `name`, and --public."""
    parser.add_argument(
        name,
        action="append",
        dest="sign",
        metavar="KEY",
        help="private key in PEM (openssl genpkey -algorithm ed25519), or its URI (hsm:, awskms:, gcpkms:,"
        " azurekms:, hv:) together with --public; may be repeated",
    )
    parser.add_argument(
        "--public",
        action="append",
        default=[],
        metavar="PUBLIC.pem",
        help="public key of a URI; one for each URI, in the same order",
    )


def signers_of(arguments: argparse.Namespace) -> list[Any]:
    """Return the signers of the options."""
    from iet.report.sign import load_signers

    return load_signers(arguments.sign or [], public=arguments.public, secrets=_secret)


def _secret(name: str) -> str:
    """Return a secret of a signer. It is no option, because other users of the machine can read options."""
    variable = f"IET_SIGNING_{name.upper()}"
    if variable in os.environ:
        return os.environ[variable]
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(f"{name}: got none, expected it in ${variable}, or a terminal to type it")
    return getpass.getpass(f"{name} of the key that signs: ")


def _sign(arguments: argparse.Namespace) -> int:
    from iet.report import sign

    envelope = read_bytes(arguments.file, max_bytes=sign.MAX_BYTES + 1)
    output = arguments.output or arguments.file
    refuse_to_replace(arguments, [], [output])
    if arguments.timestamp is not None:
        sign.check_authority(arguments.timestamp)  # before a key is used
    signers = signers_of(arguments) if arguments.sign or arguments.public else []
    try:
        added = sign.add_signatures(envelope, signers) if signers else envelope
        if arguments.timestamp is not None:
            added = sign.add_timestamps(added, arguments.timestamp)
    except VerificationError as error:
        raise VerificationError(f"{arguments.file}: {error}") from None
    write_file(output, added)
    print(output)
    return 0
