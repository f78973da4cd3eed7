"""`iet verify`: verify a signed report, and compare it with a text, a registry or a key."""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from datetime import datetime
from typing import Any

from iet.cli.options import Commands, add_encoding, load_registry, say
from iet.cli.texts import conversation_in, decoded, read_bytes
from iet.errors import InputError, VerificationError
from iet.marks.files import shown_path
from iet.report.lines import harmless


def add(commands: Commands) -> None:
    """Add `iet verify`."""
    verify = commands.add_parser("verify", help="check a signed report, its text and its registry")
    verify.add_argument("file", metavar="REPORT", type=pathlib.Path, help="the signed report (*.dsse.json)")
    verify.add_argument(
        "--key",
        action="append",
        required=True,
        metavar="PUBLIC.pem",
        help="public key of a trusted auditor; may be repeated",
    )
    verify.add_argument(
        "--threshold", type=int, metavar="N", help="number of these keys that must have signed (default: all)"
    )
    verify.add_argument(
        "--strict",
        action="store_true",
        help="accept only the exact bytes that iet writes, signed by these keys alone",
    )
    verify.add_argument("--text", type=pathlib.Path, metavar="FILE", help="the text to compare")
    add_encoding(verify)
    verify.add_argument(
        "--messages",
        action="store_true",
        help="the text is the record of a conversation, read by iet audit --messages",
    )
    verify.add_argument(
        "--opening",
        type=pathlib.Path,
        metavar="FILE",
        help="the opening of a key (iet keys open) to compare; with -r, also with that registry",
    )
    verify.add_argument("-r", "--registry", help="the registry to compare")
    verify.add_argument(
        "--timestamp-root",
        type=pathlib.Path,
        metavar="FILE",
        help="certificates of the time-stamp authority in PEM: each signature must have its time stamp",
    )
    verify.add_argument(
        "--registry-timestamp",
        type=pathlib.Path,
        metavar="FILE",
        help="the time stamp of the report's registry (iet keys timestamp) to verify",
    )
    verify.add_argument("--json", action="store_true", help="print what was signed as JSON")
    verify.set_defaults(run=_verify, check=_check)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.messages and arguments.text is None:
        parser.error("--messages goes with --text")
    if arguments.registry_timestamp is not None and arguments.timestamp_root is None:
        parser.error("--registry-timestamp goes with --timestamp-root")


def _text_of(path: pathlib.Path, encoding: str | None, messages: bool) -> str | bytes:
    """Return the text of a file as `iet audit` reads and signs it, or its bytes if it is no text."""
    data = read_bytes(path)
    try:
        text = decoded(data, encoding, path)
    except InputError:
        if encoding is not None or messages:
            raise
        return data  # no signed report has this digest
    return conversation_in(text, path).text if messages else text


def _verify(arguments: argparse.Namespace) -> int:
    from iet.marks.commitment import Opening
    from iet.report import sign
    from iet.report.sign import load_public_key

    public = [load_public_key(path) for path in arguments.key]
    envelope = read_bytes(arguments.file, max_bytes=sign.MAX_BYTES + 1)
    text = None
    if arguments.text is not None:
        text = _text_of(arguments.text, arguments.encoding, arguments.messages)
    registry = opening = None
    if arguments.registry is not None:
        registry = load_registry(arguments)
    if arguments.opening is not None:
        try:
            opening = Opening.from_dict(json.loads(read_bytes(arguments.opening)))
        except (ValueError, RecursionError) as error:  # InputError is one
            raise InputError(f"{arguments.opening}: {error}") from None
    roots = dated = registry_stamp = None
    if arguments.timestamp_root is not None:
        roots = sign.load_roots(arguments.timestamp_root)
    if arguments.registry_timestamp is not None:
        registry_stamp = read_bytes(arguments.registry_timestamp)
    try:
        verified = sign.verify(
            envelope, public, threshold=arguments.threshold, strict=arguments.strict, timestamp_roots=roots
        )
        verified.check(text=text, registry=registry, opening=opening)
        if roots is not None and registry_stamp is not None:
            digest = str(verified.report["registry_digest"])
            dated = sign.verify_timestamp(registry_stamp, digest.encode(), roots)
    except VerificationError as error:
        print(f"iet: {arguments.file}: not verified: {harmless(str(error))}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(verified.statement, indent=1))
        return 0
    report, subject = verified.report, verified.statement["subject"][0]
    agents = [name for name, log_p in report["evidence"].items() if log_p <= math.log(report["level"])]
    checked = [] if text is None else ["text"]
    if registry is not None and registry.digest == report["registry_digest"]:
        checked.append("registry")
    if opening is not None:
        checked.append("opening")
    if registry is not None and "registry" not in checked:
        # The registry is an export: `check` compared only the opened key.
        checked[-1] += f", and its key with {shown_path(arguments.registry)}"
    lines = (
        f"verified: signed by {' and '.join(verified.key_ids)}, {verified.audited}\n"
        f"time stamps: {_times(verified)}\n"
        f"text {subject['name']!r}, sha256 {subject['digest']['sha256']}\n"
        f"registry {report['registry_digest']}{'' if dated is None else f', existed at {_shown(dated)}'}\n"
        f"decoder {report['decoder']['name']}, level {report['level']:g}\n"
        f"agents found: {', '.join(agents) or 'none'}; {report['coverage']:.0%} attributed\n"
        f"compared with it: {', '.join(checked) or 'nothing (--text, -r, --opening)'}"
    )
    say(lines)
    return 0


def _times(verified: Any) -> str:
    """Return what the time stamps say."""
    if verified.times:
        return f"verified, {' and '.join(map(_shown, verified.times))}"
    if verified.stamped:
        return "not verified (--timestamp-root); the time above is by the signer's clock"
    return "none; the time above is by the signer's clock"


def _shown(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
