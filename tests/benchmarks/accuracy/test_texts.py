"""The texts of the accuracy benchmark: how they are sampled, stored and formed, and the unmarked ones."""

from __future__ import annotations

import csv
import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pytest

import iet
from iet.audit.metrics import token_labels
from iet.demo.conversation import load_model
from iet.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.accuracy import texts, unmarked  # noqa: E402 - after the skips

pytestmark = pytest.mark.usefixtures("one_thread")

CELL = texts.Cell("shipped", 1.0, 4, "fourier")
FAMILIES = tuple(texts.SCHEMES)


@pytest.fixture(scope="module")
def shipped() -> Any:
    return load_model()[0]


# Texts


@pytest.mark.parametrize("agents", texts.AGENTS)
def test_agents_speak_once_a_round_and_not_twice_in_succession(agents: int) -> None:
    walks = {texts.speakers(agents, texts.TURNS, seed) for seed in range(50)}
    assert len(walks) > 40
    for walk in walks:
        assert all(a != b for a, b in itertools.pairwise(walk))
        for start in range(0, texts.TURNS, agents):
            assert sorted(walk[start : start + agents]) == list(range(agents))


def test_rejects_one_agent() -> None:
    with pytest.raises(InputError, match="agents: got 1"):
        texts.speakers(1, 12, 0)


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, shipped: Any) -> list[texts.Turns]:
    cell = texts.Cell("shipped", 1.0, 4, request.param)
    return texts.generate(shipped, cell, [11, 12], turn_tokens=70, turns=8)


def test_spurious_keys_do_not_change_other_keys(made: list[texts.Turns]) -> None:
    for turns in made:
        talk, registry = texts.form(turns, 70, spurious=4)
        assert registry.names() == tuple(texts.agent_name(slot) for slot in range(8))
        assert registry.names()[:4] == turns.registry().names()
        encoded = registry.open_tokenizer().encode(talk.text)
        spans = [(s.start, s.end, registry.slot(str(s.agent))) for s in talk.spans]
        truth = token_labels(spans, encoded.char_ends)
        scores = iet.score_tokens(encoded.token_ids, registry)
        for slot in range(4):
            assert int(np.argmax(scores[truth == slot].mean(axis=0))) == slot
        foreign = iet.score_tokens(encoded.token_ids, turns.strangers())
        level = registry.get_profile(None).family.mean(0)
        assert (abs(foreign.mean(axis=0) - level) < 0.25).all()
        assert turns.strangers(0).digest != turns.strangers(1).digest


def test_shorter_texts_are_prefixes(made: list[texts.Turns]) -> None:
    turns = made[0]
    long, short = turns.strings(70), turns.strings(25)
    assert all(a.startswith(b.rstrip("\ufffd ")) for a, b in zip(long, short, strict=True))
    assert all(len(a) > len(b) for a, b in zip(long, short, strict=True))
    talk = turns.conversation(25, joiner="\n\n")
    assert talk.text == "\n\n".join(short)
    assert [span.start for span in talk.spans] == [0, *(span.end for span in talk.spans[:-1])]
    assert talk.spans[-1].end == len(talk.text)
    assert [span.agent for span in talk.spans] == [texts.agent_name(slot) for slot in turns.speakers]
    assert [talk.text[s.start : s.end].removeprefix("\n\n") for s in talk.spans] == short


@pytest.mark.parametrize("length", [0, 71])
def test_rejects_lengths_that_were_not_generated(made: list[texts.Turns], length: int) -> None:
    with pytest.raises(InputError, match=f"turn_tokens: got {length}, expected 1 to 70"):
        texts.form(made[0], length)


def test_prompts_of_a_round_have_one_length() -> None:
    prompt_text = "The roof leaks. " * 100
    for model in texts.MODELS:
        for text, length in (
            ("", texts.OPENING_TOKENS),
            (prompt_text, texts.OPENING_TOKENS + texts.TAIL_TOKENS),
        ):
            lengths = {
                len(texts.prompt(model, text, seed, number)) for seed in range(20) for number in range(3)
            }
            assert lengths == {length}
    assert texts.prompt("shipped", "", 1, 0) != texts.prompt("shipped", "", 1, 1)


def test_generation_resumes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "SPLITS", {"tuning": 1, "evaluation": 3})
    monkeypatch.setattr(texts, "UNIT_TEXTS", 2)
    monkeypatch.setattr(texts, "TURN_TOKENS", (6, 12))
    monkeypatch.setattr(texts, "TURNS", 4)
    complete, broken = tmp_path / "whole", tmp_path / "broken"
    texts.run(complete, [CELL])
    real, calls = texts.save, itertools.count()

    def die(path: pathlib.Path, result: Any) -> None:
        if next(calls) == 1:
            path.with_suffix(".part").write_bytes(b"half of it")
            raise KeyboardInterrupt
        real(path, result)

    monkeypatch.setattr(texts, "save", die)
    with pytest.raises(KeyboardInterrupt):
        texts.run(broken, [CELL])
    assert len(texts.load(broken, CELL, "tuning")) == 1
    assert texts.load(broken, CELL) == []
    assert len(list(texts.missing(broken, [CELL]))) == 2
    modified = texts.path_of(broken, CELL, "tuning", range(1)).stat().st_mtime_ns
    texts.run(broken, [CELL])
    assert texts.path_of(broken, CELL, "tuning", range(1)).stat().st_mtime_ns == modified
    assert list(texts.missing(broken, [CELL])) == []
    for a, b in zip(texts.load(complete, CELL), texts.load(broken, CELL), strict=True):
        assert (a.cell, a.seed, a.speakers) == (b.cell, b.seed, b.speakers)
        for field in ("ids", "entropy", "marked_entropy", "unmarked"):
            assert np.array_equal(getattr(a, field), getattr(b, field))
    assert [text.seed for text in texts.load(complete, CELL)] == [
        texts.text_seed(CELL, "evaluation", index) for index in range(3)
    ]
    assert "1 tuning   3 evaluation  entropy_nats" in texts.status(complete, [CELL])


