"""Envelopes written by hand, after the words of DSSE, and keys that are the same at every run."""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KIND = "application/vnd.in-toto+json"
ENCODED = serialization.Encoding
SPKI = serialization.PublicFormat.SubjectPublicKeyInfo


def ed25519(number: int = 0) -> Ed25519PrivateKey:
    """The first key is that of tests/vectors/signed_v*.dsse.json."""
    return Ed25519PrivateKey.from_private_bytes(bytes(range(number, number + 32)))


def name_of(public: Any) -> str:
    """The name of a public key."""
    return hashlib.sha256(public.public_bytes(ENCODED.DER, SPKI)).hexdigest()


def pae(payload: bytes, kind: str = KIND) -> bytes:
    """PAE(type, body) = "DSSEv1" SP LEN(type) SP type SP LEN(body) SP body."""
    return f"DSSEv1 {len(kind.encode())} {kind} {len(payload)} ".encode() + payload


def entry(key: Ed25519PrivateKey, payload: bytes, kind: str = KIND) -> dict[str, str]:
    """One signature."""
    signature = base64.b64encode(key.sign(pae(payload, kind))).decode()
    return {"keyid": name_of(key.public_key()), "sig": signature}


def enveloped(payload: bytes, *keys: Ed25519PrivateKey, kind: str = KIND) -> bytes:
    """An envelope in our strict form, signed by Ed25519 keys."""
    signatures = sorted((entry(key, payload, kind) for key in keys), key=lambda entry_: entry_["keyid"])
    return dumped(base64.b64encode(payload).decode(), signatures, kind)


def dumped(payload: str, signatures: list[dict[str, str]], kind: str = KIND) -> bytes:
    """The strict form of what it is given."""
    content = {"payload": payload, "payloadType": kind, "signatures": signatures}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def payload_of(envelope: bytes) -> bytes:
    """The signed payload."""
    return base64.b64decode(json.loads(envelope)["payload"])


def changed(envelope: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The envelope, indented, after a change of its content in place."""
    content = json.loads(envelope)
    change(content)
    return json.dumps(content, indent=1).encode()


def write_keys(folder: pathlib.Path, key: Any, name: str = "auditor") -> tuple[pathlib.Path, pathlib.Path]:
    """Write a private and a public key as openssl does."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    closed = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(ENCODED.PEM, serialization.PrivateFormat.PKCS8, closed))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(ENCODED.PEM, SPKI))
    return private, public
