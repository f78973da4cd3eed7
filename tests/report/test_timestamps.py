"""RFC 3161 time stamps by a time-stamp authority on this machine."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("securesystemslib")

from cryptography.x509.oid import ExtendedKeyUsageOID

from iet.errors import BackendUnavailable, InputError, VerificationError
from iet.report import sign
from iet.report.sign import timestamps
from tests.support.reports import report_of
from tests.support.signing import changed, ed25519
from tests.support.timestamping import Authority, served, write_chain

DATA = b"signature"
FIRST, SECOND = ed25519(0), ed25519(1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    with served(authority.answer) as address:
        yield address


@pytest.fixture(scope="module")
def response(url: str) -> bytes:
    return sign.request_timestamp(url, DATA)


@pytest.fixture(scope="module")
def stamped(url: str) -> bytes:
    """A report signed by two keys, with a time stamp for each."""
    return sign.add_timestamps(sign.sign(report_of(), [FIRST, SECOND]), url)


def test_a_time_stamp_has_the_time_of_the_authority(authority: Authority, response: bytes) -> None:
    time = sign.verify_timestamp(response, DATA, sign.load_roots(authority.root))
    assert abs(time.timestamp() - (authority.folder / "answer.tsr").stat().st_mtime) < 60
    assert time.utcoffset().total_seconds() == 0  # type: ignore[union-attr]


def test_a_time_stamp_of_other_data_or_another_authority_is_refused(
    authority: Authority, response: bytes, tmp_path: pathlib.Path
) -> None:
    roots = sign.load_roots(authority.root)
    with pytest.raises(VerificationError, match="Mismatch between messages"):
        sign.verify_timestamp(response, DATA + b".", roots)
    other, *_ = write_chain(tmp_path, ExtendedKeyUsageOID.TIME_STAMPING)
    with pytest.raises(VerificationError, match="not valid under the given roots") as caught:
        sign.verify_timestamp(response, DATA, sign.load_roots(other))
    assert sign.verify_timestamp(response, DATA, [*sign.load_roots(other), *roots])
    assert len(str(caught.value)) < 200


def test_no_changed_byte_changes_the_time(authority: Authority, response: bytes) -> None:
    roots, rng = sign.load_roots(authority.root), np.random.default_rng(0)
    time = sign.verify_timestamp(response, DATA, roots)
    refused = 0
    for _ in range(400):
        at = int(rng.integers(len(response)))
        data = bytearray(response)
        data[at] ^= int(rng.integers(1, 256))
        try:  # a few bytes name no signed thing, such as a version
            assert sign.verify_timestamp(bytes(data), DATA, roots) == time
        except VerificationError:
            refused += 1
    assert refused > 380


def test_each_signature_has_a_time_stamp(authority: Authority, stamped: bytes) -> None:
    public = [FIRST.public_key(), SECOND.public_key()]
    roots = sign.load_roots(authority.root)
    verified = sign.verify(stamped, public, timestamp_roots=roots, strict=True)
    assert (len(verified.times), verified.stamped) == (2, 2)
    assert verified.times == tuple(sorted(verified.times))
    unchecked = sign.verify(stamped, public)
    assert (unchecked.times, unchecked.stamped) == ((), 2)


def test_a_signature_added_later_keeps_the_other_time_stamps(
    authority: Authority, url: str, stamped: bytes
) -> None:
    third, roots = ed25519(2), sign.load_roots(authority.root)
    more = sign.add_signatures(stamped, third)
    keys = [key.public_key() for key in (FIRST, SECOND, third)]
    assert sign.verify(more, keys, strict=True).stamped == 2
    with pytest.raises(VerificationError, match=r"time stamp: the signature of '\w{64}' has none"):
        sign.verify(more, keys, timestamp_roots=roots)
    again = sign.add_timestamps(more, url)
    assert len(sign.verify(again, keys, timestamp_roots=roots).times) == 3
    before = {entry["sig"]: entry["timestamp"] for entry in json.loads(stamped)["signatures"]}
    after = {entry["sig"]: entry["timestamp"] for entry in json.loads(again)["signatures"]}
    assert before.items() < after.items()


def test_time_stamps_of_other_signatures_and_rubbish_are_refused(
    authority: Authority, stamped: bytes
) -> None:
    def swap(content: dict[str, list[dict[str, str]]]) -> None:
        one, two = content["signatures"]
        one["timestamp"], two["timestamp"] = two["timestamp"], one["timestamp"]

    def rubbish(content: dict[str, list[dict[str, str]]]) -> None:
        content["signatures"][0]["timestamp"] = "!"

    def number(content: dict[str, list[dict[str, int]]]) -> None:
        content["signatures"][0]["timestamp"] = 3

    roots, keys = sign.load_roots(authority.root), [FIRST.public_key(), SECOND.public_key()]
    messages: tuple[tuple[Callable[..., object], str], ...] = (
        (swap, "Mismatch between messages"),
        (rubbish, "time stamp: got no base64"),
        (number, "timestamp is a int"),
    )
    for change, message in messages:
        with pytest.raises(VerificationError, match=message):
            sign.verify(changed(stamped, change), keys, timestamp_roots=roots)
    assert sign.verify(changed(stamped, swap), keys).stamped == 2  # not verified


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (200, b"rubbish", "answers with no time stamp"),
        (200, b"", "answers with no time stamp"),
        (200, None, "answers with a time stamp of another request"),
        (200, bytes.fromhex("3009300702010203020780"), "was not granted"),
        (500, b"secret", "HTTP 500, expected a time stamp"),
    ],
)
def test_other_answers_are_reported(
    response: bytes, status: int, content: bytes | None, message: str
) -> None:
    answer = response if content is None else content
    with (
        served(lambda query: (status, answer)) as address,
        pytest.raises(BackendUnavailable, match=message) as caught,
    ):
        sign.request_timestamp(address, DATA)
    assert "secret" not in str(caught.value)


def test_an_authority_that_cannot_be_reached_or_is_silent_is_reported(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it accepts, and never answers
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/password"
        with pytest.raises(BackendUnavailable, match=r"cannot be reached \(timed out\)") as caught:
            sign.request_timestamp(address, DATA, timeout=0.2)
    assert "password" not in str(caught.value)
    with pytest.raises(BackendUnavailable, match="Connection refused"):
        sign.request_timestamp(address, DATA)
    wrong = ["tsa", "file:///etc/passwd", "http://", "http://[", "http://a:x/", "https://é.org"]
    wrong += ["https://a..b/tsr", f"https://{'a' * 64}.org/tsr", "https://localhost/a b?token=password"]
    for address in wrong:
        with pytest.raises(InputError, match="time stamp: got no URL"):
            sign.request_timestamp(address, DATA)
    for address in ("https://user:password@localhost/tsr", "https://password@localhost:1/tsr"):
        with pytest.raises(InputError, match="a URL with a user or a password") as refused:
            sign.request_timestamp(address, DATA)
        assert "password@" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (b"password\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.1 password\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://password..b/\r\n\r\n", "UnicodeError"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[password/\r\n\r\n", "ValueError"),
    ],
)
def test_words_of_an_invalid_answer_are_not_shown(answer: bytes, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # closed with bytes unread, it would be reset
                    pass

        thread = threading.Thread(target=once)
        thread.start()
        with pytest.raises(BackendUnavailable, match=rf"cannot be reached \({named}\)"):
            sign.request_timestamp(f"http://127.0.0.1:{listener.getsockname()[1]}/", DATA)
        thread.join()


def test_files_without_certificates_are_refused(tmp_path: pathlib.Path) -> None:
    for content in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        (tmp_path / "roots.pem").write_bytes(content)
        with pytest.raises(InputError, match="got no certificates"):
            sign.load_roots(tmp_path / "roots.pem")
    with pytest.raises(InputError, match=r"none\.pem: cannot be read"):
        sign.load_roots(tmp_path / "none.pem")


def test_the_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rfc3161_client", None)
    with pytest.raises(BackendUnavailable, match=r"time stamps: .*\[timestamp\]"):
        timestamps.request_timestamp("http://localhost/", DATA)
    with pytest.raises(BackendUnavailable, match=r"\[timestamp\]"):
        timestamps.verify_timestamp(b"", DATA, [])
