"""SGLang under invalid requests: the scheduler continues and other requests are served."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

import iet
from iet import agents
from iet.generation import sglang as adapter
from tests.support.hostile import MANY_KEYS, NAMES, SESSIONS, is_short_and_printable, nested
from tests.support.sglang_engine import Engine, load_sglang, needs_sglang, served_registry

torch = pytest.importorskip("torch")
pytestmark = needs_sglang


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    return load_sglang(monkeypatch)


@pytest.fixture(params=["fourier", "gumbel"])
def registry(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[iet.Registry]:
    with served_registry(tmp_path, monkeypatch, ["planner", "critic"], family=request.param) as made:
        yield made


def body(params: Any) -> dict[str, Any]:
    return {"custom_logit_processor": agents.SGLANG_PROCESSOR, "custom_params": params}


REFUSED: dict[str, Any] = {
    **{f"agent: {name}": {"iet_agent": value} for name, value in NAMES.items()},
    **{f"session: {name}": {"iet_agent": "planner", "iet_session": id} for name, id in SESSIONS.items()},
    "nothing": {},
    "100,000 keys": MANY_KEYS,
    "a key that is no string": {0: "planner"},
}


def served_beside(sglang: types.SimpleNamespace, params: Any, **sampling: Any) -> tuple[Any, Any]:
    engine = Engine(sglang)
    hostile = engine.add([7, 8, 9], body(params), **sampling)
    served = engine.add([7, 8, 9], agents.body("critic", engine="sglang"), length=5)
    engine.run(6)
    return hostile, served


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_arguments_end_only_their_request(
    sglang: types.SimpleNamespace, registry: iet.Registry, name: str
) -> None:
    hostile, served = served_beside(sglang, REFUSED[name])
    assert hostile.finished_reason.status_code == 400
    assert is_short_and_printable(hostile.finished_reason.message)
    assert served.finished_reason == "length"


@pytest.mark.parametrize(
    "value",
    [None, 0, "x", {"output": []}, nested(100_000), MANY_KEYS],
    ids=lambda value: type(value).__name__,
)
def test_client_cannot_spoof_internal_fields(
    sglang: types.SimpleNamespace, registry: iet.Registry, value: Any
) -> None:
    spoofed = {"iet_agent": "planner", adapter._CONTEXTS: value, "__req__": value}
    spoofed |= {"iet_session": "run-7", adapter._SESSION_ROW: value}
    hostile, served = served_beside(sglang, spoofed, length=4)
    assert (hostile.finished_reason, served.finished_reason) == ("length", "length")  # it is marked as ever


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("top_k", 10**400),
        ("top_k", None),
        ("top_p", float("nan")),
        ("top_p", [1]),
        ("min_p", "0.1"),
    ],
)
def test_invalid_sampling_parameters_end_only_their_request(
    sglang: types.SimpleNamespace, registry: iet.Registry, name: str, value: Any
) -> None:
    """SGLang's own checks reject such values; without those checks other requests are still served."""
    if registry.profile.scheme.family == "fourier" and name != "temperature":
        pytest.skip("fourier reads the temperature alone")
    engine = Engine(sglang)
    hostile = engine.add([7, 8, 9], body({"iet_agent": "planner"}))
    setattr(hostile.sampling_params, name, value)
    served = engine.add([7, 8, 9], agents.body("critic", engine="sglang"))
    logits = engine.model[[9, 9]].clone()
    for request in (hostile, served):
        request.kv.kv_committed_len = 3
    original = logits.clone()
    engine.process(logits, [hostile, served])
    assert hostile.to_finish is not None
    assert hostile.to_finish.status_code in (400, 500)
    assert served.to_finish is None
    assert torch.equal(logits[0], original[0])
    assert not torch.equal(logits[1], original[1])


@pytest.mark.parametrize("seed", ["7", 1.5, nested(100_000)], ids=lambda value: type(value).__name__)
def test_rejects_seed_that_is_not_an_integer(
    sglang: types.SimpleNamespace, registry: iet.Registry, seed: Any
) -> None:
    hostile, served = served_beside(sglang, {"iet_agent": "planner"}, sampling_seed=seed)
    assert hostile.finished_reason.status_code in (400, 500)
    assert is_short_and_printable(hostile.finished_reason.message)
    assert served.finished_reason == "length"


