"""Signing keys from files and URIs: rejected keys, and errors without secrets."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest

pytest.importorskip("securesystemslib")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.exceptions import UnsupportedLibraryError
from securesystemslib.signer import SIGNER_FOR_URI_SCHEME, CryptoSigner, Signature, Signer, SSlibKey

from iet.errors import BackendUnavailable, InputError, VerificationError
from iet.report import sign
from iet.report.sign import keys as signers
from tests.support.reports import report_of
from tests.support.signing import ENCODED, ed25519, name_of, write_keys

PIN = "846213-secret"


@pytest.mark.parametrize(
    "key",
    [
        ed25519(),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=lambda key: type(key).__name__,
)
def test_accepts_keys_from_files(tmp_path: pathlib.Path, key: Any) -> None:
    private, public = write_keys(tmp_path, key)
    for argument in (private, str(private), key, [private]):
        envelope = sign.sign(report_of(), argument)
        for theirs in (public, str(public), key.public_key(), [public]):
            assert sign.verify(envelope, theirs, strict=True).key_ids == (name_of(key.public_key()),)


def test_rsa_scheme_comes_from_json(tmp_path: pathlib.Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    public = SSlibKey.from_crypto(key.public_key(), "theirs", "rsa-pkcs1v15-sha512")
    path = tmp_path / "public.json"
    path.write_text(json.dumps(public.to_dict()))
    envelope = sign.sign(report_of(), CryptoSigner(key, public))
    assert sign.verify(envelope, path).key_ids == (name_of(key.public_key()),)
    with pytest.raises(VerificationError, match="signature: 0 of 1"):
        sign.verify(envelope, key.public_key())  # which is PSS


def test_rejects_unsupported_keys(tmp_path: pathlib.Path) -> None:
    private, public = write_keys(tmp_path, ed25519())
    public.chmod(0o600)
    weak = rsa.generate_private_key(65537, 1024)
    unsupported = [ec.generate_private_key(ec.SECP256K1()), ed448.Ed448PrivateKey.generate(), weak]
    unsupported.append(dsa.generate_private_key(2048))
    for key in unsupported:
        other_private, other_public = write_keys(tmp_path, key, "other")
        for argument in (other_private, key):
            with pytest.raises(InputError, match="expected") as caught:
                signers.load_signers(argument)
            assert argument is key or str(caught.value).startswith(f"{other_private}: ")
        for argument in (other_public, key.public_key()):
            with pytest.raises(InputError, match=r"got no supported public key, expected .*: Ed25519, ECDSA"):
                signers.load_public_key(argument)
    with pytest.raises(InputError, match=r"auditor.pub.pem: got no private key in PEM"):
        signers.load_signers(public)
    with pytest.raises(InputError, match=r"auditor.pem: got a private key, expected a public one: openssl"):
        signers.load_public_key(private)
    encrypted = serialization.BestAvailableEncryption(b"secret")
    private.write_bytes(ed25519().private_bytes(ENCODED.PEM, serialization.PrivateFormat.PKCS8, encrypted))
    with pytest.raises(InputError, match="without a password"):
        signers.load_signers(private)
    with pytest.raises(InputError, match=r"nowhere.pem: cannot be read \(No such file"):
        signers.load_public_key(tmp_path / "nowhere.pem")
    for nonsense in (7, None, b"x", "\0"):
        with pytest.raises(InputError):
            signers.load_signers(nonsense)  # type: ignore[arg-type]
        with pytest.raises(InputError):
            signers.load_public_key(nonsense)  # type: ignore[arg-type]
    good = SSlibKey.from_crypto(ed25519().public_key()).to_dict()
    curve = SSlibKey.from_crypto(ec.generate_private_key(ec.SECP256R1()).public_key()).to_dict()
    for content in (
        "{",
        "{}",
        "{" * 100_000,
        json.dumps({**good, "keytype": "rsa"}),
        json.dumps({**good, "scheme": "rsassa-pss-sha256"}),
        json.dumps({**good, "keyval": {"public": "zz"}}),
        json.dumps({**good, "keyval": {"public": 7}}),
        json.dumps({**good, "keyval": None}),
        json.dumps({**curve, "scheme": "ecdsa-sha2-nistp384"}),
        json.dumps({**good, "keytype": "eddsa", "scheme": "pgp+eddsa-ed25519"}),
    ):
        public.write_text(content)
        with pytest.raises(InputError, match=r"auditor.pub.pem: got no supported public key"):
            signers.load_public_key(public)


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_rejects_readable_private_keys(tmp_path: pathlib.Path) -> None:
    private, _ = write_keys(tmp_path, ed25519())
    private.chmod(0o640)
    with pytest.raises(InputError, match="got mode 0640, expected 0600"):
        signers.load_signers(private)


def test_errors_of_uris_contain_no_secret(tmp_path: pathlib.Path) -> None:
    _, public = write_keys(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    for uri in (f"vault:{PIN}", f"gnupg:{PIN}", f"hsm:{PIN}", f"hsm:x?pin={PIN}", f"hv:{PIN}"):
        scheme = uri.partition(":")[0]
        with pytest.raises((InputError, BackendUnavailable), match=f"{scheme}:") as caught:
            signers.load_signers(uri, public=[] if scheme == "vault" else [public], secrets=lambda name: PIN)
        assert PIN not in str(caught.value)
        assert caught.value.__context__ is None or caught.value.__suppress_context__
    with pytest.raises(InputError, match=r"expected a path, or one of .*hsm:, .*awskms:") as caught:
        signers.load_signers("vault:key/1")
    assert "file2:" not in str(caught.value)
    assert "gnupg:" not in str(caught.value)
    assert "tkey:" not in str(caught.value)
    with pytest.raises(
        InputError, match="public: got 0 public keys, expected 1: one for each key that is in no"
    ):
        signers.load_signers(["hsm:", ed25519()])
    with pytest.raises(InputError, match="public: got 1 public keys, expected 0"):
        signers.load_signers([ed25519()], public=[public])


class Elsewhere(Signer):
    """A custom signer, registered as securesystemslib's documentation says."""

    def __init__(self, public: Any, uri: str) -> None:
        if uri == "elsewhere:missing":
            raise UnsupportedLibraryError("'elsewhere-client' required")
        self._public, self._fails = public, uri == "elsewhere:fails"

    @property
    def public_key(self) -> Any:
        return self._public

    @classmethod
    def from_priv_key_uri(cls, priv_key_uri: str, public_key: Any, secrets_handler: Any = None) -> Elsewhere:
        return cls(public_key, priv_key_uri)

    def sign(self, payload: bytes) -> Signature:
        if self._fails:
            raise ConnectionError(f"https://user:{PIN}@vault.test/v1: refused")
        return Signature(self._public.keyid, ed25519().sign(payload).hex())


def test_custom_signers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIGNER_FOR_URI_SCHEME, "elsewhere", Elsewhere)
    public = ed25519().public_key()
    envelope = sign.sign(report_of(), signers.load_signers("elsewhere:1", public=[public]))
    sign.verify(envelope, public, strict=True)
    mistaken = signers.load_signers("elsewhere:1", public=[Ed25519PrivateKey.generate().public_key()])
    with pytest.raises(InputError, match="the signature of Elsewhere does not fit the public key"):
        sign.sign(report_of(), mistaken)
    with pytest.raises(InputError) as caught:
        sign.sign(report_of(), signers.load_signers("elsewhere:fails", public=[public]))
    assert (
        str(caught.value)
        == "Elsewhere: the key cannot be used (ConnectionError: https://vault.test/v1: refused)"
    )
    assert caught.value.__suppress_context__
    with pytest.raises(
        BackendUnavailable, match=r"elsewhere: .* required; pip install .securesystemslib\[elsewhere\]"
    ):
        signers.load_signers("elsewhere:missing", public=[public])
