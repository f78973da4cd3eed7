"""Signed reports: an in-toto Statement about the text in a DSSE envelope, signed by one or several keys.

    statement = {"_type", "subject": [{"name", "digest": {"sha256"}}], "predicateType", "predicate"}

(https://github.com/in-toto/attestation/tree/main/spec/v1).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cryptography.x509 import Certificate
from securesystemslib.dsse import Envelope

from iet.errors import InputError, VerificationError, check_number
from iet.marks.commitment import Opening
from iet.marks.registry import Registry
from iet.marks.scheme import canonical_json
from iet.report.model import REPORT_SCHEMA, Report
from iet.report.sign.envelope import (
    PAYLOAD_TYPE,
    TIMESTAMP,
    check_canonical,
    read_envelope,
    signature_of,
    unique_names,
    with_signatures,
)
from iet.report.sign.keys import PrivateKey, PublicKey, as_list, load_public_key, load_signers
from iet.report.sign.timestamps import signature_time

if TYPE_CHECKING:
    from iet.marks.foreign.keys import ForeignKeys

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:uuid:21076bcc-3ac3-468e-9080-8f3f0d553473#implicit-execution-tracing/attribution/v1"
"""docs/internals/signing.md says why it is not a web address."""


@dataclasses.dataclass(frozen=True)
class Verified:
    """The content of a verified report.

    Attributes:
        statement: the in-toto Statement.
        key_ids: ids of the trusted keys that signed it, in the order of the argument.
        times: of the signatures of these keys, in UTC, by their verified time stamps. Empty: not verified.
        stamped: number of these signatures with a time stamp, verified or not.
    """

    statement: Mapping[str, Any]
    key_ids: tuple[str, ...]
    times: tuple[datetime, ...] = ()
    stamped: int = 0

    @property
    def report(self) -> Mapping[str, Any]:
        """The report, as in `Report.to_dict(text=False)`, without the paths of tokenizers."""
        report: Mapping[str, Any] = self.statement["predicate"]["report"]
        return report

    @property
    def audited(self) -> str:
        """The time of signing, ISO 8601 in UTC, by the signer's clock."""
        return str(self.statement["predicate"]["timeAudited"])

    def check(
        self,
        *,
        text: str | bytes | None = None,
        registry: Registry | ForeignKeys | None = None,
        opening: Opening | None = None,
    ) -> None:
        """Check that the report is about this text, registry and key.

        Args:
            text: the audited text, or the bytes of its file.
            registry: the auditor's; with an `opening`, an `iet.Registry` that holds the opened key.
            opening: of a key, from `Registry.open_key`: the report must have been made with this key.

        Raises:
            VerificationError: the report is about another text, registry or key.
            InputError: an opening was passed with keys of an engine, which cannot be opened.
        """
        if opening is not None and registry is not None and not isinstance(registry, Registry):
            raise InputError(
                f"registry: got {type(registry).__name__}, which is no tree of keys; with an opening an"
                " iet.Registry is expected"
            )
        if text is not None:
            data = text.encode() if isinstance(text, str) else text
            subject, digest = self.statement["subject"][0], hashlib.sha256(data).hexdigest()
            if digest != (signed := subject["digest"]["sha256"]):
                raise VerificationError(
                    f"text: got sha256 {digest}, expected {signed} of {subject['name']!r}"
                )
        signed = self.report["registry_digest"]
        if opening is None:
            if registry is not None and registry.digest != signed:
                raise VerificationError(f"registry: got digest {registry.digest}, expected {signed}")
            return
        try:
            root = opening.digest
        except InputError as error:
            raise VerificationError(f"opening: {error}") from None
        if root != signed:
            raise VerificationError(f"opening: leads to registry {root}, expected {signed}")
        if isinstance(registry, Registry) and not registry.has_key(opening):
            leaf = opening.leaf
            raise VerificationError(
                f"opening: the registry does not hold the key of {leaf.agent!r}, epoch {leaf.epoch}"
            )


def sign(
    report: Report,
    keys: PrivateKey | Sequence[PrivateKey],
    *,
    name: str = "text",
    time: datetime | None = None,
) -> bytes:
    """Return the signed report: a DSSE envelope around an in-toto Statement about the text.

    Args:
        report: of a text.
        keys: one or several keys, as in `load_signers`: the path of a private key that only its owner can
            read (`openssl genpkey -algorithm ed25519 -out key.pem`), a private key of cryptography, a Signer.
        name: of the text, as the statement's subject; often its file name.
        time: of the audit, with a time zone. None: now.

    Returns:
        The bytes of the envelope. With Ed25519 they are the same for the same arguments.

    Raises:
        InputError: only token ids were audited, `time` has no time zone, or a key cannot be used.
        BackendUnavailable: a package for one of the keys is not installed.
    """
    from iet import __version__

    if report.text is None:
        raise InputError("report: got one on token ids, expected one on a text, because its digest is signed")
    if not isinstance(name, str) or not name:
        raise InputError(f"name: got {name!r}, expected a string that is not empty")
    when = datetime.now(UTC) if time is None else time
    if when.tzinfo is None:
        raise InputError(f"time: got {time}, expected one with a time zone")
    signers = load_signers(keys)
    content = report.to_dict(text=False)
    # The path of a tokenizer on the auditor's machine is private.
    content["profiles"] = [{**profile, "tokenizer_source": None} for profile in content["profiles"]]
    predicate = {
        "verifier": {"id": "implicit-execution-tracing", "version": __version__},
        "timeAudited": when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "report": content,
    }
    payload = canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": content["text_sha256"]}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )
    return with_signatures(Envelope(payload, PAYLOAD_TYPE, {}), signers)


