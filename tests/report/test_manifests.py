"""C2PA manifests in text: written, verified, changed; and invisible to an audit."""

from __future__ import annotations

import json
import pathlib
import unicodedata
from typing import NamedTuple

import pytest

pytest.importorskip("securesystemslib")
pytest.importorskip("c2pa", reason="c2pa-python is not installed (extra c2pa)")
pytest.importorskip("c2pa_text", reason="c2pa-text is not installed (extra c2pa)")

import c2pa_text
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

import iet
from iet.errors import BackendUnavailable, InputError, VerificationError
from iet.report.sign.manifests import GENERATED, embed_manifest, verify_manifest
from tests.support import teams
from tests.support.texts import spell, write
from tests.support.timestamping import write_chain

TEXT = "The critic disagrees with the planner, quite naïvely. " * 8


class Signer(NamedTuple):
    root: pathlib.Path
    certificates: pathlib.Path
    key: pathlib.Path


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(*write_chain(tmp_path_factory.mktemp("signer"), ExtendedKeyUsageOID.EMAIL_PROTECTION))


@pytest.fixture(scope="module")
def embedded(signer: Signer) -> str:
    return embed_manifest(TEXT, signer.certificates, signer.key, title="final.txt")


def test_a_text_with_a_manifest_is_verified(signer: Signer, embedded: str) -> None:
    assert embedded.startswith(TEXT)
    manifest = verify_manifest(embedded, signer.root)
    assert manifest["title"] == "final.txt"
    assert manifest["signature_info"]["common_name"] == "signer"
    [actions] = manifest["assertions"]
    assert actions["data"]["actions"] == [{"action": "c2pa.created", "digitalSourceType": GENERATED}]
    assert c2pa_text.extract_manifest(embedded)[1] == TEXT
    assert c2pa_text.validate_text(embedded).valid


