"""A report that stands up later: an in-toto Statement in a DSSE envelope, signed with Ed25519.

    envelope  = {"payload": base64(statement), "payloadType", "signatures": [{"keyid", "sig"}]} + "\\n"
    sig       = base64(Ed25519(PAE)),  PAE = "DSSEv1" ␠ |type| ␠ type ␠ |statement| ␠ statement
    statement = {"_type", "subject": [{"name", "digest": {"sha256"}}], "predicateType", "predicate"}

(https://github.com/secure-systems-lab/dsse, https://github.com/in-toto/attestation/tree/main/spec/v1).

Both are canonical JSON (sorted keys, no spaces, UTF-8), and the envelope has this one form only: `verify`
writes what it read once more and wants the same bytes. What is signed is the statement; the form of the
envelope around it is checked because one that can be written in two ways can be changed without notice.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from iet.errors import InputError, VerificationError, missing
from iet.marks.commitment import Opening
from iet.marks.registry import Registry
from iet.marks.scheme import canonical_json
from iet.report.model import REPORT_SCHEMA, Report

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
except ImportError as error:
    raise missing(f"signing reports: {error}", "sign") from None

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://pypi.org/project/implicit-execution-tracing/attribution/v1"


class _Keys(Protocol):
    """What `Verified.check` asks of a registry: ours, or `iet.EngineKeys` and `iet.WaterfallKeys`."""

    @property
    def digest(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Verified:
    """What a signature was found to hold.

    Attributes:
        statement: the in-toto Statement.
        key_id: of the key that signed it.
    """

    statement: Mapping[str, Any]
    key_id: str

    @property
    def report(self) -> Mapping[str, Any]:
        """The report, as in `Report.to_dict(text=False)`; where the tokenizer lay is left out."""
        report: Mapping[str, Any] = self.statement["predicate"]["report"]
        return report

    @property
    def audited(self) -> str:
        """When the report was signed, ISO 8601 in UTC, by the signer's clock."""
        return str(self.statement["predicate"]["timeAudited"])

    def check(
        self,
        *,
        text: str | bytes | None = None,
        registry: _Keys | None = None,
        opening: Opening | None = None,
    ) -> None:
        """Check that the report speaks of what is given.

        Args:
            text: the audited text, or the bytes of its file.
            registry: the auditor's; with an `opening`, an `iet.Registry` that holds the opened key.
            opening: of one key, from `Registry.open_key`: is it a key that the report was made with?

        Raises:
            VerificationError: one of them is another one.
            InputError: an opening beside keys of another scheme, which cannot be opened.
        """
        if opening is not None and registry is not None and not isinstance(registry, Registry):
            raise InputError(
                f"registry: got {type(registry).__name__}, which is no tree of keys; expected, with an"
                " opening, an iet.Registry"
            )
        if text is not None:
            data = text.encode() if isinstance(text, str) else text
            named = self.statement["subject"][0]
            found, signed = hashlib.sha256(data).hexdigest(), named["digest"]["sha256"]
            if found != signed:
                raise VerificationError(f"text: got sha256 {found}, expected {signed} of {named['name']!r}")
        signed = self.report["registry_digest"]
        if opening is None:
            if registry is not None and registry.digest != signed:
                raise VerificationError(f"registry: got digest {registry.digest}, expected {signed}")
            return
        try:
            leads_to = opening.digest
        except InputError as error:
            raise VerificationError(f"opening: {error}") from None
        if leads_to != signed:
            raise VerificationError(f"opening: leads to registry {leads_to}, expected {signed}")
        if isinstance(registry, Registry) and not registry.has_key(opening):
            leaf = opening.leaf
            raise VerificationError(
                f"opening: the registry does not hold the key of {leaf.agent!r}, epoch {leaf.epoch}"
            )


def sign(
    report: Report,
    key: Ed25519PrivateKey | str | os.PathLike[str],
    *,
    name: str = "text",
    time: datetime | None = None,
) -> bytes:
    """Return the signed report: a DSSE envelope around an in-toto Statement about the text.

    Args:
        report: of a text.
        key: Ed25519 private key, or the path of one in PEM (PKCS #8, without a password) that only its owner
            can read: `openssl genpkey -algorithm ed25519 -out key.pem`.
        name: of the text, as the statement's subject; often its file name.
        time: of the audit, with a time zone. None: now.

    Returns:
        The bytes of the envelope, the same for the same arguments.

    Raises:
        InputError: only token ids were audited, `time` has no time zone, or the key cannot be used.
    """
    from iet import __version__

    if report.text is None:
        raise InputError("report: got one on token ids, expected one on a text, which is what is signed for")
    if not isinstance(name, str) or not name:
        raise InputError(f"name: got {name!r}, expected a string that is not empty")
    when = datetime.now(UTC) if time is None else time
    if when.tzinfo is None:
        raise InputError(f"time: got {time}, expected one with a time zone")
    private = key if isinstance(key, Ed25519PrivateKey) else load_private_key(key)
    shown = report.to_dict(text=False)
    # Where a tokenizer lies on the auditor's machine is nobody else's business.
    shown["profiles"] = [{**profile, "tokenizer_source": None} for profile in shown["profiles"]]
    predicate = {
        "verifier": {"id": "implicit-execution-tracing", "version": __version__},
        "timeAudited": when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "report": shown,
    }
    payload = canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": shown["text_sha256"]}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )
    return _envelope(payload, key_id(private.public_key()), private.sign(_encoded(payload)))