def add_signatures(envelope: bytes, keys: PrivateKey | Sequence[PrivateKey]) -> bytes:
    """Return a signed report with signatures of more keys. Its other signatures stay, and are not verified.

    Args:
        envelope: the bytes of the file.
        keys: as in `sign`.

    Raises:
        VerificationError: it is no envelope of a report.
        InputError: a key cannot be used, or has signed already.
        BackendUnavailable: a package for one of the keys is not installed.
    """
    parsed = read_envelope(envelope)
    _statement(parsed.payload)
    return with_signatures(parsed, load_signers(keys))


def verify(
    envelope: bytes,
    keys: PublicKey | Sequence[PublicKey],
    *,
    threshold: int | None = None,
    strict: bool = False,
    timestamp_roots: Sequence[Certificate] | None = None,
) -> Verified:
    """Verify the signatures of a report, and return its content.

    Args:
        envelope: the bytes of the file, at most 64 MiB with 32 signatures.
        keys: trusted public keys, or their paths, as in `load_public_key`.
        threshold: number of these keys that must have signed; each counts once. None: all.
        strict: accept only the canonical form that `sign` writes, without signatures of other keys: then no
            byte can be changed without the keys. False: accept any DSSE envelope, and ignore signatures of
            other keys. Time stamps are not signed by the keys: `timestamp_roots` verifies them.
        timestamp_roots: certificates of time-stamp authorities (`load_roots`). Each signature of a trusted
            key must have a time stamp under them. None: time stamps are not verified.

    Returns:
        The statement. `Verified.check` compares it with the text and the registry. Each pair of a signature
        and a key is verified at most once.

    Raises:
        VerificationError: the envelope, its key ids, the statement, the signatures or the time stamps were
            changed.
        InputError: a key cannot be used, or the threshold is not from 1 to the number of different keys.
    """
    trusted = {key.keyid: key for key in map(load_public_key, as_list(keys))}
    if not trusted:
        raise InputError("keys: got none, expected at least one")
    required = len(trusted) if threshold is None else threshold
    check_number("threshold", required, 1, len(trusted))
    parsed = read_envelope(envelope)
    if strict:
        check_canonical(parsed, envelope, trusted)
        required = max(required, len(parsed.signatures))
    by_key = {name: signature_of(key, parsed, strict) for name, key in trusted.items()}
    signed = {name: signature for name, signature in by_key.items() if signature is not None}
    if len(signed) < required:
        names = ", ".join(f"{signature.keyid!r:.80}" for signature in [*parsed.signatures.values()][:4])
        raise VerificationError(
            f"signature: {len(signed)} of {len(trusted)} given keys fit, expected {required}: the statement"
            f" or a signature was changed, or others signed (key ids in the envelope: {names})"
        )
    times: tuple[datetime, ...] = ()
    if timestamp_roots is not None:
        times = tuple(signature_time(signature, timestamp_roots) for signature in signed.values())
    stamped = sum(TIMESTAMP in signature.unrecognized_fields for signature in signed.values())
    return Verified(_statement(parsed.payload, strict), tuple(signed), times, stamped)


def _statement(payload: bytes, strict: bool = False) -> dict[str, Any]:
    """Parse a signed payload. The key may have signed other things than reports, or another program's."""
    try:
        statement: dict[str, Any] = json.loads(payload.decode(), object_pairs_hook=unique_names)
        kinds = statement["_type"], statement["predicateType"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise VerificationError(f"statement: signed, but not an in-toto Statement ({error})") from None
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise VerificationError(f"statement: got {kinds!r:.300}, expected {(STATEMENT_TYPE, PREDICATE_TYPE)}")
    try:
        [subject], predicate = statement["subject"], statement["predicate"]
        report, when = predicate["report"], predicate["timeAudited"]
        datetime.fromisoformat(when)
        if report["schema"] != REPORT_SCHEMA:
            raise ValueError(f"schema is {report['schema']!r:.80}")
        for name, value, is_valid in _fields(subject, report):
            if not is_valid(value):
                raise ValueError(f"{name} is {value!r:.80}")
        if subject["digest"]["sha256"] != report["text_sha256"]:
            raise ValueError("the subject is not the text of the report")
        if canonical_json(statement) != payload and strict:  # encoding also fails for NaN and surrogates
            raise ValueError("its JSON is not canonical")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError(f"statement: signed, but not as iet writes it ({error})") from None
    return statement


def _fields(subject: Any, report: Any) -> Iterator[tuple[str, Any, Callable[[Any], bool]]]:
    """Yield (name, value, test) of the fields that callers use: another program may have signed them."""

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
