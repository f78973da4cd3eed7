"""A report that stands up later: an in-toto Statement in a DSSE envelope, signed by one key or several.

    envelope  = {"payload": base64(statement), "payloadType", "signatures": [{"keyid", "sig"}, ...]} + "\\n"
    sig       = base64(signature of PAE),  PAE = "DSSEv1" ␠ |type| ␠ type ␠ |statement| ␠ statement
    statement = {"_type", "subject": [{"name", "digest": {"sha256"}}], "predicateType", "predicate"}

(https://github.com/secure-systems-lab/dsse, https://github.com/in-toto/attestation/tree/main/spec/v1).

Envelopes are read as DSSE has them, whoever wrote them: base64 of either alphabet, unknown fields, key ids
that are missing or wrong. Ours have one form only: canonical JSON (sorted keys, no spaces, UTF-8), signatures
in the order of their key ids. `verify(strict=True)` takes this form alone: an envelope that can be written in
two ways can be changed without notice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from iet.errors import InputError, VerificationError, check_number, missing
from iet.marks.commitment import Opening
from iet.marks.registry import Registry
from iet.marks.scheme import canonical_json
from iet.report.model import REPORT_SCHEMA, Report
from iet.report.signers import PrivateKey, PublicKey, load_public_key, load_signers, low_s, told

try:
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature, Signer, SSlibKey
except ImportError as error:
    raise missing(f"signing reports: {error}", "sign") from None

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:uuid:21076bcc-3ac3-468e-9080-8f3f0d553473#implicit-execution-tracing/attribution/v1"
"""Of what is signed now. docs/internals/signing.md says why it is no address."""

MAX_BYTES = 64 << 20
MAX_SIGNATURES = 32
"""Of an envelope: each signature is tried with each key that is trusted."""


class _Keys(Protocol):
    """What `Verified.check` asks of a registry: ours, or `iet.EngineKeys` and `iet.WaterfallKeys`."""

    @property
    def digest(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Verified:
    """What a signature was found to hold.

    Attributes:
        statement: the in-toto Statement.
        key_ids: of the keys that were given and that signed it, in the order given.
    """

    statement: Mapping[str, Any]
    key_ids: tuple[str, ...]

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
    keys: PrivateKey | Sequence[PrivateKey],
    *,
    name: str = "text",
    time: datetime | None = None,
) -> bytes:
    """Return the signed report: a DSSE envelope around an in-toto Statement about the text.

    Args:
        report: of a text.
        keys: one or several, each as `iet.report.signers.load_signers` takes or returns it: the path of a
            private key that only its owner can read (`openssl genpkey -algorithm ed25519 -out key.pem`), a
            private key of cryptography, a Signer.
        name: of the text, as the statement's subject; often its file name.
        time: of the audit, with a time zone. None: now.

    Returns:
        The bytes of the envelope. With Ed25519 they are the same for the same arguments.

    Raises:
        InputError: only token ids were audited, `time` has no time zone, or a key cannot be used.
        BackendUnavailable: a package that reaches a key is not installed.
    """
    from iet import __version__

    if report.text is None:
        raise InputError("report: got one on token ids, expected one on a text, which is what is signed for")
    if not isinstance(name, str) or not name:
        raise InputError(f"name: got {name!r}, expected a string that is not empty")
    when = datetime.now(UTC) if time is None else time
    if when.tzinfo is None:
        raise InputError(f"time: got {time}, expected one with a time zone")
    signers = load_signers(keys)
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
    return _signed(Envelope(payload, PAYLOAD_TYPE, {}), signers)


def add_signatures(envelope: bytes, keys: PrivateKey | Sequence[PrivateKey]) -> bytes:
    """Return a signed report with the signatures of more keys. Those that it has are kept, and not checked.

    Args:
        envelope: the bytes of the file, of whoever wrote it.
        keys: as in `sign`.

    Raises:
        VerificationError: it is no envelope around a report of ours.
        InputError: a key cannot be used, or has signed already.
        BackendUnavailable: a package that reaches a key is not installed.
    """
    read = _read(envelope)
    _statement(read.payload)
    return _signed(read, load_signers(keys))


def verify(
    envelope: bytes,
    keys: PublicKey | Sequence[PublicKey],
    *,
    threshold: int | None = None,
    strict: bool = False,
) -> Verified:
    """Check a signed report, and return what it says.

    Args:
        envelope: the bytes of the file, at most 64 MiB with 32 signatures.
        keys: public keys of those whom you trust, or their paths, as in `iet.report.signers.load_public_key`.
        threshold: number of these keys that must have signed; each counts once. None: all.
        strict: take the one form that `sign` writes, in which no byte can be changed without the keys, and
            no signature but of the given keys. False: take any DSSE envelope, where signatures of other keys
            count for nothing.

    Returns:
        The statement. `Verified.check` compares it with the text and the registry. At most one verification
        for each pair of a signature and a key.

    Raises:
        VerificationError: what was changed: the envelope, its key ids, the statement or the signatures.
        InputError: a key cannot be used, or the threshold lies outside 1 to the number of different keys.
    """
    given = list(keys) if isinstance(keys, Sequence) and not isinstance(keys, str) else [keys]
    trusted = {key.keyid: key for key in map(load_public_key, given)}
    if not trusted:
        raise InputError("keys: got none, expected at least one")
    wanted = len(trusted) if threshold is None else threshold
    check_number("threshold", wanted, 1, len(trusted))
    read = _read(envelope)
    if strict:
        _check_form(read, envelope, trusted)
    signed = [name for name, key in trusted.items() if _has_signed(key, read, strict)]
    expected = max(wanted, len(read.signatures)) if strict else wanted
    if len(signed) < expected:
        named = ", ".join(f"{each.keyid!r:.80}" for each in [*read.signatures.values()][:4])
        raise VerificationError(
            f"signature: {len(signed)} of {len(trusted)} given keys fit, expected {expected}: the statement"
            f" or a signature was changed, or others signed (key ids in the envelope: {named})"
        )
    return Verified(_statement(read.payload, strict), tuple(signed))


def _statement(payload: bytes, strict: bool = False) -> dict[str, Any]:
    """Return what was signed: the key may have signed other things than reports, or other makers' reports."""
    try:
        statement: dict[str, Any] = json.loads(payload.decode(), object_pairs_hook=_once)
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
        for name, value, is_one in _stated(subject, report):
            if not is_one(value):
                raise ValueError(f"{name} is {value!r:.80}")
        if subject["digest"]["sha256"] != report["text_sha256"]:
            raise ValueError("the subject is not the text of the report")
        if canonical_json(statement) != payload and strict:  # the first also finds what JSON has no form for
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


