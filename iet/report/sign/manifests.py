"""C2PA 2.4 manifests in plain text (appendix A.8): invisible characters at its end. Needs the extra `c2pa`.

`c2pa-python` makes, signs and verifies a manifest, `c2pa-text` writes it into the text and finds it. This
module makes and verifies the hard binding, because c2pa-python does not know the format of texts: the SHA-256
of the text in NFC without the manifest, and the range of bytes that the manifest takes.

An audit skips these characters (`iet.marks.tokenizer.INVISIBLE`): it finds the same tokens, agents and
evidence. Segments cover a whole text, so the characters of its last segment include the manifest.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from iet.errors import InputError, VerificationError, missing
from iet.report.sign.keys import load_private_key, read_pem
from iet.report.sign.timestamps import load_roots

GENERATED = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""The digital source type of text that a model wrote."""

MEDIA_TYPE = "text/plain"

_DATA_HASH = "c2pa.hash.data"
_DRAFTS = 8
"""Maximum number of drafts. The second one usually has its final size, which depends on the digits of its own
length and is specified for the range that it takes in the text."""


def embed_manifest(
    text: str,
    certificates: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    title: str = "text",
    assertions: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text in NFC with a signed C2PA manifest at its end. It says that a model created the text.

    Args:
        text: without a manifest.
        certificates: path of the signer's certificate and those above it, in PEM, without the root.
        key: path of the private key, as in `iet.report.sign.load_signers`. RSA signs as PS256.
        title: of the text.
        assertions: more of them, {"label", "data"}, as C2PA specifies them.

    Raises:
        InputError: the text has a manifest or is empty; a file cannot be read, or is no private key; or c2pa
            refuses the certificates, the key or an assertion.
        BackendUnavailable: the extra is not installed.
    """
    from iet import __version__

    c2pa, c2pa_text = _libraries()
    clean = unicodedata.normalize("NFC", text)
    if not clean or _found(c2pa_text, clean, InputError) is not None:
        raise InputError("text: got an empty one, or one with a manifest, expected text without a manifest")
    (chain, _), (algorithm, private) = read_pem(certificates), _signing_key(key)
    try:
        content = clean.encode()
    except UnicodeEncodeError:
        raise InputError("text: got a lone surrogate, expected text that UTF-8 can hold") from None
    created = {"action": "c2pa.created", "digitalSourceType": GENERATED}
    actions = {"label": "c2pa.actions.v2", "data": {"actions": [created]}}

    def signed(length: int) -> bytes:
        definition = {
            "claim_generator_info": [{"name": "implicit-execution-tracing", "version": __version__}],
            "title": title,
            "format": MEDIA_TYPE,
            "assertions": [actions, _hard_binding(content, length), *assertions],
        }
        try:
            signer = c2pa.Signer.from_info(c2pa.C2paSignerInfo(algorithm, chain, private, None))
            builder = c2pa.Builder(json.dumps(definition))
            builder.set_no_embed()
            return bytes(builder.sign(signer, MEDIA_TYPE, io.BytesIO(content), io.BytesIO()))
        except c2pa.C2paError as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"manifest: c2pa refuses the certificates, the key or an assertion ({reason})"
            ) from None

    length = 0
    for _ in range(_DRAFTS):
        store = signed(length)
        previous, length = length, c2pa_text.worst_case_wrapper_byte_length(len(store))
        if length == previous:
            return clean + str(c2pa_text.encode_wrapper_padded(store, length))
    raise InputError(
        f"manifest: c2pa makes it in another size each time, expected one size in {_DRAFTS} drafts"
    )


def verify_manifest(text: str, roots: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Verify the manifest of a text, and return it as c2pa-python does.

    Nothing is fetched from the network: certificates are not checked for revocation.

    Args:
        text: with a manifest, unchanged.
        roots: path of the trusted root certificates in PEM.

    Returns:
        A mapping with "title", "assertions", "signature_info" and others.

    Raises:
        VerificationError: it has no manifest or several; the text or the manifest was changed; or its
            certificate is not under the roots.
        InputError: the file holds no certificates.
        BackendUnavailable: the extra is not installed.
    """
    c2pa, c2pa_text = _libraries()
    anchors = b"".join(root.public_bytes(serialization.Encoding.PEM) for root in load_roots(roots))
    trust = {"verify_trust_list": True, "trust_anchors": anchors.decode()}
    verify = {"verify_trust": True, "remote_manifest_fetch": False, "ocsp_fetch": False}
    found = _found(c2pa_text, text, VerificationError)
    if found is None:
        raise VerificationError("manifest: the text has none, expected one")
    store, start, length = found
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise VerificationError(
            "manifest: the text has a lone surrogate, so it is not the signed one"
        ) from None
    clean = unicodedata.normalize("NFC", (content[:start] + content[start + length :]).decode()).encode()
    try:
        context = c2pa.Context.from_dict({"trust": trust, "verify": verify})
        reader = c2pa.Reader(MEDIA_TYPE, io.BytesIO(content), store, context)
        results = reader.get_validation_results()["activeManifest"]
        detailed = json.loads(reader.detailed_json())
        label = detailed["active_manifest"]
        binding = detailed["manifests"][label]["assertion_store"][_DATA_HASH]
        codes = {entry["code"] for entry in results["failure"]}
        excluded = [(entry["start"], entry["length"]) for entry in binding["exclusions"]]
        is_bound = (
            excluded == [(start, length)]
            and binding["alg"] == "sha256"
            and base64.b64decode(binding["hash"]) == hashlib.sha256(clean).digest()
        )
        manifest: Mapping[str, Any] = reader.get_manifest(label)
    except (c2pa.C2paError, LookupError, TypeError, ValueError) as error:
        raise VerificationError(f"manifest: it cannot be read ({str(error)[:200]})") from None
    # c2pa-python reports a mismatch for every excluded range in text; `is_bound` replaces that test.
    if codes := codes - {"assertion.dataHash.mismatch"}:
        raise VerificationError(f"manifest: {', '.join(sorted(codes))}")
    if not is_bound:
        raise VerificationError("manifest: the text is not the one that it was made for")
    return manifest


def _hard_binding(content: bytes, length: int) -> dict[str, Any]:
    """Return the assertion of the text's hash, with the range from its end that the manifest takes."""
    digest = hashlib.sha256(content).digest()
    excluded = [{"start": len(content), "length": length}]
    data = {"name": "text", "alg": "sha256", "exclusions": excluded, "hash": list(digest), "pad": [0] * 8}
    return {"label": _DATA_HASH, "data": data}


def _signing_key(path: str | os.PathLike[str]) -> tuple[str, bytes]:
    """Return C2PA's name of the algorithm of a private key, and the key in PEM."""
    key = load_private_key(path)
    names = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
    kind = "ps256" if isinstance(key, RSAPrivateKey) else "ed25519"
    if isinstance(key, EllipticCurvePrivateKey):
        if key.curve.name not in names:
            raise InputError(f"{path}: got a key on {key.curve.name}, expected P-256, P-384 or P-521")
        kind = names[key.curve.name]
    encoding, format_ = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return kind, key.private_bytes(encoding, format_, serialization.NoEncryption())


def _found(c2pa_text: Any, text: str, error_class: type[Exception]) -> tuple[bytes, int, int] | None:
    """Return a manifest in a text, its start and its length in bytes of UTF-8."""
    try:
        found: tuple[bytes, int, int] | None = c2pa_text.find_wrapper_info(text)
    except ValueError as error:
        raise error_class(f"manifest: {error}") from None
    return found


def _libraries() -> tuple[Any, Any]:
    try:
        import c2pa
        import c2pa_text
    except ImportError as error:
        raise missing(f"C2PA manifests: {error}", "c2pa") from None
    return c2pa, c2pa_text
