"""Sessions during generation: reserved rows of keys, transformers and llama.cpp."""

from __future__ import annotations

import functools
import gc
import json
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError
from iet.generation.llama_cpp import LogitsProcessor
from iet.generation.sessions import SessionRows
from iet.marks.registry import Registry
from tests.support import generation, teams
from tests.support.generation import PAD, PROMPT, V

torch = pytest.importorskip("torch")
generate = functools.partial(generation.generate, do_sample=True, max_new_tokens=6)


NAMES = ("planner", "critic", "writer", "coder", "editor", "tester")
NO_FREE = iet.FreeTokens(0, 0.0)


def team(path: Any = None, **scheme: Any) -> Registry:
    registry = teams.team([], path, vocab_size=V, unmarked_ids=[PAD], **scheme)
    for number, name in enumerate(NAMES, 1):
        registry.add(name, secret=bytes([number]) * 32)
    return registry


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("scheme", [{}, {"k_p": "per-agent"}, {"family": "gumbel"}], ids=str)
def test_session_rows_equal_the_sessions_keys(scheme: dict[str, Any]) -> None:
    registry = team(**scheme)
    own_keys = registry.marking_keys()
    rows = SessionRows(registry, own_keys)
    reserved = [rows.take(row, f"run-{i}") for i in range(40) for row in range(len(own_keys))]
    assert len(rows.keys) == len(own_keys) + 256  # 64, twice grown: rows keep their numbers
    for session_row in reserved:
        expected = registry.session(session_row.session).marking_keys()
        assert np.array_equal(rows.keys.subkeys[session_row.row], expected.subkeys[session_row.own])
        assert rows.keys.k_p[session_row.row] == expected.k_p[session_row.own]
    assert np.array_equal(rows.keys.subkeys[: len(own_keys)], own_keys.subkeys)
    assert len({session_row.row for session_row in reserved}) == len(reserved)


@pytest.mark.parametrize("scheme", [{}, {"k_p": "per-agent"}, {"family": "gumbel"}], ids=str)
def test_rotation_does_not_change_reserved_rows(scheme: dict[str, Any]) -> None:
    registry = team(**scheme)
    own_keys, expected = registry.marking_keys(), registry.session("run").marking_keys()
    rows = SessionRows(registry, own_keys)
    for number, name in enumerate(NAMES, 7):
        registry.rotate(name, secret=bytes([number]) * 32)
    for row in range(len(own_keys)):
        reserved = rows.take(row, "run")
        assert np.array_equal(rows.keys.subkeys[reserved.row], expected.subkeys[row])
        assert rows.keys.k_p[reserved.row] == expected.k_p[row]
    assert not np.array_equal(registry.session("run").marking_keys().subkeys, expected.subkeys)


def test_freed_rows_are_reused() -> None:
    registry = team()
    rows = SessionRows(registry, registry.marking_keys(), 2)
    first, second = rows.take(0, "run-1"), rows.take(1, "run-2")
    assert rows.is_reserved(first, 0, "run-1")
    assert not rows.is_reserved(first, 1, "run-1")
    assert not rows.is_reserved(first, 0, "run-2")
    assert not rows.is_reserved(type(first)(first.row, 0, "run-1"), 0, "run-1")
    row = first.row
    del first
    gc.collect()
    third = rows.take(2, "run-3")
    assert (third.row, len(rows.keys)) == (row, len(rows.own) + 2)
    assert not rows.is_reserved(second, 2, "run-3")
    logits = np.zeros((1, V), np.float32)
    iet.embed_(logits, [[5]], [third.row], rows.keys)
    expected = np.zeros((1, V), np.float32)
    iet.embed_(expected, [[5]], [2], registry.session("run-3"))
    assert np.array_equal(logits, expected)


def test_put_overwrites_a_row() -> None:
    registry = team()
    rows = SessionRows(registry, registry.marking_keys(), 3)
    for session in ("run-1", "run-2"):
        row = rows.put(2, 1, session)
        result, expected = np.zeros((2, 1, V), np.float32)
        iet.embed_(result, [[5]], [row], rows.keys)
        iet.embed_(expected, [[5]], [1], registry.session(session))
        assert np.array_equal(result, expected)
    with pytest.raises(InputError, match="no registry to derive its keys from"):
        SessionRows(None, registry.marking_keys()).take(0, "run-1")


# ---------------------------------------------------------------- transformers


@pytest.mark.parametrize("scheme", [{}, {"family": "gumbel"}], ids=str)
def test_config_marks_in_its_session(scheme: dict[str, Any], tmp_path: pathlib.Path) -> None:
    registry = team(tmp_path / "team.json", **scheme)
    marking = iet.WatermarkingConfig(registry, ["planner", "critic"], free=NO_FREE, session="run-7")
    same = iet.WatermarkingConfig(registry.session("run-7"), ["planner", "critic"], free=NO_FREE)
    assert marking.to_dict() == same.to_dict()
    loaded = iet.WatermarkingConfig.from_dict(marking.to_dict())
    own_keys = iet.WatermarkingConfig(registry, ["planner", "critic"], free=NO_FREE)
    texts = [generate(config, seed=1).scores[0] for config in (marking, same, loaded, own_keys)]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0], texts[3])
    assert (loaded.session, marking.to_dict()["session"]) == ("run-7", "run-7")
    nested = iet.WatermarkingConfig(registry.session("run-7"), "planner", session="step-1")
    with pytest.raises(InputError, match="a session's session"):
        nested.to_dict()
    for wrong in (7, "", "a\n"):
        with pytest.raises(InputError, match="session: got"):
            iet.WatermarkingConfig(registry, "planner", session=wrong)  # type: ignore[arg-type]