def _signed(envelope: Envelope, signers: Sequence[Signer]) -> bytes:
    """Return the envelope in our form, with more signatures, each of which its public key verifies."""
    signatures = list(envelope.signatures.values())
    if len(signatures) + len(signers) > MAX_SIGNATURES:
        raise InputError(
            f"signing key: got {len(signers)} beside {len(signatures)},"
            f" expected {MAX_SIGNATURES} signatures at most"
        )
    for signer in signers:
        key = load_public_key(signer.public_key)
        if _has_signed(key, envelope, strict=False):
            raise InputError(f"signing key: {key.keyid} has signed already")
        signatures = [each for each in signatures if each.keyid != key.keyid]  # which it did not make
        with told(type(signer).__name__):
            made = low_s(Signature(key.keyid, signer.sign(envelope.pae()).signature), key)
        try:
            key.verify_signature(made, envelope.pae())
        except UnverifiedSignatureError:
            raise InputError(
                f"signing key: what {type(signer).__name__} signed does not fit the public key {key.keyid}"
            ) from None
        signatures.append(made)
    return _written(envelope, signatures)


def _written(envelope: Envelope, signatures: Sequence[Signature]) -> bytes:
    ordered = sorted(signatures, key=lambda each: (each.keyid, each.signature))
    content = Envelope(
        envelope.payload,
        envelope.payload_type,
        {str(i): Signature(each.keyid, each.signature) for i, each in enumerate(ordered)},
    )
    return canonical_json(content.to_dict()) + b"\n"