def test_another_implementation_verifies_it(
    signer: Signer, embedded: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # it writes its setting of telemetry there
    other = pytest.importorskip("encypher_c2pa", reason="encypher-c2pa is not installed")
    options = {"trust_pem": signer.root.read_text(), "no_default_trust": True, "telemetry": False}
    result = other.verify(embedded.encode(), "text/plain", **options)
    assert (result["integrity"], result["hard_binding"]) == ("valid", "match")
    assert result["validation_results"]["failure"] == []
    altered = embedded.replace("critic", "planner", 1)
    assert other.verify(altered.encode(), "text/plain", **options)["integrity"] == "invalid"


@pytest.mark.parametrize("repetitions", [1, 5, 600])
def test_texts_of_any_length_and_normal_form(signer: Signer, repetitions: int) -> None:
    text = unicodedata.normalize("NFD", "naïve, " * repetitions)
    embedded = embed_manifest(text, signer.certificates, signer.key)
    assert embedded.startswith("naïve, " * repetitions)
    assert verify_manifest(embedded, signer.root)["title"] == "text"


def test_assertions_are_added(signer: Signer) -> None:
    entry = {"label": "org.example.report", "data": {"sha256": "00"}}
    embedded = embed_manifest(TEXT, signer.certificates, signer.key, assertions=[entry])
    labels = {assertion["label"] for assertion in verify_manifest(embedded, signer.root)["assertions"]}
    assert labels == {"c2pa.actions.v2", "org.example.report"}


def test_changes_are_detected(signer: Signer, embedded: str, tmp_path: pathlib.Path) -> None:
    other, *_ = write_chain(tmp_path, ExtendedKeyUsageOID.EMAIL_PROTECTION, "other")
    start = len(TEXT)
    appended = embedded + "\N{VARIATION SELECTOR-1}"
    for text, root, message in (
        (embedded, other, "signingCredential.untrusted"),
        (embedded.replace("critic", "planner", 1), signer.root, "not the one that it was made for"),
        (" " + embedded, signer.root, "not the one that it was made for"),
        (embedded + ".", signer.root, "not the one that it was made for"),
        (appended, signer.root, "not the one that it was made for"),
        (embedded[start:] + TEXT, signer.root, "not the one that it was made for"),
        (embedded[: start + 400] + embedded[start + 401 :], signer.root, "cannot be read"),
        (TEXT, signer.root, "has none"),
        (embedded[: start + 40], signer.root, "has none"),
        (embedded + embedded[start:], signer.root, "Multiple"),
    ):
        with pytest.raises(VerificationError, match=f"manifest: .*{message}"):
            verify_manifest(text, root)


def test_no_changed_byte_of_the_signed_manifest_is_accepted(signer: Signer, embedded: str) -> None:
    store, *_ = c2pa_text.find_wrapper_info(embedded)
    accepted = []
    for at in range(40, len(store), 97):
        changed = embedded[: len(TEXT)] + c2pa_text.encode_wrapper_padded(
            store[:at] + bytes([store[at] ^ 1]) + store[at + 1 :], len(embedded[len(TEXT) :].encode())
        )
        try:
            manifest = verify_manifest(changed, signer.root)
        except VerificationError:
            continue
        accepted.append(manifest == verify_manifest(embedded, signer.root))
    assert all(accepted)  # padding, which holds nothing
    assert len(accepted) < 12


def test_what_cannot_be_signed_is_refused(signer: Signer, embedded: str, tmp_path: pathlib.Path) -> None:
    curve = ec.generate_private_key(ec.SECP256K1())
    (tmp_path / "k1.pem").write_bytes(
        curve.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    (tmp_path / "k1.pem").chmod(0o600)
    tls = Signer(*write_chain(tmp_path, ExtendedKeyUsageOID.SERVER_AUTH, "tls"))
    for text, certificates, key, message in (
        ("", signer.certificates, signer.key, "text: got an empty one"),
        ("\ud800", signer.certificates, signer.key, "text: got a lone surrogate"),
        (embedded, signer.certificates, signer.key, "or one with a manifest"),
        (embedded * 2, signer.certificates, signer.key, "Multiple"),
        (TEXT, tmp_path / "none.pem", signer.key, "none.pem: cannot be read"),
        (TEXT, signer.certificates, signer.root, "got mode|got no private key"),
        (TEXT, signer.certificates, tmp_path / "k1.pem", "got a key on secp256k1"),
        (TEXT, signer.key, signer.key, "manifest: c2pa refuses"),
        (TEXT, tls.certificates, tls.key, "manifest: c2pa refuses"),
    ):
        with pytest.raises(InputError, match=message):
            embed_manifest(text, certificates, key)
    with pytest.raises(InputError, match="got no certificates"):
        verify_manifest(embedded, signer.key)
    with pytest.raises(VerificationError, match="manifest: the text has a lone surrogate"):
        verify_manifest(embedded + "\ud800", signer.root)


def test_the_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "c2pa", None)
    with pytest.raises(BackendUnavailable, match=r"C2PA manifests: .*\[c2pa\]"):
        verify_manifest(TEXT, "root.pem")


@pytest.mark.parametrize("family", ["gumbel", "fourier"])
def test_an_audit_finds_the_same_segments(signer: Signer, family: str, tmp_path: pathlib.Path) -> None:
    teams.word_tokenizer(400).save(str(tmp_path / "tokenizer.json"))
    options = {} if family == "gumbel" else {"kappa": 3.0}
    team = teams.team(
        ("planner", "critic"), None, tokenizer=tmp_path / "tokenizer.json", family=family, **options
    )
    text = spell(write(team, [("critic", 150), ("planner", 150)], ids=range(1, 400), flat=True))
    auditor = iet.Auditor(team, level=1e-4)
    plain = auditor.audit(text)
    embedded = embed_manifest(text, signer.certificates, signer.key)
    marked = auditor.audit(embedded)
    assert {segment.agent for segment in plain.segments} == {"critic", "planner"}
    assert [(s.agent, s.start, s.end) for s in marked.segments] == [
        (s.agent, s.start, s.end) for s in plain.segments
    ]
    assert json.dumps(marked.evidence) == json.dumps(plain.evidence)
    ends = [segment.char_end for segment in plain.segments]
    assert ends[-1] == len(text)  # the segments cover the text
    assert [segment.char_end for segment in marked.segments] == [*ends[:-1], len(embedded)]
