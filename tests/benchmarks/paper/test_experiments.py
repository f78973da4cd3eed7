"""The experiments on MAMA, each run once on short conversations of an extract, and their command line."""

from __future__ import annotations

import csv
import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from iet.audit.auditor import Auditor
from iet.audit.language_model import LanguageModel
from iet.audit.metrics import token_accuracy
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native.pairs import novelty_weights
from tests.support.chat_server import serving
from tests.support.mama import write_mills

pytest.importorskip("langchain_text_splitters")
for needed in ("torch", "transformers", "matplotlib", "sklearn", "nltk", "openai"):
    pytest.importorskip(needed)

from benchmarks.paper import __main__ as command  # noqa: E402
from benchmarks.paper import quoted  # noqa: E402
from benchmarks.paper.asking import OpenAIEndpoint, Sampling  # noqa: E402
from benchmarks.paper.conversations.author import ModelAuthor  # noqa: E402
from benchmarks.paper.conversations.records import read_records  # noqa: E402
from benchmarks.paper.experiments import alterations, order, power, sweeps, table1  # noqa: E402
from benchmarks.paper.experiments.study import MARKED, Options, Study  # noqa: E402
from benchmarks.paper.marks import Marker, agent_name  # noqa: E402
from benchmarks.paper.reading import readers, scoring  # noqa: E402
from benchmarks.paper.transforms import TRANSFORMS  # noqa: E402
from benchmarks.recording import read_rows  # noqa: E402
from benchmarks.writing.models import Loaded  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

CHAIN = (("chain", 4),)
ASKED = {"rounds": 0, "turn_tokens": (40, 40), "prompt_tokens": 160}