def test_processor_and_its_copies_mark_in_its_session(tmp_path: pathlib.Path) -> None:
    registry = team(tmp_path / "team.json")
    processor = iet.LogitsProcessor(registry, "planner", 1.0, session="run-7")
    same = iet.LogitsProcessor(registry.session("run-7"), "planner", 1.0)
    texts = [
        generate(logits_processor=[variant], do_sample=False).scores[0]
        for variant in (processor, same, pickle.loads(pickle.dumps(processor)))
    ]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    with pytest.raises(InputError, match="session: got int"):
        iet.LogitsProcessor(registry, "planner", 1.0, session=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", [{}, {"k_p": "per-agent"}, {"family": "gumbel"}], ids=str)
@pytest.mark.parametrize("repeats", [1, 3])
def test_rows_have_their_own_sessions(scheme: dict[str, Any], repeats: int) -> None:
    registry = team(**scheme)
    names, sessions = ["planner", "critic", None, "planner", "planner"], ["a", "b", "c", None, "a"]
    scores = torch.from_numpy(np.random.default_rng(1).normal(size=(5 * repeats, V)).astype(np.float32))
    ids = torch.arange(1, 6).repeat_interleave(repeats)[:, None] + torch.arange(8)

    def marked(session: Any) -> Any:
        config = iet.WatermarkingConfig(registry, names, free=NO_FREE, session=session)
        return config.construct_processor(V, "cpu")(ids, scores).reshape(5, repeats, V)

    result, own_keys = marked(sessions), marked(None)
    for row, session in enumerate(sessions):
        assert torch.equal(result[row], marked(session)[row])
        assert torch.equal(result[row], own_keys[row]) == (session is None or names[row] is None)


def test_audit_names_the_sessions_of_a_batch() -> None:
    registry = team(family="gumbel", n_gram=2)
    sessions = ["run-1", "run-2"]
    marking = iet.WatermarkingConfig(registry, "critic", session=sessions, seed=5)  # with free tokens
    rows = generate(marking, PROMPT, max_new_tokens=120, num_return_sequences=2).sequences[:, 4:].numpy()
    assert len(np.unique(rows, axis=0)) == 4
    auditor = iet.Auditor(registry, level=1e-4, sessions=["run-0", *sessions])
    for ids, session in zip(rows, ["run-1"] * 2 + ["run-2"] * 2, strict=True):
        report = auditor.audit(token_ids=ids)
        assert report.sessions is not None
        assert [
            (session_report.agent, session_report.session) for session_report in report.sessions.found
        ] == [("critic", session)]


def test_saved_and_copied_sessions_of_rows(tmp_path: pathlib.Path) -> None:
    registry = team(tmp_path / "team.json")
    sessions = ("run-7", None)
    marking = iet.WatermarkingConfig(registry, ["planner", "critic"], free=NO_FREE, seed=5, session=sessions)
    loaded = iet.WatermarkingConfig.from_dict(json.loads(marking.to_json_string()))
    assert loaded == marking
    assert loaded.session == ["run-7", None]
    assert torch.equal(generate(marking).sequences, generate(loaded).sequences)
    processor = iet.LogitsProcessor(registry, ["planner", "critic"], 1.0, session=sessions)
    rows = [generate(logits_processor=[p]) for p in (processor, pickle.loads(pickle.dumps(processor)))]
    assert torch.equal(rows[0].sequences, rows[1].sequences)
    assert torch.equal(rows[0].sequences, generate(marking).sequences)


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (["a"], "1 sessions for 2 agents"),
        (["a", "b", "c"], "3 sessions for 2 agents"),
        ([], "session: got \\[\\], expected one id"),
        (b"ab", "session: got b'ab', expected one id"),
        (["a", ""], "1 to 200 characters"),
        (["a", 7], "session: got int"),
    ],
)
def test_rejects_invalid_sessions(session: Any, message: str) -> None:
    for make in (iet.WatermarkingConfig, functools.partial(iet.LogitsProcessor, temperature=1.0)):
        with pytest.raises(InputError, match=message):
            make(team(), ["planner", "critic"], session=session)


def test_rejects_rows_that_sessions_do_not_divide() -> None:
    marking = iet.WatermarkingConfig(team(), "planner", session=["a", "b"])
    with pytest.raises(InputError, match="2 agents for 3 rows"):
        generate(marking, [*PROMPT, PROMPT[0]])


# ---------------------------------------------------------------- llama.cpp


class Model:
    """The part of `llama_cpp.Llama` that the processor reads."""

    def n_vocab(self) -> int:
        return V


def test_llama_cpp_processor_marks_in_its_session() -> None:
    registry = team()
    scores = np.random.default_rng(1).normal(size=V).astype(np.float32)
    options: dict[str, Any] = {"model": Model(), "seed": 5}
    ids = np.array([4, 5], np.intc)
    result = LogitsProcessor(registry, "critic", 0.8, session="run-7", **options)(ids, scores.copy())
    same = LogitsProcessor(registry.session("run-7"), "critic", 0.8, **options)(ids, scores.copy())
    own_keys = LogitsProcessor(registry, "critic", 0.8, **options)(ids, scores.copy())
    assert np.array_equal(result, same)
    assert not np.array_equal(result, own_keys)
    with pytest.raises(InputError, match="1 to 200 characters"):
        LogitsProcessor(registry, "critic", 0.8, session="", **options)
