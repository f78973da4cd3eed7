"""The tables of the docs: the committed ones, and those of given results."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import jsonschema
import pytest

from benchmarks import tables
from tests.support.speed_schema import RECORD

ROOT = pathlib.Path(__file__).parents[2]
RECORDED = ("embed", "score", "generate")


def test_the_pages_show_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    for name in RECORDED:
        content = json.loads((tables.RESULTS / f"{name}.json").read_text())
        jsonschema.validate(content, RECORD)
        assert not content["quick"]
    assert tables.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_a_page_that_differs_fails_the_check_and_is_rewritten(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    changed = json.loads((tmp_path / "results/null.json").read_text())
    changed["null"]["all"]["texts"] = 123_456
    (tmp_path / "results/null.json").write_text(json.dumps(changed))
    for file in tables.TABLES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    numbers = tmp_path / "docs" / "reference" / "numbers.md"
    old = numbers.read_text()
    assert tables.main(["--check"]) == 1
    assert numbers.read_text() == old
    assert (
        capsys.readouterr().err == "docs/reference/numbers.md: not the results: python -m benchmarks.tables\n"
    )
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0
    assert "| all | 123,456 |" in numbers.read_text()


def test_the_docs_show_decoders_and_the_null(tmp_path: pathlib.Path) -> None:
    figures = {"posterior/token_accuracy": [0.7, 0, 1]}
    cell = {"model": "second", "family": "gumbel", "temperature": 0.7, "agents": 6}
    cells = [
        {"cell": {**cell, "turn_tokens": turn}, "entropy_nats": 0.5, "figures": {**figures, **more}}
        for turn, more in ((400, {"posterior/coverage": [0.9, 0, 1]}), (60, {}))
    ]
    (tmp_path / "decoders.json").write_text(json.dumps({"command": "measure", "cells": cells}))
    rate = {"found": 0.0101, "low": 0.0091, "high": 0.0111}
    group = {"texts": 5000, "pairs": 100_000, "levels": {"0.01": rate}}
    (tmp_path / "null.json").write_text(json.dumps({"command": "measure", "null": {"all": group}}))
    shown = tables.accuracy(tmp_path)
    assert "| second model, gumbel, T = 0.7 (0.50) | 0.70 · 0.70 | - · 0.90 | - · - |" in shown
    assert "turns of 60 · 400 tokens" in shown
    assert "| all | 5,000 | 0.01 (0.0091 to 0.011) |" in tables.null(tmp_path)


def test_the_docs_show_what_a_finding_takes(tmp_path: pathlib.Path) -> None:
    common = {"level": 0.01, "share": 0.9, "most": 500}
    simulated = [
        {"family": "fourier", "kappa": 0.8, "entropy": h, "tokens": t, "in_short": s, **common}
        for h, t, s in (
            (0.5, {"1": None, "6": None}, {"1": 0.1, "6": 0.02}),
            (2.0, {"1": 128, "6": None}, {"1": 1.0, "6": 1.0}),
        )
    ]
    real = [{**simulated[1], "model": "shipped", "temperature": 0.7, "family": "gumbel", "kappa": 1.0}]
    content = {"simulated": simulated, "real": real}
    (tmp_path / "power.json").write_text(json.dumps(content))
    shown = tables.power(tmp_path)
    assert "1 · 6 agents" in shown
    assert "| fourier, κ 0.8 | > 500 | 128 · > 500 |" in shown
    assert "| shipped model, T = 0.7 | 128 · > 500 (2.0 nats) |" in shown
    (tmp_path / "power.json").write_text(json.dumps({**content, "real": []}))
    assert "shipped" not in tables.power(tmp_path)


def test_the_docs_show_table_1_beside_the_papers(tmp_path: pathlib.Path) -> None:
    ours, theirs = tables.table1.EQUAL_KL[0], "KGW, cusum"

    def run(temperature: float, entropy: float, records: int) -> dict[str, Any]:
        first = {"chain 4": [0.5, 0.4, 0.6], "tree 4": [0.5, 0.4, 0.6]}
        iou = {"chain 4": [0.25, 0.2, 0.3], "paper chain 4": 0.9, "tree 4": [0.25, 0.2, 0.3]}
        none = {"chain 4": None, "tree 4": None}
        rows = [
            {"method": method, "figure": figure, **cells}
            for method in (ours, theirs)
            for figure, cells in (("TokenAcc", first), ("IoU", iou), ("EdgeSim", none))
        ]
        rows[0] = {**rows[0], "tree 4": [0.75, 0.7, 0.8]}
        return {
            "configuration": {"temperature": temperature, "top_p": 0.9, "records": records},
            "logs": {"entropy": entropy},
            "table": rows,
        }

    results = tmp_path / "benchmarks" / "results"
    assert tables.paper(results) == "(No run of 48 records a setting is in benchmarks/results/paper yet.)"
    for name, content in (
        ("one", run(1.0, 2.5, 48)),
        ("low", run(0.8, 0.5, 48)),
        ("quick", run(0.7, 1.0, 4)),
    ):
        (results / "paper" / name).mkdir(parents=True)
        (results / "paper" / name / "table1.json").write_text(json.dumps(content))
    shown = tables.paper(results)
    columns = "| the paper | T = 0.8, top-p 0.9 (0.50 nats) | T = 1, top-p 0.9 (2.50 nats) |"
    assert columns in shown
    assert f"| {ours} |  | 0.625 · 0.250 · - | 0.625 · 0.250 · - |" in shown
    assert f"| {theirs} | 0.803 · 0.674 · 0.508 | 0.500 · 0.250 · - |" in shown
    assert "[T = 0.8, top-p 0.9](benchmarks/results/paper/low/table1.md)" in shown
    assert "quick" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!-- t table -->",
        "<!-- /t table --><!-- t table -->",
        "<!-- t table -->" * 2 + "<!-- /t table -->",
    ],
)
def test_a_page_without_its_markers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        tables.replaced("page.md", text, "t", "tables")


def test_links_hold_where_the_page_lies() -> None:
    text, tables_of = "<!-- t table --><!-- /t table -->", "[all](benchmarks/results/x.md)"
    assert tables_of in tables.replaced("page.md", text, "t", tables_of)
    assert "[all](../benchmarks/results/x.md)" in tables.replaced("docs/n.md", text, "t", tables_of)


def test_the_first_table_shows_the_figures_of_the_results(tmp_path: pathlib.Path) -> None:
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    old = tables.summary(tmp_path / "results")
    bulk = json.loads((tmp_path / "results/bulk.json").read_text())
    for result in bulk["results"]:
        if result["what"] == "audit, posterior":
            result["over_encode_batch"]["median"] = 7.125
    (tmp_path / "results/bulk.json").write_text(json.dumps(bulk))
    (line,) = set(tables.summary(tmp_path / "results").splitlines()) - set(old.splitlines())
    assert "7.12 x" in line
    assert "(benchmarks/results/bulk.md)" in line
