"""Local servers that speak as stores do, what is put into them, and what is found there."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from iet.marks.registry import Registry
from tests.support.bulk_documents import documents

USER, PASSWORD = "AKIAWHO", "very/secret"


GOOGLE = """
import time
from gcp_storage_emulator.server import create_server

server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="corpus")
server.start()
print(server._api._httpd.server_address[1], flush=True)
time.sleep(600)
"""


class Server(NamedTuple):
    """A server with a bucket `corpus`."""

    port: int
    process: subprocess.Popen[bytes]

    def uri(self, path: str, credentials: str = f"{USER}:{urllib.parse.quote(PASSWORD, safe='')}") -> str:
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{credentials}@{path}?{options}"

    def files(self) -> fs.FileSystem:
        return fs.FileSystem.from_uri(self.uri("corpus") + "&allow_bucket_creation=true")[0]

    def put(self, path: str, content: bytes) -> None:
        with self.files().open_output_stream(path, compression=None) as file:
            file.write(content)

    def protected(self, rights: str) -> None:
        """From now on ("0"), or never ("inf"), ask who calls."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/moto-api/reset-auth", rights, {"Content-Type": "text/plain"})
        assert connection.getresponse().status == 200


@contextlib.contextmanager
def running(log: pathlib.Path) -> Iterator[Server]:
    """Start a server, and end it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while (match := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        server = Server(int(match[1]), process)
        server.files().create_dir("corpus")
        yield server
    finally:
        process.kill()
        process.wait()


def corpus(registry: Registry, folder: pathlib.Path, put: Callable[[str, bytes], None], name: str) -> None:
    """Write documents of all kinds into a folder and, the same, below `corpus/NAME/`."""
    texts = documents(registry)
    lines = [json.dumps({"text": text, "id": f"d{i}"}).encode() + b"\n" for i, text in enumerate(texts)]
    (folder / "deep" / ".hidden").mkdir(parents=True)
    (folder / "a b.jsonl").write_bytes(b"".join(lines[:6]) + b"{broken\n")
    (folder / "deep" / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[6:12]))[:-9])
    pq.write_table(pa.table({"text": texts[12:], "id": range(len(texts) - 12)}), folder / "ä.parquet")
    (folder / "deep" / "c.txt").write_text(texts[2], encoding="utf-8")
    (folder / "deep" / "d.bin").write_bytes(b"\0")
    (folder / "deep" / ".hidden" / "e.txt").write_text("no")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(f"corpus/{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def rows(out: pathlib.Path, prefix: str) -> list[Any]:
    """Return all rows of a folder of results, with the names of files less what they begin with."""
    rows_ = list[Any]()
    for path in sorted(out.glob("*-0*")):
        quarantine = path.suffix == ".jsonl"
        read = (
            map(json.loads, path.read_text().splitlines()) if quarantine else pq.read_table(path).to_pylist()
        )
        rows_ += [(path.name, row | {"file": row["file"].removeprefix(prefix)}) for row in read]
    return rows_


def assert_no_secret(*folders: pathlib.Path) -> None:
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        for secret in (USER, PASSWORD, urllib.parse.quote(PASSWORD, safe="")):
            assert secret.encode() not in path.read_bytes(), path


class Results(NamedTuple):
    """A folder of results in a bucket."""

    server: Server
    path: str

    def names(self) -> list[str]:
        files = self.server.files().get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(file.base_name for file in files if file.type == fs.FileType.File)

    def content(self, name: str) -> bytes:
        with self.server.files().open_input_file(f"{self.path}/{name}") as file:
            return bytes(file.read())

    def down(self, to: pathlib.Path) -> pathlib.Path:
        """Copy all of it into a folder here."""
        to.mkdir()
        for name in self.names():
            (to / name).write_bytes(self.content(name))
        return to


def same_bytes(first: pathlib.Path, second: pathlib.Path) -> bool:
    return {path.name: path.read_bytes() for path in first.glob("[!.]*")} == {
        path.name: path.read_bytes() for path in second.glob("[!.]*")
    }
