"""Keys that sign reports, and where they live: in files, or where securesystemslib reaches (KMS, HSM, Vault).

A key is named by the SHA-256 of its SubjectPublicKeyInfo in DER, whatever securesystemslib or others call it.
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
from urllib.parse import urlsplit

from iet.errors import BackendUnavailable, IetError, InputError, missing

try:
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
except ImportError as error:
    raise missing(f"signing reports: {error}", "sign") from None

PrivateKey: TypeAlias = (
    Signer | Ed25519PrivateKey | EllipticCurvePrivateKey | RSAPrivateKey | str | os.PathLike[str]
)
"""What signs: a Signer of securesystemslib, a private key of cryptography, the path of one, or a URI."""

PublicKey: TypeAlias = Key | Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey | str | os.PathLike[str]
"""What verifies: a key of securesystemslib or cryptography, or the path of one."""

MIN_RSA_BITS = 2048

_KINDS = f"Ed25519, ECDSA on P-256, P-384 or P-521, RSA of at least {MIN_RSA_BITS} bits"
_EXTRAS = {"hv": "vault"}
"""Extras of securesystemslib that are not called as the URIs that need them."""
_REFUSED = ("gnupg", "tkey")
"""URIs of keys of other kinds: OpenPGP's, and post-quantum ones (ML-DSA)."""


def load_public_key(key: PublicKey) -> SSlibKey:
    """Return a public key, named by its SHA-256.

    Args:
        key: of securesystemslib or cryptography; or the path of one in PEM, or in securesystemslib's JSON,
            {"keytype": "rsa", "scheme": "rsa-pkcs1v15-sha256", "keyval": {"public": PEM}}, which says the
            scheme, too. Without it RSA is RSASSA-PSS with SHA-256.

    Raises:
        InputError: it cannot be read, or is of another kind than Ed25519, ECDSA on P-256, P-384 or P-521, and
            RSA of at least 2048 bits.
    """
    if not isinstance(key, (str, os.PathLike)):
        return _known(key, "public key")
    data, _ = _read(key)
    found: Any = None
    with contextlib.suppress(ValueError, TypeError, LookupError, UnsupportedAlgorithm, RecursionError):
        if data.lstrip()[:1] == b"{":
            found = Key.from_dict("", json.loads(data))
        else:
            found = serialization.load_pem_public_key(data)
    return _known(found, os.fspath(key))


def load_signers(
    keys: PrivateKey | Sequence[PrivateKey],
    *,
    public: Sequence[PublicKey] = (),
    secrets: Callable[[str], str] | None = None,
) -> list[Signer]:
    """Return what signs, ready to do so.

    Args:
        keys: one or several: a Signer of securesystemslib, a private key of cryptography, the path of one in
            PEM (PKCS #8, without a password) that only its owner can read, or a URI of securesystemslib:
            `file2:PATH`, `hsm:`, `awskms:`, `gcpkms:`, `azurekms:`, `hv:` and what else it knows.
        public: their public keys, in their order, one for each that is a URI of another kind than `file2:`.
        secrets: called with the name of a secret that a signer asks for (`pin`, of an HSM), returns it.

    Raises:
        InputError: a key cannot be used, comes twice, or its public key is missing.
        BackendUnavailable: a package that reaches a key is not installed.
    """
    given = list(keys) if isinstance(keys, Sequence) and not isinstance(keys, str) else [keys]
    left = [load_public_key(key) for key in public]
    far = sum(_scheme(key) not in (None, CryptoSigner.SCHEME) for key in given)
    if len(left) != far:
        raise InputError(
            f"public: got {len(left)} public keys, expected {far}: one for each key that is in no file"
        )
    found: dict[str, Signer] = {}
    for key in given:
        signer = _signer(key, left, secrets)
        name = load_public_key(signer.public_key).keyid
        if name in found:
            raise InputError(f"signing key: got the key {name} twice, expected each once")
        found[name] = signer
    if not found:
        raise InputError("signing key: got none, expected at least one")
    return list(found.values())


def low_s(signature: Signature, key: SSlibKey) -> Signature:
    """Return a signature of ECDSA, of which (r, s) and (r, n - s) fit, in the form that has the lower s."""
    if key.keytype != "ecdsa":
        return signature
    order = _opened(key).curve.group_order
    try:
        r, s = decode_dss_signature(bytes.fromhex(signature.signature))
        return Signature(signature.keyid, encode_dss_signature(r, min(s, order - s)).hex())
    except ValueError:
        return signature  # none at all, as its verification will say


