"""Signed reports: content, verification, and rejection of every change."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import pathlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

pytest.importorskip("securesystemslib")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import iet
from iet.errors import InputError, VerificationError
from iet.marks.scheme import canonical_json
from iet.report import Report, sign
from tests.support.reports import TEXT, report_of
from tests.support.signing import ed25519, enveloped, name_of, pae, payload_of

VECTORS = pathlib.Path(__file__).parent.parent / "vectors"
NOON = datetime(2026, 11, 1, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.fixture(scope="module")
def team() -> iet.Registry:
    registry = iet.Registry.create(None, vocab_size=1000)
    for name in ("planner", "critic", "engineer"):
        registry.add(name, secret=hashlib.blake2b(name.encode(), digest_size=32).digest())
    return registry


@pytest.fixture(scope="module")
def report(team: iet.Registry) -> Report:
    profile = dataclasses.replace(team.profile, tokenizer_source="/home/auditor/tokenizer.json")
    return report_of(registry_digest=team.digest, profiles=(profile,))


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return ed25519()


@pytest.fixture(scope="module")
def envelope(report: Report, key: Ed25519PrivateKey) -> bytes:
    return sign.sign(report, key, name="final.txt", time=NOON)


def test_statement_contains_report_subject_and_time(
    report: Report, key: Ed25519PrivateKey, envelope: bytes
) -> None:
    verified = sign.verify(envelope, key.public_key())
    assert verified.key_ids == (name_of(key.public_key()),)
    statement = verified.statement
    assert statement["predicateType"] == sign.PREDICATE_TYPE
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    assert statement["subject"] == [{"name": "final.txt", "digest": {"sha256": digest}}]
    assert verified.audited == "2026-11-01T12:00:00Z"
    expected = json.loads(json.dumps(report.to_dict(text=False)))
    assert expected["profiles"][0].pop("tokenizer_source") == "/home/auditor/tokenizer.json"
    signed_report: Any = json.loads(json.dumps(verified.report))
    assert signed_report["profiles"][0].pop("tokenizer_source") is None
    assert signed_report == expected
    assert b"disagrees" not in base64.b64decode(json.loads(envelope)["payload"])  # the text is not signed


def test_envelope_is_dsse_with_an_ed25519_signature(key: Ed25519PrivateKey, envelope: bytes) -> None:
    content, payload = json.loads(envelope), payload_of(envelope)
    assert content["payloadType"] == "application/vnd.in-toto+json"
    [signature] = content["signatures"]
    key.public_key().verify(base64.b64decode(signature["sig"]), pae(payload))
    assert signature["keyid"] == name_of(key.public_key())
    assert enveloped(payload, key) == envelope


@pytest.mark.parametrize("strict", [False, True])
def test_verifies_the_frozen_envelope(strict: bool) -> None:
    envelope = (VECTORS / "signed_v1.dsse.json").read_bytes()
    verified = sign.verify(envelope, ed25519().public_key(), strict=strict)
    assert verified.statement["predicateType"] == (
        "urn:uuid:21076bcc-3ac3-468e-9080-8f3f0d553473#implicit-execution-tracing/attribution/v1"
    )
    assert verified.audited == "2026-11-01T12:00:00Z"
    verified.check(text=TEXT)


def test_signing_is_deterministic(report: Report, key: Ed25519PrivateKey, envelope: bytes) -> None:
    assert sign.sign(report, key, name="final.txt", time=NOON.astimezone(UTC)) == envelope


def test_strict_rejects_any_changed_byte(key: Ed25519PrivateKey, envelope: bytes) -> None:
    rng = np.random.default_rng(0)
    named = set()
    for _ in range(1000):  # of the whole file; in any form of it, test_envelopes.py
        at = int(rng.integers(len(envelope)))
        new_byte = (envelope[at] + int(rng.integers(1, 256))) % 256
        with pytest.raises(VerificationError) as caught:
            sign.verify(envelope[:at] + bytes([new_byte]) + envelope[at + 1 :], key.public_key(), strict=True)
        named.add(str(caught.value).partition(":")[0])
    assert named == {"envelope", "payloadType", "keyid", "signature"}


def test_strict_rejects_equivalent_encodings(key: Ed25519PrivateKey, envelope: bytes) -> None:
    content = json.loads(envelope)
    sig = content["signatures"][0]["sig"]
    assert sig.endswith("==")  # 64 bytes: the last letter before has four bits that no decoder reads
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = sig[:-3] + letters[letters.index(sig[-3]) + 1] + "=="
    assert base64.b64decode(twin, validate=True) == base64.b64decode(sig)
    for changed in (
        envelope.replace(sig.encode(), twin.encode()),
        envelope.rstrip(b"\n"),
        envelope + b"\n",
        b" " + envelope,
        envelope.replace(b'"payloadType"', b'"payloadTyp\\u0065"'),
        canonical_json({**content, "note": "more"}) + b"\n",
        canonical_json({**content, "signatures": content["signatures"] * 2}) + b"\n",
        *(
            canonical_json({**content, "signatures": [{"keyid": k, "sig": sig}]}) + b"\n"
            for k in (None, 1, [])
        ),
        json.dumps(content).encode() + b"\n",
    ):
        with pytest.raises(VerificationError, match=r"^envelope: "):
            sign.verify(changed, key.public_key(), strict=True)


def test_rejects_other_statements_of_the_same_key(key: Ed25519PrivateKey) -> None:
    for payload, message in (
        (canonical_json({"_type": sign.STATEMENT_TYPE, "predicateType": "other"}), "'other'"),
        (b"{}", "not an in-toto Statement"),
        (b"\xff", "not an in-toto Statement"),
        (b"[" * 100_000, "not an in-toto Statement"),
        (b'{"_type":1,"_type":2}', "a name comes twice in an object"),
    ):
        envelope = enveloped(payload, key)
        with pytest.raises(VerificationError, match=message):
            sign.verify(envelope, key.public_key())


def test_rejects_statements_of_another_form(key: Ed25519PrivateKey, envelope: bytes) -> None:
    good = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    [subject] = good["subject"]
    predicate = good["predicate"]
    newer = {**predicate["report"], "schema": "iet.report/2"}
    for payload, message in (
        (canonical_json({**good, "subject": []}), "not enough values"),
        (canonical_json({**good, "subject": [subject] * 2}), "too many values"),
        (
            canonical_json({**good, "subject": [{**subject, "digest": {"sha256": "0" * 64}}]}),
            "not the text of",
        ),
        (canonical_json({**good, "predicate": {}}), "'report'"),
        (canonical_json({**good, "predicate": {**predicate, "timeAudited": "noon"}}), "noon"),
        (canonical_json({**good, "predicate": {**predicate, "report": newer}}), "report/2"),
        (canonical_json(good).replace(b'"name":', b'"name":"","name":', 1), "a name comes twice"),
    ):
        changed = enveloped(payload, key)
        with pytest.raises(VerificationError, match=f"statement: signed, but not .*{message}"):
            sign.verify(changed, key.public_key())
    spaced = enveloped(json.dumps(good).encode(), key)
    assert sign.verify(spaced, key.public_key()).statement == good
    with pytest.raises(VerificationError, match=r"statement: signed, but not .*not canonical"):
        sign.verify(spaced, key.public_key(), strict=True)


def altered(value: Any, path: tuple[str, ...], new: object) -> Any:
    return {**value, path[0]: altered(value[path[0]], path[1:], new)} if path else new


@pytest.mark.parametrize("new", [None, True, "x", [], {}, {"x": None}, 7, 1e400, float("nan"), [[]] * 2])
def test_rejects_signed_fields_of_other_types(new: object, key: Ed25519PrivateKey, envelope: bytes) -> None:
    good = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    report = ("predicate", "report")
    for path in (
        *((*report, name) for name in ("registry_digest", "decoder", "coverage", "level", "evidence")),
        (*report, "decoder", "name"),
        (*report, "evidence", "critic"),
        *(report, ("predicate",), ("subject",), ("predicate", "timeAudited")),
    ):
        if (path[-1] in ("name", "registry_digest") and new == "x") or (path[-1] == "evidence" and new == {}):
            continue  # as good as any other
        payload = json.dumps(
            altered(good, path, new), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()
        changed = enveloped(payload, key)
        with pytest.raises(VerificationError, match="statement: signed, but not as iet writes it"):
            sign.verify(changed, key.public_key())


@pytest.mark.parametrize("strict", [False, True])
def test_rejects_another_key(envelope: bytes, key: Ed25519PrivateKey, strict: bool) -> None:
    other_key, name = Ed25519PrivateKey.generate().public_key(), name_of(key.public_key())
    message = (
        "keyid: got '[0-9a-f]{64}', expected one of"
        if strict
        else "signature: 0 of 1 given keys fit, expected 1"
    )
    with pytest.raises(VerificationError, match=message):
        sign.verify(envelope, other_key, strict=strict)
    steering = envelope.replace(name.encode(), b"\\u001b[2J")
    with pytest.raises(VerificationError) as caught:
        sign.verify(steering, other_key, strict=strict)
    assert "\x1b" not in str(caught.value)  # an untrusted file does not control the terminal
    forged = envelope.replace(name.encode(), name_of(other_key).encode())
    with pytest.raises(VerificationError, match="signature: 0 of 1 given keys fit"):
        sign.verify(forged, other_key, strict=strict)


def test_check_of_text_registry_and_opening(
    team: iet.Registry, key: Ed25519PrivateKey, envelope: bytes
) -> None:
    verified = sign.verify(envelope, key.public_key())
    opening = team.open_key("critic")
    alone = team.export(None, ["critic"])
    verified.check(text=TEXT, registry=team)
    verified.check(text=TEXT.encode(), registry=alone, opening=opening)
    verified.check(opening=opening)
    with pytest.raises(VerificationError, match="text: got sha256"):
        verified.check(text=TEXT + " ")
    with pytest.raises(VerificationError, match="registry: got digest"):
        verified.check(registry=alone)
    with pytest.raises(VerificationError, match="does not hold the key of 'planner', epoch 0"):
        verified.check(registry=alone, opening=team.open_key("planner"))
    with pytest.raises(VerificationError, match="opening: leads to registry"):
        verified.check(opening=alone.open_key("critic"))


def test_rejects_an_opening_with_a_cut_path(
    team: iet.Registry, key: Ed25519PrivateKey, envelope: bytes
) -> None:
    cut = dataclasses.replace(team.open_key("critic"), path=())
    with pytest.raises(VerificationError, match="opening: path: got 0 hashes"):
        sign.verify(envelope, key.public_key()).check(opening=cut)


def test_engine_keys_are_compared_but_not_opened(team: iet.Registry, key: Ed25519PrivateKey) -> None:
    engine = iet.EngineKeys("vllm-gumbel", {"planner": 42, "critic": 43})
    report = report_of(registry_digest=engine.digest, profiles=(engine.profile,))
    verified = sign.verify(sign.sign(report, key), key.public_key())
    verified.check(text=TEXT, registry=engine)
    with pytest.raises(VerificationError, match="registry: got digest"):
        verified.check(registry=iet.EngineKeys("sglang-gumbel", {"planner": "2a", "critic": "2b"}))
    with pytest.raises(InputError, match="registry: got EngineKeys, which is no tree of keys"):
        verified.check(registry=engine, opening=team.open_key("critic"))


def test_rejects_unsignable_reports(report: Report, key: Ed25519PrivateKey) -> None:
    with pytest.raises(InputError, match="got one on token ids, expected one on a text"):
        sign.sign(report_of(text=None), key)
    with pytest.raises(InputError, match="name: got ''"):
        sign.sign(report, key, name="")
    with pytest.raises(InputError, match="expected one with a time zone"):
        sign.sign(report, key, time=datetime(2026, 11, 1))
