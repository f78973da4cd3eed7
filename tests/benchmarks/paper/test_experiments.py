"""The paper's experiments, each run once on a few short conversations of an extract."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from iet.audit.auditor import Auditor
from iet.audit.metrics import token_accuracy
from iet.errors import InputError
from iet.native.pairs import novelty_weights

for needed in ("torch", "transformers", "matplotlib", "sklearn", "nltk", "langchain_text_splitters"):
    pytest.importorskip(needed)

from benchmarks.paper import __main__ as command  # noqa: E402
from benchmarks.paper import quoted  # noqa: E402
from benchmarks.paper.conversations.author import ModelAuthor  # noqa: E402
from benchmarks.paper.conversations.records import read_records  # noqa: E402
from benchmarks.paper.experiments import alterations, sweeps, table1  # noqa: E402
from benchmarks.paper.experiments.study import Options, Study  # noqa: E402
from benchmarks.paper.reading import readers, scoring  # noqa: E402
from benchmarks.paper.transforms import TRANSFORMS  # noqa: E402
from benchmarks.paper.transforms.pii import by_rules  # noqa: E402
from benchmarks.recording import read_rows  # noqa: E402
from benchmarks.writing.models import Loaded  # noqa: E402
from tests.support.mama import write_mills  # noqa: E402

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
    assert len(content["digest"]) == 64
    table = list(csv.reader((study.out / f"{name}.csv").open(encoding="utf-8", newline="")))
    assert len({len(row) for row in table}) == 1
    content["rows"] = read_rows(study.out / f"{name}.json")
    return content


def by_cell(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Rows by the values of some of their names."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def mean_accuracy(rows: list[dict[str, Any]]) -> float:
    return float(np.mean([row["token_accuracy"] for row in rows]))


@pytest.mark.parametrize("mark", ["fourier", "raw", "gumbel", "kgw", "unigram"])
def test_every_mark_is_read_by_both_decoders(study: Study, mark: str) -> None:
    setting = study.setting("chain", 4, mark)
    for log in study.logs(setting)[:2]:
        truth, keys = scoring.truth_of(log, study.loaded.reader), study.keys(log)
        for decoder in ("cusum", "posterior"):
            found = readers.read(log.text, keys, study.loaded.reader, decoder)
            assert found.labels.shape == truth.shape
            assert found.labels.min() >= 0
            assert found.free is not None
            assert set(found.free.tolist()) <= {-1, *range(4)}
            assert found.edges is not None
            assert found.edges.shape == (4, 4)
        boundaries = [end for _, end, _ in log.spans[:-1]]
        given = readers.read(log.text, keys, study.loaded.reader, "posterior", boundaries=boundaries)
        cuts = np.flatnonzero(np.diff(given.labels)) + 1
        assert set(cuts.tolist()) <= set((np.flatnonzero(np.diff(truth)) + 1).tolist())
        if mark.startswith("gumbel"):
            assert token_accuracy(truth, given.labels) > 0.9


def test_options_of_cusum_suit_the_records_that_are_not_measured(study: Study) -> None:
    setting = study.setting("chain", 4, "gumbel")
    chosen = study.cusum(setting)
    reader = study.loaded.reader
    texts = [(log.text, study.keys(log), scoring.truth_of(log, reader)) for log in study.logs(setting, True)]
    assert {log.record for log in study.logs(setting, True)}.isdisjoint(r.index for r in study.records)

    def accuracy(**options: Any) -> float:
        found = [readers.read(text, keys, reader, "cusum", options).labels for text, keys, _ in texts]
        return float(np.mean([token_accuracy(t, f) for f, (_, _, t) in zip(found, texts, strict=True)]))

    assert accuracy(**chosen) >= max(accuracy(), accuracy(tau=0.8, smooth_windows=1, radius=0))
    # Turns of 40 tokens: the paper's 10 windows of step 16 would join four of them.
    assert chosen["min_points"] < 10
    assert accuracy(**chosen) > accuracy(**{**chosen, "min_points": 10})


def test_options_are_chosen_again_where_other_records_are_measured(study: Study) -> None:
    fewer = Study(
        study.loaded, study.all_records, study.out, dataclasses.replace(study.options, records=1), tuning=2
    )
    assert {r.index for r in fewer.others} & {r.index for r in study.records}
    setting = study.setting("chain", 4, "gumbel")
    study.cusum(setting)
    before = set((study.out / "logs").iterdir())
    fewer.cusum(setting)
    assert [path.name[:6] for path in set((study.out / "logs").iterdir()) - before] == ["cusum-"]


def test_logs_belong_to_the_records_of_one_csv(study: Study) -> None:
    other = study.all_records[::-1]
    with pytest.raises(InputError, match=r"logs of the records .* expected those of .*choose another folder"):
        Study(study.loaded, other, study.out, study.options, tuning=2)


def test_green_lists_may_stay_unattributed_by_the_auditors_rule(study: Study) -> None:
    # By the scores of iet's own mark, which an Auditor reads as well.
    for mark in ("fourier", "gumbel"):
        setting = study.setting("chain", 4, mark)
        for log in study.logs(setting):
            keys, reader = study.keys(log), study.loaded.reader
            assert keys.registry is not None
            ids = reader.encode(log.text).token_ids
            options = {"weights": novelty_weights(ids)} if mark == "gumbel" else {}
            scores, pairs = keys.scores(ids), keys.pairs(ids)
            found = readers._free(scores, pairs, keys.family, "posterior", options)
            expected = Auditor(keys.registry, level=readers.LEVEL).audit(log.text).token_agents
            np.testing.assert_array_equal(found, expected)
            if mark == "gumbel":
                assert (found >= 0).mean() > 0.5


def test_the_table_has_every_method_beside_the_papers_numbers(study, monkeypatch):
    table1.run(study, settings=CHAIN)
    content = result(study, "table1")
    asked = {"ChatGPT (gpt-5-mini)", "DeepSeek (deepseek-chat)", "Bedrock"}
    methods = {m.name for m in table1.METHODS} - asked
    assert set(by_cell(content["rows"], "setting", "method")) == {("chain 4", name) for name in methods}
    shown = (study.out / "table1.md").read_text(encoding="utf-8")
    assert "Left out, because no endpoint was given: ChatGPT, DeepSeek." in shown
    at = quoted.SETTINGS.index(("chain", 4))
    line = next(x for x in shown.splitlines() if x.startswith("| KGW, cusum | TokenAcc |"))
    assert line.endswith(f"| {quoted.TABLE1['KGW']['token_accuracy'][at]:.3f} |")
    assert "| Recursive | EdgeSim | N/A |  |" in shown
    compared = content["against"]["IET fourier, posterior"]
    assert {"HMM / Viterbi", "KGW, posterior", "IET fourier, cusum"} <= set(compared)
    for row in (row for figures in compared.values() for row in figures.values()):
        assert row["better in"] + row["not told apart"] + row["worse in"] == 1
    told = set(content["against"]) & set(table1.TOLD)
    assert told == set(table1.TOLD)
    against = {theirs for ours in told for theirs in content["against"][ours]}
    assert against == {f"{name}, in order" for name in ("Recursive", "Semantic-BoW", "TextTiling")}
    right = {m: mean_accuracy([r for r in content["rows"] if r["method"] == m]) for m in methods}
    assert right["IET gumbel, told the order"] >= right["Recursive, in order"]
    assert content["strength"]["kgw"] > 0
    assert content["strength"]["kgw_published"] == content["strength"]["unigram_published"] == 2
    assert (study.out / "table1-scores.svg").stat().st_size > 1000

    def refuse(*_: Any) -> Any:
        raise AssertionError("what is on disk is not generated again")

    monkeypatch.setattr(ModelAuthor, "generate", refuse)
    table1.run(study, settings=CHAIN)
    assert result(study, "table1")["rows"] == content["rows"]


def test_the_table_reads_texts_under_the_marks_that_are_asked_for(study: Study) -> None:
    table1.run(study, settings=CHAIN, under=["gumbel"])
    marks = {m.name: m.mark for m in table1.METHODS}
    assert {marks[row["method"]] for row in result(study, "table1")["rows"]} == {"fourier", "gumbel"}


def test_sweeps_cover_their_points_in_two_runs(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "KAPPAS", (0.8, 6.0))
    sweeps.kappa(study)
    cells = by_cell(result(study, "kappa")["rows"], "decoder", "point")
    assert set(cells) == {(d, k) for d in sweeps.DECODERS for k in (0.8, 6.0)}
    assert all(len(texts) == 2 * 3 for texts in cells.values())
    assert mean_accuracy(cells["posterior", 6.0]) > mean_accuracy(cells["posterior", 0.8])
    sweeps.window(study)
    assert {row["point"] for row in result(study, "window")["rows"]} == set(sweeps.WIDTHS)
    for name in ("kappa", "window"):
        assert (study.out / f"{name}.svg").stat().st_size > 1000


def test_spurious_keys_are_read_in_the_same_texts(study: Study) -> None:
    sweeps.spurious(study)
    cells = by_cell(result(study, "spurious")["rows"], "agents", "keys", "mark", "decoder")
    assert {cell[:2] for cell in cells} == set(quoted.SPURIOUS)
    strong = {
        cell[1]: rows for cell, rows in cells.items() if cell[::2] == (4, "gumbel") and "posterior" in cell
    }
    assert list(strong) == [4, 8, 12]
    assert np.ptp([mean_accuracy(rows) for rows in strong.values()]) < 0.05


def test_redaction_and_the_oracle_are_compared_with_what_was_before(study: Study) -> None:
    asked: list[str] = []

    def find(text: str, entities: Any = ()) -> Any:
        asked.append(text)
        return by_rules(text, entities)

    alterations.pii(study, CHAIN, find=find)
    assert len(asked) >= 3  # both that insert and that redact ask it
    cells = by_cell(result(study, "pii")["rows"], "mark", "decoder", "text")
    assert {cell[::2] for cell in cells} == {*itertools.product(alterations.MARKED, ("original", "redacted"))}
    assert all(len(rows) == 3 for rows in cells.values())
    alterations.oracle(study, CHAIN)
    read = by_cell(result(study, "oracle")["rows"], "mark", "reader")
    assert mean_accuracy(read["gumbel", "oracle"]) >= mean_accuracy(read["gumbel", "free"])


def test_every_transformation_is_there_or_says_what_it_lacks(study: Study) -> None:
    alterations.transforms(study, {"human": "Nobody counts the days at the mill. " * 30})
    cells = by_cell(result(study, "transforms")["rows"], "mark", "transformation", "reader")
    assert len(cells) == len(alterations.MARKED) * len({cell[1:] for cell in cells})
    done = {name for _, name, _ in cells}
    assert set(TRANSFORMS) - done == {f"backtranslation-{language}" for language in ("fr", "zh", "es")}
    shown = (study.out / "transforms.md").read_text(encoding="utf-8")
    assert "left out: Backtranslation (EN-FR-EN) needs en_fr" in shown
    assert all(0 <= text["false_alarms"] <= 1 for text in cells["gumbel", "pasted-behind", "posterior"])
    assert {reader for _, name, reader in cells if name == "none"} == {"oracle", "posterior", "cusum"}
    kept = [mean_accuracy(cells[mark, "edits-20", "oracle"]) for mark in ("gumbel", "fourier")]
    assert kept[0] > kept[1]  # each mark's own texts were changed and read


def test_the_command_runs_one_experiment(extract, tmp_path, capsys):
    usual = ["--data", str(extract), "--out", str(tmp_path), "--any-rows", "--quick"]
    more = ["--rounds", "1", "--turn-tokens", "24", "24", "--prompt-tokens", "160", "--records", "2"]
    assert command.main(["window", *usual, *more]) == 0
    assert (tmp_path / "window.csv").is_file()
    assert "window:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--records", "4"], "records: got 4, expected 1 to 3: 2 of the 5 are kept"),
        (["--records", "0"], "records: got 0"),
        (["--temperature", "0", "--records", "2"], "temperature: got 0"),
        (["--rounds", "-1", "--records", "2"], "rounds: got -1"),
        (["--human", "nowhere.txt"], "human: nowhere.txt is no file"),
        (["--model", "no/such/model"], "model: 'no/such/model' holds no causal language model"),
    ],
)
def test_what_cannot_work_is_refused(extract, tmp_path, capsys, more, words):
    usual = ["--data", str(extract), "--out", str(tmp_path / "out"), "--any-rows", "--quick"]
    assert command.main(["spurious", *usual, *more]) == 1
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*.json"))


def test_an_extract_is_no_csv_of_the_paper(extract: pathlib.Path) -> None:
    with pytest.raises(InputError, match="5 rows after the header, expected 484"):
        read_records(extract)
