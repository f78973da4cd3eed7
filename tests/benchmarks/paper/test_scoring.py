"""Figures of a reader, intervals over texts, similarity of texts, tables and plots."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper.logs import Log, Setting, Turn
from benchmarks.paper.scoring import (
    FIGURES,
    Interval,
    as_csv,
    crossed,
    difference,
    interval,
    markdown,
    mean_difference,
    ratio,
    relative_change,
    score,
    true_edges,
    truth_of,
    worst,
    write,
)
from benchmarks.paper.similarity import Embedder, common_words, rouge_l, semantic_similarity
from benchmarks.paper.transforms import pasted
from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.marks.tokenizer import DEMO_SOURCE, Tokenizer

figures = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30)
seeds = st.integers(0, 2**32)


def log_of(turns: list[tuple[int, str]], joiner: str = " ", agents: int = 3) -> Log:
    setting = Setting("chain", agents, "round-major", "none", "model", 1.0, 1.0, joiner, 0)
    return Log(setting, 0, tuple(Turn(agent, 0, (), text) for agent, text in turns))


# One text.


def test_truth_of_a_log_and_of_what_became_of_it():
    tokenizer = Tokenizer(DEMO_SOURCE)
    log = log_of([(0, "We have one plan. " * 9), (2, "They have another one."), (1, "It rains.")], "\n\n")
    truth = truth_of(log, tokenizer)
    ends = tokenizer.encode(log.text).char_ends
    assert len(truth) == len(ends)
    for label, end in zip(truth, ends, strict=True):
        assert label == next(agent for start, stop, agent in log.spans if start < end <= stop)
    assert set(truth) == {0, 1, 2}
    assert (true_edges(log, 3) == log.edges).all()
    altered = pasted(log, np.random.default_rng(0), human="Nobody knows the rest. " * 20, share=1)
    labels = truth_of(altered, tokenizer)
    assert (labels[0], labels[-1]) == (-1, -1)
    assert (true_edges(altered, 3) == log.edges).all()
    assert truth_of(log_of([(0, "")]), tokenizer).tolist() == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=40))
def test_figures_of_a_text_are_those_of_their_definitions(pairs):
    truth, found = (np.array(labels) for labels in zip(*pairs, strict=True))
    edges = np.eye(4, k=1)
    got = score(truth, found, agents=4, edges=edges, found_edges=edges + edges.T, margin=0)
    assert list(got) == list(FIGURES)
    attributed = [(g, e) for g, e in pairs if e >= 0]
    changes = [{t for t in range(1, len(ids)) if ids[t] != ids[t - 1]} for ids in (truth, found)]
    both = sum(map(len, changes))
    ious = []
    for agent in range(4):
        t, e = ({i for i, x in enumerate(labels) if x == agent} for labels in (truth, found))
        if t | e:
            ious.append(len(t & e) / len(t | e))
    assert got == {
        "token_accuracy": pytest.approx(np.mean([g == e for g, e in pairs])),
        "iou": pytest.approx(np.mean(ious) if ious else 1),
        "edge_similarity": pytest.approx(math.sqrt(0.5)),
        "boundary_f1": pytest.approx(2 * len(changes[0] & changes[1]) / both if both else 1),
        "coverage": pytest.approx(len(attributed) / len(pairs)),
        "accuracy_where_attributed": (
            pytest.approx(np.mean([g == e for g, e in attributed])) if attributed else None
        ),
    }


def test_readers_without_edges_and_with_spurious_keys():
    truth, found = [0, 0, 1, 1, 2], [0, 0, 1, 5, 2]
    edges = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert score(truth, found, agents=3, edges=edges)["edge_similarity"] is None
    more = np.zeros((6, 6))
    more[0, 1] = more[1, 5] = more[5, 2] = 0.7
    got = score(truth, found, agents=3, edges=edges, found_edges=more)
    assert got["edge_similarity"] == pytest.approx(1 / math.sqrt(6))
    assert got["token_accuracy"] == 0.8
    with pytest.raises(InputError, match="truth: got 2, expected below 2 agents"):
        score(truth, found, agents=2, edges=np.zeros((2, 2)))
    with pytest.raises(ShapeError, match="edges: got"):
        score(truth, found, agents=3, edges=np.zeros((2, 2)), found_edges=more)
    with pytest.raises(ShapeError):
        score(truth, found, agents=3, edges=edges, found_edges=np.zeros((2, 2)))
    with pytest.raises(ShapeError, match="found: got"):
        score(truth, found[1:], agents=3, edges=edges)


# Over texts.


@settings(deadline=None)
@given(values=figures, seed=seeds)
def test_a_bootstrap_is_the_means_of_resampled_texts(values, seed):
    found = interval(values, seed, draws=200)
    assert found == interval([*values, None], seed, draws=200)
    counts = np.random.default_rng(seed).multinomial(len(values), [1 / len(values)] * len(values), size=200)
    means = [np.mean(np.repeat(values, row)) for row in counts]
    low, high = np.quantile(means, [0.025, 0.975])
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.low, found.high, found.texts) == (pytest.approx(low), pytest.approx(high), len(values))


def test_a_ratio_weighs_texts_by_their_wholes():
    found = ratio([9, 0, 0], [10, 1, 0], seed=1)
    assert (found.mean, found.texts) == (pytest.approx(9 / 11), 2)
    assert (found.low, found.high) == (0.0, pytest.approx(0.9))
    assert ratio([0.0], [0.0], seed=1) is None
    equal = ratio([1, 0, 1, 1], [2, 2, 2, 2], seed=3)
    alone = interval([0.5, 0.0, 0.5, 0.5], seed=3)
    assert (equal.low, equal.mean, equal.high) == pytest.approx((alone.low, alone.mean, alone.high))
    with pytest.raises(ShapeError, match="1 and 2 texts"):
        ratio([1], [1, 2], seed=0)


def test_intervals_have_the_width_of_theory():
    values = np.random.default_rng(5).normal(0.5, 0.1, 400)
    found = interval(values.tolist(), seed=1)
    error = values.std() / 20
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


@settings(deadline=None)
@given(values=figures, seed=seeds)
def test_a_constant_advantage_has_no_spread(values, seed):
    better = [value + 0.25 for value in values]
    found = difference(better, values, seed, draws=100)
    assert (found.mean, found.low, found.high) == (pytest.approx(0.25),) * 3
    back = difference(values, better, seed, draws=100)
    assert (back.low, back.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    if min(values) > 0.01:
        change = relative_change(values, [0.9 * value for value in values], seed, draws=100)
        assert (change.mean, change.low, change.high) == (pytest.approx(-10),) * 3


def test_cells_are_resampled_each_on_its_own():
    rng = np.random.default_rng(0)
    one, two = rng.normal(0.3, 0.1, 100), rng.normal(0.5, 0.1, 400)
    zeros = np.zeros(400)
    found = mean_difference([(one, zeros[:100]), (two, zeros), ([None], [1.0])], seed=3)
    assert found.mean == pytest.approx((one.mean() + two.mean()) / 2)
    error = math.hypot(one.std() / 10, two.std() / 20) / 2
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert found.texts == 500
    assert mean_difference([([None], [1.0])], seed=3) is None
    single = mean_difference([(one, zeros[:100])], seed=3)
    assert single.mean == difference(one, zeros[:100], seed=3).mean


def test_texts_without_a_figure():
    assert interval([], 0) is None
    assert interval([None], 0) is None
    assert difference([1.0, None, 0.5], [0.5, 0.5, None], 0) == Interval(0.5, 0.5, 0.5, 1)
    assert relative_change([0.0, None], [1.0, 1.0], 0) is None
    mixed = relative_change([0.0, 1.0], [1.0, 1.0], 0)
    assert mixed.mean == 100
    assert np.isfinite(mixed.high)
    with pytest.raises(InputError, match="values: got nan"):
        interval([0.5, float("nan")], 0)
    with pytest.raises(InputError, match="draws: got 0"):
        interval([0.5], 0, draws=0)
    with pytest.raises(ShapeError, match="got 1 and 2 texts"):
        difference([0.5], [0.5, 0.5], 0)


def test_the_worst_texts():
    values = [0.3, None, 0.1, 0.9, 0.1, 0.0, 0.2, 0.8]
    assert worst(values) == [5, 2, 4, 6, 0]
    assert worst(values, 0) == []
    assert worst([None, 0.5]) == [1]
    with pytest.raises(InputError, match="k: got -1"):
        worst(values, -1)


# Tables.

HEADER = ("method", "TokenAcc", "EdgeSim", "paper")
ROWS = (
    ("a|b", Interval(1 / 3, 0.25, 0.5, 9), None, 0.863),
    ("c, d", None, Interval(0.5, 0.4, 2 / 3, 9), ""),
    ("e", 0.123456, Interval(0.25, 0.125, 0.5, 9), 7),
)


def test_a_table_says_the_same_in_markdown_and_csv(tmp_path, capsys):
    write(tmp_path / "found" / "table1", HEADER, ROWS, {"seed": 1}, title="# A", note="B.")
    folder = tmp_path / "found"
    assert sorted(p.name for p in folder.iterdir()) == ["table1.csv", "table1.json", "table1.md"]
    text = (folder / "table1.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text
    assert text == f"# A\n\n{markdown(HEADER, ROWS)}\n\nB.\n"
    assert json.loads((folder / "table1.json").read_text()) == {"seed": 1}
    lines = list(csv.reader(io.StringIO((folder / "table1.csv").read_text(encoding="utf-8"))))
    assert lines[0][1:4] == ["TokenAcc", "TokenAcc low", "TokenAcc high"]
    assert lines[0][-1] == "paper"
    shown = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines()[4:7]]
    for row, line, cells in zip(ROWS, lines[1:], shown, strict=True):
        named = dict(zip(lines[0], line, strict=True))
        for name, cell, printed in zip(HEADER, row, [*cells, ""], strict=False):
            if isinstance(cell, Interval):
                assert (float(named[name]), float(named[f"{name} low"])) == (cell.mean, cell.low)
                assert printed == f"{cell.mean:.3f} [{cell.low:.3f}, {cell.high:.3f}]"
            elif isinstance(cell, float):
                assert float(named[name]) == cell
                assert float(printed) == round(cell, 3)
            else:
                assert named[name] == ("N/A" if cell is None else str(cell))
                assert printed.replace("\\", "") == named[name]


def test_a_ragged_table_is_refused():
    for table in (markdown, as_csv):
        with pytest.raises(ShapeError, match="row 1: got 1 cells, expected 2"):
            table(("a", "b"), [(1, 2), (1,)])


# Similarity.


def naive_common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    @functools.cache
    def length(i: int, j: int) -> int:
        if not i or not j:
            return 0
        if a[i - 1] == b[j - 1]:
            return length(i - 1, j - 1) + 1
        return max(length(i - 1, j), length(i, j - 1))

    return length(len(a), len(b))


words = st.lists(st.sampled_from("abcd"), max_size=25).map(tuple)


@settings(deadline=None)
@given(a=words, b=words)
def test_common_words_equal_the_recursion(a, b):
    common = naive_common(a, b)
    assert common_words(a, b) == common_words(b, a) == common
    expected = 2 * common / (len(a) + len(b)) if a or b else 1
    assert rouge_l(" ".join(a).upper(), " - ".join(b)) == pytest.approx(expected)
    assert rouge_l(" ".join(a), " ".join(a)) == 1


def test_long_texts():
    a = [str(i % 997) for i in range(5000)]
    assert common_words(a, [*a[:2000], "x", *a[2500:]]) == 4500
    assert rouge_l(" ".join(a), " ".join(a[:4500])) == pytest.approx(2 * 0.9 / 1.9)
    assert rouge_l("", "a") == 0


def test_semantic_similarity_is_the_cosine_of_the_given_vectors():
    vectors = {"a": [1, 0], "b": [1, 1], "c": [-2, 0], "d": [0, 0]}
    seen: list[list[str]] = []

    def embed(texts: list[str]) -> Any:
        seen.append(texts)
        return [vectors[text] for text in texts]

    pairs = [("a", "b"), ("a", "c"), ("b", "b"), ("a", "d")]
    assert semantic_similarity(pairs, embed) == pytest.approx([math.sqrt(0.5), -1, 1, 0])
    assert seen == [["a", "b", "c", "d"]]
    assert semantic_similarity(pairs, None) == [None] * 4
    assert semantic_similarity([], embed) == []
    with pytest.raises(ShapeError, match="embed: got"):
        semantic_similarity(pairs, lambda texts: np.zeros((1, 3)))


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model that has learnt nothing and reads 16 tokens at once."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import tokenizers

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(50))]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = tmp_path_factory.mktemp("bert")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_an_embedding_is_the_mean_over_all_tokens_of_all_blocks(tiny_bert):
    import torch
    import transformers

    numbers = [(7 * i) % 50 for i in range(33)]
    texts = [" ".join(f"w{i}" for i in numbers), "w1 w2", ""]
    found = Embedder(tiny_bert)(texts)
    model = transformers.AutoModel.from_pretrained(tiny_bert).eval()
    for row, ids in zip(found, [numbers, [1, 2], []], strict=True):
        states = []
        for start in range(0, max(1, len(ids)), 14):  # with both special tokens 16
            block = torch.tensor([[2, *(4 + i for i in ids[start : start + 14]), 3]])
            with torch.inference_mode():
                states.append(model(block).last_hidden_state[0])
        np.testing.assert_allclose(row, torch.cat(states).mean(0).numpy(), atol=1e-5)
    np.testing.assert_allclose(found, Embedder(tiny_bert, batch=1)(texts), atol=1e-5)
    assert Embedder(tiny_bert)([]).shape == (0, 8)
    end_changed = texts[0].rsplit(" ", 1)[0] + " w49"
    (similar,) = semantic_similarity([(texts[0], end_changed)], Embedder(tiny_bert))
    assert 0.5 < similar < 0.99999  # sees the end of a text that is longer than the model reads
    with pytest.raises(InputError, match="longest: got 2"):
        Embedder(tiny_bert, longest=2)


def test_without_an_embedding_model_there_is_a_sentence(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with pytest.raises(BackendUnavailable, match="give the folder or id of a model of transformers"):
        Embedder(tmp_path)
    with pytest.raises(InputError, match="batch: got 0"):
        Embedder(tmp_path, batch=0)


# Plots.


def draw(folder: pathlib.Path) -> list[pathlib.Path]:
    from benchmarks.paper import plots

    values = [Interval(0.6 + i / 20, 0.5 + i / 20, 0.7 + i / 20, 9) for i in range(4)]
    rng = np.random.default_rng(0)
    return [
        *plots.sweep(
            folder / "kappa",
            [0.5, 0.8, 1, 2],
            {"TokenAcc": values, "IoU": [*values[:3], None]},
            xlabel="strength κ",
            operating_point=0.8,
            quoted={"TokenAcc": [0.7, None, 0.8, 0.9]},
        ),
        *plots.before_and_after(
            folder / "pii", ["chain_4", "tree_4"], {"IoU": (values[:2], [values[2], None])}
        ),
        *plots.histograms(
            folder / "scores", {"chain_4": (rng.normal(1, 1, 500), rng.normal(0, 1, (100, 3))), "x": ([], [])}
        ),
    ]


def test_plots_are_the_same_files_again(tmp_path):
    pytest.importorskip("matplotlib")
    once, again = draw(tmp_path / "a"), draw(tmp_path / "b")
    assert [p.name for p in once] == [
        f"{name}.{kind}" for name in ("kappa", "pii", "scores") for kind in ("svg", "png")
    ]
    assert [p.read_bytes() for p in once] == [p.read_bytes() for p in again]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in once if p.suffix == ".png")
    svg = {p.stem: p.read_text(encoding="utf-8") for p in once if p.suffix == ".svg"}
    assert all("<dc:date>" not in text for text in svg.values())
    for name, shown in {
        "kappa": ["strength κ", "TokenAcc", "IoU", "TokenAcc, paper", "0.8", "stroke-dasharray"],
        "pii": ["chain_4", "tree_4", "original", "redacted", "IoU"],
        "scores": ["own agent", "other agents", "density", "chain_4"],
    }.items():
        assert all(text in svg[name] for text in shown), name


def test_histograms_have_thirty_bins(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.paper import plots

    own, others = np.linspace(0, 1, 300), np.linspace(0.5, 2, 300)
    (svg, _) = plots.histograms(tmp_path / "h", {"a": (own, others)})
    text = svg.read_text(encoding="utf-8")
    bars = re.findall(r'<path d="[^"]*" clip-path="[^"]*" style="fill: #([0-9a-f]{6}); opacity: 0.5"', text)
    assert (bars.count("0072b2"), bars.count("d55e00")) == (30, 30)


def test_plots_refuse_series_of_other_lengths(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.paper import plots

    with pytest.raises(ShapeError, match="IoU: got 1 values, expected 2"):
        plots.sweep(tmp_path / "s", [1, 2], {"IoU": [None]}, xlabel="x")
    with pytest.raises(ShapeError, match="IoU: got 1 values, expected 2"):
        plots.before_and_after(tmp_path / "s", ["a", "b"], {"IoU": ([None, None], [None])})
    assert list(tmp_path.iterdir()) == []


def test_crossed_with_one_run_is_the_interval_of_its_texts():
    values = np.random.default_rng(1).random(40).round()
    assert crossed([values], 3) == interval(values.tolist(), 3)
    assert crossed(np.zeros((2, 0)), 3) is None


def test_crossed_is_as_wide_as_runs_and_texts_make_it():
    rng = np.random.default_rng(2)
    texts, runs = rng.normal(size=(1, 30)), rng.normal(size=(8, 1))
    of_texts, of_runs, both = (crossed(table + np.zeros((8, 30)), 5) for table in (texts, runs, texts + runs))
    for found, sample in ((of_texts, texts), (of_runs, runs)):
        error = sample.std() / sample.size**0.5
        assert found.mean == pytest.approx(sample.mean())
        assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert both.mean == pytest.approx(texts.mean() + runs.mean())
    widths = [found.high - found.low for found in (of_texts, of_runs, both)]
    assert widths[2] == pytest.approx((widths[0] ** 2 + widths[1] ** 2) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("values", "draws", "message"), [([1.0], 10, "values"), ([[np.nan]], 10, "finite"), ([[1.0]], 0, "draws")]
)
def test_crossed_refuses_nonsense(values, draws, message):
    with pytest.raises((ShapeError, InputError), match=message):
        crossed(values, 0, draws)
