"""`iet calibrate`: tokens needed against theory, realised rates on text without a mark, bad input."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from scipy import stats

import iet
from iet import calibrate, cli
from iet.cli.demo import demo_registry
from iet.errors import InputError
from iet.marks.families import FAMILIES
from iet.marks.tokenizer import DEMO_SOURCE
from tests.support.teams import team

TEXT = pathlib.Path(__file__).parents[2] / "README.md"


def test_marked_scores_follow_theory_at_high_entropy() -> None:
    rng = np.random.default_rng(0)
    scores = calibrate.marked_scores("fourier", 0.8, 4.8, rng, 1 << 14)  # of 256 tokens nearly all are likely
    assert scores.mean() == pytest.approx(float(FAMILIES["fourier"].mean(0.8)), abs=0.02)
    assert calibrate.marked_scores("fourier", 0.8, 0.01, rng, 1 << 14).mean() == pytest.approx(0, abs=0.02)
    # u^(1/q) is uniform if the token has probability q: at 2 nats, E[-log(1 - u)] is the mean H_{1/q}.
    likely, rare = (calibrate.marked_scores("gumbel", 1.0, nats, rng, 1 << 14).mean() for nats in (0.5, 3.0))
    assert 1.1 < likely < rare < 6
    assert calibrate.marked_scores("gumbel", 1.0, 0.01, rng, 1 << 14).mean() == pytest.approx(1, abs=0.03)


def test_power_falls_with_keys_and_grows_with_entropy_and_kappa() -> None:
    options: dict[str, Any] = {"entropies": (1.0, 3.0), "kappas": (0.8, 1.6), "keys": (1, 1000)}
    options |= {"most": 6000, "texts": 100, "draws": 1 << 13}
    rows = calibrate.power(**options)
    assert len([row for row in rows if row.family == "fourier"]) == 4
    assert all(1 >= row.in_short[1] >= row.in_short[1000] - 0.05 for row in rows)
    assert rows[-1].in_short[1] > 0.95 > rows[0].in_short[1000]
    needed = {(r.family, r.kappa, r.entropy): r.tokens for r in rows}
    for tokens in needed.values():
        assert tokens[1000] is not None
        assert tokens[1] <= tokens[1000]
    for kappa in (0.8, 1.6):
        assert needed["fourier", kappa, 3.0][1000] < needed["fourier", kappa, 1.0][1000]
    assert needed["fourier", 1.6, 1.0][1000] < needed["fourier", 0.8, 1.0][1000]
    assert needed["gumbel", 1.0, 1.0][1000] * 5 < needed["fourier", 0.8, 1.0][1000]
    alone = {**options, "entropies": (3.0,), "kappas": (1.6,)}
    assert rows[-1:] == calibrate.power(**alone)[-1:]
    table = calibrate.power_table(rows)
    assert "| fourier, 0.8 | 1 |" in table
    assert "1,000 agents | found in 200 tokens |" in table
    unreachable = calibrate.power((0.2,), (0.1,), (6,), most=500, texts=100, draws=1 << 13)[0]
    assert unreachable.tokens == {6: None}
    assert unreachable.in_short[6] < 0.2
    assert "| > 500 |" in calibrate.power_table([unreachable])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"level": 1.0}, "level: got 1.0"),
        ({"share": 0}, "share: got 0"),
        ({"entropies": ()}, r"entropies: got \(\)"),
        ({"kappas": (-1.0,)}, r"kappas: got \(-1.0,\)"),
        ({"keys": (0,)}, r"keys: got \(0,\)"),
        ({"texts": 0}, "texts, draws: got 0, 65536"),
        ({"draws": 100}, "texts, draws: got 400, 100, expected at least 1 and a multiple of 16"),
        ({"entropies": (1.0, 5.6)}, r"entropies: got 5\.6, expected at most 5\.5"),
    ],
)
def test_power_rejects_invalid_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        calibrate.power(**arguments)  # type: ignore[arg-type]


def test_the_false_positive_rate_matches_the_level(tmp_path: pathlib.Path) -> None:
    content = TEXT.read_text(encoding="utf-8")
    texts = [content[i : i + 1500] for i in range(0, min(len(content), 12_000), 1500)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts) + "\n\n")
    registry = demo_registry(("a", "b", "c"), 0)
    result = calibrate.null(registry, calibrate.read_corpus(tmp_path), registries=12)
    assert (result.texts, result.registries, result.agents) == (len(texts), 12, 3)
    pairs = len(texts) * 12
    rate, low, high, segments = result.levels[0.01]
    assert stats.binom.sf(round(rate * pairs) - 1, pairs, 0.01) > 1e-4
    assert low <= rate <= high or rate == 0
    assert segments <= rate
    assert result.levels[1e-4][0] <= result.levels[1e-3][0] <= rate
    assert result.lowest <= math.log(0.1)
    assert f"{len(texts)} texts, each under 12 registries of 3 drawn keys" in calibrate.null_table(result)
    few = [calibrate.null(registry, iter(texts[:2]), registries=3) for _ in range(2)]
    assert few[0] == few[1]
    profile = iet.Registry.create(None, vocab_size=4096, unmarked_ids=range(50)).profile
    assert calibrate._drawn(profile, None, 2, "x").profile.digest == profile.digest
    per_agent = team("abcdef", tokenizer=DEMO_SOURCE, k_p="per-agent")
    assert (
        calibrate.null(per_agent, iter(texts[:2]), registries=30).registries == 30
    )  # no drawn key is refused
    small = iet.Registry.create(None, vocab_size=3, scheme=iet.Scheme(k_p="per-agent"))
    drawn = calibrate._drawn(small.profile, None, 2, "x")
    with pytest.raises(InputError, match="chance does not pass for evidence"):  # no key of this profile can
        iet.Auditor(drawn)
    registry.rotate("a")
    assert calibrate.null(registry, iter(texts[:1]), registries=1).agents == 4  # keys of all epochs


def test_an_interval_is_over_texts_not_pairs() -> None:
    hits = np.zeros(200)
    hits[:2] = 1.0  # two texts that are always read as marked
    low, high = calibrate.clustered_interval(hits, 20)
    assert low < 0.005 < 0.02 < high
    few_low, few_high = calibrate.clustered_interval(np.append(np.zeros(199), 0.05), 20)
    assert few_low == pytest.approx(0.00088 / 20, abs=1e-5)
    assert few_high == pytest.approx(0.0278, abs=2e-3)


@pytest.mark.parametrize(("texts", "segments", "rate"), [(5, 1000, 0.01), (8, 1000, 0.01), (5, 5000, 0.001)])
def test_an_interval_of_few_texts_covers_the_rate(texts: int, segments: int, rate: float) -> None:
    rng, covered = np.random.default_rng(texts), 0
    for _ in range(400):
        low, high = calibrate.clustered_interval(
            rng.binomial(segments, rate, texts) / segments, segments, draws=300
        )
        covered += low <= rate <= high
    assert covered / 400 >= 0.92


def test_a_corpus_is_a_folder_a_file_or_lines_of_json(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("one")
    (tmp_path / "b.md").write_text("two")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "c.png").write_bytes(b"\x89")
    assert list(calibrate.read_corpus(tmp_path)) == ["two", "one"]
    assert list(calibrate.read_corpus(tmp_path / "b.md")) == ["two"]
    assert calibrate.corpus_files(tmp_path)[1] == {".png": 1}
    (tmp_path / "d.jsonl").write_text('{"text": "a\u2028b\x85c"}\r\n\n{"text": "d"}\n', encoding="utf-8")
    assert list(calibrate.read_corpus(tmp_path / "d.jsonl")) == ["a\u2028b\x85c", "d"]
    (tmp_path / "e.jsonl").write_text('{"text": "marked"}\n', encoding="utf-8-sig")
    assert list(calibrate.read_corpus(tmp_path / "e.jsonl")) == ["marked"]
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "f.JSONL").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert list(calibrate.read_corpus(tmp_path / "upper")) == ["one", "two"]


def test_hidden_files_of_a_corpus_are_counted_and_not_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".config").mkdir()
    for name in (".b.txt", ".config/c.txt", ".config/d.png"):
        (tmp_path / name).write_text("hidden")
    with pytest.raises(InputError, match=r"\(hidden 3\), expected files that end in one of .txt"):
        calibrate.corpus_files(tmp_path)
    (tmp_path / "a.txt").write_text("one")
    assert list(calibrate.read_corpus(tmp_path)) == ["one"]
    assert calibrate.corpus_files(tmp_path)[1] == {"hidden": 3}
    assert list(calibrate.read_corpus(tmp_path / ".config")) == ["hidden"]  # it was asked for


def test_rejects_invalid_corpora_with_file_and_line(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="which does not exist"):
        list(calibrate.read_corpus(tmp_path / "nothing"))
    with pytest.raises(InputError, match="expected files that end in"):
        list(calibrate.read_corpus(tmp_path))
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"txt": "two"}\n')
    with pytest.raises(InputError, match=r"a.jsonl, line 2: got .*txt"):
        list(calibrate.read_corpus(tmp_path))
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "cut \\ud83d"}\n')
    with pytest.raises(InputError, match=r"a.jsonl, line 2: character 4 is the lone surrogate U\+D83D"):
        list(calibrate.read_corpus(tmp_path))
    (tmp_path / "a.jsonl").write_bytes(b"\xff")
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        list(calibrate.read_corpus(tmp_path))
    for registries in (0, 100_001):
        with pytest.raises(
            InputError, match=f"registries: got {registries}, expected an int from 1 to 100000"
        ):
            calibrate.null(demo_registry(("a",), 0), iter(["x"]), registries=registries)
    with pytest.raises(InputError, match="texts: got none"):
        calibrate.null(demo_registry(("a",), 0), iter([]))


def test_command_prints_the_results(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = tmp_path / "team.json"
    assert cli.main(["keys", "init", str(registry), "--tokenizer", "iet:demo"]) == 0
    assert cli.main(["keys", "add", "planner", "critic", "-r", str(registry)]) == 0
    corpus = tmp_path / "a.txt"
    corpus.write_text(TEXT.read_text(encoding="utf-8")[:2000])
    capsys.readouterr()
    command = ["calibrate", "--null", str(corpus), "-r", str(registry), "--registries", "3"]
    assert cli.main(command) == 0
    assert "1 texts, each under 3 registries of 2 drawn keys" in capsys.readouterr().out
    assert cli.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["registries"] == 3
    small = {"most": 64, "texts": 100, "draws": 1 << 13}
    monkeypatch.setattr(calibrate.power, "__kwdefaults__", {**calibrate.power.__kwdefaults__, **small})
    monkeypatch.setattr(calibrate.power, "__defaults__", ((3.0,), (1.6,), (1,)))
    assert cli.main(["calibrate", "--power"]) == 0
    assert "| gumbel | 3 | ≤ 32 |" in capsys.readouterr().out
    assert cli.main(["calibrate", "--power", "--level", "2"]) == 3
    assert "level: got 2.0" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        cli.main(["calibrate"])
    assert usage.value.code == 2
