"""The vLLM processor under both runners, row by row against lists that only the test keeps."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError
from iet.marks.registry import Registry
from iet.native import rows as rows_on_device
from tests.support import cuda_on_host
from tests.support.cuda_cases import QueuedOps
from tests.support.vllm_engine import (
    AGENTS,
    CPU,
    WIDTH,
    Batch,
    IETLogitsProcessor,
    Request,
    SamplingParams,
    Slots,
    V,
    config,
    draw_request,
    host_of,
    marked,
    torch,
    v1,
)

each_scheme = pytest.mark.parametrize(
    "scheme",
    [
        {"kappa": 2.0},
        {"n_gram": 4, "k_p": "per-agent"},
        {"placement": "raw"},
        {"family": "gumbel", "n_gram": 2},  # with repeated contexts
        {"family": "gumbel", "n_gram": 2, "free": (3, 0.2)},
        {"family": "gumbel"},
    ],
)


@pytest.fixture
def host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    return host_of(tmp_path, monkeypatch)


# ---------------------------------------------------------------- V1: vLLM's batch and its bookkeeping


@each_scheme
def test_v1_rows_equal_the_oracle_in_a_changing_batch(host: Any, scheme: dict[str, Any]) -> None:
    registry = host(**scheme)
    rng, engine = np.random.default_rng(1), Batch()
    running: dict[str, Request] = {}
    preempted: list[Request] = []
    moves, checked, number = 0, 0, 0
    for _ in range(120):
        for request in [r for r in running.values() if rng.random() < 0.12]:
            engine.batch.remove_request(running.pop(request.id).id)
            if rng.random() < 0.4:
                preempted.append(request)
        while len(running) < 6 and rng.random() < 0.7:
            if preempted and rng.random() < 0.5:
                request = preempted.pop()
            else:
                request, number = draw_request(rng, number, registry.profile.scheme.family), number + 1
            request.computed = int(rng.integers(1, len(request.history) + 1))  # a chunk of the prefill
            running[request.id] = request
            engine.add(request)
        engine.batch.condense()
        rows = len(running)
        if rows > 1 and rng.random() < 0.6:
            first, second = rng.choice(rows, 2, replace=False).tolist()
            engine.batch.swap_states(first, second)
        moves += len(engine.batch.batch_update_builder.moved)
        engine.batch.refresh_metadata()
        if not rows:
            continue
        logits = torch.from_numpy(rng.normal(0, 3, (rows, WIDTH)).astype(np.float32))
        logits[:, rng.integers(0, WIDTH, 4)] = -torch.inf
        result = engine.apply(logits.clone())
        for row, id in enumerate(engine.batch.req_ids):
            request = running[id]
            prefilling = request.computed < len(request.history)
            if not prefilling:  # of a chunk before the last one, nothing is sampled
                wanted = marked(logits[row], request.history, request, registry, penalised=False)
                np.testing.assert_array_equal(result[row].numpy().view(np.int32), wanted.view(np.int32))
                checked += bool((wanted != logits[row].numpy()).any())
                token = int(rng.integers(0, WIDTH))
                engine.sampled(row, token)
                request.output.append(token)
            request.computed = len(request.history)
    assert moves > 40
    assert checked > 100


def test_v1_asynchronous_placeholders(host: Any, logged: io.StringIO) -> None:
    registry = host(n_gram=3)
    rng = np.random.default_rng(2)
    for by_config in (True, False):  # from the command line; as an entry point
        engine = Batch(by_config=by_config)
        requests = [
            Request(
                f"r{i}",
                SamplingParams(extra_args={"iet_agent": "critic"} if i else None),
                "critic",
                [5, 6, 7],
            )
            for i in range(3)
        ]
        for request in requests:
            engine.add(request)
        engine.batch.condense()
        engine.batch.refresh_metadata()
        engine.apply(torch.zeros(3, WIDTH))
        # Asynchronous scheduling: the tokens are on their way to the host when the next step begins.
        tokens = rng.integers(2, V, (3, 1))
        for row in range(3):
            engine.sampled(row, -1)
            requests[row].output.append(int(tokens[row, 0]))
        engine.batch.prev_req_id_to_index = {request.id: row for row, request in enumerate(requests)}
        engine.batch.set_async_sampled_token_ids(
            torch.from_numpy(tokens), SimpleNamespace(synchronize=lambda: None)
        )
        engine.batch.refresh_metadata()
        engine.batch.update_async_output_token_ids()
        logits = torch.zeros(3, WIDTH)
        if by_config:
            result = engine.apply(logits.clone())
            assert torch.equal(result[0], logits[0])  # it names no agent
            for row in (1, 2):
                wanted = marked(logits[row], requests[row].history, requests[row], registry)
                np.testing.assert_array_equal(result[row].numpy(), wanted)
        else:
            result = engine.apply(logits)
            assert torch.isfinite(result).sum(dim=1).tolist() == [WIDTH, 1, 1]  # the marked ones are ended
            assert re.search(r"row 1.*#52461.*--logits-processors.*--no-async-scheduling", logged.getvalue())


def test_v1_updates_apply_removals_additions_moves_in_order(host: Any) -> None:
    """An update that no batch of today makes, but the interface allows: an addition over a removal."""
    registry = host()
    processor = IETLogitsProcessor(config(), CPU, False)
    requests = [
        Request(f"r{i}", SamplingParams(extra_args={"iet_agent": name}), name, [i + 2])
        for i, name in enumerate([*AGENTS, "critic"])
    ]
    a, b, c, d = requests
    added = [(row, r.params, r.prompt, r.output) for row, r in enumerate((a, b, c))]
    processor.update_state(v1.BatchUpdate(3, [], added, []))
    one_way, swap = v1.MoveDirectionality.UNIDIRECTIONAL, v1.MoveDirectionality.SWAP
    processor.update_state(
        v1.BatchUpdate(3, [0], [(0, d.params, d.prompt, d.output)], [(0, 1, swap), (2, 1, one_way)])
    )
    d.output.append(9)  # the list is live
    result = processor.apply(torch.zeros(3, WIDTH))
    zeros = torch.zeros(WIDTH)
    np.testing.assert_array_equal(result[0].numpy(), marked(zeros, b.history, b, registry))
    np.testing.assert_array_equal(result[1].numpy(), marked(zeros, c.history, c, registry))
    assert not result[2].any()
    processor.update_state(None)
    prompt_as_embeddings = (2, d.params, None, [])
    processor.update_state(v1.BatchUpdate(3, [0, 1], [prompt_as_embeddings], []))
    assert not processor.apply(torch.zeros(3, WIDTH)).any()


# ---------------------------------------------------------------- V2: slots, drafts, histories on the device


@pytest.fixture(params=["on the CPU", "by the kernels"])
def v2_processor(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Any], Any]]:
    """Make a V2 processor: for the CPU, or with the CUDA kernels run on the CPU."""
    if request.param == "on the CPU":
        yield lambda state: IETLogitsProcessor(config(), state)
        return
    with cuda_on_host.built() as module:
        monkeypatch.setattr(rows_on_device, "load_cuda", lambda: module)

        def made(state: Any) -> Any:
            processor = IETLogitsProcessor(config(), state)
            marker = processor._marker
            marker._rows.use_kernels()
            return processor

        yield made


@each_scheme
def test_v2_rows_equal_the_oracle_with_recycled_slots_and_drafts(
    host: Any, v2_processor: Any, scheme: dict[str, Any]
) -> None:
    registry = host(**scheme)
    rng, slots = np.random.default_rng(3), Slots(5)
    processor = v2_processor(slots.state)
    running: list[Request] = []
    preempted: list[Request] = []
    number, counts = 0, {"plain": 0, "drafts": 0, "unused": 0, "unmarked": 0}
    for step in range(150):
        for request in [r for r in running if rng.random() < 0.12]:
            running.remove(request)
            slots.remove(request)
            if rng.random() < 0.4:
                preempted.append(request)
        while slots.free and rng.random() < 0.7:
            if preempted and rng.random() < 0.5:
                request = preempted.pop()
            else:
                request, number = draw_request(rng, number, registry.profile.scheme.family), number + 1
            request.computed = int(rng.integers(1, len(request.history) + 1))
            assert slots.add(request, processor) == (request.agent is not None)
            running.append(request)
        processor.apply_staged_writes()
        scheduled = [running[i] for i in rng.permutation(len(running))[: int(rng.integers(1, 6))]]
        if not scheduled:
            continue
        rows: list[tuple[Request, list[int]]] = []
        for request in scheduled:
            max_drafts = 0 if step % 3 == 0 or request.computed < len(request.history) else 4
            drafts = rng.integers(0, WIDTH, int(rng.integers(0, max_drafts + 1))).tolist()
            if drafts and rng.random() < 0.2:  # placeholders of a first step, which are rejected
                drafts[int(rng.integers(len(drafts))) :] = [-1]
            rows.append((request, drafts))
        context = slots.context(rows, padding=int(rng.integers(0, 3)))
        count = len(context.expanded_idx_mapping)
        logits = torch.from_numpy(rng.normal(0, 3, (count, WIDTH)).astype(np.float32))
        logits[:, rng.integers(0, WIDTH, 4)] = -torch.inf
        result = processor.apply(logits.clone(), context)
        row = 0
        for request, drafts in rows:
            for num_drafts in range(len(drafts) + 1):
                history = request.history + drafts[:num_drafts]
                # Not sampled from: a chunk of a prompt, and rows after a placeholder draft.
                if request.computed < len(request.history) or -1 in drafts[:num_drafts]:
                    counts["unused"] += 1
                else:
                    wanted = marked(logits[row], history, request, registry)
                    np.testing.assert_array_equal(result[row].numpy().view(np.int32), wanted.view(np.int32))
                    changed = (wanted != logits[row].numpy()).any()
                    counts["unmarked" if not changed else "drafts" if num_drafts else "plain"] += 1
                row += 1
        assert torch.equal(result[row:], logits[row:])  # padding
        for request, drafts in rows:
            if request.computed == len(request.history):
                right = drafts.index(-1) if -1 in drafts else len(drafts)
                accepted = drafts[: int(rng.integers(0, right + 1))]
                slots.commit(request, [*accepted, int(rng.integers(0, WIDTH))])
            request.computed = len(request.history)
    assert min(counts.values()) > 30, counts


def test_v2_steps_without_an_agent_change_nothing(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = host()
    slots = Slots(2)
    processor = IETLogitsProcessor(config(), slots.state)
    unnamed = Request("r", SamplingParams(), None, [4, 5])
    assert slots.add(unnamed, processor) is False
    processor.apply_staged_writes()
    monkeypatch.setattr(rows_on_device.SequenceRows, "read", None)  # a launch would raise
    logits = torch.zeros(1, WIDTH)
    assert processor.apply(logits, slots.context([(unnamed, [])])) is logits
    monkeypatch.undo()
    monkeypatch.setenv("IET_REGISTRY", str(registry.path))
    monkeypatch.setenv("IET_DEFAULT_AGENT", "writer")
    processor = IETLogitsProcessor(config(), slots.state)
    by_default = dataclasses.replace(unnamed, id="s", agent="writer")
    assert slots.add(by_default, processor) is True
    processor.apply_staged_writes()
    result = processor.apply(logits.clone(), slots.context([(by_default, [])]))
    np.testing.assert_array_equal(result[0].numpy(), marked(logits[0], [4, 5], by_default, registry))


def test_v2_step_launches_two_kernels(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch queues nothing; a kernel's error is raised before a later step."""
    host(n_gram=3)
    slots = Slots(3)
    with cuda_on_host.built() as module:
        monkeypatch.setattr(rows_on_device, "load_cuda", lambda: module)
        processor = IETLogitsProcessor(config(), slots.state)
        marker = processor._marker
        marker._rows.use_kernels()
        request = Request("r", SamplingParams(extra_args={"iet_agent": "critic"}), "critic", [4, -1, 5])
        slots.add(request, processor)
        processor.apply_staged_writes()
        for drafts in ([], [7, 8]):
            logits, context = torch.zeros(1 + len(drafts), WIDTH), slots.context([(request, drafts)])
            num_drafts = cuda_on_host.launches(module)
            with QueuedOps() as queued:
                processor.apply(logits, context)
            assert queued.count == 0
            assert cuda_on_host.launches(module) == num_drafts + 2
            assert [bool(row.any()) for row in logits] == [False, True, True][: len(logits)]
            with pytest.raises(InputError, match=r"placeholder.*#52461.*row"):
                processor.apply_staged_writes()
            processor.apply_staged_writes()  # reported once


