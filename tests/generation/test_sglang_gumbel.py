"""Family gumbel in SGLang: which token is left of a row, when SGLang is left alone, what is refused."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet import agents
from iet.generation import sglang as adapter
from iet.generation.free import request_key
from iet.native import reference
from iet.native.filters import FILTER
from tests.support.generation import chosen_token
from tests.support.sglang_engine import (
    COLUMNS,
    Engine,
    Request,
    load_sglang,
    needs_sglang,
    served_registry,
)

torch = pytest.importorskip("torch")
pytestmark = needs_sglang
NAMES = ["planner", "critic", "engineer"]


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    return load_sglang(monkeypatch)


@pytest.fixture(params=[2, 4])
def registry(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[iet.Registry]:
    with served_registry(tmp_path, monkeypatch, NAMES, n_gram=request.param, family="gumbel") as made:
        yield made


def named(agent: str) -> dict[str, Any]:
    return agents.body(agent, engine="sglang")


def test_the_oracles_token_is_forced(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    """Requests come and go, rows are reordered: each step equals embed_ on what the model was shown."""
    engine, words = Engine(sglang), registry.profile.scheme.n_gram - 1
    filters = [{}, {"top_k": 12}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 9, "top_p": 0.8, "min_p": 0.01}]
    agent_of: dict[int, str] = {}
    for number in range(10):
        agent, temperature = NAMES[number % 3], (0.6, 1.0, 1.4)[number % 3]
        filter_: dict[str, Any] = filters[number % 5]
        agent_of[id(engine.add([7, 8, 9, 7], named(agent), temperature, length=60, **filter_))] = agent
    engine.add([7, 8, 9], {}, length=60)
    engine.run(60)
    chosen = 0
    shown_of = {id(request): list(request.origin_input_ids) for request in engine.requests}
    for running, unmarked, marked_logits in engine.steps:
        for row, request in enumerate(running):
            ids = shown_of[id(request)]
            agent = agent_of.get(id(request))
            contexts = [tuple(ids[at : at + words]) for at in range(len(ids) - words + 1)]
            count = contexts[:-1].count(contexts[-1])
            if agent is None or min(contexts[-1]) < 2:
                assert torch.equal(marked_logits[row], unmarked[row])
            else:
                token = token_of(engine, registry, agent, request, unmarked[row], contexts[-1], [count])
                assert chosen_token(marked_logits[row]) == token
                changed = (marked_logits[row] != unmarked[row]).nonzero()[:, 0].tolist()
                assert changed == [token]
                chosen += 1
            ids.append(request.truth[len(ids)])
    assert chosen > 200
    assert all(request.to_finish is None for request in engine.requests)


def token_of(
    engine: Engine,
    registry: iet.Registry,
    agent: str,
    request: Request,
    logits: torch.Tensor,
    context: tuple[int, ...],
    counts: list[int] | None = None,
) -> int:
    """The token, from the weights of SGLang's own sampler."""
    final = (logits / request.sampling_params.temperature).masked_fill(
        engine.shares(logits, request) == 0, -torch.inf
    )
    iet.embed_(final[None], [context], [registry.slot(agent)], registry, counts=counts)
    return int(final.argmax())


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"top_k": 1}, "top_k: got 1 (or temperature 0)"),
        ({"temperature": 0.009}, "temperature: got 0.009, expected at least 0.1"),
        ({"top_p": 1e-5}, "top_p: got 1e-05, expected at least 0.1"),
        ({"min_p": 0.999}, "min_p: got 0.999, expected at most 0.9"),
        ({"return_logprob": True}, "logprobs: got"),
    ],
)
def test_unmarkable_requests_end_alone(
    sglang: types.SimpleNamespace, registry: iet.Registry, sampling: dict[str, Any], message: str
) -> None:
    engine = Engine(sglang)
    refused = engine.add([7, 8, 9], named("planner"), **sampling)
    marked, plain = engine.add([7, 8, 9], named("critic")), engine.add([7, 8, 9], {}, **sampling)
    engine.run(2)
    assert refused.finished_reason.status_code == 400
    assert message in refused.finished_reason.message
    assert marked.to_finish is marked.finished_reason is plain.to_finish is plain.finished_reason is None


def test_replaced_output_list_is_read_again(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    engine = Engine(sglang)
    request = engine.add([7, 8, 9, 10], named("planner"), length=20)
    engine.run(5)
    request.output_ids = request.output_ids[:]  # as after a retraction
    engine.run(15)
    assert len(request.output_ids) == 20
    words = registry.profile.scheme.n_gram - 1
    for number, (_, unmarked, marked_logits) in enumerate(engine.steps):
        context = request.truth[4 + number - words : 4 + number]
        assert torch.equal(unmarked, marked_logits) is (min(context) < 2)


def test_flashinfer_top_p_after_top_k_with_min_p(
    sglang: types.SimpleNamespace, registry: iet.Registry
) -> None:
    logits = torch.log(torch.tensor([[0.3, 0.25, 0.2, 0.15, 0.1]]))
    filter_ = {"temperature": 1.0, "top_k": 3, "top_p": 0.7}

    def kept_of(backend: str, min_p: float) -> list[int]:
        adapter._samples_with_flashinfer.cache_clear()
        sglang.kernel.sampling_backend = backend
        params = types.SimpleNamespace(**filter_, min_p=min_p)
        record = np.array(adapter._filter_of(params), FILTER)
        return reference.are_kept(logits[0].numpy(), np.float32(1), record).nonzero()[0].tolist()

    assert kept_of("pytorch", 0.01) == kept_of("pytorch", 0.0) == kept_of("flashinfer", 0.0) == [0, 1, 2]
    # 0.3 and 0.25 of 0.75 are 0.73 of what top-k kept
    assert kept_of("flashinfer", 0.01) == [0, 1]
    assert logits.shape[1] < COLUMNS


def test_free_tokens_are_unmarked(
    sglang: types.SimpleNamespace, registry: iet.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IET_FREE_FIRST", "3")
    monkeypatch.setenv("IET_FREE_RATE", "0.2")
    adapter._of_environment.cache_clear()
    engine = Engine(sglang)
    requests = [engine.add([7, 8, 9], named("planner"), rid=f"r{i}", length=60) for i in range(6)]
    requests += [engine.add([7, 8, 9], named("critic"), length=60, sampling_seed=5) for _ in range(2)]
    engine.run(60)
    free = iet.FreeTokens(3, 0.2)
    patterns = set()
    for request in requests:
        seed = request.sampling_params.sampling_seed
        key = request_key(f"id {request.rid}" if seed is None else f"seed {seed}")
        patterns.add(tuple(free.are_free(np.full(60, key), np.arange(60)).tolist()))
    assert len(patterns) == 7  # one for each request without a seed, and one for both with the same
    steps = dict.fromkeys(map(id, requests), 0)
    for running, unmarked, marked_logits in engine.steps:
        for row, request in enumerate(running):
            step, seed = steps[id(request)], request.sampling_params.sampling_seed
            key = request_key(f"id {request.rid}" if seed is None else f"seed {seed}")
            if free.are_free(np.array([key]), np.array([step]))[0]:
                assert torch.equal(marked_logits[row], unmarked[row])
            steps[id(request)] += 1
    assert all(count > 50 for count in steps.values())
