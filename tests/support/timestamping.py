"""A local time-stamp authority (RFC 3161): its certificates by cryptography, its answers by `openssl ts`."""

from __future__ import annotations

import contextlib
import http.server
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CONFIGURATION = """[tsa]
serial = serial
crypto_device = builtin
signer_digest = sha256
default_policy = 1.3.6.1.4.1.99999.1
digests = sha256, sha512
accuracy = secs:1
ess_cert_id_alg = sha256
"""

ENCODED = serialization.Encoding


def common_name(text: str) -> x509.Name:
    """A name of a certificate."""
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test"), x509.NameAttribute(NameOID.COMMON_NAME, text)]
    )


def certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[str, ec.EllipticCurvePrivateKey],
    usage: x509.ObjectIdentifier | None,
) -> x509.Certificate:
    """A certificate that is valid for two days; of an authority if it has no extended `usage`."""
    now, (issuer_name, issuer_key) = datetime.now(UTC), issuer
    is_root = usage is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(common_name(name))
        .issuer_name(common_name(issuer_name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(is_root, None), critical=True)
        .add_extension(
            x509.KeyUsage(not is_root, False, False, False, False, is_root, is_root, False, False),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if usage is not None:
        is_critical = usage == ExtendedKeyUsageOID.TIME_STAMPING
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=is_critical)
    return builder.sign(issuer_key, hashes.SHA256())


def write_chain(
    folder: pathlib.Path, usage: x509.ObjectIdentifier, name: str = "signer"
) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    """Write a root, a certificate under it for this usage, and its private key: their three paths."""
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = certificate(f"{name} root", root_key, (f"{name} root", root_key), None)
    leaf = certificate(name, key, (f"{name} root", root_key), usage)
    paths = tuple(folder / f"{name}.{kind}.pem" for kind in ("root", "leaf", "key"))
    closed = serialization.NoEncryption()
    paths[0].write_bytes(root.public_bytes(ENCODED.PEM))
    paths[1].write_bytes(leaf.public_bytes(ENCODED.PEM))
    paths[2].write_bytes(key.private_bytes(ENCODED.PEM, serialization.PrivateFormat.PKCS8, closed))
    paths[2].chmod(0o600)
    return paths[0], paths[1], paths[2]


@contextlib.contextmanager
def served(answer: Callable[[bytes], tuple[int, bytes]]) -> Iterator[str]:
    """Serve POST requests on this machine by a function of their bodies; the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, content = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/tsr"
    finally:
        server.shutdown()
        server.server_close()


class Authority:
    """A time-stamp authority in a folder; `root` is the path of its root certificate."""

    def __init__(self, folder: pathlib.Path) -> None:
        pytest.importorskip("rfc3161_client", reason="rfc3161-client is not installed (extra timestamp)")
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.root, self._leaf, self._key = write_chain(folder, ExtendedKeyUsageOID.TIME_STAMPING, folder.name)
        (folder / "tsa.cnf").write_text(CONFIGURATION)
        (folder / "serial").write_text("01\n")

    def answer(self, query: bytes) -> tuple[int, bytes]:
        """The answer to a time-stamp query, now."""
        (self.folder / "query.tsq").write_bytes(query)
        options = ["-config", "tsa.cnf", "-section", "tsa", "-queryfile", "query.tsq", "-out", "answer.tsr"]
        keys = ["-signer", self._leaf.name, "-inkey", self._key.name]
        command = ["openssl", "ts", "-reply", *options, *keys]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        return 200, (self.folder / "answer.tsr").read_bytes()
