"""Passages that many documents share: found in any context, and evidence only in the first."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from iet.audit.auditor import Auditor
from iet.audit.evidence import benjamini_hochberg
from iet.bulk.files import audit_files
from iet.bulk.templates import Templates, count, symbols_of
from iet.cli import main
from iet.errors import InputError
from iet.marks.registry import Registry
from tests.support import teams
from tests.support.bulk_documents import marked_text

WORDS = [a + b for a in "bcdfghklmn" for b in ("ad", "eb", "il", "or", "ut", "an", "en")]


def said(seed: int, words: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


def found_in(texts: list[str], least: int, **size: int) -> Templates:
    documents = ((i, symbols_of(text, False)) for i, text in enumerate(texts))
    return count(documents, **{"least": least, "size": 10**5, "fragment": 64, **size})


def shared(passages: Templates, number: int, text: str) -> str:
    stretches = passages.elsewhere(number, symbols_of(text, False))
    return "|".join(text[start:end] for start, end in stretches.tolist())


def test_a_passage_is_found_wherever_it_stands_and_counts_in_its_first_document() -> None:
    passage = said(0, 150)
    texts = [f"{said(2 * i + 1, 20 + 7 * i)} {passage} {said(2 * i + 2, 40)}" for i in range(6)]
    passages = found_in(texts, 5)
    assert shared(passages, 0, texts[0]) == ""
    for i, text in enumerate(texts[1:], 1):
        assert shared(passages, i, text) in passage
        assert len(shared(passages, i, text)) > len(passage) - 250  # a fragment or two at each end
    assert not len(found_in(texts, 7).hashes)
    assert not len(found_in([passage * 9, said(1, 50)], 2).hashes)  # often, but in one document


def test_blanks_of_a_template_are_not_of_it() -> None:
    parts = [said(i, 80) for i in range(2)]
    texts = [f"{parts[0]} {said(100 + i, 25)} {parts[1]}" for i in range(5)]
    passages = shared(found_in(texts, 5), 3, texts[3])
    assert said(103, 25) not in passages
    assert passages.count("|") == 1


def test_memory_is_bounded_and_the_size_only_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [said(i % 30, 2000) for i in range(150)]
    complete, crowded = found_in(texts, 5), found_in(texts, 5, size=10)
    assert set(crowded.hashes.tolist()) <= set(complete.hashes.tolist())
    assert 0 < len(crowded.hashes) <= 1024 < len(complete.hashes)
    monkeypatch.setattr("iet.bulk.templates.MAX_SLOTS", 1 << 10)
    coarse = found_in(texts, 5, size=10**5)
    assert coarse.fragment == 256  # 2 · 10^5 / 256 <= 1024
    assert len(coarse.hashes) > 40


def test_what_is_no_document_has_no_symbols() -> None:
    for record in (None, 3, "\ud800", b"\xff", InputError("bad")):
        assert symbols_of(record, False) is None
    for record in (None, "text", [[1]], [2**70], [0.5]):
        assert symbols_of(record, True) is None
    assert symbols_of(b"a\xc3\xa9", False).tolist() == symbols_of("aé", False).tolist() == [97, 233]
    assert found_in(["", "a"], 2).elsewhere(0, symbols_of("", False)).tolist() == []


def rows_of(out: pathlib.Path) -> list[dict[str, Any]]:
    return [row for path in sorted(out.glob("documents-*")) for row in pq.read_table(path).to_pylist()]


def lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def unlucky(texts: list[str]) -> Registry:
    """The first of some random registries that finds an agent in the first text, which is unmarked."""
    for draw in range(2000):
        registry = Registry.create(None, tokenizer="iet:demo")
        registry.add("planner", secret=teams.secret(f"unlucky {draw}"))
        if Auditor(registry, "cusum").audit(texts[0]).log_p <= np.log(0.01):
            return registry
    raise AssertionError


def test_results_do_not_depend_on_workers_shards_or_a_second_run(
    registry: Registry, tmp_path: pathlib.Path
) -> None:
    template = marked_text(registry, [("planner", 300)], 11)
    texts = [f"{template} {said(i, 60)}" for i in range(12)] + ["", "x"]
    (tmp_path / "a.jsonl").write_bytes(lines(texts) + b"{broken\n")
    auditor = Auditor(registry, "cusum")
    single = audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "one", chunk_rows=3, templates=5)
    rows = rows_of(tmp_path / "one")
    assert [row["found"] for row in rows[:12]] == [["planner"]] + [[]] * 11
    assert rows[0]["template"] == 0
    assert all(200 < row["template"] <= row["repeated"] for row in rows[1:12])
    assert single.templates == 5
    assert single.template_share == pytest.approx(
        sum(row["template"] for row in rows) / sum(row["scored"] for row in rows)
    )
    assert f"{single.template_share:.1%} of the scored tokens are no evidence" in "\n".join(single.lines())
    two = audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "two", chunk_rows=3, templates=5, workers=2)
    assert (two, rows_of(tmp_path / "two")) == (single, rows)
    for path in (tmp_path / "two").glob("documents-00000[13]*"):
        path.unlink()
    rerun = audit_files(
        auditor, [tmp_path / "a.jsonl"], tmp_path / "two", chunk_rows=3, templates=5, resume=True
    )
    assert (rerun, rows_of(tmp_path / "two")) == (single, rows)
    for shard in (2, 1):
        audit_files(
            auditor, [tmp_path / "a.jsonl"], tmp_path / "three", chunk_rows=3, templates=5, shard=(shard, 2)
        )
    assert rows_of(tmp_path / "three") == rows
    assert json.loads((tmp_path / "one" / "run.json").read_text())["templates"] == 5
    with pytest.raises(InputError, match="templates: was 5, is null"):
        audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "one", chunk_rows=3, resume=True)
    for bad in (1, 0, 2.5, True):
        with pytest.raises(InputError, match="templates: got"):
            audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "four", templates=bad)
    assert not (tmp_path / "four").exists()


def test_ids_and_the_command(
    registry: Registry, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(3)
    template = draw.integers(3, 4000, 200).tolist()
    documents = [[*template, *draw.integers(3, 4000, 30).tolist()] for _ in range(6)]
    (tmp_path / "a.jsonl").write_bytes(
        b"".join(json.dumps({"token_ids": ids}).encode() + b"\n" for ids in documents)
    )
    path, out = str(tmp_path / "a.jsonl"), str(tmp_path / "out")
    assert main(["audit", path, "-o", out, "--registry", str(registry.path), "--templates", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["templates"] == 5
    rows = rows_of(tmp_path / "out")
    assert rows[0]["template"] == 0
    assert all(150 < row["template"] <= 200 for row in rows[1:])


def test_a_passage_counts_in_the_first_document_that_is_read(
    registry: Registry, tmp_path: pathlib.Path
) -> None:
    draw = np.random.default_rng(4)
    template = draw.integers(3, 4000, 200).tolist()
    documents = [[*template, *draw.integers(3, 4000, 30).tolist()] for _ in range(4)]
    documents[0].append(10**6)  # outside the vocabulary: it is quarantined
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"token_ids": ids}) + "\n" for ids in documents))
    audit_files(Auditor(registry), [tmp_path / "a.jsonl"], tmp_path / "out", templates=3)
    rows = rows_of(tmp_path / "out")
    assert [row["template"] > 150 for row in rows] == [False, True, True]
    assert rows[0]["template"] == 0


def test_a_template_that_chance_favours_is_one_finding(tmp_path: pathlib.Path) -> None:
    template = said(77, 300)
    texts = [f"{template} {said(1000 + i, 150)}" for i in range(40)]
    registry = unlucky(texts)
    (tmp_path / "a.jsonl").write_bytes(lines(texts))
    auditor = Auditor(registry, "cusum")
    without = audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "before", fdr=0.05)
    after = audit_files(auditor, [tmp_path / "a.jsonl"], tmp_path / "after", fdr=0.05, templates=5)
    assert without.fdr_documents > 20
    assert after.fdr_documents <= 1
    log_p = [row["log_p"] for row in rows_of(tmp_path / "after")]
    assert benjamini_hochberg(log_p[1:], 0.05).sum() == 0
