"""Inputs and results by URI, on local servers that speak S3 (moto) and Google's protocol."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from iet.audit.auditor import Auditor
from iet.bulk.files import audit_files
from iet.bulk.storage import Store, store_of
from iet.cli import main
from iet.errors import InputError
from iet.marks.registry import Registry
from tests.support.bulk_documents import documents
from tests.support.stores import (
    GOOGLE,
    PASSWORD,
    USER,
    Results,
    Server,
    assert_no_secret,
    corpus,
    rows,
    running,
    same_bytes,
)

needs_server = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("moto", "flask", "flask_cors"))),
    reason="needs moto[s3], flask and flask-cors, as .ci/rest has them",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server") / "log") as started:
        yield started


@needs_server
@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_results_as_of_files_here(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, server: Server, workers: int
) -> None:
    corpus(registry, tmp_path / "in", server.put, f"same{workers}")
    uri = server.uri(f"corpus/same{workers}/")
    options: dict[str, Any] = {"chunk_rows": 4, "workers": workers, "templates": 2}
    here = audit_files(auditor, [tmp_path / "in"], tmp_path / "here", **options)
    remote = audit_files(auditor, [uri], tmp_path / "there", **options)
    assert (here.broken, here.quarantined, here.not_read) == (1, 1, {".bin": 1, "hidden": 1})
    assert remote == here
    assert rows(tmp_path / "there", f"s3://corpus/same{workers}/") == rows(
        tmp_path / "here", f"{tmp_path}/in/"
    )
    inputs = json.loads((tmp_path / "there" / "run.json").read_text())["inputs"]
    assert [entry["path"].rpartition("/")[2] for entry in inputs] == [
        "a b.jsonl",
        "b.jsonl.gz",
        "c.txt",
        "ä.parquet",
    ]
    assert_no_secret(tmp_path / "there")
    single = audit_files(auditor, [server.uri(f"corpus/same{workers}/a%20b.jsonl")], tmp_path / "one")
    assert single.documents == 6


@needs_server
def test_a_changed_object_is_noticed(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, server: Server
) -> None:
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in documents(registry)[:4]]
    server.put("corpus/changes/a.jsonl", lines[0] + lines[1])
    server.put("corpus/changes/b.jsonl", lines[2])
    uri, out = server.uri("corpus/changes"), tmp_path / "out"
    audit_files(auditor, [uri], out)
    assert audit_files(auditor, [uri], out, resume=True).documents == 3
    server.put("corpus/changes/a.jsonl", lines[0] + lines[3])
    with pytest.raises(InputError, match=r"inputs\[0\].*files that changed are audited anew with --reread"):
        audit_files(auditor, [uri], out, resume=True)
    audit_files(auditor, [uri], out, resume=True, reread=True)
    audit_files(auditor, [uri], tmp_path / "anew")
    assert rows(out, "") == rows(tmp_path / "anew", "")


@needs_server
def test_a_lost_connection_is_no_broken_file(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path
) -> None:
    """A lost connection is an error; it is not treated as the end of a broken file."""
    line = json.dumps({"text": documents(registry)[2][:300]}).encode() + b"\n"
    ended = list[object]()
    with running(tmp_path / "log") as server:
        server.put("corpus/lost/a.jsonl", line * 20000)

        def end(state: object) -> None:
            server.process.kill()
            ended.append(state)

        with pytest.raises(
            InputError, match=r"^s3://corpus/lost/a.jsonl: cannot be read \(.*AWS Error"
        ) as caught:
            audit_files(auditor, [server.uri("corpus/lost")], tmp_path / "out", chunk_rows=64, progress=end)
    assert ended
    assert PASSWORD not in str(caught.value)
    assert not list((tmp_path / "out").glob("quarantine*"))


REFUSED = [
    (
        "ftp://corpus/a.jsonl",
        "ftp://: got an unknown scheme, expected a path of this machine, or s3://, gs://, hdfs://",
    ),
    (
        f"s3://{USER}:{PASSWORD}@corpus/a.jsonl",
        "s3://...: got no URI, expected s3://[USER:PASSWORD@]BUCKET/PATH",
    ),
    ("s3:///a.jsonl", "s3://...: got no URI"),
    ("gs://corpus:80/a.jsonl", "gs://...: got no URI"),
    ("hdfs://one two/a.jsonl", "hdfs://...: got no URI, expected hdfs://[USER:PASSWORD@]HOST/PATH"),
]


@pytest.mark.parametrize(("uri", "message"), REFUSED)
def test_what_is_no_uri(auditor: Auditor, tmp_path: pathlib.Path, uri: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        audit_files(auditor, [uri], tmp_path / "out")
    assert str(caught.value).startswith(message)
    assert PASSWORD not in str(caught.value)
    assert os.listdir(tmp_path) == []


@needs_server
def test_what_is_refused_before_any_work(auditor: Auditor, tmp_path: pathlib.Path, server: Server) -> None:
    server.put("corpus/refused/a.jsonl", b'{"text": "a"}')
    server.put("corpus/other/a.bin", b"0")
    server.put("corpus/broken/a.parquet", b"PAR1 no")
    remote, deeper = server.uri("corpus/refused/a.jsonl"), server.uri("corpus/refused")
    cases: list[tuple[list[str], str]] = [
        (
            [server.uri("corpus/missing.jsonl")],
            "s3://corpus/missing.jsonl: got nothing there, expected a file",
        ),
        (
            [server.uri("corpus/refused/*.jsonl")],
            "got nothing there, expected a file or a folder; a URI is no pattern",
        ),
        ([server.uri("nobody/a.jsonl")], "s3://nobody: no such bucket"),
        (
            [remote + "&access=" + PASSWORD],
            "s3://corpus/refused/a.jsonl: cannot be read (Unexpected query parameter",
        ),
        (
            [server.uri("corpus/other/")],
            "s3://corpus/other: got no .parquet, .jsonl, .txt or .md file there (1 file",
        ),
        ([remote, deeper], "s3://corpus/refused/a.jsonl: got it twice"),
        ([server.uri("corpus/broken")], "s3://corpus/broken/a.parquet: got no readable Parquet file"),
    ]
    for inputs, message in cases:
        with pytest.raises(InputError) as caught:
            audit_files(auditor, inputs, tmp_path / "out")
        assert message in str(caught.value)
        assert PASSWORD not in str(caught.value)
        assert os.listdir(tmp_path) == []


@needs_server
def test_who_may_not_read_is_told_where_credentials_come_from(
    registry: Registry, tmp_path: pathlib.Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.put("corpus/private/a.jsonl", b'{"text": "a"}')
    command = ["audit", server.uri("corpus/private/a.jsonl"), "-r", str(registry.path), "--decoder", "cusum"]
    server.protected("0")
    try:
        assert main([*command, "-o", str(tmp_path / "out")]) == 3
    finally:
        server.protected("inf")
    output = capsys.readouterr().err
    assert "s3://corpus/private/a.jsonl: cannot be read (" in output
    assert "ACCESS_DENIED" in output
    assert "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in output
    assert not re.search(f"{USER}|{PASSWORD}|{urllib.parse.quote(PASSWORD, safe='')}|{server.port}", output)
    assert main([*command, "-o", str(tmp_path / "then")]) == 0
    assert not (tmp_path / "out").exists()


def test_a_store_shows_no_secret() -> None:
    store, path = store_of(f"s3://{USER}:very%2Fsecret@bucket/a%20b/?region=here")
    assert path == "s3://bucket/a b"
    for text in (repr(store), path, str(store)):
        assert not re.search(f"{USER}|very|region", text)
    for error in (f"no user {USER}", "very/secret", f"from {store.uri}"):
        with pytest.raises(InputError) as caught:
            store.refuse(path, "read", OSError(error))
        assert "***" in str(caught.value)
        assert not re.search(f"{USER}|very", str(caught.value))
    assert store_of("hdfs://user@name:9000/a") == (
        Store("hdfs://name:9000", "hdfs://user@name:9000/"),
        "hdfs://name:9000/a",
    )
    patience = "retry_limit_seconds=60"
    for source, options in (("", patience), ("?scheme=http", f"scheme=http&{patience}")):
        expected = Store("gs://", f"gs://anonymous@bucket/?{options}")
        assert store_of(f"gs://anonymous@bucket{source}") == (expected, "gs://bucket")
    short = "gs://bucket/?retry_limit_seconds=5"
    assert store_of(short)[0] == Store("gs://", short)


def test_a_store_that_does_not_answer_is_given_up(auditor: Auditor, tmp_path: pathlib.Path) -> None:
    """Of Google's library: no server listens at port 1."""
    uri = "gs://anonymous@bucket/a.jsonl?endpoint_override=127.0.0.1:1&scheme=http&retry_limit_seconds=1"
    with pytest.raises(InputError, match=r"^gs://bucket/a.jsonl: cannot be read \(.*Could not connect"):
        audit_files(auditor, [uri], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_user_of_hdfs_is_no_secret_and_its_password_is() -> None:
    store, path = store_of("hdfs://u:word@name:9000/a")
    with pytest.raises(InputError, match=r"^hdfs://name:9000/a: cannot be read \(unable, \*\*\*\)$"):
        store.refuse(path, "read", OSError("unable, word"))


@pytest.mark.skipif(
    importlib.util.find_spec("gcp_storage_emulator") is None,
    reason="needs gcp-storage-emulator, as .ci/rest has it",
)
def test_googles_store(registry: Registry, auditor: Auditor, tmp_path: pathlib.Path) -> None:
    """Of a store for Google Cloud Storage: what is read is what is here, and results are the same bytes."""
    process = subprocess.Popen([sys.executable, "-c", GOOGLE], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        options = (
            f"endpoint_override=127.0.0.1:{int(process.stdout.readline())}&scheme=http&retry_limit_seconds=30"
        )

        def uri(path: str) -> str:
            return f"gs://anonymous@{path}?{options}"

        def put(path: str, content: bytes) -> None:
            store_of(uri(path))[0].write(f"gs://{path}", content)

        corpus(registry, tmp_path / "in", put, "same")
        source = [uri("corpus/same/")]
        results = [
            audit_files(auditor, [tmp_path / "in"], tmp_path / "whole", chunk_rows=4),
            audit_files(auditor, source, tmp_path / "here", chunk_rows=4),
            audit_files(auditor, source, uri("corpus/out"), chunk_rows=4),
            audit_files(auditor, source, uri("corpus/out"), chunk_rows=4, resume=True),
        ]
        assert results == results[:1] * 4
        assert rows(tmp_path / "here", "gs://corpus/same/") == rows(tmp_path / "whole", f"{tmp_path}/in/")
        (tmp_path / "there").mkdir()
        store, path = store_of(uri("corpus/out"))
        for name in store.names(path):
            with store.open(f"{path}/{name}") as file:
                (tmp_path / "there" / name).write_bytes(file.read())
        assert same_bytes(tmp_path / "here", tmp_path / "there")
        with pytest.raises(InputError, match="gs://nobody: no such bucket"):
            audit_files(auditor, [uri("nobody/a.jsonl")], tmp_path / "no")
    finally:
        process.kill()
        process.wait()


@needs_server
@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_the_same_bytes_as_in_a_folder_here(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, server: Server, workers: int
) -> None:
    """The output lies below the input, and is not read."""
    corpus(registry, tmp_path / "in", server.put, f"whole{workers}")
    uri, folder = server.uri(f"corpus/whole{workers}/"), f"corpus/whole{workers}/out"
    options: dict[str, Any] = {"chunk_rows": 4, "workers": workers, "templates": 2, "fdr": 0.1}
    here = audit_files(auditor, [uri], tmp_path / "here", **options)
    for attempt in range(2):
        assert audit_files(auditor, [uri], server.uri(folder + "/"), resume=attempt > 0, **options) == here
    assert same_bytes(tmp_path / "here", Results(server, folder).down(tmp_path / "there"))
    assert_no_secret(tmp_path / "there")


@needs_server
def test_a_kill_in_the_middle_loses_and_doubles_nothing(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, server: Server
) -> None:
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in documents(registry)] * 3
    server.put("corpus/killed/a.jsonl", b"".join(lines) + b"{broken\n")
    results = Results(server, "corpus/killed-out")
    command = [sys.executable, "-m", "iet", "audit", server.uri("corpus/killed"), "-r", str(registry.path)]
    command += ["-o", server.uri(results.path), "--decoder", "cusum", "--chunk-rows", "1", "--resume"]
    killed = 0
    for _ in range(3):
        done = len(results.names())
        with open(tmp_path / "said", "ab") as output:
            run = subprocess.Popen(command, stdout=output, stderr=output)
        while len(results.names()) <= done + 6 and run.poll() is None:
            time.sleep(0.01)
        run.kill()
        killed += run.wait() == -signal.SIGKILL
        assert killed, (tmp_path / "said").read_text()
    standing = {name for name in results.names() if name.startswith("documents-")}
    assert 0 < len(standing) < len(lines) + 1
    assert not json.loads(results.content("shard-1-of-1.json"))["complete"]
    here = audit_files(auditor, [server.uri("corpus/killed")], tmp_path / "here", chunk_rows=1)
    attempt = audit_files(
        auditor, [server.uri("corpus/killed")], server.uri(results.path), chunk_rows=1, resume=True
    )
    assert attempt == here
    assert here.documents == len(lines)
    assert same_bytes(tmp_path / "here", results.down(tmp_path / "there"))
    assert_no_secret(tmp_path)


@needs_server
def test_changes_of_input_and_results_are_noticed(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, server: Server
) -> None:
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in documents(registry)[:6]]
    server.put("corpus/turned/a.jsonl", b"".join(lines))
    results, uri = Results(server, "corpus/turned-out"), server.uri("corpus/turned")
    out = server.uri(results.path)
    for shard in (1, 2):
        audit_files(auditor, [uri], out, chunk_rows=2, shard=(shard, 2))
    name = "documents-000000-000001.parquet"
    previous = results.content(name)
    for damaged in (previous[:-1] + bytes([previous[-1] ^ 1]), previous[:100], b""):
        server.put(f"{results.path}/{name}", damaged)
        for shard in (1, 2):
            audit_files(auditor, [uri], out, chunk_rows=2, shard=(shard, 2), resume=True)
        assert results.content(name) == previous
    with pytest.raises(
        InputError, match="turned-out: holds the results of an earlier run; expected --resume"
    ):
        audit_files(auditor, [uri], out, chunk_rows=2, shard=(1, 2))
    with pytest.raises(
        InputError,
        match=r"turned-out: holds a run that was begun in another way, .* folder; shards: was 2, is 1",
    ):
        audit_files(auditor, [uri], out, chunk_rows=2, resume=True)
    with pytest.raises(InputError, match=r"s3://corpus/turned: got a folder with \['a.jsonl'\]"):
        audit_files(auditor, [server.uri("corpus/turned/a.jsonl")], uri)
    time.sleep(1.1)  # in a later second, the resolution of a store's times
    server.put("corpus/turned/a.jsonl", b"".join(lines[:3]))
    with pytest.raises(InputError, match=r"inputs\[0\].*audited anew with --reread"):
        audit_files(auditor, [uri], out, chunk_rows=2, shard=(1, 2), resume=True)
    audit_files(auditor, [uri], out, chunk_rows=2, shard=(1, 2), resume=True, reread=True)
    assert "shard-2-of-2.json" not in results.names()
    audit_files(auditor, [uri], out, chunk_rows=2, shard=(2, 2), resume=True, reread=True)
    for shard in (1, 2):
        audit_files(auditor, [uri], tmp_path / "anew", chunk_rows=2, shard=(shard, 2))
    assert same_bytes(tmp_path / "anew", results.down(tmp_path / "there"))


