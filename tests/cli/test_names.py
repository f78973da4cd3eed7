"""File names that are not UTF-8; Python decodes their bytes to lone surrogates."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

from tests.support.commands import RunIet, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")

CAFE = "caf\udce9"  # as Python has b"caf\xe9"
SHOWN = "caf\\xe9"


@pytest.fixture
def named(text: pathlib.Path) -> pathlib.Path:
    return text.rename(text.with_name(f"{CAFE}.txt"))


def test_such_names_are_shown_with_their_bytes_escaped(
    team: pathlib.Path, named: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    registry, page, trace = tmp_path / f"{CAFE}.json", tmp_path / "x.html", tmp_path / f"{CAFE}.trace"
    team.rename(registry)
    trace.write_text(json.dumps([{"role": "assistant", "name": "planner", "content": "w1 w2"}]))
    for command, expected in (
        (["audit", named], f"{SHOWN}.txt"),
        (["check", trace], f"{SHOWN}.trace"),
    ):
        assert run(*command, "-r", registry, "-o", page) == 0
        assert expected in page.read_text(encoding="utf-8")
    assert run("audit", named, "-r", registry, "-o", page) == 0
    assert f"with {SHOWN}.json" in page.read_text(encoding="utf-8")


def test_such_names_are_signed_as_they_are_shown(
    team: pathlib.Path, named: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    pytest.importorskip("securesystemslib")
    from tests.support.signing import ed25519, write_keys

    private, public = write_keys(tmp_path, ed25519())
    signed = tmp_path / "r.dsse.json"
    run_iet(0, "audit", named, "-r", team, "-o", signed, "--sign", private)
    statement = json.loads(run_iet(0, "verify", signed, "--key", public, "--text", named, "--json"))
    assert statement["subject"][0]["name"] == f"{SHOWN}.txt"


def test_many_such_names_are_read(
    team: pathlib.Path, named: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    folder, out = tmp_path / "in", tmp_path / CAFE / "out"
    folder.mkdir()
    pq.write_table(pa.table({"text": [named.read_text()]}), folder / "a.parquet")
    (folder / "a.parquet").rename(folder / f"{CAFE}.parquet")
    (folder / f"{CAFE}.pdf.txt").write_bytes(b"%PDF-")
    named.rename(folder / f"{CAFE}.txt")
    registry = team.rename(tmp_path / f"{CAFE}.json")
    audit = ["audit", folder, "-r", registry, "-o", f"{out}/", "--pages", "--csv", "--json"]
    summary = json.loads(run_iet(0, *audit))
    assert (summary["documents"], summary["attributed"]) == (2, 2)
    assert json.loads(run_iet(0, *audit, "--resume")) == summary
    assert f"{SHOWN}.parquet, row 0" in (out / "index.html").read_text(encoding="utf-8")
    os.unlink(folder / f"{CAFE}.parquet")
    run_iet(0, "audit", folder, "-r", registry, "-o", f"{tmp_path / 'pages'}/", "--pages")
    index = (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    assert f"{SHOWN}.pdf.txt" in index
    assert ": got a PDF file" not in index  # the row names it
