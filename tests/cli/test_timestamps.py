"""Time stamps on the command line: of a signed report, and of the registry's digest."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("securesystemslib")

from cryptography.x509.oid import ExtendedKeyUsageOID

from iet.marks.registry import Registry
from tests.support.commands import RunIet
from tests.support.signing import ed25519, write_keys
from tests.support.timestamping import Authority, served, write_chain


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def url(authority: Authority) -> Iterator[str]:
    with served(authority.answer) as address:
        yield address


@pytest.fixture
def signed(text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet) -> pathlib.Path:
    """A signed report; its public key is `auditor.pub.pem` in the same folder."""
    private, _ = write_keys(tmp_path, ed25519())
    run_iet(0, "audit", text, "-r", team, "-o", tmp_path / "r.dsse.json", "--sign", private)
    return tmp_path / "r.dsse.json"


def joined(output: str) -> str:
    """Undo the wrapping of lines."""
    return " ".join(output.split())


def test_a_report_and_its_registry_are_dated(
    authority: Authority, url: str, signed: pathlib.Path, team: pathlib.Path, run_iet: RunIet
) -> None:
    stamp, check = (
        signed.with_name("team.tsr"),
        ["verify", signed, "--key", signed.with_name("auditor.pub.pem")],
    )
    assert "time stamps: none; the time above is by the signer's clock" in joined(run_iet(0, *check))
    assert Registry.load(team).digest in run_iet(0, "keys", "timestamp", url, "-o", stamp, "-r", team)
    run_iet(0, "sign", signed, "--timestamp", url)
    output = joined(run_iet(0, *check))
    assert "time stamps: not verified (--timestamp-root); the time above is by the signer's clock" in output
    dated = [*check, "--timestamp-root", authority.root, "--registry-timestamp", stamp, "--strict"]
    output = joined(run_iet(0, *dated))
    assert "time stamps: verified, 20" in output
    assert f"registry {Registry.load(team).digest}, existed at 20" in output
    # The same file is what openssl reads.
    (data := stamp.with_name("digest")).write_text(Registry.load(team).digest)
    command = ["openssl", "ts", "-verify", "-data", data, "-in", stamp, "-CAfile", authority.root]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_second_signature_is_stamped_in_the_same_command(
    authority: Authority, url: str, signed: pathlib.Path, run_iet: RunIet
) -> None:
    private, public = write_keys(signed.parent, ed25519(1), "second")
    run_iet(0, "sign", signed, "--key", private, "--timestamp", url)
    keys = ["--key", public, "--key", signed.with_name("auditor.pub.pem")]
    output = joined(run_iet(0, "verify", signed, *keys, "--timestamp-root", authority.root))
    assert "time stamps: verified, 20" in output
    assert " and 20" in output
    assert "every signature has one already" in run_iet(3, "sign", signed, "--timestamp", url)


def test_wrong_roots_changed_reports_and_other_registries_are_not_verified(
    authority: Authority,
    url: str,
    signed: pathlib.Path,
    team: pathlib.Path,
    run_iet: RunIet,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_iet(0, "sign", signed, "--timestamp", url)
    other, *_ = write_chain(signed.parent, ExtendedKeyUsageOID.TIME_STAMPING)
    check = ["verify", signed, "--key", signed.with_name("auditor.pub.pem"), "--timestamp-root"]

    def refused(*arguments: object) -> str:
        from tests.support.commands import run

        capsys.readouterr()
        assert run(*arguments) == 1
        return capsys.readouterr().err

    assert "time stamp: not valid under the given roots" in refused(*check, other)
    changed_team, stamp = signed.with_name("changed.json"), signed.with_name("changed.tsr")
    shutil.copy(team, changed_team)
    run_iet(0, "keys", "add", "newcomer", "-r", changed_team)
    run_iet(0, "keys", "timestamp", url, "-o", stamp, "-r", changed_team)
    assert "Mismatch between messages" in refused(*check, authority.root, "--registry-timestamp", stamp)
    stamp.write_bytes(b"rubbish")
    assert "time stamp: not valid" in refused(*check, authority.root, "--registry-timestamp", stamp)
    content = json.loads(signed.read_bytes())
    content["payload"] = content["payload"].replace("a", "b", 1)
    signed.write_text(json.dumps(content))
    assert "not verified: " in refused(*check, authority.root)


def test_nothing_is_written_if_the_authority_fails(
    authority: Authority, signed: pathlib.Path, team: pathlib.Path, run_iet: RunIet
) -> None:
    before, stamp = signed.read_bytes(), signed.with_name("team.tsr")
    private, _ = write_keys(signed.parent, ed25519(1), "second")
    with served(lambda query: (200, b"rubbish")) as address:
        error = run_iet(3, "sign", signed, "--key", private, "--timestamp", address)
        assert "answers with no time stamp" in error
        run_iet(3, "keys", "timestamp", address, "-o", stamp, "-r", team)
    assert "cannot be reached" in run_iet(3, "sign", signed, "--timestamp", address)
    assert signed.read_bytes() == before
    assert not stamp.exists()
    assert "--key KEY or --timestamp URL" in run_iet(2, "sign", signed)
    check = ["verify", signed, "--key", signed.with_name("auditor.pub.pem"), "--registry-timestamp", stamp]
    assert "--registry-timestamp goes with --timestamp-root" in run_iet(2, *check)