@pytest.mark.parametrize("params", [["iet_agent"], "planner", 7], ids=lambda value: type(value).__name__)
def test_arguments_that_are_not_a_dict_warn(
    sglang: types.SimpleNamespace, registry: iet.Registry, params: Any
) -> None:
    with pytest.warns(UserWarning, match="no custom_params"):
        _, served = served_beside(sglang, params)
    assert served.finished_reason == "length"


@pytest.mark.parametrize(
    "params",
    [
        {"iet_agent": "planner", "agent": "critic", "iet_Agent": "critic", "IET_AGENT": 7},
        {"iet_agent": "planner", "custom_params": {"iet_agent": "critic"}, "session": nested(100_000)},
        {**MANY_KEYS, "iet_agent": "planner"},
        {"iet_agent": "planner", "x" * 10_000_000: "y" * 10_000_000, "\0": "\ud800"},
    ],
    ids=["another spelling", "one in another", "100,000 keys", "10 MB keys"],
)
def test_only_iet_agent_selects_the_agent(
    sglang: types.SimpleNamespace, registry: iet.Registry, params: dict[Any, Any]
) -> None:
    hostile, served = served_beside(sglang, params, length=4)
    assert (hostile.finished_reason, served.finished_reason) == ("length", "length")
    engine = Engine(sglang)
    honest = engine.add([7, 8, 9], agents.body("planner", engine="sglang"), length=4)
    engine.add([7, 8, 9], agents.body("critic", engine="sglang"), length=5)
    engine.run(6)
    assert list(hostile.output_ids) == list(honest.output_ids)


@pytest.mark.parametrize(
    "rid", ["\ud800", "\0", "x" * 10_000_000, b"r0", None, 10**4000, nested(100_000)], ids=range(7)
)
def test_any_request_id_leaves_other_requests_served(
    sglang: types.SimpleNamespace, registry: iet.Registry, rid: Any
) -> None:
    hostile, served = served_beside(sglang, {"iet_agent": "planner"}, length=4, rid=rid)
    assert served.finished_reason == "length"
    ended = hostile.finished_reason
    assert ended == "length" or is_short_and_printable(ended.message)


@pytest.mark.parametrize("prompt", [[], [2], [0, 0, 0], [2**63 - 1] * 5, [-1, -1, -1], [-(2**63)] * 4])
def test_invalid_token_ids_leave_other_requests_marked(
    sglang: types.SimpleNamespace, registry: iet.Registry, prompt: list[int]
) -> None:
    engine = Engine(sglang)
    hostile = engine.add(prompt, body({"iet_agent": "planner"}))
    served = engine.add([7, 8, 9], agents.body("critic", engine="sglang"))
    hostile.kv.kv_committed_len, served.kv.kv_committed_len = len(prompt), 3
    logits = engine.model[[9, 9]].clone()
    original = logits.clone()
    engine.process(logits, [hostile, served])
    assert served.to_finish is None
    assert not torch.equal(logits[1], original[1])
    assert hostile.to_finish is None or is_short_and_printable(hostile.to_finish.message)


def test_aborted_requests_do_not_change_other_texts(
    sglang: types.SimpleNamespace, registry: iet.Registry
) -> None:
    """Requests end between any two steps, as if a client disconnected."""
    engine = Engine(sglang)
    staying = [engine.add([7, 8, 9], agents.body("critic", engine="sglang"), length=30) for _ in range(3)]
    for step in range(30):
        leaving = [engine.add([7, 8, 9], body({"iet_agent": "planner"})) for _ in range(3)]
        engine.step()
        engine.requests.remove(leaving[0])
        leaving[1].finished_reason = leaving[2].to_finish = sglang.abort("gone")
        del leaving
        assert all(request.to_finish is None for request in staying), step
    assert [request.finished_reason for request in staying] == ["length"] * 3
    reports = [iet.Auditor(registry).audit(token_ids=list(request.output_ids)) for request in staying]
    if registry.profile.scheme.family == "gumbel":  # which needs few tokens
        assert {report.found for report in reports} == {("critic",)}


def test_freed_request_is_left_unmarked(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    engine = Engine(sglang)
    gone = engine.add([7, 8, 9], body({"iet_agent": "planner"}))
    arguments = gone.sampling_params.custom_params
    engine.requests.clear()
    del gone
    logits = engine.model[[9]].clone()
    iet.generation.sglang.IETLogitsProcessor()(logits, [arguments])
    assert torch.equal(logits, engine.model[[9]])
