"""The benchmark around the methods: what is read, how several keys are, what is tuned on, and the tables."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from benchmarks.localisation import __main__ as command
from benchmarks.localisation import bayes, corpora, frozen, measuring, readers, showing
from benchmarks.localisation.laws import GREEN
from iet.audit.metrics import token_accuracy
from iet.errors import InputError
from iet.marks.families import FAMILIES

LAW = corpora.Drawn("gumbel", 0.7, 2, tokens=240)


def write_file(folder: pathlib.Path, name: str, mark: str | None, texts: int) -> pathlib.Path:
    """Write a file as WISER publishes them: 120 tokens, marked from 40 to 80."""
    rng = np.random.default_rng(0)
    pivots = rng.exponential(size=(texts, 120))
    pivots[:, 40:80] = rng.exponential(4, (texts, 40))
    pivots[0, 50] = np.inf
    kinds = [[0, 40, "unwatermarked"], [40, 80, mark or "unwatermarked"], [80, 120, "unwatermarked"]]
    rows = [{"gen_tokens": rng.integers(0, 1000, 120).tolist()} for _ in range(texts)]
    if mark is not None:
        rows = [row | {"pivots": values.tolist()} for row, values in zip(rows, pivots, strict=True)]
    configuration = {"intervals": kinds, "vocab_size": 1000, "initial_seed": 1234, "prompt_tokens": 50}
    path = folder / f"data_{name}.json"
    path.write_text(json.dumps({"configuration": configuration, "data": rows}))
    return path


# What is read


def test_a_published_file_is_cut_into_texts_to_tune_on_and_to_report(tmp_path: pathlib.Path) -> None:
    path = write_file(tmp_path, "model_n120_gumbel", "gumbel", corpora.TUNING + 5)
    corpus, _ = corpora.of_file(path, 3)
    assert (len(corpus.tuning), len(corpus.texts)) == (corpora.TUNING, 3)
    assert np.flatnonzero(corpus.texts[0].truth == 0).tolist() == list(range(40, 80))
    highest = max(text.scores.max() for text in corpora.of_file(path, 5)[0].texts + corpus.tuning)  # type: ignore[operator]
    assert corpus.tuning[0].scores[50, 0] == highest < np.inf
    assert corpus.lengths is not None
    assert np.flatnonzero(corpus.lengths.agents)[[0, -1]].tolist() == [19, 79]  # half to twice of 40


def test_moved_texts_have_the_scores_of_the_file_at_places_of_their_own(tmp_path: pathlib.Path) -> None:
    corpus, moved = corpora.of_file(
        write_file(tmp_path, "model_n120_gumbel", "gumbel", corpora.TUNING + 30), 30
    )
    assert (moved.group, moved.name) == ("moved", "model_n120_gumbel, moved")
    assert corpus.lengths is not None
    assert moved.lengths is not None
    assert moved.lengths.agents is corpus.lengths.agents
    assert moved.lengths.nobody is not corpus.lengths.nobody  # by chance equal here
    assert np.flatnonzero(moved.lengths.nobody)[[0, -1]].tolist() == [19, 79]
    starts = []
    for text, before in zip([*moved.tuning, *moved.texts], [*corpus.tuning, *corpus.texts], strict=True):
        ends = np.flatnonzero(np.diff(text.truth))
        assert np.diff(ends).tolist() == [40]
        for agent in (-1, 0):
            assert sorted(text.scores[text.truth == agent]) == sorted(before.scores[before.truth == agent])
        starts.append(ends[0] + 1)
    assert min(starts) >= 20
    assert max(starts) <= 60
    assert len(set(starts)) > 15
    again = corpora.of_file(tmp_path / "data_model_n120_gumbel.json", 30)[1]
    assert all((one.scores == two.scores).all() for one, two in zip(again.texts, moved.texts, strict=True))


def test_unmarked_texts_are_scored_with_the_published_noise(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    write_file(tmp_path, "model_n120_gumbel", "gumbel", corpora.TUNING)
    write_file(tmp_path, "model_n120_redgreen", "redgreen", corpora.TUNING)
    path = write_file(tmp_path, "model_n120_unwatermarked", None, corpora.TUNING + 20)
    noise, green = corpora.of_file(path, 20)
    assert [corpus.group for corpus in (noise, green)] == ["unmarked"] * 2
    assert (noise.texts[3].truth == -1).all()
    for corpus, family in ((noise, FAMILIES["gumbel"]), (green, GREEN)):
        scores = np.array([text.scores for text in corpus.texts])
        assert corpus.family is family
        assert scores.mean() == pytest.approx(family.mean(0.0), abs=0.1)
        assert len(corpus.tuning) == corpora.TUNING
        assert corpus.lengths is None


def test_other_folders_and_marks_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"expected a folder with data_\*\.json"):
        corpora.published(tmp_path)
    with pytest.raises(InputError, match=r"got marks \['new'\]"):
        corpora.of_file(write_file(tmp_path, "model_new", "new", 1), 1)


def test_drawn_texts_follow_their_law() -> None:
    (corpus,) = corpora.of_law(dataclasses.replace(LAW, tokens=1000), 20)
    scores = np.concatenate([text.scores for text in corpus.texts])
    truth = np.concatenate([text.truth for text in corpus.texts])
    own = truth[:, None] == np.arange(2)
    assert scores[own].mean() == pytest.approx(1 / 0.3, rel=0.05)
    assert scores[~own].mean() == pytest.approx(1, rel=0.05)
    ends = np.flatnonzero(np.diff(corpus.texts[0].truth))
    assert np.diff(ends).min() >= LAW.shortest
    assert np.diff(ends).max() <= LAW.longest
    (again,) = corpora.of_law(dataclasses.replace(LAW, tokens=1000), 1)
    assert (again.texts[0].scores == corpus.texts[0].scores).all()


@pytest.mark.usefixtures("one_thread")
def test_written_texts_have_a_speaker_whom_no_key_explains(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(corpora, "TUNING", 0)
    monkeypatch.setattr(corpora, "_TURNS", 3)
    monkeypatch.setattr(corpora, "_AT_ONCE", 1)
    (corpus,) = corpora.written(("gumbel", 1.0, 2), 1, tmp_path)
    (text,) = corpus.texts
    assert set(text.truth.tolist()) == {-1, 0, 1}
    assert text.scores.shape == (len(text.truth), 2)
    own = text.scores[text.truth >= 0, text.truth[text.truth >= 0]]
    assert own.mean() > 1.8 > 1.3 > text.scores[text.truth < 0].mean()
    (kept,) = tmp_path.iterdir()
    before = kept.stat().st_mtime_ns
    (again,) = corpora.written(("gumbel", 1.0, 2), 1, tmp_path)
    assert (again.texts[0].scores == text.scores).all()
    assert kept.stat().st_mtime_ns == before
    # Written on another machine: ids that one draw decides differently have another digest.
    assert text.ids is not None
    assert text.text is not None
    assert hashlib.sha256(text.ids.astype("<i8").tobytes()).hexdigest() == (
        "89e70046a7be4ef6a57049dc7c772d94b368334554c0bd0f7e63ae7431fd37a2"
    )
    made = frozen.arrays(corpus)
    assert list(made["text"]) == [text.text]
    assert (made["ids"] == text.ids).all()
    assert made["starts"].tolist() == [0, len(text.ids)]


# Readers


def test_a_token_goes_to_the_key_whose_interval_stands_out_most() -> None:
    scores = np.zeros((100, 2))
    scores[20:60, 0] = 2.0
    scores[50:90, 1] = 3.0
    labels = readers.combined(scores, GREEN, [[(20, 60)], [(50, 90)]])
    assert labels.tolist() == [-1] * 20 + [0] * 30 + [1] * 40 + [-1] * 10
    longer = readers.combined(scores, GREEN, [[(20, 60)], [(0, 10), (40, 90)]])
    assert longer.tolist() == [1] * 10 + [-1] * 10 + [0] * 20 + [1] * 50 + [-1] * 10
    assert (readers.combined(scores, GREEN, [[], []]) == -1).all()


def test_the_estimated_law_is_near_the_known_one() -> None:
    (known,) = corpora.of_law(dataclasses.replace(LAW, tokens=4000), 1)
    estimated = readers.log_ratios(dataclasses.replace(known, strength=None))(known.texts[0])
    exact = readers.log_ratios(known)(known.texts[0])
    middle = (known.texts[0].scores > 0.5) & (known.texts[0].scores < 2.5)
    assert np.abs(estimated - exact)[middle].mean() < 0.1


def test_the_bayes_reader_is_as_right_as_it_says() -> None:
    (corpus,) = corpora.of_law(dataclasses.replace(LAW, strength=0.4, tokens=600), 12)
    assert corpus.lengths is not None
    ratios, said, right = readers.log_ratios(corpus), [], []
    for text in corpus.texts:
        labels, posterior = bayes.read(ratios(text), corpus.lengths)
        said.append(posterior.max(axis=1).mean())
        right.append(token_accuracy(text.truth, labels))
    assert np.mean(said) == pytest.approx(np.mean(right), abs=0.03)
    assert np.mean(right) > 0.85


def test_options_come_from_the_first_texts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(scores: object, family: object, *, end: int) -> list[tuple[int, int]]:
        return [(0, end)]

    monkeypatch.setattr(readers, "RIVALS", {"told": (detect, {"end": (5, 10, 20)})})
    monkeypatch.setattr(readers, "OURS", {"posterior": {}})
    monkeypatch.setattr(readers, "NAMES", ("posterior", "told"))

    def text(end: int) -> corpora.Text:
        return corpora.Text(np.ones((30, 1), np.float32), np.where(np.arange(30) < end, 0, -1))

    corpus = corpora.Corpus("made up", "drawn", FAMILIES["gumbel"], [text(11)] * 3, [text(20)] * 3)
    found = readers.tuned(corpus)
    assert [options for _, options in found.values()] == [{}, {"end": 10}]
    assert found["told"][0](corpus.texts[0]).tolist() == [0] * 10 + [-1] * 20


def test_of_drawn_texts_posterior_is_told_what_it_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "RIVALS", {})
    monkeypatch.setattr(readers, "OURS", {"posterior": {}})
    (corpus,) = corpora.of_law(dataclasses.replace(LAW, tokens=1000, strength=0.3), 12)
    said = readers.told(corpus)
    assert (said["strengths"].tolist(), said["mean_segment"], said["nobody"]) == ([0.3] * 2, 100, 0.25)
    found = readers.tuned(corpus)
    assert list(found) == ["posterior", "Bayes", "posterior, told"]
    right = {
        name: np.mean([token_accuracy(text.truth, read(text)) for text in corpus.texts])
        for name, (read, _) in found.items()
    }
    assert right["posterior"] < right["posterior, told"] < right["Bayes"]
    del found["posterior, told"]
    assert list(readers.tuned(dataclasses.replace(corpus, strength=None))) == list(found)


# Figures and tables


def test_boundaries_and_intervals_are_counted() -> None:
    truth = np.repeat([-1, 0, 1, -1], [10, 20, 20, 10])
    found = np.repeat([-1, 0, -1, 1, -1], [13, 10, 10, 20, 7])
    assert measuring.intervals(truth) == measuring.intervals(found) == 2
    assert measuring.boundary_error(truth, found) == pytest.approx((3 + 3 + 3) / 3)
    assert measuring.boundary_error(truth, np.full(60, 0)) == pytest.approx((10 + 30 + 10) / 3)
    assert measuring.boundary_error(np.full(60, 0), found) == 0


def result(name: str, group: str, iou: float, apart: tuple[float, float, float]) -> dict[str, Any]:
    figures = {"iou": [iou, iou, iou], "boundary": 2.0, "number": 0.5, "found": 0.25, "ms": 1.0}
    others = {"WISER": figures | {"less posterior": list(apart)}}
    return {"corpus": name, "group": group, "texts": 9, "readers": {"posterior": figures, **others}}


def test_the_tables_say_who_leads_beyond_the_interval() -> None:
    corpora_of = [
        result("a_n500_gumbel", "published", 0.8, (0.2, 0.1, 0.3)),
        result("b_n500_gumbel", "published", 0.6, (-0.2, -0.3, -0.1)),
        result("b_n500_redgreen", "published", 0.5, (0.0, -0.1, 0.1)),
        result("b_n500_redgreen, moved", "moved", 0.9, (0.0, -0.1, 0.1)),
        result("b_n500_unwatermarked, as gumbel", "unmarked", 0.9, (0.0, 0.0, 0.0)),
        result("drawn, gumbel λ = 0.5, 2 agents", "drawn", 0.4, (0.0, 0.0, 0.0)),
    ]
    content = {"command": "python -m benchmarks.localisation", "corpora": corpora_of}
    written = showing.markdown(content)
    assert "| a_n500_gumbel | 9 | 0.800 | 0.800 (+0.100, +0.300) + |" in written
    assert "| b_n500_gumbel | 9 | 0.600 | 0.600 (-0.300, -0.100) - |" in written
    assert "| b_n500_redgreen | 9 | 0.500 | 0.500 (-0.100, +0.100) |" in written
    assert "| WISER | 3 | 1 | 1 | 1 | +0.000 |" in written
    page = showing.page(content)
    assert "| published, Gumbel-max | 2 | 0.700 | 0.700 |" in page
    assert "| moved, green lists | 1 | 0.900 | 0.900 |" in page
    assert "| drawn, gumbel λ = 0.5 | 1 | 0.400 | 0.400 |" in page
    assert "| unmarked: share of texts with a finding | 1 | 0.250 | 0.250 |" in page


def test_the_command_reads_a_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_file(tmp_path, "model_n120_gumbel", "gumbel", corpora.TUNING + 3)
    given = ["localisation", "--data", tmp_path, "--published-only", "--texts", 3, "--workers", 1]
    monkeypatch.setattr("sys.argv", [*map(str, given), "-o", str(tmp_path / "out.json")])
    command.main()
    found = json.loads((tmp_path / "out.json").read_text())["corpora"]
    assert [corpus["group"] for corpus in found] == ["published", "moved"]
    for corpus in found:
        assert list(corpus["readers"]) == list(readers.NAMES)
        assert corpus["texts"] == 3
        for name, result in corpus["readers"].items():
            assert 0 <= result["iou"][0] <= 1
            assert ("less posterior" in result) == (name != "posterior")
        assert corpus["readers"]["Bayes"]["iou"][0] > 0.7
    written = (tmp_path / "out.md").read_text()
    assert "| model_n120_gumbel | 3 |" in written
    assert "Published score files" in capsys.readouterr().out


# Readers of others


def everything(scores: np.ndarray, family: Any) -> np.ndarray:
    return np.where(scores.max(axis=1) > family.mean(0.0), scores.argmax(axis=1), -1)


def half(scores: np.ndarray, family: Any) -> np.ndarray:
    return np.zeros(len(scores) // 2, np.int64)


def beyond(scores: np.ndarray, family: Any) -> np.ndarray:
    return np.full(len(scores), scores.shape[1])


def test_a_reader_of_others_is_ranked_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "RIVALS", {})
    (corpus,) = corpora.of_law(LAW, 3)
    rows = measuring.measured(corpus, [f"{__name__}:everything"])
    assert rows[-1]["reader"] == f"{__name__}:everything"
    for text, iou in zip(corpus.texts, rows[-1]["figures"]["iou"], strict=True):
        labels = everything(text.scores, corpus.family)
        assert iou == pytest.approx(measuring.mean_iou(text.truth, labels))
    content = {"seconds": 1.0, "corpora": command.summarised(rows), "command": "x"}
    assert f"{__name__}:everything" in showing.markdown(content)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("half", "expected integers \\(240,\\)"),
        ("beyond", "got 2 to 2, expected agents from 0 on, or -1"),
    ],
)
def test_what_a_reader_returns_is_checked(name: str, said: str) -> None:
    (corpus,) = corpora.of_law(LAW, 1)
    with pytest.raises(InputError, match=said):
        readers.entrant(f"{__name__}:{name}", corpus.family)(corpus.texts[0])


@pytest.mark.parametrize("name", ["nothing", "no.module:read", "json:nobody", "json:__name__", ":read"])
def test_a_reader_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="--reader: got"):
        readers.entered(name)


def test_the_frozen_texts_are_those_of_their_digests(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = dict(frozen.files(drawn_only=True))
    assert {name: frozen.digest(arrays) for name, arrays in made.items()}.items() <= frozen.DIGESTS.items()
    assert len(frozen.DIGESTS) == len(corpora.DRAWN) + len(corpora.WRITTEN)
    name, arrays = "gumbel-4.npz", made["gumbel-4.npz"]
    assert (arrays["split"] == "reported").sum() == frozen.TEXTS
    assert len(arrays["scores"]) == len(arrays["truth"]) == arrays["starts"][-1]
    for changed in ("truth", "split", "starts", "scores"):
        other = {**arrays, changed: arrays[changed][::-1].copy()}
        assert frozen.digest(other) != frozen.DIGESTS[name]
    (law,) = (law for law in corpora.DRAWN if (law.family, law.agents) == ("gumbel", 4))
    monkeypatch.setattr(corpora, "DRAWN", (law,))
    assert frozen.main(["-o", str(tmp_path), "--drawn-only", "--check"]) == 0
    with np.load(tmp_path / name) as kept:
        assert frozen.digest(dict(kept)) == frozen.DIGESTS[name]
    monkeypatch.setitem(frozen.DIGESTS, name, "0")
    assert frozen.main(["-o", str(tmp_path), "--drawn-only"]) == 0
    assert frozen.main(["-o", str(tmp_path), "--drawn-only", "--check"]) == 1
    assert f"another digest than that of the page: {name}" in capsys.readouterr().err