def test_rejects_incomplete_rounds(shipped: Any) -> None:
    with pytest.raises(InputError, match="turns: got 6, expected a multiple of the 4 agents"):
        texts.generate(shipped, CELL, [1], turn_tokens=5, turns=6)


# Unmarked text


WORDS = ("mill", "stands", "beside", "river", "where", "seven", "boats", "wait", "wind", "nobody", "days")


def prose(words: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(f"{WORDS[i]}{rng.integers(1000)}" for i in rng.integers(len(WORDS), size=words))


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "data"
    for folder in ("corpus/peps", "corpus/speeches/inaugural", "corpus/speeches/state_union"):
        (root / folder).mkdir(parents=True)
    for folder in ("corpus/tinyshakespeare", "gsm8k", "mama"):
        (root / folder).mkdir(parents=True)
    (root / "corpus/peps/pep-0001.rst").write_text(f"PEP: 1\nTitle: Mills\n\n{prose(9000, 1)}\n")
    (root / "corpus/speeches/inaugural/1789.txt").write_text(prose(900, 2))
    (root / "corpus/tinyshakespeare/input.txt").write_text(prose(900, 3))
    for name, seed in (("train", 4), ("test", 5)):
        record = {"question": prose(300, seed), "answer": prose(300, seed + 50) + "\n#### 7"}
        (root / f"gsm8k/{name}.jsonl").write_text(json.dumps(record) + "\n")
    solution = {"question": "?", "175b_verification": {"solution": prose(300, 6)}}
    (root / "corpus/example_model_solutions.jsonl").write_text(json.dumps(solution) + "\n")
    with open(root / "mama/llama3.1_num484_nopii.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["generated_texts"], [prose(300, 7)]])
    for folder, turn in (("Algorithm-Generated", {"name": "Expert"}), ("Hand-Crafted", {"role": "human"})):
        (root / "who_and_when" / folder).mkdir(parents=True)
        log = {"history": [{**turn, "content": prose(400, len(folder))}]}
        (root / "who_and_when" / folder / "1.json").write_text(json.dumps(log))
    return root


def test_every_source_has_texts_of_all_lengths(data: pathlib.Path) -> None:
    result = unmarked.texts(data)
    kinds = {text.kind for text in result}
    sources = ("peps", "gsm8k", "gsm8k test", "solutions", "speeches", "shakespeare", "tasks")
    assert kinds > {*sources, "who_and_when Algorithm-Generated", "who_and_when Hand-Crafted"}
    sizes = sorted(len(text.text) for text in result)
    assert sizes[0] >= unmarked.CHARACTERS[0] - 1
    assert sizes[-1] > 2 * sizes[0]
    assert unmarked.texts(data) == result
    assert unmarked.texts(data, seed=1) != result
    assert len({text.text for text in result}) == len(result)


def test_stretches_are_disjoint() -> None:
    stream = prose(60_000, 8)
    result = list(unmarked.stretches("book", stream))
    pieces = [text.text for text in result if text.kind == "pieces"]
    twice = [text.text for text in result if text.kind == "twice"]
    assert pieces
    assert twice
    for text in pieces:
        assert any(text[:size] == text[size : 2 * size] for size in range(10, len(text) // 2))
    for text in twice:
        half = len(text) // 2
        assert text[:half] == text[half + 1 :]
    end = 0
    for text in result:
        # Text that repeats itself takes the place of the stretch it begins like.
        beginning = text.text if text.kind == "book" else text.text[:15]
        end = stream.index(beginning, end) + len(beginning)
    assert sum(len(text.text) for text in result) > 0.95 * len(stream)


def test_models_are_sampled_without_a_mark_once(
    tmp_path: pathlib.Path, data: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unmarked.generate(tmp_path, ["shipped"], rows=16, tokens=24)
    assert capsys.readouterr().out.count("entropy") == 2
    result = unmarked.samples(tmp_path)
    assert {text.kind for text in result} == {"shipped T=0.2", "shipped T=0.5"}
    assert len(result) == 32
    unmarked.generate(tmp_path, ["shipped"], rows=16, tokens=24)
    assert capsys.readouterr().out == ""
    assert {*result} <= {*unmarked.texts(data, tmp_path)}
