"""DSSE envelopes: read those of any writer, write one canonical form, and verify signatures.

    envelope  = {"payload": base64(statement), "payloadType", "signatures": [{"keyid", "sig"}, ...]} + "\\n"
    sig       = base64(signature of PAE),  PAE = "DSSEv1" ␠ |type| ␠ type ␠ |statement| ␠ statement
    timestamp = base64(RFC 3161 TimeStampResp of the signature), an optional field of a signature

(https://github.com/secure-systems-lab/dsse). Reading accepts what DSSE allows: both base64 alphabets, unknown
fields, missing or wrong key ids. Writing has one form: canonical JSON (sorted keys, no spaces, UTF-8),
signatures sorted by key id. An envelope with several valid forms could be changed without notice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Signature, Signer, SSlibKey

from iet.errors import InputError, VerificationError
from iet.marks.scheme import canonical_json
from iet.report.sign.keys import load_public_key, low_s, signer_errors

PAYLOAD_TYPE = "application/vnd.in-toto+json"

TIMESTAMP = "timestamp"
"""Optional field of a signature. DSSE ignores unknown fields, so other readers accept it."""

MAX_BYTES = 64 << 20
"""Maximum size of an envelope."""

MAX_SIGNATURES = 32
"""Maximum number of signatures, because each one is verified with each trusted key."""


def read_envelope(data: bytes) -> Envelope:
    """Parse an envelope. Its signatures are numbered, because key ids may be missing or repeated.

    Raises:
        VerificationError: `data` is larger than `MAX_BYTES`, no DSSE envelope, or has another payload type.
    """
    if len(data) > MAX_BYTES:
        raise VerificationError(f"envelope: got more than {MAX_BYTES} bytes, expected at most that")
    try:
        content = json.loads(data.decode(), object_pairs_hook=unique_names)
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
        strings = [("payloadType", kind), ("payload", content["payload"])]
        strings += [("keyid", name) for name in names] + [("sig", entry["sig"]) for entry in entries]
        strings += [(TIMESTAMP, entry[TIMESTAMP]) for entry in entries if TIMESTAMP in entry]
        for field, value in strings:
            if not isinstance(value, str):
                raise ValueError(f"{field} is a {type(value).__name__}")
            value.encode()  # fails for lone surrogates, which JSON can hold
        numbered = [
            {"keyid": str(i), **{field: entry[field] for field in ("sig", TIMESTAMP) if field in entry}}
            for i, entry in enumerate(entries)
        ]
        envelope = Envelope.from_dict(
            {"payload": content["payload"], "payloadType": kind, "signatures": numbered}
        )
        for signature, name in zip(envelope.signatures.values(), names, strict=True):
            signature.keyid = name
    except KeyError as error:
        raise VerificationError(f"envelope: it is no DSSE envelope ({error} is missing)") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError(f"envelope: it is no DSSE envelope ({str(error)[:200]})") from None
    if kind != PAYLOAD_TYPE:
        raise VerificationError(f"payloadType: got {kind!r:.80}, expected {PAYLOAD_TYPE!r}")
    return envelope


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for a repeated name, which parsers treat differently."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name comes twice in an object")
    return content


def written(envelope: Envelope, signatures: Sequence[Signature]) -> bytes:
    """Return the canonical form of an envelope with these signatures."""
    ordered = sorted(signatures, key=lambda signature: (signature.keyid, signature.signature))
    numbered = {str(i): signature for i, signature in enumerate(ordered)}
    content = Envelope(envelope.payload, envelope.payload_type, numbered)
    return canonical_json(content.to_dict()) + b"\n"


def with_signatures(envelope: Envelope, signers: Sequence[Signer]) -> bytes:
    """Return the canonical form of an envelope with more signatures, after verifying each new one.

    Raises:
        InputError: there are too many signatures, a key has signed already, or a signer fails.
    """
    signatures = list(envelope.signatures.values())
    if len(signatures) + len(signers) > MAX_SIGNATURES:
        raise InputError(
            f"signing key: got {len(signers)} beside {len(signatures)},"
            f" expected {MAX_SIGNATURES} signatures at most"
        )
    for signer in signers:
        key, kind = load_public_key(signer.public_key), type(signer).__name__
        if signature_of(key, envelope, strict=False) is not None:
            raise InputError(f"signing key: {key.keyid} has signed already")
        # A signature under this key id was not made with this key.
        signatures = [signature for signature in signatures if signature.keyid != key.keyid]
        with signer_errors(kind):
            signature = low_s(Signature(key.keyid, signer.sign(envelope.pae()).signature), key)
        try:
            key.verify_signature(signature, envelope.pae())
        except UnverifiedSignatureError:
            raise InputError(
                f"signing key: the signature of {kind} does not fit the public key {key.keyid}"
            ) from None
        signatures.append(signature)
    return written(envelope, signatures)


def signature_of(key: SSlibKey, envelope: Envelope, strict: bool) -> Signature | None:
    """Return the signature that fits the key. Unless `strict`, key ids are only hints (DSSE)."""
    for signature in envelope.signatures.values():
        if not strict or signature.keyid == key.keyid:
            try:
                key.verify_signature(Signature(key.keyid, signature.signature), envelope.pae())
            except UnverifiedSignatureError:
                continue
            return signature
    return None


def check_canonical(envelope: Envelope, data: bytes, trusted: Mapping[str, SSlibKey]) -> None:
    """Check that the bytes are what `written` returns, signed only by trusted keys.

    Raises:
        VerificationError: a byte, a key id or a signature differs from the canonical form.
    """
    signatures = {
        signature.keyid: low_s(signature, trusted[signature.keyid])
        if signature.keyid in trusted
        else signature
        for signature in envelope.signatures.values()
    }
    if written(envelope, list(signatures.values())) != data:
        raise VerificationError("envelope: its bytes are not as iet writes them, so it was changed")
    if unknown := signatures.keys() - trusted.keys():
        raise VerificationError(
            f"keyid: got {min(unknown)!r:.80}, expected one of the given public keys: {', '.join(trusted)}"
        )
