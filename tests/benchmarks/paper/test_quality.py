"""What marking costs in quality: the tasks, the strategies, and the experiment."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from benchmarks.paper.quality import strategies
from benchmarks.paper.quality.strategies import AGENTS, JUDGE, STRATEGIES, Call, vote
from benchmarks.paper.quality.tasks import Problem, answer_of, arithmetic, gsm8k
from iet.errors import InputError, ShapeError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("matplotlib")

from benchmarks.paper import __main__ as command  # noqa: E402
from benchmarks.paper import plots  # noqa: E402
from benchmarks.paper.asking.asker import Answers  # noqa: E402
from benchmarks.paper.conversations.author import Generated, ModelAuthor  # noqa: E402
from benchmarks.paper.quality import experiment  # noqa: E402
from benchmarks.paper.quality import texts as shown  # noqa: E402
from benchmarks.paper.quality.answers import (  # noqa: E402
    CLEAN,
    CONDITIONS,
    REPEATED,
    SHORT,
    Options,
    Solved,
    Speaker,
    spoken,
)
from benchmarks.paper.quality.experiment import ARITHMETIC_MODEL  # noqa: E402
from benchmarks.recording import read_rows  # noqa: E402
from benchmarks.statistics import Interval  # noqa: E402
from benchmarks.writing.models import Loaded, load  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

STORIES = [
    ("Ann has 3 pens and buys 4. How many has she?", "She has 3+4=<<3+4=7>>7.\n#### 7"),
    ("A farm sells 1,500 eggs at 2 dollars. How much is that?", "1500*2=3000.\n#### 3,000"),
    ("It is 5 degrees and gets 9 colder. How warm is it?", "5-9=-4\n#### -4"),
]


@pytest.fixture(scope="module")
def calculator() -> Loaded:
    return load(ARITHMETIC_MODEL)


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in STORIES]
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder.parent


# ---------------------------------------------------------------- tasks


def test_expressions_are_a_hundred_of_the_papers_form() -> None:
    problems = arithmetic()
    assert len(problems) == 100
    for problem in problems:
        numbers = re.fullmatch(r"(\d+)\+(\d+)\*(\d+)\+(\d+)-(\d+)\*(\d+)", problem.expression)
        assert numbers is not None
        a, b, c, d, e, f = map(int, numbers.groups())
        assert max(a, b, c, d, e, f) <= 30
        assert problem.answer == a + b * c + d - e * f
        assert problem.expression in problem.text
    drawn = [int(n) for p in arithmetic(2000, 7) for n in re.findall(r"\d+", p.expression)]
    assert np.bincount(drawn).tolist() == pytest.approx([12000 / 31] * 31, rel=0.25)  # 5 deviations
    assert [p.text for p in problems] == [p.text for p in arithmetic()]
    assert problems != arithmetic(seed=43)
    with pytest.raises(InputError, match="count: got 0"):
        arithmetic(0)


def test_gsm8k_is_read_with_its_numbers(data: pathlib.Path) -> None:
    problems = gsm8k(data, 3)
    assert [(p.text, p.answer) for p in problems] == [
        (text, Fraction(number)) for (text, _), number in zip(STORIES, (7, 3000, -4), strict=True)
    ]
    assert gsm8k(data / "gsm8k", 3) == gsm8k(data / "gsm8k" / "test.jsonl", 3) == problems
    two = gsm8k(data, 2)
    assert [p.number for p in two] == sorted(p.number for p in two)
    assert set(two) < set(problems)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "Why?"}', "line 2: got .*question"),
        ('{"question": "Why?", "answer": "no mark"}', "no '####'"),
        ('{"question": "Why?", "answer": "#### many"}', "line 2"),
        ("not json", "line 2"),
    ],
)
def test_a_damaged_line_is_named(data: pathlib.Path, line: str, message: str) -> None:
    path = data / "gsm8k" / "test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], line, lines[2]]), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        gsm8k(data, 3)


def test_too_few_problems_and_no_file_are_refused(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="count: got 4, expected 1 to 3"):
        gsm8k(data, 4)
    with pytest.raises(InputError, match="cannot be read"):
        gsm8k(tmp_path / "nowhere", 1)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Answer: 42", 42),
        ("steps\nAnswer: -7\n\n", -7),
        ("Answer: 3. No, again.\nAnswer: 1,234,567.", 1234567),
        ("Answer: 18.50", Fraction(37, 2)),
        ("Answer:0", 0),
        ("so it is 42", None),
        ("Answer: $42", None),
        ("Answer: 42 apples", None),
        ("Answer: 42\nI hope this helps.", None),
        ("Answer: 1,23", None),
        ("Answer: forty", None),
        ("Answer: 4 2", None),
        ("**Answer: 42**", None),
        ("Answer: \u0664\u0662", None),
        ("", None),
    ],
)
def test_an_answer_is_a_number_at_the_end(text: str, number: int | None) -> None:
    assert answer_of(text) == number


# ---------------------------------------------------------------- strategies


PROBLEMS = [
    Problem("GSM8K", 4, "How many are six and seven?", Fraction(13)),
    Problem("GSM8K", 9, "How many are two and two?", Fraction(4)),
]


class Script:
    """Agents that say what they are told to, by problem, agent and number."""

    def __init__(self, lines: dict[tuple[int, int, int], str]) -> None:
        self.lines = lines
        self.calls: list[Call] = []

    def __call__(self, calls: Sequence[Call]) -> list[str]:
        self.calls += calls
        return [self.lines[c.problem.number, c.agent, c.number] for c in calls]


def _script(first: str, second: str, verdict: str = "13") -> Script:
    """Of the first problem: answers of the three agents in two rounds; nobody knows the second."""
    lines = {(9, agent, number): "I do not know." for agent in range(4) for number in range(2)}
    for number, answers in enumerate((first, second)):
        for agent, answer in enumerate(answers.split()):
            lines[4, agent, number] = f"words {agent}{number}\nAnswer: {answer}"
    lines[4, JUDGE, 0] = f"Answer: {verdict}"
    return Script(lines)


@pytest.mark.parametrize(
    ("name", "first", "second", "answer"),
    [
        ("Single", "1 13 13", "0 0 0", 1),
        ("Reflection", "1 2 3", "13 0 0", 13),
        ("Majority", "1 13 13", "0 0 0", 13),
        ("Majority", "1 2 3", "0 0 0", 1),
        ("Majority", "x 2 y", "0 0 0", 2),
        ("Debate", "1 2 3", "5 13 13", 13),
        ("Debate, judge", "1 2 3", "5 6 7", 13),
    ],
)
def test_a_strategy_answers(name: str, first: str, second: str, answer: int) -> None:
    script = _script(first, second)
    answers = script(strategies.first_calls(PROBLEMS))
    said = [answers[:AGENTS], answers[AGENTS:]]
    assert STRATEGIES[name](PROBLEMS, said, script) == [answer, None]


def test_who_is_told_what() -> None:
    script = _script("1 2 3", "4 5 6")
    answers = script(strategies.first_calls(PROBLEMS))
    said = [answers[:AGENTS], answers[AGENTS:]]
    assert [(c.problem.number, c.agent) for c in script.calls] == [(n, a) for n in (4, 9) for a in range(3)]
    for call in script.calls:
        shown = json.dumps(call.prompt.messages)
        assert call.problem.text in shown
        assert "words" not in shown
    heard = {}
    for name in ("Reflection", "Debate, judge"):
        script.calls.clear()
        STRATEGIES[name](PROBLEMS, said, script)
        heard[name] = {(c.agent, c.number): c for c in script.calls if c.problem.number == 4}
    assert set(heard["Reflection"]) == {(0, 1)}
    assert set(heard["Debate, judge"]) == {(0, 1), (1, 1), (2, 1), (JUDGE, 0)}
    words = {
        call: set(re.findall(r"words \d\d", json.dumps(c.prompt.messages)))
        for call, c in heard["Debate, judge"].items()
    }
    assert all(words[agent, 1] == {"words 00", "words 10", "words 20"} for agent in range(AGENTS))
    assert words[JUDGE, 0] == {"words 01", "words 11", "words 21"}
    assert set(re.findall(r"words \d\d", json.dumps(heard["Reflection"][0, 1].prompt.messages))) == {
        "words 00"
    }
    own = [part for part in heard["Debate, judge"][1, 1].prompt.parts if part.heading.startswith("Your")]
    assert [part.text for part in own] == ["words 10\nAnswer: 2"]
    for calls in heard.values():
        for call in calls.values():
            assert PROBLEMS[0].text in call.prompt.plain
            assert "'Answer: '" in call.prompt.messages[-1]["content"]


def test_a_vote_counts_numbers_as_numbers() -> None:
    assert vote([Fraction("18.0"), Fraction(3), Fraction(18)]) == 18
    assert vote([None, None]) is None
    assert vote([]) is None


# ---------------------------------------------------------------- texts


def _speaker(loaded: Loaded, **options: Any) -> Speaker:
    return Speaker(loaded, Options(**options), Answers(None), SHORT)


def _asked(count: int) -> list[Call]:
    return [Call(p, agent, 0, spoken(p, agent)) for p in arithmetic(count) for agent in range(AGENTS)]


def test_texts_are_those_of_seed_and_key(calculator: Loaded) -> None:
    calls = _asked(2)
    texts = {
        (name, number): [one.text for one in _speaker(calculator).say(calls, condition, number)]
        for name, condition in CONDITIONS.items()
        for number in range(2)
    }
    assert _speaker(calculator).say(calls, CONDITIONS[CLEAN], 0)[3].text == texts[CLEAN, 0][3]
    assert len({tuple(some) for some in texts.values()}) == len(texts)
    for some in texts.values():
        assert len(set(some)) == len(some)  # agents and problems differ, under gumbel, too
    later = _speaker(calculator, seed=1).say(calls, CONDITIONS["gumbel"], 0)
    assert [one.text for one in later] == texts["gumbel", 1]


def test_one_key_repeats_itself_under_gumbel(calculator: Loaded) -> None:
    """With repeated contexts left to the sampler the beginning is the same, and a nonce changes it."""
    speaker, calls = _speaker(calculator), _asked(8)[::AGENTS]
    one, other = ([t.text[:12] for t in speaker.say(calls, REPEATED["gumbel, one key"], n)] for n in range(2))
    fresh = [t.text[:12] for t in speaker.say(calls, CONDITIONS["gumbel"], 1)]
    same = sum(a == b for a, b in zip(one, other, strict=True))
    assert same >= 6
    assert sum(a == b for a, b in zip(one, fresh, strict=True)) < same
    assert speaker.setting(REPEATED["gumbel, one key"], 5).seed == 0


def test_log_probabilities_are_the_models(calculator: Loaded) -> None:
    prompts = [[40, 41, 42], [50, 51, 52, 53, 54]]
    texts = [[20, 21, 22, 23], [30, 31]]
    found = shown.log_probabilities(calculator, prompts, texts)
    assert [len(row) for row in found] == [4, 2]
    for prompt, text, row in zip(prompts, texts, found, strict=True):
        for place, token in enumerate(text):
            with torch.inference_mode():
                logits = calculator.model(torch.tensor([[*prompt, *text[:place]]])).logits[0, -1]
                logits[[0, 2, 3]] = -torch.inf  # what is never drawn; 1 is the end
            assert row[place] == pytest.approx(float(torch.log_softmax(logits, -1)[token]), abs=1e-4)


def test_figures_of_texts(calculator: Loaded) -> None:
    prompts = [[[40, 41, 42], [50, 51, 52]]] * 2
    texts = [
        [Generated((20, 21, 22), "", 0.5), Generated((23, 24, 23, 24, 23), "", 1.0)],
        [Generated((20, 21, 25, 26, 27), "", 1.5), Generated((23,), "", 2.0)],
    ]
    found = shown.figures_of_texts(calculator, prompts, texts)
    assert found["length"] == [4.0, 3.0]
    assert found["entropy"] == [1.0, 1.5]
    assert found["distinct-2"] == [5 / 6, 2 / 4]
    assert found["distinct-4"] == [1.0, 1.0]
    log_p = shown.log_probabilities(calculator, [p[0] for p in prompts], [t[0].ids for t in texts])
    assert found["log perplexity"][0] == pytest.approx(-np.concatenate(log_p).mean())
    assert shown.distinct([(1, 2)], 4) is None


def test_marks_are_in_the_texts(calculator: Loaded) -> None:
    speaker, problems = _speaker(calculator), arithmetic(24)
    calls = [Call(p, 0, 0, spoken(p, 0)) for p in problems]
    for name in ("clean", "gumbel"):
        condition = CONDITIONS[name]
        texts = [speaker.say(calls, condition, 0)]
        told = shown.told_apart(speaker, condition, problems, texts)
        if name == "clean":
            assert told is None
            told = shown.told_apart(speaker, CONDITIONS["gumbel"], problems, texts)
            assert told is not None
            assert told < 0.5
        else:
            assert told is not None
            assert told > 0.5  # chance is 0.25


def test_divergence_grows_with_kappa(calculator: Loaded) -> None:
    calls = [Call(p, 0, 0, spoken(p, 0)) for p in arithmetic(3)]
    found = shown.divergences(_speaker(calculator), calls, (0.2, 0.8))
    assert [len(values) for values in found.values()] == [3, 3]
    assert all(0 < low < high for low, high in zip(*found.values(), strict=True))


# ---------------------------------------------------------------- the experiment


def test_differences_are_paired_by_problems() -> None:
    solved = Solved()
    solved.right = {
        (CLEAN, "Single"): [[1, 0, 1, 0], [1, 0, 1, 0]],
        ("gumbel", "Single"): [[1, 0, 1, 0], [1, 1, 1, 1]],
    }
    found = experiment.difference(solved, "Single", "gumbel", 0)
    assert found is not None
    assert found.mean == pytest.approx(0.25)
    assert (found.low, found.high, found.texts) == (0.0, 0.5, 4)


def test_the_experiment_from_the_command_line(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiment.answers, "PLAIN", {"turn_tokens": (1, 6), "prompt_tokens": 96})
    out = tmp_path / "out"
    usual = ["quality", "--data", str(data), "--out", str(out), "--problems", "2", "--seeds", "2"]
    usual += ["--text-seeds", "2"]
    assert command.main(usual) == 0
    table = (out / "quality.md").read_text(encoding="utf-8")
    assert table.count("not run") >= 8
    assert all(
        f"| Arithmetic | arithmetic model | {name} | gumbel" in table for name in ("Single", "Majority")
    )
    content = json.loads((out / "quality.json").read_text())
    assert content["configuration"]["problems"] == 2
    assert len(content["digest"]) == 64
    rows = read_rows(out / "quality.json")
    assert len(rows) == 2 * len(CONDITIONS) * 2  # strategies, conditions, problems
    for name in ("quality.svg", "quality.csv", "quality_texts.md", "quality_kl.svg"):
        assert (out / name).stat().st_size > 0
    texts = json.loads((out / "quality_texts.json").read_text())["table"]
    assert [row["condition"] for row in texts] == [*CONDITIONS, *CONDITIONS, *REPEATED]

    def generate(*_: Any) -> Any:
        raise AssertionError("written again")

    real = ModelAuthor.generate
    monkeypatch.setattr(shown, "divergences", lambda *_: {kappa: [0.1] for kappa in shown.KAPPAS})
    monkeypatch.setattr(ModelAuthor, "generate", generate)
    assert command.main(usual) == 0
    capsys.readouterr()
    assert command.main([*usual, "--top-p", "0.5"]) == 1
    assert "they differ in top_p; choose another --out, or --overwrite" in capsys.readouterr().err
    monkeypatch.setattr(ModelAuthor, "generate", real)
    assert (out / "quality.md").read_text(encoding="utf-8") == table


def test_with_a_model_everything_runs(data, tmp_path, monkeypatch):
    monkeypatch.setattr(shown, "divergences", lambda *_: {kappa: [0.1] for kappa in shown.KAPPAS})
    from iet.demo.conversation import MODEL

    usual = ["quality", "--data", str(data), "--out", str(tmp_path), "--problems", "1", "--seeds", "1"]
    usual += ["--text-seeds", "1", "--model-seeds", "1", "--turn-tokens", "1", "4"]
    assert command.main([*usual, "--prompt-tokens", "200", "--model", str(MODEL)]) == 0
    ran = {(row["task"], row["strategy"]) for row in read_rows(tmp_path / "quality.json")}
    assert ran == {(task, name) for task in ("Arithmetic", "GSM8K") for name in STRATEGIES}
    assert "not run |" not in (tmp_path / "quality.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seed", "-1"], "seed: got -1"),
        (["--seeds", "0"], "seeds: got 0"),
        (["--temperature", "0"], "temperature: got 0.0"),
        (["--top-p", "1.5"], "top_p: got 1.5"),
        (["--turn-tokens", "5", "2"], "turn_tokens: got 5 and 2"),
        (["--problems", "4"], "count: got 4, expected 1 to 3"),
    ],
)
def test_what_cannot_be_run_is_refused(data, tmp_path, capsys, more, message):
    assert command.main(["quality", "--data", str(data), "--out", str(tmp_path), *more]) == 1
    assert message in capsys.readouterr().err


def test_the_figure_of_differences(tmp_path: pathlib.Path) -> None:
    value = Interval(-0.01, -0.03, 0.01, 100)
    panels = {"Arithmetic": {"gumbel": [value, None], "fourier": [None, value]}}
    files = plots.differences(tmp_path / "d", [["Single", "Majority"]], panels)
    assert [path.suffix for path in files] == [".svg"]
    assert "Majority" in files[0].read_text()
    with pytest.raises(ShapeError, match="gumbel"):
        plots.differences(tmp_path / "d", [["Single"]], panels)
    with pytest.raises(ShapeError, match="cells"):
        plots.differences(tmp_path / "d", [], panels)
