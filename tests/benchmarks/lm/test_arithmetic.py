"""The language of the arithmetic model, its training, and what it can do."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from benchmarks.lm import arithmetic as language
from benchmarks.paper.quality.tasks import Problem, answer_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("matplotlib")

from benchmarks.lm import train_arithmetic, training  # noqa: E402 - after the skips
from benchmarks.paper.quality.experiment import ARITHMETIC_MODEL, SHORT, spoken  # noqa: E402
from benchmarks.writing.models import Loaded, load  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def calculator() -> Loaded:
    return load(ARITHMETIC_MODEL)


def _steps(text: str) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"(\d+)([*+-])(\d+)\)?(?:=| = |: | is )(\d+)", text)
    return [(int(x[::-1]), sign, int(y[::-1]), int(r[::-1])) for x, sign, y, r in found]


_SIGNS = {"*": int.__mul__, "+": int.__add__, "-": int.__sub__}


@pytest.mark.parametrize("any_order", [False, True])
def test_solutions_are_right_step_by_step(any_order: bool) -> None:
    rng = np.random.default_rng(0)
    for numbers in [*language.expressions(200, 5), (0, 0, 0, 0, 30, 30), (30, 30, 30, 30, 0, 0)]:
        text = language.solution(numbers, rng, any_order=any_order)
        steps = _steps(text)
        assert [sign for _, sign, _, _ in steps] == ["*", "*", "+", "+", "-"]
        assert all(_SIGNS[sign](x, y) == result for x, sign, y, result in steps)
        assert answer_of(text) == language.value(numbers)
        prompt = language.question(language.shown(numbers))
        assert len(prompt) <= SHORT["prompt_tokens"]
        assert len(text) < SHORT["turn_tokens"][1]
        assert prompt == spoken(Problem("", 0, "", Fraction(0), language.shown(numbers)), 0).plain


def test_solutions_differ_in_their_words_and_orders() -> None:
    rng = np.random.default_rng(0)
    numbers = (12, 5, 27, 8, 19, 3)
    texts = [language.solution(numbers, rng) for _ in range(64)]
    assert len(set(texts)) == 64
    assert {tuple(_steps(text)) for text in texts} == {
        ((5, "*", 27, 135), (19, "*", 3, 57), (12, "+", 135, 147), (147, "+", 8, 155), (155, "-", 57, 98))
    }
    texts = [language.solution(numbers, rng, any_order=True) for _ in range(64)]
    assert {tuple(_steps(text)[0]) for text in texts} == {(5, "*", 27, 135), (19, "*", 3, 57)}
    assert {_steps(text)[3][3] for text in texts} == {155}
    assert len({_steps(text)[2] for text in texts}) == 6


def test_drills_are_right_and_fit() -> None:
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(50):
        text = language.drill(rng, 100)
        assert 60 < len(text) <= 100
        for x, sign, y, result in _steps(text):
            kinds.add(sign)
            assert _SIGNS[sign](x, y) == result
    assert kinds == {"*", "+", "-"}


def test_training_rows_leave_out_what_is_measured() -> None:
    tokenizer = train_arithmetic.tokenizer_of_characters()
    seed = [0, 1]
    drawn = train_arithmetic.rows(tokenizer, 8, (), 0.5, seed)
    texts = tokenizer.decode_batch(drawn.tolist())
    asked = [re.match(r"Q: (.*)\n\nA:", text) for text in texts]
    assert [found is None for found in asked] == [True] * 4 + [False] * 4
    first = asked[4]
    assert first is not None
    a, bc, d, ef = re.split(r"[+-]", first[1])
    numbers = tuple(map(int, (a, *bc.split("*"), d, *ef.split("*"))))
    again = train_arithmetic.rows(tokenizer, 8, {numbers}, 0.5, seed)  # type: ignore[arg-type]
    assert f"Q: {first[1]}\n" not in "".join(tokenizer.decode_batch(again.tolist()))
    assert torch.equal(again[:4, :50], drawn[:4, :50])


def test_characters_come_back() -> None:
    tokenizer = train_arithmetic.tokenizer_of_characters()
    text = language.question("1+2*3+4-5*6") + " So 1 is 1.\nAnswer: -20"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


def test_a_training_that_goes_on_gives_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setattr(train_arithmetic, "MEASURED", (2, 42))
    monkeypatch.setattr(train_arithmetic, "HELD_OUT", (2, 43))
    monkeypatch.setattr(train_arithmetic, "POSITIONS", 48)  # an untrained model does not stop by itself
    real = training.learning_rate

    def trained(name: str, **stop: int) -> bytes:
        work, out = tmp_path / f"{name}-work", tmp_path / name
        more = ["--rows", "4", "--steps", "4", "--save-seconds", "0", "--warmup", "1"]

        def rate(step: int, *rest: Any) -> float:
            if step == stop.get("at"):
                raise KeyboardInterrupt
            return real(step, *rest)

        monkeypatch.setattr(training, "learning_rate", rate)
        monkeypatch.setattr("sys.argv", ["train", "--out", str(out), "--work", str(work), *more])
        train_arithmetic.main()
        return (out / "model.safetensors").read_bytes()

    whole = trained("whole")
    with pytest.raises(KeyboardInterrupt):
        trained("cut", at=2)
    assert trained("cut") == whole
    record = json.loads((tmp_path / "cut" / "training.json").read_text())
    assert record["measured"]["2 expressions of seed 42"]["greedy"] == 0.0
    assert record["tokens"] == json.loads((tmp_path / "whole" / "training.json").read_text())["tokens"]


def test_the_arithmetic_model_solves_expressions(calculator: Loaded) -> None:
    size = (ARITHMETIC_MODEL / "model.safetensors").stat().st_size
    assert size < 2e6
    tokenizer = train_arithmetic.tokenizer_of_characters()
    asked = language.expressions(24, 42)
    texts, entropy = train_arithmetic.answers(calculator.model, tokenizer, asked, seed=0)
    assert train_arithmetic.accuracy(texts, asked) >= 0.8
    assert entropy > 0.1  # there is something for a mark to live in
    record = json.loads((ARITHMETIC_MODEL / "training.json").read_text())
    assert record["measured"]["100 expressions of seed 42"]["sampled"] >= 0.8