def test_v2_warm_up_under_a_required_agent(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host()
    monkeypatch.setenv("IET_REQUIRE_AGENT", "1")
    processor = IETLogitsProcessor(config(), Slots(2).state)
    assert processor.add_request(0, SamplingParams.for_sampler_warmup()) is False


# ---------------------------------------------------------------- the loop is closed: the text is audited


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_v2_runs_in_a_captured_graph(host: Any) -> None:
    if iet.backends().cuda_devices == 0:
        pytest.skip("no CUDA device")
    registry = host(n_gram=3)
    slots, device = Slots(4), torch.device("cuda")
    for name in ("all_token_ids", "total_len"):
        getattr(slots, name).gpu = getattr(slots, name).gpu.to(device)
    state = dataclasses.replace(slots.state, device=device)
    processor = IETLogitsProcessor(config(), state)
    requests = [
        Request(f"r{i}", SamplingParams(extra_args={"iet_agent": name}), name, [4 + i, 5, 6])
        for i, name in enumerate(AGENTS)
    ]
    for request in requests:
        slots.add(request, processor)
    processor.apply_staged_writes()
    rows = [(request, [7, 8]) for request in requests]
    on_host = slots.context(rows, padding=1)
    tensors = ("expanded_idx_mapping", "idx_mapping", "expanded_local_pos", "input_ids")
    context = dataclasses.replace(on_host, **{name: getattr(on_host, name).to(device) for name in tensors})
    logits = torch.zeros(10, WIDTH, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        processor.apply(logits.clone(), context)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        processor.apply(logits, context)
    for request in requests:
        slots.commit(request, [9, 10 + len(request.id)])
    logits.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for row in range(9):
        request, num_drafts = requests[row // 3], row % 3
        wanted = marked(torch.zeros(WIDTH), request.history + [7, 8][:num_drafts], request, registry)
        np.testing.assert_array_equal(logits[row].cpu().numpy(), wanted)
    assert not logits[9].any()
    slots.commit(requests[0], [-1])
    processor.apply(logits, context)
    torch.cuda.synchronize()
    with pytest.raises(InputError, match="#52461"):
        processor.apply_staged_writes()
