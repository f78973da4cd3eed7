"""Files of token hashes: which tokens are accepted, and error messages that do not quote the file."""

from __future__ import annotations

import concurrent.futures
import hashlib
import pathlib

import pytest

from iet.errors import InputError
from iet.service.credentials import PREFIX, Credentials, add_token, bearer
from tests.support.conditions import posix

OF_NOTHING = hashlib.sha256(b"").hexdigest()


def test_a_new_token_is_accepted_and_not_stored(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    first, second, third = (add_token(path, name) for name in ("alice", "Bob B.", "alice"))
    credentials = Credentials(path)
    assert [credentials.name_of(token.encode()) for token in (first, second, third)] == [
        "alice",
        "Bob B.",
        "alice",
    ]
    assert credentials.names == {"alice", "Bob B."}
    assert all(
        token.startswith(PREFIX) and len(token) == len(PREFIX) + 43 for token in (first, second, third)
    )
    for wrong in (b"", first[:-1].encode(), first.encode() + b" ", b"\xff", first.upper().encode()):
        assert credentials.name_of(wrong) is None
    assert not any(token[len(PREFIX) :] in path.read_text() for token in (first, second, third))


@posix
def test_only_the_owner_may_read_the_file(tmp_path: pathlib.Path) -> None:
    add_token(tmp_path / "tokens", "alice")
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600


def test_comments_and_manual_lines_are_kept(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "keys"
    digest = hashlib.sha256(b"sk-own").hexdigest()
    path.write_text(f"# who writes\n\n  {digest.upper()}\tplanner \n# no line end")
    token = add_token(path, "critic")
    credentials = Credentials(path)
    assert credentials.name_of(b"sk-own") == "planner"
    assert credentials.name_of_hash(digest) == "planner"
    assert credentials.name_of(token.encode()) == "critic"
    assert path.read_text().startswith("# who writes\n\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hunter2\n", "line 1 is not a SHA-256"),
        (b"\n" + b"0" * 64 + b"\n", "line 2 is not a SHA-256"),
        (b"0" * 63 + b" alice\n", "line 1 is not a SHA-256"),
        (b"0" * 64 + b" alice\n" + b"0" * 64 + b" bob\n", "the hash of line 2 stands there twice"),
        (b"0" * 64 + b" al\xe2\x80\xaeice\n", "U\\+202E"),
        (b"\xff\xfe", "not UTF-8"),
        (b"# keys\n" + OF_NOTHING.encode() + b" planner\n", "line 2 is the SHA-256 of nothing"),
        (OF_NOTHING.upper().encode() + b" planner\n", "line 1 is the SHA-256 of nothing"),
    ],
)
def test_an_invalid_file_is_refused_and_not_quoted(
    tmp_path: pathlib.Path, content: bytes, message: str
) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        Credentials(path)
    assert "hunter2" not in str(error.value)
    with pytest.raises(InputError):
        add_token(path, "alice")
    assert path.read_bytes() == content


def test_a_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Credentials(tmp_path / "tokens")
    with pytest.raises(InputError, match="agent name"):
        add_token(tmp_path / "tokens", "two\nlines")
    assert not (tmp_path / "tokens").exists()


def test_changes_apply_at_once_and_a_damaged_file_refuses_all(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    first = add_token(path, "alice").encode()
    credentials = Credentials(path)
    second = add_token(path, "bob").encode()
    assert (credentials.name_of(first), credentials.name_of(second)) == ("alice", "bob")
    content = path.read_text()
    path.write_text("hunter2")
    for _ in range(2):
        with pytest.raises(InputError, match="line 1"):
            credentials.name_of(first)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        credentials.name_of(first)
    path.write_text(content.splitlines()[1])
    assert (credentials.name_of(first), credentials.name_of(second)) == (None, "bob")


def test_an_empty_token_has_no_holder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_token(tmp_path / "tokens", "alice")
    credentials = Credentials(tmp_path / "tokens")
    monkeypatch.setattr(credentials, "name_of_hash", {OF_NOTHING: "alice"}.get)
    for head in (b"Bearer ", b"Bearer", b"Basic x", b""):
        assert credentials.name_of(bearer([(b"authorization", head)])) is None


def test_bearer_reads_the_header_alone() -> None:
    def token(value: bytes) -> bytes:
        return bearer([(b"host", b"a"), (b"authorization", value)])

    assert token(b"Bearer abc") == token(b"bearer  abc ") == b"abc"
    assert token(b"Basic abc") == token(b"abc") == token(b"") == bearer([]) == b""


@posix
def test_concurrent_new_tokens_are_all_stored(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda number: add_token(path, f"a{number}"), range(24)))
    credentials = Credentials(path)
    assert [credentials.name_of(token.encode()) for token in tokens] == [f"a{number}" for number in range(24)]