@pytest.fixture(scope="module")
def extract(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("data") / "extract.csv"
    return write_mills(path, "Ada Berg", "Otto Lind", "Ines Roth", "Karl Voss", "Mia Horn", mail=True)


@pytest.fixture(scope="module")
def study(loaded: Loaded, extract: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    records = read_records(extract, rows=None)
    return Study(loaded, records, tmp_path_factory.mktemp("out"), Options(3, **ASKED), tuning=2)


def result(study: Study, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((study.out / f"{name}.json").read_text(encoding="utf-8"))
    assert content["configuration"]["experiment"] == name
    assert content["configuration"]["records"] == 3
    table = list(csv.reader((study.out / f"{name}.csv").open(encoding="utf-8", newline="")))
    assert len({len(row) for row in table}) == 1
    content["rows"] = read_rows(study.out / f"{name}.json")
    return content


def by_cell(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in names), []).append(row)
    return cells


def mean_accuracy(rows: list[dict[str, Any]]) -> float:
    return float(np.mean([row["token_accuracy"] for row in rows]))


@pytest.mark.parametrize("mark", ["fourier", "raw", "gumbel", "kgw", "unigram"])
def test_both_decoders_read_every_mark(study: Study, mark: str) -> None:
    setting = study.setting("chain", 4, mark)
    for log in study.logs(setting)[:1]:
        truth, keys = scoring.truth_of(log, study.loaded.reader), study.keys(log)
        for decoder in ("cusum", "posterior"):
            reading = readers.read(log.text, keys, study.loaded.reader, decoder)
            assert reading.labels.shape == truth.shape
            assert set(reading.labels.tolist()) <= set(range(4))
            assert reading.free is not None
            assert set(reading.free.tolist()) <= {-1, *range(4)}
            assert reading.edges is not None
            assert reading.edges.shape == (4, 4)
        boundaries = [end for _, end, _ in log.spans[:-1]]
        oracle = readers.read(log.text, keys, study.loaded.reader, "posterior", boundaries=boundaries)
        cuts = np.flatnonzero(np.diff(oracle.labels)) + 1
        assert set(cuts.tolist()) <= set((np.flatnonzero(np.diff(truth)) + 1).tolist())
        if mark == "gumbel":
            assert token_accuracy(truth, oracle.labels) > 0.9


def test_cusum_is_tuned_on_separate_records(study: Study) -> None:
    setting = study.setting("chain", 4, "gumbel")
    tuned = study.decoder_options("cusum", setting)
    logs = study.logs(setting, tuning=True)
    assert {log.record for log in logs}.isdisjoint(record.index for record in study.records)

    def accuracy(**options: Any) -> float:
        return float(np.mean([study.figures(log, "cusum", options)["token_accuracy"] for log in logs]))

    assert accuracy(**tuned) >= max(accuracy(), accuracy(tau=0.8, smooth_windows=1, radius=0))
    # With turns of 40 tokens, the paper's least length of 10 windows with step 16 joins four turns.
    assert accuracy(**tuned) > accuracy(**{**tuned, "min_points": 10})


def test_unattributed_tokens_equal_those_of_an_auditor(study: Study) -> None:
    # Checked on the scores of iet's own marks, which an Auditor reads as well.
    for mark in MARKED:
        for log in study.logs(study.setting("chain", 4, mark)):
            keys = study.keys(log)
            assert keys.registry is not None
            ids = study.loaded.reader.encode(log.text).token_ids
            options = {"weights": novelty_weights(ids)} if mark == "gumbel" else {}
            labels = readers._free(keys.scores(ids), keys.pairs(ids), keys.family, "posterior", options)
            expected = Auditor(keys.registry, level=readers.LEVEL).audit(log.text).token_agents
            np.testing.assert_array_equal(labels, expected)


def test_table1_holds_every_method_and_the_papers_figures(study, monkeypatch):
    with serving(lambda *_: "no idea") as server:
        monkeypatch.setenv("OPENAI_API_KEY", "any word")
        endpoint = OpenAIEndpoint("gpt-5-mini", f"{server.url}/v1")
        tasks = {record.index: record.task for record in study.records}
        endpoints = {"endpoint": endpoint, "sampling": Sampling(), "cache": None, "tasks": tasks}
        marks = ["gumbel", "kgw", "kgw_published"]
        table1.run(study, settings=CHAIN, marks=marks, endpoints={"chatgpt": endpoints})
    content = result(study, "table1")
    methods = {m.name for m in table1.METHODS if m.mark in ("fourier", *marks) and m.baseline != "deepseek"}
    assert set(by_cell(content["rows"], "setting", "method")) == {("chain 4", name) for name in methods}
    markdown = (study.out / "table1.md").read_text(encoding="utf-8")
    assert "Left out, because no endpoint was given: DeepSeek." in markdown
    assert f"ChatGPT (gpt-5-mini): asked at {server.url}/v1, temperature 0." in markdown
    assert content["failures"] == {"ChatGPT (gpt-5-mini), chain, 4": 3}
    column = quoted.SETTINGS.index(("chain", 4))
    for name, row in (("KGW, cusum", "KGW"), ("ChatGPT (gpt-5-mini)", "ChatGPT")):
        line = next(x for x in markdown.splitlines() if x.startswith(f"| {name} | TokenAcc |"))
        assert line.endswith(f"| {quoted.TABLE1[row]['token_accuracy'][column]:.3f} |")
    assert "| Recursive | EdgeSim | N/A |  |" in markdown
    compared = content["against"]["IET fourier, posterior"]
    assert {"HMM / Viterbi", "KGW, posterior", "IET fourier, cusum"} <= set(compared)
    assert compared["HMM / Viterbi"]["TokenAcc"]["better in"] == ""  # three records are too few
    assert content["strength"]["kgw"] > 0
    assert content["strength"]["kgw_published"] == 2
    setting = study.setting("chain", 4, "gumbel")
    turns = [turn for log in study.logs(setting) for turn in log.turns]
    texts = content["texts"]["gumbel"]["chain 4"]
    assert texts["turn"] == pytest.approx(np.mean([len(turn.ids) for turn in turns]))
    assert 0 < texts["repeated"] < 1
    assert f"| gumbel | nats a token | {texts['entropy']:.3f} |" in markdown


def test_table1_averages_a_record_over_its_settings():
    first, second = ([0.5, 0.7, None], [0.4, 0.5, 0.1]), ([0.9, None, None], [0.6, 0.5, 0.1])
    assert table1._over_settings([first, second]) == [pytest.approx(0.2), pytest.approx(0.2), None]


def test_texts_on_disk_are_not_generated_again(study, monkeypatch):
    setting = study.setting("chain", 4, "fourier")
    logs = study.logs(setting)
    monkeypatch.setattr(ModelAuthor, "generate", None)
    assert study.logs(setting) == logs


def test_sweeps_have_two_runs_and_accuracy_rises_with_kappa(study: Study, monkeypatch) -> None:
    monkeypatch.setattr(sweeps, "KAPPAS", (0.8, 4.0))
    sweeps.kappa(study)
    cells = by_cell(result(study, "kappa")["rows"], "decoder", "point", "run")
    assert set(cells) == {(d, k, run) for d in sweeps.DECODERS for k in (0.8, 4.0) for run in (0, 1)}
    accuracy = {
        point: np.mean([mean_accuracy(cells["posterior", point, run]) for run in (0, 1)])
        for point in (0.8, 4.0)
    }
    assert accuracy[4.0] > accuracy[0.8]
    sweeps.window(study)
    points = {row["point"] for row in result(study, "window")["rows"]}
    assert points == set(sweeps.WIDTHS)
    assert (study.out / "window.svg").stat().st_size > 1000


def test_spurious_keys_mark_no_text(study: Study) -> None:
    sweeps.spurious(study)
    cells = by_cell(result(study, "spurious")["rows"], "mark", "decoder", "agents", "keys")
    assert {cell[2:] for cell in cells} == set(quoted.SPURIOUS)
    assert mean_accuracy(cells["gumbel", "posterior", 4, 12]) > 0.5


def test_a_longer_text_is_found_more_often_and_a_shorter_one_is_no_other_reading(study, monkeypatch):
    monkeypatch.setattr(power, "FEWEST_TEXTS", 3)
    power.power(study)
    content = result(study, "power")
    by_mark = by_cell(content["rows"], "mark", "reader")
    assert set(by_mark) == set(itertools.product(MARKED, power.READERS))
    for texts in by_mark.values():
        assert len(texts) == 12  # three records of four agents
        assert all(len(text["log_p"]) == 1 for text in texts)  # 40 tokens: one of the lengths
    (gumbel,) = (row for row in content["table"] if row["mark"] == "gumbel" and row["read"] == "alone")
    assert gumbel["tokens, 1 agent"] == "≤ 32"
    log = study.logs(study.setting("chain", 4, "gumbel"))[0]
    said = " ".join(turn.text for turn in log.turns if turn.agent == 2)
    name = agent_name(log.record, 2)
    registry = Marker(log.setting, study.loaded.reader).registry([name])
    ids = study.loaded.reader.encode(said).token_ids[:32]
    (text,) = (t for t in by_mark["gumbel", "alone"] if (t["record"], t["agent"]) == (log.record, 2))
    assert text["log_p"] == pytest.approx([Auditor(registry).audit(token_ids=ids).evidence[name]])


def test_a_model_that_remembers_predicts_the_first_tokens_as_any_other(loaded: Loaded) -> None:
    ids = loaded.reader.encode("The mill stood by the river, and the miller was called Otto Lind.").token_ids
    remembering = power._Remembering(loaded.model, tokenizer=loaded.tokenizer)
    registry = Registry.create(None, tokenizer=loaded.reader, scheme=Scheme(family="gumbel"))
    registry.add("a")
    scored = np.ones(len(ids), np.bool_)
    surprises = [
        model.predict(ids[:length], registry.scoring_keys(), scored[:length]).surprise
        for model in (remembering, LanguageModel(loaded.model, tokenizer=loaded.tokenizer))
        for length in (len(ids), 8)
    ]
    np.testing.assert_allclose(surprises[0], surprises[2], rtol=1e-5)
    np.testing.assert_allclose(surprises[1], surprises[3], rtol=1e-4)


def test_redaction_and_oracle_compare_the_same_texts(study: Study) -> None:
    alterations.pii(study, CHAIN)
    content = result(study, "pii")
    cells = by_cell(content["rows"], "mark", "decoder", "text")
    assert set(cells) == {
        (m, d, t) for m in MARKED for d in sweeps.DECODERS for t in ("original", "redacted")
    }
    assert all(float(row["tokens changed"].rstrip("%")) >= 2 for row in content["table"])
    alterations.oracle(study, CHAIN)
    read = by_cell(result(study, "oracle")["rows"], "mark", "reader")
    assert mean_accuracy(read["gumbel", "oracle"]) >= mean_accuracy(read["gumbel", "free"])


def test_every_method_gets_the_order_of_the_speakers(study: Study) -> None:
    order.order(study, CHAIN, ["gumbel"])
    content = result(study, "order")
    read = by_cell(content["rows"], "method")
    segmenters = {f"{name}, in order" for name in order.SEGMENTERS}
    readers_of_marks = {f"IET {mark}, {by}" for mark in MARKED for by in ("in order", "cusum as printed")}
    assert {method for (method,) in read} == segmenters | readers_of_marks
    for mark in MARKED:
        in_order = mean_accuracy(read[f"IET {mark}, in order",])
        assert in_order > mean_accuracy(read["TextTiling, in order",])
        assert in_order > mean_accuracy(read[f"IET {mark}, cusum as printed",])
    equal_parts = mean_accuracy(read["Equal parts, in order",])
    assert equal_parts > 0.7  # all turns have 40 tokens
    difference = {(row["ours"], row["against"]): row for row in content["against"]}
    assert len(difference) == 2 * (len(segmenters) + 1)
    row = difference["IET gumbel, in order", "TextTiling, in order"]
    expected = mean_accuracy(read["IET gumbel, in order",]) - mean_accuracy(read["TextTiling, in order",])
    assert row["TokenAcc, mean difference"][0] == pytest.approx(expected, abs=1e-5)


def test_every_transformation_is_measured_or_names_its_missing_model(study: Study) -> None:
    alterations.transformations(
        study, ["gumbel"], {"en_fr": list, "fr_en": lambda texts: [" ".join(t.split()[::-1]) for t in texts]}
    )
    cells = by_cell(result(study, "transforms")["rows"], "transformation", "reader")
    assert set(TRANSFORMS) - {name for name, _ in cells} == {"backtranslation-zh", "backtranslation-es"}
    markdown = (study.out / "transforms.md").read_text(encoding="utf-8")
    assert "left out: needs a model for en_zh, zh_en" in markdown
    clean, turned = (mean_accuracy(cells[name, "oracle"]) for name in ("none", "backtranslation-fr"))
    assert clean > turned  # other contexts carry no mark


# ---------------------------------------------------------------- the command line


@pytest.fixture
def run(extract: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    fixed = ["--data", str(extract), "--out", str(tmp_path / "out"), "--extract", "--quick", "--rounds", "0"]
    fixed += ["--turn-tokens", "24", "24", "--prompt-tokens", "160", "--records", "2"]
    return lambda experiment, *more: command.main([experiment, *fixed, *more])


def test_results_state_their_configuration_and_are_not_overwritten_by_another(run, tmp_path, capsys):
    assert run("oracle", "--settings", "tree_5", "--marks", "gumbel") == 0
    path = tmp_path / "out" / "oracle.json"
    content_before = path.read_bytes()
    expected = {"turn_tokens": [24, 24], "quick": True, "settings": [["tree", 5]], "marks": ["gumbel"]}
    assert expected.items() <= json.loads(content_before)["configuration"].items()
    assert "Model iet:demo (no chat template" in (tmp_path / "out" / "oracle.md").read_text()
    capsys.readouterr()
    assert run("oracle", "--settings", "tree_5", "--marks", "gumbel", "--rounds", "1") == 1
    assert "differs in rounds; choose another --out, or --overwrite" in capsys.readouterr().err
    assert path.read_bytes() == content_before
    assert run("oracle", "--settings", "chain_4", "--marks", "gumbel", "--overwrite") == 0


@pytest.mark.parametrize(
    ("experiment", "more", "message"),
    [
        ("table1", ["--records", "1"], "records: got 1, expected at least 2"),
        ("spurious", ["--records", "4"], "records: got 4, expected 1 to 3"),
        ("spurious", ["--seed", "-1"], "seed: got -1"),
        ("spurious", ["--temperature", "0"], "temperature: got 0"),
        ("spurious", ["--tuning", "0"], "tuning: got 0"),
        ("spurious", ["--model", "no/such/model"], "holds no causal language model"),
        ("kappa", ["--settings", "tree_5"], "settings: kappa does not accept it"),
        ("restore", ["--repetition-penalty", "1.2"], "repetition_penalty: restore does not accept it"),
        ("restore", ["--marks", "kgw"], "marks: got ['kgw']"),
        ("table1", ["--chatgpt"], "OPENAI_API_KEY"),
        ("table2", ["--judge-url", "http://127.0.0.1:9"], "judge-model: missing"),
        ("table2", ["--judge-model", "tiny"], "OPENAI_API_KEY"),
        ("transforms", ["--en-fr", "no/such/model"], "translation model 'no/such/model'"),
    ],
)
def test_rejects_invalid_options_before_generation(run, tmp_path, capsys, experiment, more, message):
    assert run(experiment, *more) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("out/logs/*.jsonl"))
