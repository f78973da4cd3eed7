"""Envelopes of other programs, signatures of several keys, and hostile envelopes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

pytest.importorskip("securesystemslib")
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, SSlibKey

from iet.errors import InputError, VerificationError
from iet.report import sign
from iet.report.sign import envelope as envelopes
from tests.support.reports import report_of
from tests.support.signing import KIND, changed, dumped, ed25519, entry, enveloped, name_of, pae, payload_of

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
A, B, C = (ed25519(i) for i in range(3))
PAYLOAD = payload_of(sign.sign(report_of(), A, time=NOON))
STATEMENT = json.loads(PAYLOAD)


def trusted(*keys: Any) -> list[Any]:
    return [key.public_key() for key in keys]


def key_of(kind: str) -> Any:
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return A if kind == "ed25519" else ec.generate_private_key(getattr(ec, kind)())


KINDS = ("ed25519", "SECP256R1", "SECP384R1", "SECP521R1", "rsa")


# With securesystemslib alone


def test_pae_equals_the_example_of_dsse() -> None:
    content, kind = b"hello world", "http://example.com/HelloWorld"
    assert pae(content, kind) == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert Envelope(content, kind, {}).pae() == pae(content, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_securesystemslib_verifies_our_signatures(kind: str) -> None:
    key = key_of(kind)
    envelope = Envelope.from_dict(json.loads(sign.sign(report_of(), [key, B])))
    assert envelope.payload_type == KIND
    theirs = [SSlibKey.from_crypto(item, name_of(item)) for item in trusted(key, B)]
    assert set(envelope.verify(theirs, 2)) == {item.keyid for item in theirs}


@pytest.mark.parametrize("kind", KINDS)
def test_verifies_signatures_of_securesystemslib(kind: str) -> None:
    envelope = Envelope(PAYLOAD, KIND, {})
    signer = CryptoSigner(key_of(kind))  # under a key id of its own
    envelope.sign(signer)
    written = json.dumps(envelope.to_dict(), indent=2).encode()
    verified = sign.verify(written, signer.public_key)
    assert verified.statement == STATEMENT
    with pytest.raises(VerificationError, match=r"^envelope: its bytes are not as iet writes them"):
        sign.verify(written, signer.public_key, strict=True)
    ours = sign.add_signatures(written, B)
    assert len(sign.verify(ours, [signer.public_key, *trusted(B)]).key_ids) == 2


# Every form that DSSE allows


def unnamed(content: dict[str, Any]) -> None:
    del content["signatures"][0]["keyid"]


def urlsafe(content: dict[str, Any]) -> None:
    content["payload"] = base64.urlsafe_b64encode(PAYLOAD).decode()
    for item in content["signatures"]:
        item["sig"] = base64.urlsafe_b64encode(base64.b64decode(item["sig"])).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: None,
        unnamed,
        urlsafe,
        lambda content: content["signatures"][0].update(keyid=None),
        lambda content: content["signatures"][0].update(keyid=""),
        lambda content: content["signatures"][0].update(keyid="SHA256:of-another-kind"),
        lambda content: content["signatures"][0].update(keyid=name_of(B.public_key())),
        lambda content: content["signatures"][0].update(cert="more", extension={"kind": [1]}),
        lambda content: content.update(note={"more": 1}),
        lambda content: content["signatures"].insert(0, {"keyid": "", "sig": "AAAA"}),
        lambda content: content["signatures"].insert(0, entry(C, PAYLOAD)),
    ],
)
def test_forms_that_dsse_allows_are_valid_but_not_strict(change: Any) -> None:
    envelope = changed(enveloped(PAYLOAD, A), change)
    verified = sign.verify(envelope, trusted(A))
    assert (verified.statement, verified.key_ids) == (STATEMENT, (name_of(A.public_key()),))
    with pytest.raises(VerificationError):
        sign.verify(envelope, trusted(A), strict=True)


def test_changed_bytes_never_change_the_statement() -> None:
    envelope, rng = enveloped(PAYLOAD, A), np.random.default_rng(1)
    refused = 0
    for _ in range(1000):
        at = int(rng.integers(len(envelope)))
        replacement = (envelope[at] + int(rng.integers(1, 256))) % 256
        try:
            verified = sign.verify(envelope[:at] + bytes([replacement]) + envelope[at + 1 :], trusted(A))
        except VerificationError:
            refused += 1
        else:
            assert verified.statement == STATEMENT
    assert refused > 900  # all but those of the key id and of white space


# Several keys


def test_all_given_keys_or_the_threshold_must_have_signed() -> None:
    envelope = sign.sign(report_of(), [B, A], time=NOON)
    assert envelope == enveloped(PAYLOAD, A, B)  # the order of the keys changes nothing
    for strict in (False, True):
        both = sign.verify(envelope, trusted(A, B), strict=strict)
        assert both.key_ids == (name_of(A.public_key()), name_of(B.public_key()))
        two = sign.verify(envelope, trusted(A, C, B), threshold=2, strict=strict)
        assert two.key_ids == both.key_ids
        with pytest.raises(VerificationError, match="signature: 2 of 3 given keys fit, expected 3"):
            sign.verify(envelope, trusted(A, B, C), strict=strict)
    assert sign.verify(envelope, trusted(B)).key_ids == (name_of(B.public_key()),)
    with pytest.raises(VerificationError, match=r"keyid: got '.*', expected one of the given public keys"):
        sign.verify(envelope, trusted(B), strict=True)


def test_add_signatures() -> None:
    first = sign.sign(report_of(), A, time=NOON)
    assert sign.add_signatures(first, B) == sign.sign(report_of(), [A, B], time=NOON)
    assert sign.add_signatures(first, [C, B]) == enveloped(PAYLOAD, A, B, C)
    with pytest.raises(InputError, match=f"signing key: {name_of(A.public_key())} has signed already"):
        sign.add_signatures(first, A)
    with pytest.raises(InputError, match=f"got the key {name_of(B.public_key())} twice"):
        sign.add_signatures(first, [B, B])
    with pytest.raises(InputError, match="signing key: got none"):
        sign.add_signatures(first, [])
    with pytest.raises(InputError, match="signing key: got 32 beside 1, expected 32 signatures at most"):
        sign.add_signatures(first, [ed25519(i) for i in range(1, 33)])
    with pytest.raises(VerificationError, match="not an in-toto Statement"):
        sign.add_signatures(enveloped(b"{}", A), B)
    with pytest.raises(VerificationError, match="payloadType: got 'other'"):
        sign.add_signatures(enveloped(PAYLOAD, A, kind="other"), B)


def test_a_foreign_key_id_does_not_prevent_signing() -> None:
    foreign = {**entry(C, PAYLOAD), "keyid": name_of(B.public_key())}
    envelope = dumped(base64.b64encode(PAYLOAD).decode(), [entry(A, PAYLOAD), foreign])
    assert sign.add_signatures(envelope, B) == enveloped(PAYLOAD, A, B)
    unnamed_one = changed(enveloped(PAYLOAD, A), unnamed)
    with pytest.raises(InputError, match="has signed already"):
        sign.add_signatures(unnamed_one, A)


def test_repeated_signatures_of_a_key_count_once() -> None:
    signature = entry(A, PAYLOAD)
    payload = base64.b64encode(PAYLOAD).decode()
    twice = dumped(
        payload, [signature, {**signature, "keyid": name_of(B.public_key())}, {"sig": signature["sig"]}]
    )
    with pytest.raises(VerificationError, match="signature: 1 of 2 given keys fit, expected 2"):
        sign.verify(twice, trusted(A, B))
    with pytest.raises(InputError, match="threshold: got 2, expected an int from 1 to 1"):
        sign.verify(twice, trusted(A, A), threshold=2)
    assert sign.verify(twice, trusted(A, A)).key_ids == (name_of(A.public_key()),)
    with pytest.raises(VerificationError, match=r"^envelope: its bytes are not as iet writes them"):
        sign.verify(dumped(payload, [signature, signature]), trusted(A), strict=True)


def test_swapped_key_ids_are_not_strict() -> None:
    names = [name_of(key.public_key()) for key in (A, B)]
    signatures = [entry(A, PAYLOAD), entry(B, PAYLOAD)]
    swapped = [
        {"keyid": name, "sig": item["sig"]} for name, item in zip(names[::-1], signatures, strict=True)
    ]
    ordered = sorted(swapped, key=lambda item: item["keyid"])
    envelope = dumped(base64.b64encode(PAYLOAD).decode(), ordered)
    assert len(sign.verify(envelope, trusted(A, B)).key_ids) == 2
    with pytest.raises(VerificationError, match="signature: 0 of 2 given keys fit"):
        sign.verify(envelope, trusted(A, B), strict=True)


@pytest.mark.parametrize("curve", [ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def test_only_one_form_of_an_ecdsa_signature_is_strict(curve: Any) -> None:
    key = ec.generate_private_key(curve())
    envelope = sign.sign(report_of(), key)
    sign.verify(envelope, key.public_key(), strict=True)

    def turn(content: dict[str, Any]) -> None:
        [item] = content["signatures"]
        r, s = decode_dss_signature(base64.b64decode(item["sig"]))
        replacement = encode_dss_signature(r, curve().group_order - s)
        item["sig"] = base64.b64encode(replacement).decode()

    twin = json.loads(changed(envelope, turn))
    twin = dumped(twin["payload"], twin["signatures"])
    sign.verify(twin, key.public_key())
    with pytest.raises(VerificationError, match=r"^envelope: its bytes are not as iet writes them"):
        sign.verify(twin, key.public_key(), strict=True)


@pytest.mark.parametrize("threshold", [0, -1, 3, 1.5, True, "1"])
def test_rejects_invalid_thresholds(threshold: Any) -> None:
    with pytest.raises(InputError, match=r"threshold: got .*, expected an int from 1 to 2"):
        sign.verify(enveloped(PAYLOAD, A), trusted(A, B), threshold=threshold)
    with pytest.raises(InputError, match="keys: got none"):
        sign.verify(enveloped(PAYLOAD, A), [])


# Hostile envelopes


def test_rejects_other_payload_types() -> None:
    for kind in ("application/json", "", "application/vnd.in-toto+json ", "ä"):
        with pytest.raises(
            VerificationError, match=r"payloadType: got .*, expected 'application/vnd.in-toto"
        ):
            sign.verify(enveloped(PAYLOAD, A, kind=kind), trusted(A))


SIGNATURES = json.loads(enveloped(PAYLOAD, A))["signatures"]
SIGNATURE = SIGNATURES[0]

MALFORMED = [
    (b"", "Expecting value"),
    (b"\xff", "can't decode"),
    (json.dumps(json.loads(enveloped(PAYLOAD, A))).encode("utf-16"), "can't decode"),
    (b"[]", "got a list, expected an object"),
    (b"null", "NoneType"),
    (b"{}", "signatures"),
    (b"[" * 1_000_000, "recursion"),
    (b'{"payload":' + b"[" * 1_000_000, "recursion"),
    (b'{"signatures":' + b"9" * 10_000 + b"}", "digits"),
    ({"signatures": []}, "got 0, expected 1 to 32"),
    ({"signatures": SIGNATURES * 33}, "got 33, expected 1 to 32"),
    ({"signatures": {}}, "got dict"),
    ({"signatures": [1]}, "signatures: got a int among them, expected objects"),
    ({"signatures": [{**SIGNATURE, "keyid": 7}]}, "keyid is a int"),
    ({"signatures": [{**SIGNATURE, "keyid": "\ud800"}]}, "surrogates"),
    ({"signatures": [{"keyid": SIGNATURE["keyid"]}]}, "sig"),
    ({"payload": 7}, "payload is a int"),
    ({"payload": "ä"}, "ascii|base64"),
    ({"payload": "AAA"}, "padding"),
    ({"payload": "\ud800"}, "surrogates"),
    ({"payloadType": 7}, "payloadType is a int"),
    ({"payloadType": "\ud800"}, "surrogates"),
    (changed(enveloped(PAYLOAD, A), lambda content: content.pop("signatures")), "'signatures' is missing"),
    (enveloped(PAYLOAD, A).replace(b'{"payload":', b'{"payload":"AAAA","payload":'), "a name comes twice"),
    (enveloped(PAYLOAD, A).replace(b'"sig":', b'"sig":"AAAA","sig":'), "a name comes twice"),
    (enveloped(PAYLOAD, A).replace(b'"sig":', b'"x":{"y":1,"y":2},"sig":'), "a name comes twice"),
]
"""Envelopes, or changed fields of a valid one; and the error."""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("envelope", "message"), MALFORMED, ids=lambda value: value[:30] if isinstance(value, str) else ""
)
def test_rejects_malformed_envelopes(envelope: bytes | dict[str, Any], message: str, strict: bool) -> None:
    if isinstance(envelope, dict):
        fields = envelope
        envelope = changed(enveloped(PAYLOAD, A), lambda content: content.update(fields))
    for call in (
        lambda: sign.verify(envelope, trusted(A), strict=strict),
        lambda: sign.add_signatures(envelope, B),
    ):
        with pytest.raises(VerificationError, match=f"^envelope: it is no DSSE envelope .*({message})"):
            call()


def test_rejects_envelopes_above_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = enveloped(PAYLOAD, A)
    sign.verify(envelope + b" " * 1000, trusted(A))
    monkeypatch.setattr(envelopes, "MAX_BYTES", len(envelope) + 999)
    with pytest.raises(VerificationError, match=f"envelope: got more than {len(envelope) + 999} bytes"):
        sign.verify(envelope + b" " * 1000, trusted(A))


def test_rejects_ambiguous_payloads() -> None:
    for payload, message in (
        (PAYLOAD.replace(b'"coverage":', b'"coverage":1,"coverage":'), "a name comes twice"),
        (PAYLOAD.replace(b'"coverage":', b'"more":NaN,"coverage":'), "not as iet writes it"),
        (PAYLOAD.replace(b'"coverage":', b'"more":-1e999,"coverage":'), "not as iet writes it"),
        (PAYLOAD.replace(b'"coverage":', b'"more":"\\ud800","coverage":'), "surrogates"),
        (PAYLOAD.decode().encode("utf-16"), "not an in-toto Statement"),
        (
            PAYLOAD.replace(b"in-toto.io/Statement/v1", b"in-toto.io/Statement/v0.1"),
            "expected .*Statement/v1",
        ),
        (PAYLOAD.replace(b"attribution/v1", b"attribution/v2"), "expected .*attribution/v1"),
    ):
        assert payload != PAYLOAD
        with pytest.raises(VerificationError, match=f"^statement: .*{message}"):
            sign.verify(enveloped(payload, A), trusted(A))
