"""SGLang under hostile requests: whatever one carries, its scheduler goes on and the others are served."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

import iet
from iet import agents
from iet.generation import sglang as adapter
from tests.support.hostile import MANY_KEYS, NAMES, is_short_and_printable, nested
from tests.support.sglang_engine import VOCAB, Engine, load_sglang, needs_sglang
from tests.support.teams import team

torch = pytest.importorskip("torch")
pytestmark = needs_sglang


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    return load_sglang(monkeypatch)


@pytest.fixture(params=["fourier", "gumbel"])
def registry(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[iet.Registry]:
    path, caches = tmp_path / "team.json", (adapter._registry, adapter._samples_with_flashinfer)
    monkeypatch.setenv("IET_REGISTRY", str(path))
    for cache in caches:
        cache.cache_clear()
    names = ["planner", "critic"]
    yield team(names, path, numbered=1, vocab_size=VOCAB, unmarked_ids=[0, 1], family=request.param)
    for cache in caches:
        cache.cache_clear()


def body(params: Any) -> dict[str, Any]:
    return {"custom_logit_processor": agents.SGLANG_PROCESSOR, "custom_params": params}


REFUSED: dict[str, Any] = {
    **{f"agent: {name}": {"iet_agent": value} for name, value in NAMES.items()},
    "nothing": {},
    "100,000 keys": MANY_KEYS,
    "a key that is no string": {0: "planner"},
}


def served_beside(sglang: types.SimpleNamespace, params: Any, **sampling: Any) -> tuple[Any, Any]:
    engine = Engine(sglang)
    hostile = engine.add([7, 8, 9], body(params), **sampling)
    other = engine.add([7, 8, 9], agents.body("critic", engine="sglang"), length=5)
    engine.run(6)
    return hostile, other


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_arguments_end_their_request_alone(
    sglang: types.SimpleNamespace, registry: iet.Registry, name: str
) -> None:
    hostile, other = served_beside(sglang, REFUSED[name])
    assert hostile.finished_reason.status_code == 400
    assert is_short_and_printable(hostile.finished_reason.message)
    assert other.finished_reason == "length"


@pytest.mark.parametrize(
    "value",
    [None, 0, "x", {"output": []}, nested(100_000), MANY_KEYS],
    ids=lambda value: type(value).__name__,
)
def test_a_client_that_names_what_the_processor_keeps_there(
    sglang: types.SimpleNamespace, registry: iet.Registry, value: Any
) -> None:
    spoofed = {"iet_agent": "planner", adapter._CONTEXTS: value, "__req__": value}
    hostile, other = served_beside(sglang, spoofed, length=4)
    assert (hostile.finished_reason, other.finished_reason) == ("length", "length")  # it is marked as ever


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
def test_sampling_that_no_sampler_knows(
    sglang: types.SimpleNamespace, registry: iet.Registry, name: str, value: Any
) -> None:
    """Such values do not get past SGLang's own checks; if they did, the others would be served."""
    if registry.profile.scheme.family == "fourier" and name != "temperature":
        pytest.skip("fourier reads the temperature alone")
    engine = Engine(sglang)
    hostile = engine.add([7, 8, 9], body({"iet_agent": "planner"}))
    setattr(hostile.sampling_params, name, value)
    other = engine.add([7, 8, 9], agents.body("critic", engine="sglang"))
    logits = engine.model[[9, 9]].clone()
    for request in (hostile, other):
        request.kv.kv_committed_len = 3
    before = logits.clone()
    engine.process(logits, [hostile, other])
    assert hostile.to_finish is not None
    assert hostile.to_finish.status_code in (400, 500)
    assert other.to_finish is None
    assert torch.equal(logits[0], before[0])
    assert not torch.equal(logits[1], before[1])


@pytest.mark.parametrize("seed", ["7", 1.5, nested(100_000)], ids=lambda value: type(value).__name__)
def test_a_seed_that_is_no_integer(sglang: types.SimpleNamespace, registry: iet.Registry, seed: Any) -> None:
    hostile, other = served_beside(sglang, {"iet_agent": "planner"}, sampling_seed=seed)
    assert hostile.finished_reason.status_code in (400, 500)
    assert is_short_and_printable(hostile.finished_reason.message)
    assert other.finished_reason == "length"


@pytest.mark.parametrize("params", [["iet_agent"], "planner", 7], ids=lambda value: type(value).__name__)
def test_arguments_that_are_no_dict(
    sglang: types.SimpleNamespace, registry: iet.Registry, params: Any
) -> None:
    with pytest.warns(UserWarning, match="no custom_params"):
        _, other = served_beside(sglang, params)
    assert other.finished_reason == "length"


def test_a_request_that_is_gone(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    engine = Engine(sglang)
    gone = engine.add([7, 8, 9], body({"iet_agent": "planner"}))
    arguments = gone.sampling_params.custom_params
    engine.requests.clear()
    del gone
    logits = engine.model[[9]].clone()
    iet.generation.sglang.IETLogitsProcessor()(logits, [arguments])
    assert torch.equal(logits, engine.model[[9]])
