"""The accuracy benchmark: its figures are what they say, on two small cells and on given numbers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet.audit.metrics import token_accuracy

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")

from benchmarks.accuracy import decoders, null, texts, unmarked  # noqa: E402
from benchmarks.recording import read_rows  # noqa: E402

CELLS = (texts.Cell("shipped", 1.0, 4, "fourier"), texts.Cell("shipped", 1.0, 4, "gumbel"))
LENGTHS = (40, 80)
GRID = {"tau": (0.05, 0.4), "smooth_windows": (1, 9), "radius": (8,), "min_points": (2, 10)}


@pytest.fixture(scope="module", autouse=True)
def small(one_thread: None) -> Iterator[None]:
    """Two texts a cell, of eight short turns, and a short grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "SPLITS", {"tuning": 1, "evaluation": 2})
        patch.setattr(texts, "TURN_TOKENS", LENGTHS)
        patch.setattr(texts, "TURNS", 8)
        patch.setattr(decoders.readers, "GRID", GRID)
        yield


@pytest.fixture(scope="module")
def work(small: None, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("texts")
    texts.run(folder, CELLS)
    return folder


# Decoders


def test_oracle_names_every_agent_under_strong_marks(work: pathlib.Path) -> None:
    for turns in texts.load(work, CELLS[1]):
        text = decoders.form(turns, 80)
        assert len(text.truth) == len(text.ids)
        assert len(np.unique(text.truth)) == 4
        assert token_accuracy(text.truth, decoders.oracle(text)) == 1
        # Its answer depends on the stated boundaries.
        blurred = dataclasses.replace(text, truth=np.repeat([0, 1], [len(text.ids) - 3, 3]))
        assert len(np.unique(decoders.oracle(blurred)[:-3])) == 1


def test_oracle_counts_a_pair_once_per_turn() -> None:
    registry = texts.keys("shipped", "fourier", 5, 2)
    ids = np.array([5, 6] * 20 + [100, 200, 300])  # one pair of its own, and one that occurs 20 times
    text = decoders.Text(None, registry, ids, np.zeros(len(ids), np.int64))  # type: ignore[arg-type]
    scores = iet.score_tokens(ids, registry)
    sums = scores[[1, 2, 40, 41, 42]].sum(axis=0)
    assert set(decoders.oracle(text)) == {int(sums.argmax())}


def test_cusum_options_maximise_accuracy_on_tuning_texts(work: pathlib.Path) -> None:
    tuning = [decoders.form(turns, 80) for turns in texts.load(work, CELLS[1], "tuning")]
    accuracy = {}
    for tau, smooth, min_points in itertools.product(
        *(GRID[k] for k in ("tau", "smooth_windows", "min_points"))
    ):
        options = {"tau": tau, "smooth_windows": smooth, "min_points": min_points, "radius": 8}
        auditors = [iet.Auditor(t.registry, "cusum", allow_unattributed=False, **options) for t in tuning]
        labels = [a.audit(t.talk.text).token_agents for a, t in zip(auditors, tuning, strict=True)]
        accuracy[tau, smooth, min_points] = np.mean(
            [token_accuracy(t.truth, f) for t, f in zip(tuning, labels, strict=True)]
        )
    assert len({*accuracy.values()}) > 1
    chosen = decoders.tune(tuning, "gumbel")
    for name, min_points in ((decoders.CUSUM, GRID["min_points"]), (decoders.PAPERS_CUSUM, (10,))):
        best = chosen[name]
        assert best["radius"] == 8
        assert accuracy[best["tau"], best["smooth_windows"], best["min_points"]] == max(
            value for (*_, points), value in accuracy.items() if points in min_points
        )
    assert chosen[decoders.CUSUM]["min_points"] < 10  # turns of 80 tokens


def test_figures_equal_those_of_audits(work: pathlib.Path) -> None:
    (turns, _) = texts.load(work, CELLS[0])
    text = decoders.form(turns, 80, "\n\n")
    options = {"tau": 0.05, "smooth_windows": 1, "radius": 8}
    figures, reliability = decoders.measure(text, {decoders.CUSUM: options, decoders.PAPERS_CUSUM: {}})
    forced = {"allow_unattributed": False}
    for name, auditor in (
        ("posterior", iet.Auditor(text.registry, **forced)),
        ("window", iet.Auditor(text.registry, "window", **forced)),
        ("cusum", iet.Auditor(text.registry, "cusum", **forced, **options)),
        (decoders.PAPERS_CUSUM, iet.Auditor(text.registry, "cusum", **forced)),
    ):
        labels = auditor.audit(text.talk.text).token_agents
        assert figures[f"{name}/token_accuracy"] == np.mean(labels == text.truth)
    assert figures["tokens"] == len(text.ids) == reliability[0].sum()
    assert (reliability[1] <= reliability[0]).all()
    free = iet.Auditor(text.registry, "window").audit(text.talk.text)
    assert figures["window/coverage"] == free.coverage


def summaries(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
    return [decoders.summarise(measured_cell) for measured_cell in decoders.measured(*arguments, **options)]


def test_measured_texts_are_reused(
    tmp_path: pathlib.Path, work: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for cell in CELLS:
        (folder / cell.name).symlink_to(work / cell.name)
    missing = texts.Cell("shipped", 0.5, 4, "gumbel")
    chosen = [(CELLS[1], 40), (missing, 40)]
    first = summaries(folder, chosen, model_texts=1)
    assert [result["cell"]["turn_tokens"] for result in first] == [40]
    assert (first[0]["texts"], first[0]["texts_with_model"]) == (2, 1)
    figures = first[0]["figures"]
    assert "posterior of 12 keys" in figures
    row = figures["beside the model/token_accuracy"]
    assert figures["gain of the model/token_accuracy"][0] == pytest.approx(
        figures["with model/token_accuracy"][0] - row[0]
    )

    def refuse(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(decoders, "cell_results", refuse)
    assert summaries(folder, chosen[:1], model_texts=1) == first  # seconds included
    more = summaries(folder, chosen[:1], model_texts=2)[0]
    assert more["texts_with_model"] == 2
    (result_file,) = folder.glob("decoders-model-*/*.json")
    rows = json.loads(result_file.read_text())
    assert rows[0]["seconds"] == figures["with model/seconds"][0]
    assert len(rows) == 2
    for joiner, limit in (("\n", None), (" ", 1)):  # other questions are kept apart
        with pytest.raises(AssertionError, match="measured again"):
            decoders.measured(folder, chosen[:1], joiner=joiner, limit=limit)


def test_command_writes_tables(
    tmp_path: pathlib.Path,
    work: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "decoders.json"
    options = ["--texts", "1", "--lengths", "40", "--joiner", "\n\n", "--model", "1"]
    monkeypatch.setattr("sys.argv", ["decoders", "--work", str(work), "-o", str(out), *options])
    decoders.main()
    written = json.loads(out.read_text())
    assert len(written["cells"]) == len(CELLS)
    assert [row["posterior/token_accuracy"] for row in read_rows(out)] == pytest.approx(
        [cell["figures"]["posterior/token_accuracy"][0] for cell in written["cells"]]  # one text each
    )
    assert written["command"].endswith(r"--joiner '\n\n' --lengths 40 --texts 1 --model 1")
    rows = [line for line in out.with_suffix(".md").read_text().splitlines() if line.startswith("| 1.0 (")]
    assert len(rows) == len(CELLS)
    assert "| with model | posterior there | gain |" in capsys.readouterr().out


def result(family: str = "fourier", **means: Any) -> dict[str, Any]:
    """The summary of a cell with given means."""
    cell = {"model": "shipped", "temperature": 1.0, "agents": 4, "family": family, "turn_tokens": 200}
    cell |= {key: means.pop(key) for key in list(means) if key in cell}
    figures = {
        f"{decoders.PAPERS_CUSUM}/token_accuracy": [means["cusum"] - 0.1],
        **{
            f"{name}/token_accuracy": [means.pop(name)] for name in ("posterior", "window", "cusum", "oracle")
        },
        "posterior/mean_iou": [means.pop("iou", 0.5)],
        **{f"posterior of {keys} keys": [value] for keys, value in means.pop("keys", {}).items()},
    }
    return {"cell": cell, "entropy_nats": means.pop("nats", 3.0), "figures": figures, **means}


def test_verdicts() -> None:
    results = [
        result(posterior=0.96, window=0.90, cusum=0.80, oracle=1.0, keys={4: 0.96, 8: 0.955, 12: 0.961}),
        result(posterior=0.90, window=0.91, cusum=0.70, oracle=0.95, turn_tokens=400),
        result(posterior=0.30, window=0.20, cusum=0.10, oracle=1.0, turn_tokens=60, temperature=0.7),
        # Too little evidence: posterior is not compared with cusum here, nor with more keys.
        result(posterior=0.40, window=0.30, cusum=0.90, oracle=0.6, temperature=0.5, keys={4: 0.4, 8: 0.1}),
        result("gumbel", posterior=0.97, window=0.9, cusum=0.97, oracle=1.0, nats=0.5, iou=0.94),
        result("gumbel", posterior=0.93, window=0.9, cusum=0.83, oracle=1.0, nats=1.5, iou=0.90),
    ]
    verdicts = decoders.verdicts(results)
    assert list(verdicts.values()) == pytest.approx(
        [-0.01, lead := np.mean([0.16, 0.2, 0.2, 0.0, 0.1]), lead + 0.1, 0.90 / 0.95, 0.97, 0.94, 0.005]
    )
    assert set(decoders.verdicts([]).values()) == {None}


def test_calibration_error() -> None:
    reliability = np.zeros((2, decoders.BINS))
    assert decoders.calibration_error(reliability) == 0
    reliability[:, 19] = 300, 300  # 0.95 to 1: 0.025 too low
    reliability[:, 10] = 100, 40  # 0.5 to 0.55: 0.125 too high
    assert decoders.calibration_error(reliability) == pytest.approx((300 * 0.025 + 100 * 0.125) / 400)


# The null


def test_null_rates() -> None:
    sure, likely, no = math.log(5e-5), math.log(5e-3), 0.0
    log_p_values = [[(sure, no), (likely, likely)], [(no, no), (no, no)], [(likely, no), (no, no)]]
    rates = null.rates(log_p_values)
    assert (rates["texts"], rates["pairs"], rates["lowest_log_p"]) == (3, 6, sure)
    levels = rates["levels"]
    assert [levels[level]["found"] for level in ("0.01", "0.001", "0.0001")] == [3 / 6, 1 / 6, 1 / 6]
    assert [levels[level]["attributed"] for level in ("0.01", "0.001")] == [1 / 6, 0]
    assert levels["0.01"]["low"] < 3 / 6 < levels["0.01"]["high"]


def test_verdict_is_the_lowest_attributing_level(work: pathlib.Path) -> None:
    strong, text = (decoders.form(texts.load(work, cell)[0], 40) for cell in reversed(CELLS))
    assert null.verdict(iet.Auditor(strong.registry).audit(strong.talk.text))[0] < math.log(1e-6)
    log_p, segments = null.verdict(iet.Auditor(text.registry, level=0.999).audit(text.talk.text))
    assert log_p <= segments < 0
    assert segments > math.log(1e-11)  # not at the floor
    for level, attributed in ((math.exp(segments) * 1.01, True), (math.exp(segments) * 0.99, False)):
        report = iet.Auditor(text.registry, level=level).audit(text.talk.text)
        assert any(segment.agent for segment in report.segments) == attributed


def test_null_groups(work: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null, "SIZES", (2, 3))
    words = "the mill stands beside the river where seven boats wait for wind and nobody counts days "
    corpus = [unmarked.Unmarked(kind, words * 8) for kind in ("peps", "pieces", "shipped T=0.2", "twice")]
    figures_by_name = null.null(null.groups_of(corpus, work, 3, None))
    assert {name: group["texts"] for name, group in figures_by_name.items()} == {
        "unmarked: corpora": 1,
        "unmarked: pieces": 1,
        "unmarked: samples at low temperatures": 1,
        "unmarked: twice": 1,
        "marked under other keys": 4,
        "all": 8,
    }
    assert figures_by_name["all"]["pairs"] == 24
    assert figures_by_name["all"]["lowest_log_p"] > math.log(1e-5)


def test_every_decoder_attributes_marked_text_and_little_unmarked_text(
    work: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = decoders.form(texts.load(work, CELLS[1])[0], 80)
    strangers = texts.load(work, CELLS[1])[1].registry()
    corpus = [unmarked.Unmarked("marked", text.talk.text), unmarked.Unmarked("plain", "one two three " * 40)]
    monkeypatch.setattr(texts, "keys", lambda *_: text.registry)
    figures_by_name = null.attributions(corpus, "shipped", "gumbel")
    assert set(figures_by_name) == {"posterior", "cusum", "window"}
    assert all(levels["0.01"][0] == 0.5 for levels in figures_by_name.values())
    monkeypatch.setattr(texts, "keys", lambda *_: strangers)
    for levels in null.attributions(corpus, "shipped", "gumbel").values():
        assert levels["0.0001"][0] == 0 < levels["0.0001"][2] <= 1


def test_uniformity() -> None:
    even = (np.arange(1000) + 0.5) / 1000
    figures_by_name = null.uniformity(np.random.default_rng(0).permutation(even))
    assert figures_by_name["kolmogorov_distance"] == pytest.approx(0.0005)
    assert figures_by_name["histogram"] == pytest.approx([0.05] * 20)
    assert figures_by_name["tails"] == {"0.1": 0.1, "0.01": 0.01, "0.001": 0.001, "0.0001": 0}
    assert null.uniformity(even**2)["kolmogorov_distance"] == pytest.approx(0.25, abs=1e-3)


def test_fixed_spans_of_unmarked_text_are_uniform() -> None:
    draw = np.random.default_rng(3)
    corpus = [unmarked.Unmarked("x", " ".join(f"{n}" for n in draw.integers(10**6, size=60)))] * 2
    figures_by_name = null.fixed_spans(corpus, "shipped", "fourier", keys=400)
    assert figures_by_name["p_values"] == 800
    assert figures_by_name["kolmogorov_distance"] < 2 * figures_by_name["expected_distance_95"]


def test_power_grows_with_the_length(work: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null, "LENGTHS", (4, 20, 80))
    rows = null.power(work, CELLS[1], limit=6)
    assert [(row["tokens"], row["turns"]) for row in rows] == [(4, 6), (20, 6), (80, 6)]
    assert rows[0]["found"]["0.01"] < rows[-1]["found"]["0.01"] == 1
    weak = null.power(work, CELLS[0], limit=6)
    assert weak[1]["found"]["0.0001"] < rows[1]["found"]["0.0001"]
