"""The tables of the docs: the committed ones, and those of given results."""

from __future__ import annotations

import json
import pathlib
import re
import shutil

import jsonschema
import pytest

from benchmarks import tables
from tests.support.speed_schema import RECORD

ROOT = pathlib.Path(__file__).parents[2]
RECORDED = ("embed", "score", "generate")


def test_pages_show_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    for name in RECORDED:
        content = json.loads((tables.RESULTS / f"{name}.json").read_text())
        jsonschema.validate(content, RECORD)
        assert not content["quick"]
    assert tables.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_check_fails_for_an_outdated_page_which_is_rewritten(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    changed = json.loads((tmp_path / "results/null.json").read_text())
    for group in ("all", "unmarked: corpora"):
        changed["null"][group] |= {"texts": 123_456, "pairs": 20 * 123_456}
    (tmp_path / "results/null.json").write_text(json.dumps(changed))
    for file in tables.TABLES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    numbers = tmp_path / "docs" / "reference" / "numbers.md"
    old = numbers.read_text()
    assert tables.main(["--check"]) == 1
    assert numbers.read_text() == old
    assert (
        capsys.readouterr().err == "docs/reference/numbers.md, docs/concepts/guarantees.md: not the results:"
        " python -m benchmarks.tables\n"
    )
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0
    assert " of 123,456 texts under 20 keys |" in numbers.read_text()
    assert " of 123,456 texts |" in (tmp_path / "docs" / "concepts" / "guarantees.md").read_text()


def test_readme_lists_every_result() -> None:
    listed = re.findall(
        r"^\| \[\w+\]\(results/(\w+)\.md\) \|", (ROOT / "benchmarks/README.md").read_text(), re.M
    )
    assert sorted(listed) == sorted(path.stem for path in tables.RESULTS.glob("*.md"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!-- t table -->",
        "<!-- /t table --><!-- t table -->",
        "<!-- t table -->" * 2 + "<!-- /t table -->",
    ],
)
def test_rejects_a_page_without_markers(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        tables.replaced("page.md", text, "t", "tables")


def test_links_hold_where_the_page_lies() -> None:
    text, tables_of = "<!-- t table --><!-- /t table -->", "[all](benchmarks/results/x.md)"
    assert tables_of in tables.replaced("page.md", text, "t", tables_of)
    assert "[all](../benchmarks/results/x.md)" in tables.replaced("docs/n.md", text, "t", tables_of)


def test_table_of_speeds_shows_the_results(tmp_path: pathlib.Path) -> None:
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    old = tables.speed(tmp_path / "results")
    bulk = json.loads((tmp_path / "results/bulk.json").read_text())
    for result in bulk["results"]:
        if result["what"] == "audit, posterior":
            result["over_encode_batch"]["median"] = 7.125
    (tmp_path / "results/bulk.json").write_text(json.dumps(bulk))
    (line,) = set(tables.speed(tmp_path / "results").splitlines()) - set(old.splitlines())
    assert "7.12 x" in line
    assert "(benchmarks/results/bulk.md)" in line
