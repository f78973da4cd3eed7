"""RFC 3161 time stamps: get them from a time-stamp authority and verify them. Needs the extra `timestamp`.

A time stamp proves that some bytes existed at a time, by the clock of an authority that neither the signer
nor the auditor controls. `iet` stamps two things: the signatures of a report, and a registry's digest, which
commits to its keys. A time stamp is the DER TimeStampResp of the authority, as `openssl ts` reads it.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from securesystemslib.signer import Signature

from iet.errors import BackendUnavailable, InputError, VerificationError, missing
from iet.report.sign.envelope import TIMESTAMP, read_envelope, written
from iet.report.sign.keys import read_pem

TIMEOUT = 30.0
"""Seconds to wait for an authority."""

MAX_ANSWER = 1 << 17
"""Maximum size in bytes of an authority's answer; usual ones have 1 to 8 KiB."""


def check_authority(url: str) -> None:
    """Raise an InputError if a URL is invalid, BackendUnavailable if the extra is not installed."""
    _client()
    _checked_host(url)


def request_timestamp(url: str, data: bytes, *, timeout: float = TIMEOUT) -> bytes:
    """Return a time stamp of `data`. Only its SHA-256 and a random nonce are sent.

    Args:
        url: of the authority, http or https.
        data: the bytes, at least one.
        timeout: in seconds.

    Raises:
        InputError: the URL is invalid.
        BackendUnavailable: the authority cannot be reached, refuses, or answers with anything else than a
            time stamp of this request; or the extra is not installed. Its signature is not verified.
    """
    client, name = _client(), _checked_host(url)
    query = client.TimestampRequestBuilder().data(data).hash_algorithm(client.HashAlgorithm.SHA256).build()
    headers = {"Content-Type": "application/timestamp-query", "Accept": "application/timestamp-reply"}
    try:
        posted = urllib.request.Request(url, query.as_bytes(), headers)
        with urllib.request.urlopen(posted, timeout=timeout) as answer:
            content = answer.read(MAX_ANSWER)
    except urllib.error.HTTPError as error:
        raise BackendUnavailable(f"{name}: HTTP {error.code}, expected a time stamp") from None
    except (http.client.HTTPException, ValueError) as error:  # its words may quote a URL or the answer
        raise BackendUnavailable(f"{name}: cannot be reached ({type(error).__name__})") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise BackendUnavailable(f"{name}: cannot be reached ({reason})") from None
    try:
        response = client.decode_timestamp_response(content)
        status = int(response.status)
        if status != client.PKIStatus.GRANTED:
            reason = " ".join(response.status_string)[:200] or "no reason given"
            raise BackendUnavailable(f"{name}: the time stamp was not granted (status {status}, {reason})")
        stamped = response.tst_info
    except ValueError as error:
        raise BackendUnavailable(f"{name}: answers with no time stamp ({str(error)[:100]})") from None
    if (stamped.nonce, stamped.message_imprint.message) != (query.nonce, query.message_imprint.message):
        raise BackendUnavailable(f"{name}: answers with a time stamp of another request")
    return bytes(response.as_bytes())


def verify_timestamp(response: bytes, data: bytes, roots: Sequence[x509.Certificate]) -> datetime:
    """Return the time of a time stamp, in UTC.

    Args:
        response: from `request_timestamp`.
        data: the stamped bytes.
        roots: trusted certificates, from `load_roots`. They must have been valid at that time.

    Raises:
        VerificationError: it is of other data, from another authority, was changed, or is no time stamp.
        BackendUnavailable: the extra is not installed.
    """
    client = _client()
    try:
        decoded = client.decode_timestamp_response(response)
        client.VerifierBuilder(roots=list(roots)).build().verify_message(decoded, data)
        time: datetime = decoded.tst_info.gen_time
    except (client.VerificationError, ValueError, TypeError) as error:
        reason = str(error).partition(": ErrorStack")[0][:200]
        raise VerificationError(f"time stamp: not valid under the given roots ({reason})") from None
    return time.astimezone(UTC)


def load_roots(path: str | os.PathLike[str]) -> list[x509.Certificate]:
    """Return the certificates in a PEM file.

    Raises:
        InputError: it cannot be read or holds none.
    """
    data, _ = read_pem(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise InputError(f"{path}: got no certificates, expected root certificates in PEM") from None


def add_timestamps(envelope: bytes, url: str, *, timeout: float = TIMEOUT) -> bytes:
    """Return a signed report after adding a time stamp to each signature without one.

    Args:
        envelope: the bytes of the file.
        url: as in `request_timestamp`.
        timeout: in seconds, for each signature.

    Raises:
        VerificationError: it is no envelope.
        InputError: all signatures have time stamps, or the URL is invalid.
        BackendUnavailable: as in `request_timestamp`.
    """
    parsed = read_envelope(envelope)
    signatures = list(parsed.signatures.values())
    if all(TIMESTAMP in signature.unrecognized_fields for signature in signatures):
        raise InputError("time stamp: every signature has one already, expected one without")
    for signature in signatures:
        if TIMESTAMP not in signature.unrecognized_fields:
            response = request_timestamp(url, bytes.fromhex(signature.signature), timeout=timeout)
            signature.unrecognized_fields[TIMESTAMP] = base64.b64encode(response).decode()
    return written(parsed, signatures)


def signature_time(signature: Signature, roots: Sequence[x509.Certificate]) -> datetime:
    """Return the verified time of a signature in an envelope, in UTC.

    Raises:
        VerificationError: it has no time stamp, or as in `verify_timestamp`.
    """
    encoded = signature.unrecognized_fields.get(TIMESTAMP)
    if encoded is None:
        raise VerificationError(f"time stamp: the signature of {signature.keyid!r:.80} has none")
    try:
        response = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise VerificationError("time stamp: got no base64") from None
    return verify_timestamp(response, bytes.fromhex(signature.signature), roots)


def _client() -> Any:
    try:
        import rfc3161_client
    except ImportError as error:
        raise missing(f"time stamps: {error}", "timestamp") from None
    return rfc3161_client


def _checked_host(url: str) -> str:
    """Return scheme and host of a URL for messages, because the rest may hold a password."""
    expected = "expected one such as https://freetsa.org/tsr"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError(f"time stamp: got no URL, {expected}") from None
    if "@" in parts.netloc:
        raise InputError(f"time stamp: got a URL with a user or a password, {expected}")
    labels = (parts.hostname or "").removesuffix(".").split(".")
    printable = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not printable or not all(0 < len(x) < 64 for x in labels):
        raise InputError(f"time stamp: got no URL, {expected}")
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")