@needs_server
def test_results_that_are_refused(
    registry: Registry, auditor: Auditor, tmp_path: pathlib.Path, server: Server
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    command = ["audit", str(tmp_path / "a.jsonl"), "-r", str(registry.path), "--decoder", "cusum"]
    uri = server.uri
    cases: list[tuple[str, dict[str, Any], str]] = [
        (
            "hdfs://name:9000/out",
            {},
            "hdfs://name:9000/out: got results by hdfs://, expected",
        ),
        (
            uri("corpus/csv"),
            {"csv": True},
            "csv, pages: got results by URI (s3://corpus/csv), expected",
        ),
        (uri("corpus/csv"), {"pages": True}, "csv, pages: got results by URI"),
        (uri("nobody/out"), {}, "s3://nobody: no such bucket, expected an existing one"),
        ("ftp://corpus/out", {}, "ftp://: got an unknown scheme"),
    ]
    for out, options, message in cases:
        with pytest.raises(InputError) as caught:
            audit_files(auditor, [tmp_path / "a.jsonl"], out, **options)
        assert str(caught.value).startswith(message)
        assert os.listdir(tmp_path) == ["a.jsonl"]
    assert main([*command, "-o", uri("corpus/written")]) == 0
    written = Results(server, "corpus/written")
    assert [name.partition("-")[0] for name in written.names()] == [
        "documents",
        "run.json",
        "segments",
        "shard",
    ]
