"""The benchmarks of speed, tiny: whether they check before they time, and record what they say."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tarfile
from typing import Any

import jsonschema
import numpy as np
import pytest

import iet
from benchmarks import recording, timing
from benchmarks.speed import (
    bench_audit,
    bench_bulk,
    bench_embed,
    on_gpu,
    peers,
    texts,
)
from benchmarks.speed.suite import Contestant, Suite, markdown, run
from iet import kernels
from iet.audit import auditor, plan
from iet.audit import encode as audited
from iet.demo import conversation
from iet.errors import IetError
from iet.marks import tokenizer
from iet.native import load as native
from tests.support.speed_schema import RECORD

ROOT = pathlib.Path(__file__).parents[3]
NAMES = ("embed", "score", "generate")

# ---------------------------------------------------------------- benchmarks/speed


@pytest.mark.parametrize(
    ("name", "device"),
    [*((name, None) for name in NAMES), ("embed", "cpu"), ("score", "cpu")],
)
def test_every_suite_validates_and_runs(name: str, device: str | None) -> None:
    module = importlib.import_module(f"benchmarks.speed.bench_{name}")
    suites = module.suites(True) if device is None else module.device_suites(True, device)
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
    page = markdown(content)
    assert all(result["what"] in page for record in recorded for result in record["results"])


def test_gpu_results_are_compared_with_budgets() -> None:
    def result(label: str, kind: str, over: float) -> dict[str, Any]:
        spread = {"low": over, "median": over, "high": over}
        return {"what": label, "kind": kind, "value": spread, "over": {"add [B, V]": spread}, "GB/s": 1000.0}

    results = [result("embed_", "ours", 1.3), result("embed_, half", "ours", 1.3), result("copy", "floor", 1)]
    record = {"floors": ["add [B, V]"], "unit": "ns per logit", "results": results, "details": {}}
    names = ("embed_ float16 [256, 128256], fourier, n = 2, cuda", "embed_ float32 [64, 32000], cuda")
    lines = [line for name in names for line in on_gpu.told({**record, "suite": name})]
    assert [line[1] for line in lines] == ["OVER budget", "measured", "measured", "measured"]
    text = "1.30 x add [B, V] (budget 1.1), 1,000 GB/s"
    assert lines[0] == (f"{names[0]}: embed_", "OVER budget", "1.30 ns per logit", text, 1.3)


def test_gpu_results_are_written_and_packed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["on_gpu", "--device", "cpu", "-o", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        on_gpu.main()
    assert exit_.value.code == 0
    lines = [json.loads(line) for line in (tmp_path / "on_gpu.jsonl").read_text().splitlines()]
    whats = [line["what"].rpartition(": ")[2] for line in lines]
    assert whats[0] == "embed_"
    assert whats[-2:] == ["vLLM V2 step", "transformers step"]
    assert "launches" in lines[-1]["said"]
    with tarfile.open(tmp_path / "on_gpu.tar.gz") as archive:
        assert {"on_gpu.jsonl", "on_gpu.json", "on_gpu.md"} <= {*archive.getnames()}
    packed = json.loads((tmp_path / "on_gpu.json").read_text())
    assert packed["where"]["device"] == "the CPU, to try the suite out"
    assert [line["what"] for line in packed["lines"]] == [line["what"] for line in lines]
    assert packed["lines"][0]["over"] > 0
    assert lines[0]["said"] in (tmp_path / "on_gpu.md").read_text()


def test_gpu_build_restarts_the_process(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[str] = []
    started: list[list[str]] = []
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: specs or None if name == "iet.native._cuda" else real(name)
    )
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    ran: list[list[str]] = []

    def run(lines: on_gpu.Lines, name: str, command: list[str], _: float) -> bool:
        ran.append(command)
        lines.add(name, "passed", "25 s", "Successfully installed")
        return True

    monkeypatch.setattr(on_gpu.Lines, "run", run)
    on_gpu.build(on_gpu.Lines(tmp_path, 9), built=False)
    assert {"cmake.define.IET_CUDA=ON", "cmake.define.IET_CUDA_ARCHITECTURES=90-real"} < {*ran[0]}
    assert started[0][-3:] == ["--minutes", "9.00", "--built"]

    second_run = on_gpu.Lines(tmp_path, 9, more=True)
    assert [line["what"] for line in second_run.lines] == ["build"]  # what was said before is kept
    with pytest.raises(SystemExit):
        on_gpu.build(second_run, built=True)  # still not there: it is not built a second time
    assert second_run.failed
    specs.append("a module")
    on_gpu.build(second_run, built=True)
    assert (len(ran), len(started)) == (1, 1)

    monkeypatch.setattr(on_gpu.Lines, "run", lambda *_: False)
    specs.clear()
    with pytest.raises(SystemExit):
        on_gpu.build(on_gpu.Lines(tmp_path, 9), built=False)
    assert len(started) == 1


@pytest.mark.parametrize(("n_gram", "family"), [(2, "fourier"), (5, "gumbel")])
def test_compares_devices_with_the_cpu_for_every_scheme(
    n_gram: int, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = timing.team(515, 4, n_gram, family=family).marking_keys()
    real, marked, wrong = kernels.embed_, [], False

    def mark(logits: Any, contexts: Any, slots: Any, key_table: Any, **options: Any) -> None:
        real(logits, contexts, slots, key_table, **options)
        if not options:  # else the CPU is compared with the reference, by threads
            logits[-1, -1] += wrong and not marked  # the device's, which is marked first
            marked.append((tuple(contexts.shape), slots.tolist()))

    monkeypatch.setattr(kernels, "embed_", mark)
    bench_embed.validate_device(keys, "bfloat16", "cpu", rows=7)
    assert marked == 2 * [((7, n_gram - 1), [0, 1, 2, 3, -1, 0, 1])]
    marked.clear()
    wrong = True
    with pytest.raises(IetError, match="embed_ on cpu differs from the CPU's: bfloat16, V = 515"):
        bench_embed.validate_device(keys, "bfloat16", "cpu", rows=7)


def test_measurements_without_time_are_reported(tmp_path: pathlib.Path) -> None:
    lines = on_gpu.Lines(tmp_path, 0.01)
    on_gpu.measure(lines, "cpu", reserve=60)
    assert [line["verdict"] for line in lines.lines] == ["not run"] * 2
    assert not lines.run("tests", [sys.executable, "-c", ""], 60)
    assert not lines.failed
    later = on_gpu.Lines(tmp_path, 1)
    assert not later.run("wrong", [sys.executable, "-c", "raise SystemExit('so')"], 60)
    assert later.failed
    assert (later.lines[0]["verdict"], later.lines[0]["said"]) == ("FAILED", "so")


def test_prints_the_reason_without_gpu(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if iet.backends().cuda_devices:
        pytest.skip("there is a GPU")
    score = functools.partial(runpy.run_module, "benchmarks.speed.bench_score", run_name="__main__")
    for main, arguments in ((score, ["-o", str(tmp_path / "x.json"), "--device", "cuda"]), (on_gpu.main, [])):
        monkeypatch.setattr(sys, "argv", ["python", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 3
        assert "no GPU can be used here" in capsys.readouterr().err


def test_rejects_a_suite_with_different_results() -> None:
    def wrong() -> None:
        raise IetError("differs")

    called: list[int] = []
    contestant = Contestant(timing.timed(lambda: called.append(1)), "ours")
    with pytest.raises(IetError, match="differs"):
        run(Suite("x", "ms", {"ours": contestant}, ("ours",), wrong, rounds=2))
    assert called == []


def test_audits_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    text, registry = texts.text()[:2000], texts.team()
    backends, limit = kernels.backends(), plan.ALL_KEYS
    bench_audit.validate(registry, text)
    assert (kernels.backends(), plan.ALL_KEYS) == (backends, limit)
    scoring = audited.score_tokens

    def false_scores(ids: Any, keys: Any) -> Any:  # a mark of the first candidate that is not there
        return np.eye(1, len(keys), dtype=np.float32).repeat(len(ids), axis=0)

    monkeypatch.setattr(
        audited,
        "score_tokens",
        lambda ids, keys: scoring(ids, keys) if len(keys) > 256 else false_scores(ids, keys),
    )
    with pytest.raises(IetError, match="differs from one of all keys"):
        bench_audit.validate(registry, text)
    assert (kernels.backends(), plan.ALL_KEYS) == (backends, limit)


def test_text_of_the_shipped_model_has_the_given_length(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, registry = conversation.converse, texts.team()
    monkeypatch.setattr(conversation, "converse", functools.partial(talk, turn_tokens=(40, 50)))
    text = texts.marked_text(registry, 1000)  # of two conversations
    report = auditor.Auditor(registry).audit(text)
    assert report.tokens >= 1000
    assert len(report.found) >= 3


def test_bulk_audits_are_timed(
    logs: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every sample is a process of its own; what compares and writes needs none.
    arguments = ["bench_bulk", "-o", str(tmp_path / "bulk.json"), "--data", str(logs), "--quick"]
    monkeypatch.setattr(sys, "argv", arguments)
    for name, value in (("TOKENIZERS_PARALLELISM", "false"), ("IET_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    bench_bulk.main()
    content = json.loads((tmp_path / "bulk.json").read_text())
    assert content["quick"]
    assert content["command"].endswith("bulk.json --data PATH --quick")
    assert (content["documents"], content["distinct"], content["keys"]) == (60, 3, 6)
    assert content["text"] == "agent logs"
    assert [row["what"] for row in content["results"]] == list(bench_bulk.CONTESTANTS)
    for row in content["results"]:
        assert row["tokens_per_second"] == pytest.approx(
            row["documents_per_second"] * content["tokens"] / content["documents"],
            rel=1e-5,  # six digits are written
        )
        assert row["peak_mb"] >= row["quarter_mb"] > 50
        assert (row["times_one_worker"] is None) == ("two workers" not in row["what"])
    page = (tmp_path / "bulk.md").read_text()
    assert all(f"| {name} |" in page for name in bench_bulk.CONTESTANTS)


def test_bulk_ratios_are_formed_within_rounds() -> None:
    def samples(*seconds: float) -> list[dict[str, float]]:
        memory = {"quarter_mb": 1.0, "peak_mb": 2.0}
        return [dict.fromkeys(("process", "cpu", "seconds", "steady"), s) | memory for s in seconds]

    # A machine that becomes twice as slow with each round.
    times = {name: (1.0, 2.0, 4.0) for name in bench_bulk.CONTESTANTS}
    times |= {"audit, cusum": (1.2, 2.4, 4.8), "audit, cusum, two workers": (0.6, 1.2, 2.4)}
    samples_by_name = {name: samples(*seconds) for name, seconds in times.items()}
    rows = {row["what"]: row for row in bench_bulk.results(samples_by_name, 100, 5000)}
    cusum: Any = rows["audit, cusum"]
    assert cusum["over_encode_batch"] == pytest.approx({"low": 1.2, "median": 1.2, "high": 1.2})
    assert cusum["times_one_worker"] is None
    assert cusum["documents_per_second"] == pytest.approx(100 / 2.4)
    two: Any = rows["audit, cusum, two workers"]
    assert two["times_one_worker"]["median"] == pytest.approx(2.0)
    assert two["tokens_per_second"] == pytest.approx(5000 / 1.2)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_steady_rate_excludes_the_start(workers: int) -> None:
    # 7 seconds until there are workers, half a second between them, 12 chunks of 10 for each, of 2 seconds.
    done = sorted(7 + 2 * (i + 1) + worker / 2 for worker in range(workers) for i in range(12))
    marks = [(10.0 * (i + 1), seconds, 100.0 + (i == 0)) for i, seconds in enumerate(done)]
    figures = bench_bulk.figures(workers, [*marks, (marks[-1][0], done[-1], 110.0)], 1.0)
    assert figures["steady"] == pytest.approx(24.0)
    assert figures["seconds"] == done[-1]
    assert (figures["quarter_mb"], figures["peak_mb"]) == (100.0, 110.0)


def test_documents_of_bulk_audits_have_the_given_length() -> None:
    text = "The planner hands the plan to the critic. " * 400
    documents = bench_bulk.documents([text, "short"], 5)
    assert len(documents) == 5
    counts = [len(tokenizer.Tokenizer("iet:demo").encode(text).token_ids) for text in documents]
    assert all(abs(count - bench_bulk.TOKENS) <= 2 for count in counts)
    with pytest.raises(IetError, match="no text has 1000 tokens"):
        bench_bulk.documents(["short"], 5)


def test_bulk_audits_that_differ_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    registry, documents = texts.team(), ["The plan is to read it first. " * 20]
    bench_bulk.validate(registry, documents, tmp_path)
    audit = auditor.Auditor.audit
    monkeypatch.setattr(auditor.Auditor, "audit", lambda self, text: audit(self, text[:-9]))
    (tmp_path / "again").mkdir()
    with pytest.raises(IetError, match="cusum: the tables do not hold what audits one by one find"):
        bench_bulk.validate(registry, documents, tmp_path / "again")


def test_rejects_a_folder_without_agent_logs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_audit", "-o", "x.json", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        bench_audit.main()
    assert exit_.value.code == 2
    assert f"{tmp_path} has no who_and_when" in capsys.readouterr().err


def test_names_skipped_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers._NEEDS, "Waterfall", ("no_such_package_of_ours",))
    for installed, skipped in (peers.markers(515), peers.readers(515)):
        assert not any(name.startswith("Waterfall") for name in installed)
        (why,) = (why for name, why in skipped.items() if name.startswith("Waterfall"))
        assert "no_such_package_of_ours not installed, see benchmarks/speed/peers.txt" in why
    named = {line.split("==")[0] for line in (ROOT / "benchmarks/speed/peers.txt").read_text().splitlines()}
    assert {"waterfall", "markllm", "psutil"} <= named


def test_pytest_benchmark_records_the_same_samples(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "speed.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--quick"]
    command += [f"--benchmark-json={out}", "benchmarks/speed/bench_score.py"]
    # Other plugins that happen to be installed import what they need, half of the time.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command[3:3] = ["-p", "pytest_benchmark.plugin"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env=environment)
    benchmarks = json.loads(out.read_text())["benchmarks"]
    assert len({entry["group"] for entry in benchmarks}) > 1
    assert {entry["stats"]["rounds"] for entry in benchmarks} == {2}
    assert all(entry["stats"]["min"] > 0 for entry in benchmarks)
    assert {entry["extra_info"]["kind"] for entry in benchmarks} >= {"ours", "floor"}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_runner_writes_one_result_per_benchmark_and_backend(backend: str, tmp_path: pathlib.Path) -> None:
    if backend == "cpu" and native.cpu is None:
        pytest.skip("the compiled module is switched off")
    command = [sys.executable, "-m", "benchmarks.speed", "-o", str(tmp_path)]
    command += ["--only", "generate", "--quick"]
    environment = {**os.environ, "IET_BACKEND": backend}
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env=environment)
    content = json.loads((tmp_path / "generate.json").read_text())
    jsonschema.validate(content, RECORD)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generate.json", "generate.md"]
    assert content["command"].endswith("generate.json --quick")


def test_suites_restore_the_instruction_set() -> None:
    slowest, isa_before = timing.isas()[0], kernels.backends().isa
    timing.select_isa(slowest)
    try:
        sampler = timing.timed(lambda: None, lambda: timing.select_isa(timing.isas()[-1]))
        run(Suite("x", "ms", {"ours": Contestant(sampler, "ours")}, ("ours",), lambda: None, rounds=2))
        assert (kernels.backends().isa or "reference") == slowest
    finally:
        if isa_before is not None:
            timing.select_isa(isa_before)


# ---------------------------------------------------------------- bench_likelihood