def _read(envelope: bytes) -> Envelope:
    """Return an envelope of anybody, its signatures by their place: key ids may be missing, or come twice."""
    if len(envelope) > MAX_BYTES:
        raise VerificationError(f"envelope: got more than {MAX_BYTES} bytes, expected at most that")
    try:
        content = json.loads(envelope.decode(), object_pairs_hook=_once)
        if not isinstance(content, dict):
            raise ValueError(f"got a {type(content).__name__}, expected an object")
        entries, kind = content["signatures"], content["payloadType"]
        if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_SIGNATURES:
            count = len(entries) if isinstance(entries, list) else type(entries).__name__
            raise ValueError(f"signatures: got {count}, expected 1 to {MAX_SIGNATURES}")
        for entry in entries:
            if not isinstance(entry, dict):
                raise ValueError(f"signatures: got a {type(entry).__name__} among them, expected objects")
        names = [entry.get("keyid") or "" for entry in entries]
        texts = [("payloadType", kind), ("payload", content["payload"])]
        texts += [("keyid", name) for name in names] + [("sig", entry["sig"]) for entry in entries]
        for what, value in texts:
            if not isinstance(value, str):
                raise ValueError(f"{what} is a {type(value).__name__}")
            value.encode()  # half a surrogate pair, which JSON can hold, has no UTF-8
        numbered = [{"keyid": str(i), "sig": entry["sig"]} for i, entry in enumerate(entries)]
        read = Envelope.from_dict(
            {"payload": content["payload"], "payloadType": kind, "signatures": numbered}
        )
        for signature, name in zip(read.signatures.values(), names, strict=True):
            signature.keyid = name
    except KeyError as error:
        raise VerificationError(f"envelope: it is no DSSE envelope ({error} is missing)") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError(f"envelope: it is no DSSE envelope ({str(error)[:200]})") from None
    if kind != PAYLOAD_TYPE:
        raise VerificationError(f"payloadType: got {kind!r:.80}, expected {PAYLOAD_TYPE!r}")
    return read


def _check_form(read: Envelope, envelope: bytes, trusted: Mapping[str, SSlibKey]) -> None:
    """Raise VerificationError unless an envelope is as `sign` writes it for the keys that are trusted."""
    signatures = list(read.signatures.values())
    written = _written(read, signatures)
    if written != envelope:
        at = next((i for i, (a, b) in enumerate(zip(written, envelope, strict=False)) if a != b), None)
        where = min(len(written), len(envelope)) if at is None else at
        raise VerificationError(f"envelope: byte {where} is not as iet writes it, so it was changed")
    names = [each.keyid for each in signatures]
    if len(set(names)) < len(names):
        raise VerificationError("envelope: a key id comes twice, which iet never writes")
    for each in signatures:
        if each.keyid not in trusted:
            raise VerificationError(
                f"keyid: got {each.keyid!r:.80}, expected one of the given public keys: {', '.join(trusted)}"
            )
        if low_s(each, trusted[each.keyid]).signature != each.signature:
            raise VerificationError(
                f"signature: that of {each.keyid} is not as iet writes it, so it was changed"
            )


def _has_signed(key: SSlibKey, envelope: Envelope, strict: bool) -> bool:
    """Tell whether any signature is the key's. If not strict, key ids in the envelope are hints (DSSE)."""
    for each in envelope.signatures.values():
        if not strict or each.keyid == key.keyid:
            try:
                key.verify_signature(Signature(key.keyid, each.signature), envelope.pae())
            except UnverifiedSignatureError:
                continue
            return True
    return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, in which a name that comes twice would be read in two ways."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice in an object")
    return found
