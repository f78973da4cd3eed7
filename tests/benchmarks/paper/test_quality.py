"""Cost of marking in quality: the tasks, the strategies, and the experiment."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.paper.quality import strategies
from benchmarks.paper.quality.strategies import AGENTS, STRATEGIES, Call, vote
from benchmarks.paper.quality.tasks import Problem, answer_of, arithmetic, gsm8k
from iet.errors import InputError

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("matplotlib")

from benchmarks.paper import __main__ as command
from benchmarks.paper.asking import Answers
from benchmarks.paper.conversations.author import ModelAuthor
from benchmarks.paper.quality import experiment
from benchmarks.paper.quality.experiment import ARITHMETIC_MODEL, CONDITIONS, SHORT, Options, Speaker, spoken
from benchmarks.recording import read_rows
from benchmarks.writing.models import load

pytestmark = pytest.mark.usefixtures("one_thread")

STORIES = [
    ("Ann has 3 pens and buys 4. How many has she?", "She has 3+4=<<3+4=7>>7.\n#### 7"),
    ("A farm sells 1,500 eggs at 2 dollars. How much is that?", "1500*2=3000.\n#### 3,000"),
    ("It is 5 degrees and gets 9 colder. How warm is it?", "5-9=-4\n#### -4"),
]


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in STORIES]
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder.parent


# ---------------------------------------------------------------- tasks


def test_hundred_expressions_have_the_papers_form() -> None:
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
    assert gsm8k(data / "gsm8k", 3) == problems
    two = gsm8k(data, 2)
    assert [p.number for p in two] == sorted(p.number for p in two)
    assert set(two) < set(problems)


def test_rejects_too_few_problems_and_a_missing_file(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
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
def test_answer_is_the_last_number(text: str, number: int | None) -> None:
    assert answer_of(text) == number


# ---------------------------------------------------------------- strategies


PROBLEMS = [
    Problem("GSM8K", 4, "How many are six and seven?", Fraction(13)),
    Problem("GSM8K", 9, "How many are two and two?", Fraction(4)),
]


class Script:
    """Agents with scripted lines, by problem, agent and number."""

    def __init__(self, lines: dict[tuple[int, int, int], str]) -> None:
        self.lines = lines
        self.calls: list[Call] = []

    def __call__(self, calls: Sequence[Call]) -> list[str]:
        self.calls += calls
        return [self.lines[c.problem.number, c.agent, c.number] for c in calls]


def _script(first: str, second: str) -> Script:
    """Answers of the three agents to the first problem in two rounds; none to the second problem."""
    lines = {(9, agent, number): "I do not know." for agent in range(4) for number in range(2)}
    for number, answers in enumerate((first, second)):
        for agent, answer in enumerate(answers.split()):
            lines[4, agent, number] = f"words {agent}{number}\nAnswer: {answer}"
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
    ],
)
def test_every_strategy_answers(name: str, first: str, second: str, answer: int) -> None:
    script = _script(first, second)
    answers = script(strategies.first_calls(PROBLEMS))
    first_answers = [answers[:AGENTS], answers[AGENTS:]]
    assert STRATEGIES[name](PROBLEMS, first_answers, script) == [answer, None]


def test_prompts_contain_the_inputs_of_each_call() -> None:
    script = _script("1 2 3", "4 5 6")
    answers = script(strategies.first_calls(PROBLEMS))
    first_answers = [answers[:AGENTS], answers[AGENTS:]]
    for call in script.calls:
        assert call.problem.text in json.dumps(call.prompt.messages)
        assert "words" not in json.dumps(call.prompt.messages)
    heard = {}
    for name in ("Reflection", "Debate"):
        script.calls.clear()
        STRATEGIES[name](PROBLEMS, first_answers, script)
        heard[name] = {
            (call.agent, call.number): set(re.findall(r"words \d\d", json.dumps(call.prompt.messages)))
            for call in script.calls
            if call.problem.number == 4
        }
    assert heard["Reflection"] == {(0, 1): {"words 00"}}
    assert heard["Debate"] == {(agent, 1): {"words 00", "words 10", "words 20"} for agent in range(AGENTS)}


def test_votes_compare_numbers_by_value() -> None:
    assert vote([Fraction("18.0"), Fraction(3), Fraction(18)]) == 18
    assert vote([None, None]) is None
    assert vote([]) is None


# ---------------------------------------------------------------- the experiment


def test_texts_are_determined_by_seed_and_key_and_cached(tmp_path: pathlib.Path, monkeypatch) -> None:
    calculator, answers = load(ARITHMETIC_MODEL), Answers(tmp_path / "answers.jsonl")
    calls = [Call(p, agent, 0, spoken(p, agent)) for p in arithmetic(2) for agent in range(AGENTS)]
    speaker = Speaker(calculator, Options(**SHORT), answers)
    texts = {(name, number): speaker.say(calls, name, number) for name in CONDITIONS for number in range(2)}
    assert len({tuple(run_texts) for run_texts in texts.values()}) == len(texts)
    for run_texts in texts.values():
        assert len(set(run_texts)) == len(run_texts)  # agents and problems differ, also under gumbel
    monkeypatch.setattr(ModelAuthor, "generate", None)
    second_speaker = Speaker(calculator, Options(seed=1, **SHORT), Answers(tmp_path / "answers.jsonl"))
    assert second_speaker.say(calls, "gumbel", 0) == texts["gumbel", 1]


def test_command_measures_the_arithmetic_model(data, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["quality", "--data", str(data), "--out", str(out), "--records", "3", "--seeds", "2"]
    assert command.main(arguments) == 0
    assert "GSM8K" not in (out / "quality.md").read_text(encoding="utf-8")
    rows = read_rows(out / "quality.json")
    assert len(rows) == len(experiment.WITHOUT_INSTRUCTIONS) * len(CONDITIONS) * 3
    clean = [row["right"] for row in rows if (row["strategy"], row["condition"]) == ("Single", "clean")]
    assert np.mean(clean) > 0.6
    assert (out / "quality.svg").stat().st_size > 1000
    assert command.main([*arguments, "--temperature", "0.5"]) == 1
    assert "differs in temperature" in capsys.readouterr().err
