"""Keys that sign reports, in files or in a KMS, HSM or Vault that securesystemslib supports.

The id of a key is the SHA-256 of its SubjectPublicKeyInfo in DER; other key ids are ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from securesystemslib.exceptions import UnsupportedLibraryError
from securesystemslib.signer import (
    KEY_FOR_TYPE_AND_SCHEME,
    SIGNER_FOR_URI_SCHEME,
    CryptoSigner,
    HSMSigner,
    Key,
    Signature,
    Signer,
    SSlibKey,
)

from iet.errors import BackendUnavailable, IetError, InputError

PrivateKey: TypeAlias = (
    Signer | Ed25519PrivateKey | EllipticCurvePrivateKey | RSAPrivateKey | str | os.PathLike[str]
)
"""A Signer of securesystemslib, a private key of cryptography, its path, or a URI."""

PublicKey: TypeAlias = Key | Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey | str | os.PathLike[str]
"""A public key of securesystemslib or cryptography, or its path."""

MIN_RSA_BITS = 2048

_KINDS = f"Ed25519, ECDSA on P-256, P-384 or P-521, RSA of at least {MIN_RSA_BITS} bits"
_EXTRAS = {"hv": "vault"}
"""URI scheme -> extra of securesystemslib, if their names differ."""

_REFUSED = ("file2", "gnupg", "tkey")
"""URI schemes that are refused: of files (pass a path), OpenPGP and post-quantum keys (ML-DSA)."""


def load_public_key(key: PublicKey) -> SSlibKey:
    """Return a public key, with its SHA-256 as key id.

    Args:
        key: of securesystemslib or cryptography; or the path of one in PEM, or in securesystemslib's JSON,
            {"keytype": "rsa", "scheme": "rsa-pkcs1v15-sha256", "keyval": {"public": PEM}}, which names the
            scheme too. Without it RSA is RSASSA-PSS with SHA-256.

    Raises:
        InputError: it cannot be read, or is not Ed25519, ECDSA on P-256, P-384 or P-521, or RSA of at least
            2048 bits.
    """
    if not isinstance(key, (str, os.PathLike)):
        return _with_our_id(key, "public key")
    data, _ = read_pem(key)
    loaded: Any = None
    with contextlib.suppress(ValueError, TypeError, LookupError, UnsupportedAlgorithm, RecursionError):
        if data.lstrip()[:1] == b"{":
            loaded = Key.from_dict("", json.loads(data))
        else:
            loaded = serialization.load_pem_public_key(data)
    if loaded is None and b"PRIVATE KEY-----" in data:
        raise InputError(
            f"{key}: got a private key, expected a public one: openssl pkey -in {key} -pubout -out PUBLIC.pem"
        )
    return _with_our_id(loaded, os.fspath(key))


def as_list(keys: Any) -> list[Any]:
    """Return one key, or a sequence of keys, as a list."""
    return list(keys) if isinstance(keys, Sequence) and not isinstance(keys, str) else [keys]


def load_signers(
    keys: PrivateKey | Sequence[PrivateKey],
    *,
    public: Sequence[PublicKey] = (),
    secrets: Callable[[str], str] | None = None,
) -> list[Signer]:
    """Return signers that are ready to sign.

    Args:
        keys: one or several: a Signer of securesystemslib, a private key of cryptography, the path of one in
            PEM (PKCS #8, without a password) that only its owner can read, or a URI of securesystemslib:
            `hsm:`, `awskms:`, `gcpkms:`, `azurekms:`, `hv:` and others that it supports.
        public: public keys of the keys that are URIs, in their order.
        secrets: function that returns the secret with a name (`pin`, of an HSM).

    Raises:
        InputError: a key cannot be used, is repeated, or its public key is missing.
        BackendUnavailable: a package for one of the keys is not installed.
    """
    private, public_keys = as_list(keys), [load_public_key(key) for key in public]
    remote = sum(_scheme(key) is not None for key in private)
    if len(public_keys) != remote:
        raise InputError(
            f"public: got {len(public_keys)} public keys, expected {remote}: one for each key that is in no"
            " file"
        )
    signers: dict[str, Signer] = {}
    for key in private:
        signer = _signer(key, public_keys, secrets)
        name = load_public_key(signer.public_key).keyid
        if name in signers:
            raise InputError(f"signing key: got the key {name} twice, expected each once")
        signers[name] = signer
    if not signers:
        raise InputError("signing key: got none, expected at least one")
    return list(signers.values())


def low_s(signature: Signature, key: SSlibKey) -> Signature:
    """Return the form of an ECDSA signature with the lower s: (r, s) and (r, n - s) are both valid."""
    if key.keytype != "ecdsa":
        return signature
    order = _crypto_key(key).curve.group_order
    try:
        r, s = decode_dss_signature(bytes.fromhex(signature.signature))
        low = encode_dss_signature(r, min(s, order - s)).hex()
        return Signature(signature.keyid, low, signature.unrecognized_fields)
    except ValueError:
        return signature  # it is malformed, and its verification will fail


@contextlib.contextmanager
def signer_errors(name: str, uri: str = "") -> Iterator[None]:
    """Convert any error of a signer to an InputError or BackendUnavailable; signers do not list their errors.

    The message holds nothing of the URI but its scheme, because a URI can hold a PIN.
    """
    try:
        yield
    except IetError:
        raise
    except UnsupportedLibraryError as error:
        extra = _EXTRAS.get(name, name)
        raise BackendUnavailable(f'{name}: {error}; pip install "securesystemslib[{extra}]"') from None
    except Exception as error:
        # An address can hold a password, for example that of a Vault in its environment variable.
        reason = re.sub(r"//[^/@\s]*@", "//", " ".join(str(error).split()))[:300]
        if any(part and part in reason for part in re.split(r"[?&=]", uri.partition(":")[2])):
            reason = "its URI is not as expected"
        reason = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise InputError(f"{name}: the key cannot be used ({reason})") from None


def _signer(key: Any, public: list[SSlibKey], secrets: Callable[[str], str] | None) -> Signer:
    if isinstance(key, Signer):
        return key
    scheme = _scheme(key)
    if scheme is None:
        in_file = isinstance(key, (str, os.PathLike))
        private = load_private_key(key) if in_file else key
        if not isinstance(private, (Ed25519PrivateKey, EllipticCurvePrivateKey, RSAPrivateKey)):
            raise InputError(
                f"signing key: got a {type(key).__name__}, expected a signer, a private key, a path or a URI"
            )
        return CryptoSigner(
            private, _with_our_id(private.public_key(), os.fspath(key) if in_file else "private key")
        )
    if scheme == HSMSigner.SCHEME and secrets is not None:
        pin = secrets(HSMSigner.SECRETS_HANDLER_MSG)  # ask before the work starts
        secrets = lambda _: pin  # noqa: E731
    with signer_errors(scheme, key):
        return Signer.from_priv_key_uri(key, public.pop(0), secrets)


def _scheme(key: object) -> str | None:
    """Return the scheme of a URI, or None if the key is no URI."""
    match = re.match(r"([a-z][a-z0-9]+):", key) if isinstance(key, str) else None
    if match is None:
        return None
    schemes = [name for name in SIGNER_FOR_URI_SCHEME if name not in _REFUSED]
    if match[1] not in schemes:
        listed = ", ".join(f"{name}:" for name in schemes)
        raise InputError(f"signing key: got a URI {match[1]}:…, expected a path, or one of {listed}")
    return match[1]


def _with_our_id(key: Any, name: str) -> SSlibKey:
    """Return a public key of cryptography or securesystemslib with our key id, or raise InputError."""
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, UnsupportedAlgorithm):
        scheme, public = (key.scheme, _crypto_key(key)) if isinstance(key, SSlibKey) else (None, key)
        is_rsa = isinstance(public, RSAPublicKey)
        if isinstance(public, (Ed25519PublicKey, EllipticCurvePublicKey)) or (
            is_rsa and public.key_size >= MIN_RSA_BITS
        ):
            spki = serialization.PublicFormat.SubjectPublicKeyInfo
            key_id = hashlib.sha256(public.public_bytes(serialization.Encoding.DER, spki)).hexdigest()
            checked = SSlibKey.from_crypto(public, key_id, scheme if is_rsa else None)
            kind = (checked.keytype, checked.scheme)
            if scheme in (None, checked.scheme) and kind in KEY_FOR_TYPE_AND_SCHEME:
                return checked
    raise InputError(f"{name}: got no supported public key, expected one in PEM or JSON: {_KINDS}")


def _crypto_key(key: SSlibKey) -> Any:
    """Return the key of cryptography in a key of securesystemslib."""
    public = key.keyval["public"]
    if key.keytype == "ed25519":
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
    return serialization.load_pem_public_key(public.encode())


def load_private_key(path: str | os.PathLike[str]) -> Any:
    """Read a private key in PEM. Raises InputError if other users can read the file, or it is malformed."""
    data, mode = read_pem(path)
    if os.name == "posix" and mode & 0o077:
        raise InputError(
            f"{path}: got mode {mode & 0o777:04o}, expected 0600: others can read the private key"
        )
    # No message quotes an error of the library, which can quote the secret content.
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        private = serialization.load_pem_private_key(data, password=None)
        if isinstance(private, (Ed25519PrivateKey, EllipticCurvePrivateKey, RSAPrivateKey)):
            return private
    raise InputError(f"{path}: got no private key in PEM without a password, expected one: {_KINDS}")


def read_pem(path: str | os.PathLike[str]) -> tuple[bytes, int]:
    """Return the first 1 MiB of a file of keys or certificates, and its mode, or raise InputError."""
    if "-----" in os.fspath(path) or "\n" in os.fspath(path):
        raise InputError("key: got the content of a key's file, expected its path")
    try:
        with open(pathlib.Path(path).expanduser(), "rb") as file:
            return file.read(1 << 20), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise InputError(
            f"{path}: cannot be read ({reason}); expected a file of keys or certificates"
        ) from None