@contextlib.contextmanager
def told(where: str, uri: str = "") -> Iterator[None]:
    """Turn whatever a signer raises into an error of ours: what they may raise is nowhere listed.

    Nothing that follows the scheme of a URI is said: people write a PIN there.
    """
    try:
        yield
    except IetError:
        raise
    except UnsupportedLibraryError as error:
        extra = _EXTRAS.get(where, where)
        raise BackendUnavailable(f'{where}: {error}; pip install "securesystemslib[{extra}]"') from None
    except Exception as error:
        # An address may carry a password, as that of a Vault in its environment variable.
        reason = re.sub(r"//[^/@\s]*@", "//", " ".join(str(error).split()))[:300]
        if any(part and part in reason for part in re.split(r"[?&=]", uri.partition(":")[2])):
            reason = "its URI is not as expected"
        reason = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise InputError(f"{where}: the key cannot be used ({reason})") from None


def _signer(key: Any, public: list[SSlibKey], secrets: Callable[[str], str] | None) -> Signer:
    if isinstance(key, Signer):
        return key
    scheme = _scheme(key)
    if scheme is None or scheme == CryptoSigner.SCHEME:
        in_file = isinstance(key, (str, os.PathLike))
        private = _load_private_key(key) if in_file else key
        if not isinstance(private, (Ed25519PrivateKey, EllipticCurvePrivateKey, RSAPrivateKey)):
            raise InputError(
                f"signing key: got a {type(key).__name__}, expected a signer, a private key, a path or a URI"
            )
        return CryptoSigner(
            private, _known(private.public_key(), os.fspath(key) if in_file else "private key")
        )
    if scheme == HSMSigner.SCHEME and secrets is not None:
        pin = secrets(HSMSigner.SECRETS_HANDLER_MSG)  # before the work, not after it
        secrets = lambda _: pin  # noqa: E731
    with told(scheme, key):
        return Signer.from_priv_key_uri(key, public.pop(0), secrets)


def _scheme(key: object) -> str | None:
    """Return the scheme of a URI. None: it is something else."""
    written = re.match(r"([a-z][a-z0-9]+):", key) if isinstance(key, str) else None
    if written is None:
        return None
    if written[1] not in SIGNER_FOR_URI_SCHEME:
        known = ", ".join(f"{name}:" for name in SIGNER_FOR_URI_SCHEME if name not in _REFUSED)
        raise InputError(f"signing key: got a URI {written[1]}:…, expected a path, or one of {known}")
    return written[1]


def _known(key: Any, what: str) -> SSlibKey:
    """Return a public key of cryptography or securesystemslib under our name, or raise InputError."""
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, UnsupportedAlgorithm):
        scheme, public = (key.scheme, _opened(key)) if isinstance(key, SSlibKey) else (None, key)
        of_rsa = isinstance(public, RSAPublicKey)
        if isinstance(public, (Ed25519PublicKey, EllipticCurvePublicKey)) or (
            of_rsa and public.key_size >= MIN_RSA_BITS
        ):
            spki = serialization.PublicFormat.SubjectPublicKeyInfo
            name = hashlib.sha256(public.public_bytes(serialization.Encoding.DER, spki)).hexdigest()
            found = SSlibKey.from_crypto(public, name, scheme if of_rsa else None)
            if scheme in (None, found.scheme) and (found.keytype, found.scheme) in KEY_FOR_TYPE_AND_SCHEME:
                return found
    raise InputError(f"{what}: got no public key that is known, expected one in PEM or JSON: {_KINDS}")


def _opened(key: SSlibKey) -> Any:
    """Return the key of cryptography that securesystemslib's holds."""
    written = key.keyval["public"]
    if key.keytype == "ed25519":
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(written))
    return serialization.load_pem_public_key(written.encode())


def _load_private_key(path: str | os.PathLike[str]) -> Any:
    """Read a private key. Raises InputError if others can read the file, or it is none in PEM."""
    if isinstance(path, str) and path.startswith(f"{CryptoSigner.SCHEME}:"):
        path = pathlib.Path(os.environ.get(CryptoSigner.PREFIX_ENV_VAR, ""), urlsplit(path).path)
    data, mode = _read(path)
    if os.name == "posix" and mode & 0o077:
        raise InputError(
            f"{path}: got mode {mode & 0o777:04o}, expected 0600: others can read the private key"
        )
    # No message quotes what the library says of the content: it is secret, or was meant to be.
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        found = serialization.load_pem_private_key(data, password=None)
        if isinstance(found, (Ed25519PrivateKey, EllipticCurvePrivateKey, RSAPrivateKey)):
            return found
    raise InputError(f"{path}: got no private key in PEM without a password, expected one: {_KINDS}")


def _read(path: str | os.PathLike[str]) -> tuple[bytes, int]:
    if "-----" in os.fspath(path) or "\n" in os.fspath(path):
        raise InputError("key: got what a key's file holds, expected its path")
    try:
        with open(pathlib.Path(path).expanduser(), "rb") as file:
            return file.read(1 << 16), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file has such a name"
        raise InputError(f"{path}: cannot be read ({reason}); expected the file of a key") from None
