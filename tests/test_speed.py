"""What times, not how fast: the interleaved timer, `iet bench`, tiny suites, and the docs' tables."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import jsonschema
import numpy as np
import pytest

from benchmarks import recording, tables
from benchmarks.speed import (
    bench_audit,
    bench_bulk,
    bench_decode,
    bench_engines,
    bench_likelihood,
    bench_page,
    peers,
    texts,
)
from benchmarks.speed.suite import Contestant, Suite, markdown, number, run
from iet import kernels
from iet.audit import auditor, plan
from iet.audit import texts as audited
from iet.cli import bench, main
from iet.errors import BackendUnavailable, IetError, InputError
from iet.marks import tokenizer
from iet.native import load as native

ROOT = pathlib.Path(__file__).parent.parent
NAMES = ("embed", "score", "decode", "generate", "import")
RECORDED = (*NAMES, "page")  # their results are committed; pages need a browser, and have a test of their own

SPREAD = {
    "type": "object",
    "properties": {key: {"type": "number"} for key in ("low", "median", "high")},
    "required": ["low", "median", "high"],
    "additionalProperties": False,
}
RESULT = {
    "type": "object",
    "properties": {
        "what": {"type": "string"},
        "kind": {"enum": ["ours", "floor", "peer"]},
        "value": SPREAD,
        "over": {"type": "object", "additionalProperties": SPREAD, "minProperties": 1},
        "note": {"type": "string"},
    },
    "required": ["what", "kind", "value", "over", "note"],
}
SUITE = {
    "type": "object",
    "properties": {
        "suite": {"type": "string"},
        "unit": {"type": "string"},
        "rounds": {"type": "integer", "minimum": 1},
        "noise": {"type": "number", "minimum": 0},
        "skipped": {"type": "object", "additionalProperties": {"type": "string"}},
        "results": {"type": "array", "items": RESULT, "minItems": 2},
        "details": {"type": "object"},
    },
    "required": ["suite", "unit", "rounds", "noise", "skipped", "results", "details", "floors"],
}
RECORD = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "pattern": r"^python -m benchmarks\.speed\.bench_\w+ -o "},
        "quick": {"type": "boolean"},
        "environment": {
            "type": "object",
            "required": ["processor", "machine", "cores", "isa", "threads", "load", "python", "numpy", "iet"],
        },
        "suites": {"type": "array", "items": SUITE, "minItems": 1},
    },
    "required": ["command", "quick", "environment", "suites"],
}


# ---------------------------------------------------------------- the timer


def test_all_contestants_run_once_a_round_in_changing_order() -> None:
    log: list[str] = []
    samplers = {name: lambda name=name: (log.append(name), float(len(log)))[1] for name in "abc"}
    samples = bench.interleaved(samplers, rounds=20)
    rounds = [tuple(log[i : i + 3]) for i in range(3, len(log), 3)]  # after the one that warms up
    assert len(rounds) == 20
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 2
    # samples[name][i] is of round i: the moment of each call tells.
    for name, values in samples.items():
        assert values == [4 + 3 * i + order.index(name) for i, order in enumerate(rounds)]


def test_no_round_begins_after_the_seconds_are_over() -> None:
    assert len(bench.interleaved({"a": lambda: 1.0}, rounds=50, seconds=0.0)["a"]) == 3
    assert len(bench.interleaved({"a": lambda: 1.0}, rounds=2, seconds=0.0)["a"]) == 2


def test_ratios_are_formed_within_rounds() -> None:
    drifting = [1.0, 2.0, 4.0, 8.0]
    assert bench.ratio([3 * value for value in drifting], drifting) == (3.0, 3.0, 3.0)
    assert bench.spread([5.0, 1.0, 3.0]) == (2.0, 3.0, 4.0)
    assert bench.noise([5.0, 1.0, 3.0]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="argument"):
        bench.ratio([1.0], [1.0, 2.0])


def test_arguments_are_made_anew_for_every_call() -> None:
    seen: list[int] = []
    made = iter(range(5))
    sample = bench.timed(seen.append, lambda: (next(made),))
    assert all(sample() >= 0 for _ in range(3))
    assert seen == [0, 1, 2]


def test_a_kernel_that_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = bench.team(515, 2).marking_keys()
    bench.validate_embed(keys, np.zeros((2, 515), np.float32))
    bench.validate_score(keys, np.arange(20))
    marking, scoring = kernels.embed_, kernels.score_tokens
    monkeypatch.setattr(
        kernels, "embed_", lambda logits, *rest: marking(logits[:1], *(r[:1] for r in rest[:2]), rest[2])
    )
    with pytest.raises(IetError, match="embed_ differs"):
        bench.validate_embed(keys, np.zeros((2, 515), np.float32))
    monkeypatch.setattr(kernels, "score_tokens", lambda ids, keys: scoring(ids[::-1], keys))
    with pytest.raises(IetError, match="score_tokens differs"):
        bench.validate_score(keys, np.arange(20))


# ---------------------------------------------------------------- iet bench

TINY = ["bench", "--rows", "3", "--vocab-size", "515", "--tokens", "50", "--seconds", "0"]


def test_iet_bench_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    before = kernels.backends()
    assert main([*TINY, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert kernels.backends() == before
    assert figures["rounds"] == [3, 3]
    assert figures["machine"]["isa"] == before.isa
    for work in ("embed_ float32 [3, 515]", "embed_ float16 [3, 515]", "score_tokens n = 2, T = 50, K = 16"):
        lines = [line for line in figures["lines"] if line["work"] == work]
        assert [line["what"] for line in lines if line["ours"]] == [name for name, _, _ in bench.contenders()]
        for line in lines:
            jsonschema.validate(line["value"], SPREAD)
            for ratio in line["over"].values():
                jsonschema.validate(ratio, SPREAD)
        floor = next(line for line in lines if line["what"] == next(iter(line["over"])))
        assert floor["over"][floor["what"]]["median"] == 1.0


def test_iet_bench_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    shown = capsys.readouterr().out
    assert "over float32 add [B, V]" in shown
    assert all(name in shown for name, _, _ in bench.contenders())
    assert "agreed with the reference" in shown


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rows", "0"), ("--vocab-size", "1"), ("--tokens", "1"), ("--seconds", "nan"), ("--seconds", "-1.0")],
)
def test_iet_bench_refuses_what_it_cannot_time(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, option, value]) == 3
    assert f"got {value}, expected at least" in capsys.readouterr().err


def test_iet_bench_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from iet.cli import main;"
        f"code = main({TINY!r}); assert 'benchmarks' not in sys.modules; raise SystemExit(code)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_unknown_instruction_set_is_refused() -> None:
    if native.cpu is None:
        pytest.skip("the reference has no instruction sets")
    with pytest.raises(InputError, match="'sse9', expected one of"):
        bench.select_isa("sse9")


# ---------------------------------------------------------------- benchmarks/speed


@pytest.mark.parametrize("name", [*NAMES, "engines"])
def test_every_suite_validates_and_runs(name: str) -> None:
    suites = importlib.import_module(f"benchmarks.speed.bench_{name}").suites(True)
    assert len({suite.name for suite in suites}) == len(suites)
    recorded = []
    for suite in suites:
        record, samples = run(suite)
        recorded.append(record)
        assert {len(values) for values in samples.values()} == {suite.rounds}
        assert set(suite.floors) <= set(samples)
        assert set(suite.skipped).isdisjoint(samples)
    content: dict[str, Any] = {
        "command": f"python -m benchmarks.speed.bench_{name} -o x.json",
        "quick": True,
        "environment": recording.environment("torch"),
        "suites": recorded,
    }
    jsonschema.validate(json.loads(json.dumps(content)), RECORD)
    shown = markdown(content)
    assert all(result["what"] in shown for record in recorded for result in record["results"])


def test_pages_are_opened_in_a_browser() -> None:
    pytest.importorskip("playwright.sync_api")
    if bench_page.find_chromium() is None:
        pytest.skip("chromium is not installed")
    [suite] = bench_page.suites(True)
    record, samples = run(suite)
    assert set(samples) == {*bench_page.PAGES, bench_page.FLOOR}
    assert all(0.001 < seconds < 60 for values in samples.values() for seconds in values)
    assert record["details"]["page, 200 tokens a turn"]["segments"] == 5


def test_without_a_browser_no_page_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_page, "find_chromium", lambda: None)
    [suite] = bench_page.suites(True)
    with pytest.raises(BackendUnavailable, match="chromium: not found"):
        run(suite)


def test_a_suite_that_fails_its_check_is_not_timed() -> None:
    def wrong() -> None:
        raise IetError("differs")

    called: list[int] = []
    contestant = Contestant(bench.timed(lambda: called.append(1)), "ours")
    with pytest.raises(IetError, match="differs"):
        run(Suite("x", "ms", 1e3, {"ours": contestant}, ("ours",), wrong, rounds=2))
    assert called == []


def test_audits_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    text, registry = texts.text()[:2000], bench_audit.team()
    before, limit = kernels.backends(), plan.ALL_KEYS
    bench_audit.validate(registry, text)
    assert (kernels.backends(), plan.ALL_KEYS) == (before, limit)
    scoring = audited.score_tokens

    def found(ids: Any, keys: Any) -> Any:  # a mark of the first candidate that is not there
        return np.eye(1, len(keys), dtype=np.float32).repeat(len(ids), axis=0)

    monkeypatch.setattr(
        audited,
        "score_tokens",
        lambda ids, keys: scoring(ids, keys) if len(keys) > 256 else found(ids, keys),
    )
    with pytest.raises(IetError, match="differs from one of all keys"):
        bench_audit.validate(registry, text)
    assert (kernels.backends(), plan.ALL_KEYS) == (before, limit)


def test_bulk_audits_are_timed(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "benchmarks.speed.bench_bulk", "-o", str(tmp_path / "bulk.json")]
    subprocess.run([*command, "--quick"], check=True, cwd=ROOT, capture_output=True)
    content = json.loads((tmp_path / "bulk.json").read_text())
    assert content["quick"]
    assert content["command"].endswith("bulk.json --quick")
    assert (content["documents"], content["keys"]) == (60, 6)
    assert [row["what"] for row in content["results"]] == list(bench_bulk.CONTESTANTS)
    for row in content["results"]:
        assert row["tokens_per_second"] == pytest.approx(
            row["documents_per_second"] * content["tokens"] / content["documents"]
        )
        assert row["peak_mb"] >= row["quarter_mb"] > 50
        assert (row["times_one_worker"] is None) == ("two workers" not in row["what"])
    others = {row["what"] for row in content["detectors"]} | set(content["skipped"])
    assert others == {name for name, _ in bench_engines.PEERS.values()}
    for row in content["detectors"]:
        assert row["over_scores"]["median"] > row["over_audit"]["median"] > 0  # scores are a part of it
    shown = (tmp_path / "bulk.md").read_text()
    assert all(f"| {name} |" in shown for name in bench_bulk.CONTESTANTS)


def test_bulk_ratios_are_formed_within_rounds() -> None:
    def samples(*seconds: float) -> list[dict[str, float]]:
        rest = {"quarter_mb": 1.0, "peak_mb": 2.0}
        return [dict.fromkeys(("process", "cpu", "seconds", "steady"), s) | rest for s in seconds]

    # A machine that becomes twice as slow with each round.
    times = {name: (1.0, 2.0, 4.0) for name in bench_bulk.CONTESTANTS}
    times |= {"audit, cusum": (1.2, 2.4, 4.8), "audit, cusum, two workers": (0.6, 1.2, 2.4)}
    found = {name: samples(*seconds) for name, seconds in times.items()}
    rows = {row["what"]: row for row in bench_bulk.results(found, 100, 5000)}
    cusum: Any = rows["audit, cusum"]
    assert cusum["over_encode_batch"] == pytest.approx({"low": 1.2, "median": 1.2, "high": 1.2})
    assert cusum["times_one_worker"] is None
    assert cusum["documents_per_second"] == pytest.approx(100 / 2.4)
    two: Any = rows["audit, cusum, two workers"]
    assert two["times_one_worker"]["median"] == pytest.approx(2.0)
    assert two["tokens_per_second"] == pytest.approx(5000 / 1.2)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_start_is_left_out_of_what_is_steady(workers: int) -> None:
    # 7 seconds until there are workers, half a second between them, 12 chunks of 10 for each, of 2 seconds.
    done = sorted(7 + 2 * (i + 1) + worker / 2 for worker in range(workers) for i in range(12))
    marks = [(10.0 * (i + 1), seconds, 100.0 + (i == 0)) for i, seconds in enumerate(done)]
    found = bench_bulk.figures(workers, [*marks, (marks[-1][0], done[-1], 110.0)], 1.0)
    assert found["steady"] == pytest.approx(24.0)
    assert found["seconds"] == done[-1]
    assert (found["quarter_mb"], found["peak_mb"]) == (100.0, 110.0)


def test_documents_of_bulk_audits_have_as_many_tokens() -> None:
    text = "The planner hands the plan to the critic. " * 400
    found = bench_bulk.documents([text, "short"], 5)
    assert len(found) == 5
    counts = [len(tokenizer.Tokenizer("iet:demo").encode(text).token_ids) for text in found]
    assert all(abs(count - bench_bulk.TOKENS) <= 2 for count in counts)
    with pytest.raises(IetError, match="no text has 1000 tokens"):
        bench_bulk.documents(["short"], 5)


def test_bulk_audits_that_differ_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    registry, some = bench_audit.team(), ["The plan is to read it first. " * 20]
    bench_bulk.validate(registry, some, tmp_path)
    audit = auditor.Auditor.audit
    monkeypatch.setattr(auditor.Auditor, "audit", lambda self, text: audit(self, text[:-9]))
    (tmp_path / "again").mkdir()
    with pytest.raises(IetError, match="cusum: the tables do not hold what audits one by one find"):
        bench_bulk.validate(registry, some, tmp_path / "again")


def test_a_folder_without_agent_logs_is_refused(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "benchmarks.speed.bench_audit", "-o", "x.json", "--data", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{tmp_path} has no who_and_when" in done.stderr


def test_a_peer_that_is_not_installed_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers._NEEDS, "Waterfall", ("no_such_package_of_ours",))
    for found, skipped in (peers.markers(515), peers.readers(515)):
        assert not any(name.startswith("Waterfall") for name in found)
        (why,) = (why for name, why in skipped.items() if name.startswith("Waterfall"))
        assert "no_such_package_of_ours not installed, see benchmarks/speed/peers.txt" in why
    named = {line.split("==")[0] for line in (ROOT / "benchmarks/speed/peers.txt").read_text().splitlines()}
    assert {"waterfall", "markllm", "psutil"} <= named


def test_pytest_benchmark_records_the_same_samples(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "speed.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "benchmarks/speed/bench_import.py",
    ]
    subprocess.run(
        [*command, "--quick", f"--benchmark-json={out}"], check=True, cwd=ROOT, capture_output=True
    )
    benchmarks = json.loads(out.read_text())["benchmarks"]
    assert len(benchmarks) == 3
    for entry in benchmarks:
        assert entry["group"] == "import in a fresh process"
        assert entry["stats"]["rounds"] == 2
        assert entry["stats"]["min"] > 1e-4  # an import, not the call that replays it
    assert {entry["extra_info"]["kind"] for entry in benchmarks} == {"ours", "floor"}


def test_the_runner_writes_one_result_each(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "-o", str(tmp_path), "--only", "import", "--quick"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    content = json.loads((tmp_path / "import.json").read_text())
    jsonschema.validate(content, RECORD)
    assert content["command"].endswith("import.json --quick")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["import.json", "import.md"]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_scheme_waterfall_is_timed_on_every_backend(backend: str, tmp_path: pathlib.Path) -> None:
    if backend == "cpu" and native.cpu is None:
        pytest.skip("the compiled module is switched off")
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed",
        "-o",
        str(tmp_path),
        "--only",
        "waterfall",
        "--quick",
    ]
    environment = {**os.environ, "IET_BACKEND": backend}
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env=environment)
    content = json.loads((tmp_path / "waterfall.json").read_text())
    assert content["command"].endswith("waterfall.json --quick")
    ours = {"reference"} if backend == "reference" else set(bench.isas())
    for part, value in (("scores", "token_keys_per_second"), ("permutations", "microseconds")):
        assert {line["what"] for line in content[part]} > ours
        assert all(line[value] > 0 for line in content[part])


def test_a_suite_leaves_the_instruction_set_as_it_was() -> None:
    slowest, before = bench.isas()[0], kernels.backends().isa
    bench.select_isa(slowest)
    try:
        sampler = bench.timed(lambda: None, lambda: bench.select_isa(bench.isas()[-1]))
        run(Suite("x", "ms", 1e3, {"ours": Contestant(sampler, "ours")}, ("ours",), lambda: None, rounds=2))
        assert (kernels.backends().isa or "reference") == slowest
    finally:
        if before is not None:
            bench.select_isa(before)


def test_caches_are_read_from_sysfs(tmp_path: pathlib.Path) -> None:
    for index, (level, kind, size) in enumerate([("1", "Data", "48K"), ("3", "Unified", "491520K")]):
        (tmp_path / f"index{index}").mkdir()
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / f"index{index}" / name).write_text(f"{value}\n")
    assert recording.caches(tmp_path) == {"L1d": 48 << 10, "L3": 480 << 20}
    assert recording.caches(tmp_path / "index0") == {}


# ---------------------------------------------------------------- tables of README and docs


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
    text = (ROOT / "README.md").read_text()
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    changed = json.loads((tmp_path / "results/import.json").read_text())
    changed["suites"][0]["results"][0]["value"]["median"] = 0.123
    (tmp_path / "results/import.json").write_text(json.dumps(changed))
    (tmp_path / "docs").mkdir()
    for file in tables.TABLES:
        shutil.copy(ROOT / file, tmp_path / file)
    numbers = tmp_path / "docs" / "numbers.md"
    old = numbers.read_text()
    assert tables.main(["--check"]) == 1
    assert (tmp_path / "README.md").read_text() == text
    assert numbers.read_text() == old
    assert capsys.readouterr().err == "docs/numbers.md: not the results: python -m benchmarks.tables\n"
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0
    rewritten = numbers.read_text()
    assert "| 0.123 (" in rewritten
    for name in RECORDED:  # what measured it, and where
        assert f"`python -m benchmarks.speed.bench_{name} -o benchmarks/results/{name}.json`: " in rewritten


def test_the_docs_show_decoders_and_the_null(tmp_path: pathlib.Path) -> None:
    figures = {f"{name}/token_accuracy": [0.1 * i, 0, 1] for i, name in enumerate(tables.READERS, 5)}
    figures |= {"posterior of 6 keys": [0.7, 0, 1], "posterior of 8 keys": [0.65, 0, 1]}
    figures["cusum, min_points 10/token_accuracy"] = [0.3, 0, 1]
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
    row = (
        "| second model, gumbel, T = 0.7 (0.50) | 6 | 0.50 · 0.50 | 0.60 · 0.60 | 0.70 · 0.70 | 0.80 · 0.80 |"
    )
    assert f"{row} - · 0.90 | - · - |" in shown
    assert "for turns of 60 · 400 tokens" in shown
    assert "Over the 2 cells and lengths `posterior` leads `window` by 0.100 to 0.100" in shown
    assert "and `cusum` by 0.200 on average, or by 0.400 with the paper's number" in shown
    assert "by at most 0.000 where coverage is 0.95 or more, and by up to 0.050 elsewhere." in shown
    assert "| all | 5,000 | 100,000 | 0.01 (0.0091 to 0.011) |" in shown


def test_the_docs_show_what_a_finding_takes(tmp_path: pathlib.Path) -> None:
    common = {"level": 0.01, "share": 0.9, "most": 500}
    simulated = [
        {"family": "fourier", "kappa": 0.8, "entropy": h, "tokens": t, **common}
        for h, t in ((0.5, {"1": None, "6": None}), (2.0, {"1": 128, "6": None}))
    ]
    real = [{**simulated[1], "model": "shipped", "temperature": 0.7, "family": "gumbel", "kappa": 1.0}]
    content = {"simulated": simulated, "real": real}
    (tmp_path / "power.json").write_text(json.dumps(content))
    shown = tables.power(tmp_path)
    assert "1 · 6 keys" in shown
    assert "| fourier, κ 0.8 | > 500 | 128 · > 500 |" in shown
    assert "| shipped model, T = 0.7 | 128 · > 500 (2.0 nats) |" in shown
    (tmp_path / "power.json").write_text(json.dumps({**content, "real": []}))
    assert "shipped" not in tables.power(tmp_path)


def test_the_docs_show_table_1_beside_the_papers(tmp_path: pathlib.Path) -> None:
    ours, theirs = tables.table1.EQUAL_KL[0], "KGW, cusum"
    lead = {"ours": ours, "against": theirs, "mean difference": {"mean": 0.2}}
    tally = ("better in", "not told apart", "worse in")

    def run(temperature: float, entropy: float, records: int) -> dict[str, Any]:
        texts = {"token_accuracy": 0.5, "iou": 0.25, "edge_similarity": None}
        return {
            "configuration": {"temperature": temperature, "top_p": 0.9, "records": records},
            "logs": {"entropy": entropy},
            "figures": {
                "chain 4": {ours: [texts], theirs: [texts]},
                "tree 4": {ours: [texts, {**texts, "token_accuracy": 1.0}], theirs: [texts]},
            },
            "against": [
                {**lead, "figure": "TokenAcc", **dict(zip(tally, (9, 0, 0), strict=True))},
                {**lead, "figure": "IoU", **dict(zip(tally, (6, 2, 1), strict=True))},
                {**lead, "against": "IET fourier, cusum", "figure": "IoU"},
            ],
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
    assert f"`{ours}` is better in 15 of 18 cells (settings x figures x methods)" in shown
    assert "not told apart in 2, worse in 1; its smallest mean lead is +0.200." in shown
    link = "[All of it](benchmarks/results/paper/low/table1.md)"
    assert f"Not told apart from, and worse than: {theirs} in IoU (2, 1)." in shown
    assert link in shown
    assert "quick" not in shown


def test_the_docs_show_audits(tmp_path: pathlib.Path) -> None:
    one = {"text": "logs", "tokens": 9, "milliseconds": 2.5, "over_encode_batch": 1.25}
    content = {
        "command": "python -m benchmarks.speed.bench_audit -o audit.json",
        "environment": {"processor": "abacus"},
        "six_agents": [{"what": "audit, cusum", **one}, {"what": "encode_batch", **one}],
        "many_keys": [{"decoder": "cusum", "tokens": 4096, "seconds": 0.5, "peak_mb": 321.0}],
        "processes": [{"what": "iet audit, cusum, warm", "seconds": 1.5}],
    }
    (tmp_path / "audit.json").write_text(json.dumps(content))
    shown = tables.speed(tmp_path)
    assert "| logs, T = 9: audit, cusum | 2.50 | 1.25 |" in shown
    assert "logs, T = 9: encode_batch" not in shown
    assert "audit, cusum (peak 321 MB) | 500 |  |" in shown
    assert "| whole process: iet audit, cusum, warm | 1,500 |  |" in shown
    assert "-o audit.json`: abacus; " in shown


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
        tables.replaced("README.md", text, "t", "tables")


def test_links_hold_where_the_page_lies() -> None:
    text, tables_of = "<!-- t table --><!-- /t table -->", "[all](benchmarks/results/x.md)"
    assert tables_of in tables.replaced("README.md", text, "t", tables_of)
    assert "[all](../benchmarks/results/x.md)" in tables.replaced("docs/n.md", text, "t", tables_of)


def test_the_readme_shows_the_figures_of_the_results(tmp_path: pathlib.Path) -> None:
    shutil.copytree(tables.RESULTS, tmp_path / "results")
    old = tables.summary(tmp_path / "results")
    bulk = json.loads((tmp_path / "results/bulk.json").read_text())
    for result in bulk["results"]:
        if result["what"] == "audit, posterior":
            result["over_encode_batch"]["median"] = 7.125
    (tmp_path / "results/bulk.json").write_text(json.dumps(bulk))
    (line,) = set(tables.summary(tmp_path / "results").splitlines()) - set(old.splitlines())
    assert "7.12 x" in line
    assert bulk["command"] in line
    assert "| gumbel | 560 | 144 | 48 |" in tables.needed(tables.RESULTS)


def test_numbers_have_three_digits_and_no_exponent() -> None:
    assert [number(value) for value in (0.0, 0.000527, 0.75, 1.0, 33.9, 588131.0)] == [
        "0",
        "0.000527",
        "0.750",
        "1.00",
        "33.9",
        "588,131",
    ]


# ---------------------------------------------------------------- bench_likelihood


def test_ratios_are_compared_with_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = bench_audit.team().scoring_keys().subset(slice(0, 2))
    ids = bench_audit.Tokenizer(bench_audit.DEMO_SOURCE).encode(texts.text()[:3000]).token_ids
    bench_likelihood.validate("iet:demo", ids, keys)
    embedded = bench_likelihood.embedded
    monkeypatch.setattr(bench_likelihood, "embedded", lambda *a: embedded(*a) + 0.01)
    with pytest.raises(IetError, match="differ from those of embedding"):
        bench_likelihood.validate("iet:demo", ids, keys)


# ---------------------------------------------------------------- bench_decode


@pytest.mark.parametrize("name", ["windows", "decode", "forward_backward"])
def test_decoders_that_differ_from_their_formula_are_not_timed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_decode.validate(3)
    right = getattr(bench_decode, name)
    monkeypatch.setattr(bench_decode, name, lambda scores, *options: right(scores[:, ::-1].copy(), *options))
    with pytest.raises(IetError, match="differ"):
        bench_decode.validate(3)


def test_the_docs_show_decoders(tmp_path: pathlib.Path) -> None:
    suite = bench_decode.agents_suite(2, (1_000, 10_000), 2)
    content = {
        "command": "python -m benchmarks.speed.bench_decode -o decode.json",
        "environment": {"processor": "abacus"},
        "suites": [run(suite)[0]],
    }
    (tmp_path / "decode.json").write_text(json.dumps(content))
    shown = tables.speed(tmp_path)
    assert all(f"| A = 2: {decoder}, T = 10000 |" in shown for decoder in ("posterior", "cusum", "window"))
    assert "T = 1000 |" not in shown
