"""`iet sign`, and keys that sign from the command line: several, and in an HSM."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("securesystemslib")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from securesystemslib.signer import HSMSigner

from iet.errors import InputError
from iet.report import sign
from iet.report.sign import keys as signers
from tests.support.commands import RunIet, run
from tests.support.reports import report_of
from tests.support.signing import ENCODED, ed25519, name_of, write_keys

PIN = "846213-secret"
FIRST, SECOND, THIRD = (ed25519(i) for i in range(3))


def test_a_report_is_signed_by_two_and_verified_by_a_threshold(
    text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [write_keys(tmp_path, key, f"{i}") for i, key in enumerate((FIRST, SECOND, THIRD))]
    report, more = tmp_path / "r.dsse.json", tmp_path / "more.dsse.json"
    assert run("audit", text, "-r", team, "-o", report, "--sign", keys[0][0], "--sign", keys[1][0]) == 0
    capsys.readouterr()
    check = ["verify", report, "--key", keys[1][1], "--key", keys[0][1]]
    assert run(*check, "--strict") == 0
    names = [name_of(key.public_key()) for key in (FIRST, SECOND, THIRD)]
    output = "".join(capsys.readouterr().out.split())
    assert f"signedby{names[1]}and{names[0]}," in output
    assert run(*check, "--key", keys[2][1]) == 1
    assert "not verified: signature: 2 of 3 given keys fit, expected 3" in capsys.readouterr().err
    assert run(*check, "--key", keys[2][1], "--threshold", "2") == 0
    assert run("sign", report, "--key", keys[2][0], "-o", more) == 0
    assert capsys.readouterr().out.endswith(f"{more}\n")
    assert run("verify", more, *check[2:], "--key", keys[2][1], "--strict") == 0
    assert run(*check, "--key", keys[2][1]) == 1  # the report itself is as it was
    assert run("sign", report, "--key", keys[2][0]) == 0
    assert report.read_bytes() == more.read_bytes()


def test_a_text_is_verified_as_it_was_decoded(
    text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = write_keys(tmp_path, FIRST)
    content, file, report = "é " + text.read_text(), tmp_path / "other.txt", tmp_path / "r.dsse.json"
    for data, options in (
        (content.encode("utf-16"), []),
        (content.encode("cp1252"), ["--encoding", "cp1252"]),
    ):
        file.write_bytes(data)
        assert run("audit", file, "-r", team, "-o", report, "--sign", private, *options) == 0
        check = ["verify", report, "--key", public, *options, "--text"]
        assert run(*check, file) == 0
        file.write_bytes(data + data[-2:])
        assert run(*check, file) == 1
        assert "not verified: text: got sha256" in capsys.readouterr().err
    file.write_bytes(b"\xe9")
    assert run("verify", report, "--key", public, "--text", file) == 1
    assert run("verify", report, "--key", public, "--text", file, "--encoding", "utf-8") == 3
    assert "byte 0: not utf-8" in capsys.readouterr().err


def test_a_conversation_is_verified_against_its_record(
    text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    private, public = write_keys(tmp_path, FIRST)
    record, report = tmp_path / "trace.json", tmp_path / "r.dsse.json"
    answer = {"role": "assistant", "name": "critic", "content": text.read_text()}
    messages = [{"role": "user", "content": "Plan it, é."}, answer]
    record.write_bytes(json.dumps(messages, ensure_ascii=False).encode("utf-16"))
    run_iet(0, "audit", record, "-r", team, "--messages", "-o", report, "--sign", private)
    check = ["verify", report, "--key", public]
    assert "compared with it: text" in run_iet(0, *check, "--text", record, "--messages")
    record.write_text(json.dumps(messages, indent=1))  # the same messages, written in another way
    run_iet(0, *check, "--text", record, "--messages")
    run_iet(1, *check, "--text", record)
    messages[0]["content"] += "."
    record.write_text(json.dumps(messages))
    run_iet(1, *check, "--text", record, "--messages")
    assert f"{text}: line 1: " in run_iet(3, *check, "--text", text, "--messages")
    assert "--messages goes with --text" in run_iet(2, *check, "--messages")


def test_envelopes_of_other_programs_are_verified_leniently(
    text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = write_keys(tmp_path, FIRST)
    report = tmp_path / "r.dsse.json"
    assert run("audit", text, "-r", team, "-o", report, "--sign", private) == 0
    report.write_text(json.dumps(json.loads(report.read_bytes()), indent=2))
    assert run("verify", report, "--key", public) == 0
    assert run("verify", report, "--key", public, "--strict") == 1
    assert "not verified: envelope: its bytes are not as iet writes them" in capsys.readouterr().err


def test_conflicting_arguments_are_rejected(
    text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    private, public = write_keys(tmp_path, FIRST)
    report, page = str(tmp_path / "r.dsse.json"), str(tmp_path / "r.html")
    start = ["audit", text, "-r", team]
    for arguments, message in (
        ([*start, "-o", page, "--public", public], "--public: got one without --sign"),
        (
            [*start, "-o", report, "--sign", private, "--public", public],
            "public: got 1 public keys, expected 0",
        ),
        ([*start, "-o", report, "--sign", "hsm:"], "public: got 0 public keys, expected 1"),
        ([*start, "-o", report, "--sign", private, "--sign", private], "signing key: got the key"),
        ([*start, "-o", report, "--sign", "vault:x"], "signing key: got a URI vault:"),
        (["sign", public, "--key", private], f"{public}: envelope: it is no DSSE envelope"),
        (["sign", tmp_path / "none", "--key", private], "cannot be read (No such file"),
        (
            ["verify", public, "--key", public, "--threshold", "2"],
            "threshold: got 2, expected an int from 1 to 1",
        ),
    ):
        assert message in run_iet(3, *arguments)
    assert not pathlib.Path(report).exists()
    assert not pathlib.Path(page).exists()


def test_a_key_in_place_of_its_path_is_not_shown(
    run_iet: RunIet, text: pathlib.Path, team: pathlib.Path
) -> None:
    pkcs8, closed = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = ed25519().private_bytes(ENCODED.PEM, pkcs8, closed).decode()
    for key in (pem, pem.replace("\n", ""), pem.split("\n")[1] + "\n"):
        error = run_iet(
            3, "audit", text, "-r", team, "-o", str(text.with_suffix(".dsse.json")), "--sign", key
        )
        assert "got the content of a key's file, expected its path" in error
        assert pem.split("\n")[1] not in error


# An HSM: SoftHSM, through PKCS #11


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A token with an ECDSA key 2, and the file of its public key, got as docs/guides/sign.md gets it."""
    pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed")
    libraries = [*pathlib.Path("/usr/lib").glob("**/softhsm/libsofthsm2.so")]
    if not libraries or shutil.which("softhsm2-util") is None:
        pytest.skip("SoftHSM is not installed (apt-get install softhsm2)")
    folder = tmp_path_factory.mktemp("hsm")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
    private, _ = write_keys(folder, ec.generate_private_key(ec.SECP256R1()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        patch.setenv("PYKCS11LIB", str(libraries[0]))
        made = ["--init-token", "--free", "--label", "auditor", "--pin", PIN, "--so-pin", "12345678"]
        load = ["--import", private, "--token", "auditor", "--label", "signing", "--id", "02", "--pin", PIN]
        for arguments in (made, load):
            subprocess.run(["softhsm2-util", *arguments], check=True, capture_output=True)
        private.unlink()
        uri, public = HSMSigner.import_(2, "auditor")
        assert uri == "hsm:2?label=auditor"
        (folder / "hsm.pub.json").write_text(json.dumps(public.to_dict()))
        yield folder / "hsm.pub.json"


def test_an_hsm_signs_from_the_command_line(
    token: pathlib.Path,
    text: pathlib.Path,
    team: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report, (private, public) = tmp_path / "r.dsse.json", write_keys(tmp_path, ed25519())
    start = ["audit", text, "-r", team, "-o", report, "--sign", "hsm:2?label=auditor", "--public", token]
    assert run(*start) == 3
    assert "pin: got none, expected it in $IET_SIGNING_PIN" in capsys.readouterr().err
    monkeypatch.setenv("IET_SIGNING_PIN", "wrong-" + PIN)
    assert run(*start) == 3
    output = capsys.readouterr()
    assert "HSMSigner: the key cannot be used (PinIncorrect" in output.err
    assert PIN not in output.out + output.err
    assert not report.exists()
    monkeypatch.setenv("IET_SIGNING_PIN", PIN)
    assert run(*start) == 0
    assert run("verify", report, "--key", token, "--strict") == 0
    assert run("sign", report, "--key", private) == 0
    assert run("verify", report, "--key", token, "--key", public, "--strict") == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert PIN not in output.out


def test_an_hsm_without_that_token_or_key_is_named(token: pathlib.Path) -> None:
    for uri, message in (("hsm:2?label=other", "No PKCS#11 token found"), ("hsm:7", "could not find ECDSA")):
        with pytest.raises(InputError, match=f"HSMSigner: the key cannot be used .*{message}"):
            sign.sign(report_of(), signers.load_signers(uri, public=[token], secrets=lambda name: PIN))