def verify(envelope: bytes, key: Ed25519PublicKey | str | os.PathLike[str]) -> Verified:
    """Check a signed report, and return what it says.

    Args:
        envelope: the bytes of the file.
        key: Ed25519 public key of the auditor whom you trust, or the path of one in PEM.

    Returns:
        The statement. `Verified.check` compares it with the text and the registry.

    Raises:
        VerificationError: what was changed: the envelope's form, its key id, the statement or the signature.
        InputError: the key cannot be used.
    """
    public = key if isinstance(key, Ed25519PublicKey) else load_public_key(key)
    try:
        read = json.loads(envelope)
        entry = read["signatures"][0]
        payload, signature = (
            base64.b64decode(part, validate=True) for part in (read["payload"], entry["sig"])
        )
        keyid = entry["keyid"]
        if not isinstance(keyid, str):
            raise ValueError(f"keyid is a {type(keyid).__name__}")
        written = _envelope(payload, keyid, signature)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise VerificationError(f"envelope: it is no DSSE envelope as iet writes it ({error})") from None
    if written != envelope:
        at = next((i for i, (a, b) in enumerate(zip(written, envelope, strict=False)) if a != b), None)
        where = min(len(written), len(envelope)) if at is None else at
        raise VerificationError(f"envelope: byte {where} is not as iet writes it, so it was changed")
    if keyid != key_id(public):
        raise VerificationError(
            f"keyid: got {keyid!r:.80}, expected {key_id(public)!r}, that of the given public key"
        )
    try:
        public.verify(signature, _encoded(payload))
    except InvalidSignature:
        raise VerificationError(
            "signature: it does not fit: the statement or the signature was changed, or another key signed"
        ) from None
    return Verified(_statement(payload), keyid)


def key_id(key: Ed25519PublicKey) -> str:
    """Return the name of a public key: SHA-256, in hex, of its SubjectPublicKeyInfo in DER."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def load_private_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """Read a private key. Raises InputError if others can read the file, or it is no Ed25519 key in PEM."""
    data, mode = _read(path)
    if os.name == "posix" and mode & 0o077:
        raise InputError(
            f"{path}: got mode {mode & 0o777:04o}, expected 0600: others can read the private key"
        )
    found = None
    # No message quotes what the library says of the content: it is secret, or was meant to be.
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        found = serialization.load_pem_private_key(data, password=None)
    if not isinstance(found, Ed25519PrivateKey):
        raise InputError(f"{path}: got no Ed25519 private key in PEM without a password, expected one")
    return found


def load_public_key(path: str | os.PathLike[str]) -> Ed25519PublicKey:
    """Read a public key. Raises InputError if it is no Ed25519 key in PEM."""
    data, _ = _read(path)
    found = None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        found = serialization.load_pem_public_key(data)
    if not isinstance(found, Ed25519PublicKey):
        raise InputError(f"{path}: got no Ed25519 public key in PEM, expected one")
    return found


def _read(path: str | os.PathLike[str]) -> tuple[bytes, int]:
    try:
        with open(pathlib.Path(path).expanduser(), "rb") as file:
            return file.read(1 << 16), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a key in PEM") from None


def _statement(payload: bytes) -> dict[str, Any]:
    """Return what was signed: the key may have signed other things than reports, or other makers' reports."""
    try:
        statement: dict[str, Any] = json.loads(payload)
        kinds = statement["_type"], statement["predicateType"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise VerificationError(f"statement: signed, but not an in-toto Statement ({error})") from None
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise VerificationError(f"statement: got {kinds}, expected {(STATEMENT_TYPE, PREDICATE_TYPE)}")
    try:
        [subject], predicate = statement["subject"], statement["predicate"]
        report, when = predicate["report"], predicate["timeAudited"]
        datetime.fromisoformat(when)
        if report["schema"] != REPORT_SCHEMA:
            raise ValueError(f"schema is {report['schema']!r:.80}")
        for name, value, is_one in _stated(subject, report):
            if not is_one(value):
                raise ValueError(f"{name} is {value!r:.80}")
        if subject["digest"]["sha256"] != report["text_sha256"]:
            raise ValueError("the subject is not the text of the report")
        if canonical_json(statement) != payload:
            raise ValueError("its JSON is not canonical")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError(f"statement: signed, but not as iet writes it ({error})") from None
    return statement


def _stated(subject: Any, report: Any) -> Iterator[tuple[str, Any, Callable[[Any], bool]]]:
    """Yield what is read of a statement, with what it has to be: it need not be this program that signed."""

    def is_share(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1

    def is_log_p(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0

    def is_text(value: Any) -> bool:
        return isinstance(value, str)

    yield "the subject's name", subject["name"], is_text
    yield "sha256", subject["digest"]["sha256"], is_text
    yield "registry_digest", report["registry_digest"], is_text
    yield "the decoder's name", report["decoder"]["name"], is_text
    yield "coverage", report["coverage"], is_share
    yield "level", report["level"], lambda value: is_share(value) and 0 < value < 1
    for agent, log_p in report["evidence"].items():
        yield f"evidence of {agent!r:.80}", log_p, is_log_p


def _encoded(payload: bytes) -> bytes:
    """Return the pre-authentication encoding of the payload."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _envelope(payload: bytes, keyid: str, signature: bytes) -> bytes:
    content = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": keyid, "sig": base64.b64encode(signature).decode()}],
    }
    return canonical_json(content) + b"\n"
