"""vLLM under hostile requests and changing registries: a request fails alone, and its engine goes on."""

from __future__ import annotations

import io
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iet.errors import InputError
from iet.generation.sampling import HostRows
from iet.marks.registry import Registry
from iet.native.rows import SequenceRows
from tests.support.hostile import MANY_KEYS, NAMES, SESSIONS, is_short_and_printable
from tests.support.vllm_engine import (
    CPU,
    NAME,
    WIDTH,
    IETLogitsProcessor,
    Request,
    SamplingParams,
    Slots,
    config,
    forget_settings,
    host_of,
    marked,
    settings,
    torch,
    v1,
    v2,
)

from iet.generation.vllm import sampler  # isort: skip - after the stubs
from vllm.exceptions import VLLMValidationError  # isort: skip - after the stubs

END = 5


@pytest.fixture
def host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Registry]]:
    yield host_of(tmp_path, monkeypatch)
    forget_settings()


@pytest.fixture(params=["V1", "V2"])
def validate(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    if request.param == "V2":
        return v2.build_custom_logits_processors_params_validator([NAME])
    return lambda params: v1.validate_logits_processors_parameters([NAME], params)


def with_end() -> Any:
    setting = config()
    setting.model_config.hf_config = SimpleNamespace(eos_token_id=[END, 7])
    return setting


def test_end_of_text_falls_back_to_the_text_model() -> None:
    setting = config()
    text = SimpleNamespace(eos_token_id=END)
    for full, end in ((SimpleNamespace(), END), (SimpleNamespace(eos_token_id=7), 7)):
        setting.model_config.hf_config, setting.model_config.hf_text_config = full, text
        assert sampler.end_of_text(setting) == end
    setting.model_config.hf_text_config = SimpleNamespace(eos_token_id=None)
    setting.model_config.hf_config = SimpleNamespace(eos_token_id=setting.model_config.get_vocab_size())
    assert sampler.end_of_text(setting) == 0


def params_of(arguments: Any, **more: Any) -> Any:
    params = SamplingParams(**more)
    params.extra_args = arguments
    return params


ARGUMENTS: dict[str, Any] = {
    **{f"agent: {name}": {"iet_agent": value} for name, value in NAMES.items()},
    **{
        f"opt-out: {name}": {"iet_unmarked": value}
        for name, value in NAMES.items()
        if name not in ("zero", "yes")
    },
    "both": {"iet_agent": "planner", "iet_unmarked": True},
    **{
        f"session: {name}": {"iet_agent": "planner", "iet_session": value} for name, value in SESSIONS.items()
    },
    "100,000 keys of ours": {f"iet_{i}": i for i in range(100_000)},
    "a long key of ours": {"iet_" + "x" * 10_000_000: 1},
    "a key of ours with escapes": {"iet_\x1b[2J\ud800": 1},
    "a list": ["iet_agent"],
    "a string": "iet_agent",
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("family", ["fourier", "gumbel"])
def test_invalid_arguments_end_only_their_request(
    host: Any, validate: Any, family: str, name: str, logged: io.StringIO
) -> None:
    registry = host(family=family)
    params = params_of(ARGUMENTS[name])
    with pytest.raises(VLLMValidationError) as error:
        validate(params)
    assert is_short_and_printable(str(error.value))
    # And if it got past admission: nothing raises, its row ends, the other's is marked.
    second = Request("r", params_of({"iet_agent": "critic"}), "critic", [7, 8, 9])
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(2, WIDTH)).astype(np.float32))
    wanted = marked(logits[1], [7, 8, 9], second, registry)
    for output in both_runners(logits, [params, second.params]):
        assert torch.isfinite(output[0]).nonzero().tolist() == [[END]]
        np.testing.assert_array_equal(output[1].numpy(), wanted)
    assert "is ended" in logged.getvalue()


@pytest.mark.parametrize("arguments", [{"iet_session": "run-7"}, {"iet_session": "r", "iet_unmarked": True}])
def test_rejects_session_without_an_agent(host: Any, validate: Any, arguments: dict[str, Any]) -> None:
    host()
    with pytest.raises(VLLMValidationError, match="iet_session: got one for text that is not marked"):
        validate(params_of(arguments))


def test_session_rows_are_reused(host: Any, validate: Any) -> None:
    """Thousands of sessions, eight at a time: no more rows than that, each with its own key."""
    registry = host(family="gumbel")
    processor, logits = IETLogitsProcessor(with_end(), CPU), torch.randn(8, WIDTH)
    requests: dict[int, Request] = {}
    for step in range(300):
        row_index, removed = step % 8, [step % 8] if step >= 8 else []
        params = params_of({"iet_agent": "critic", "iet_session": f"run-{step}"})
        validate(params)
        requests[row_index] = Request(f"r{step}", params, "critic", [7, 8, 9])
        processor.update_state(v1.BatchUpdate(8, removed, [(row_index, params, [7, 8, 9], [])], []))
        if step % 37 == 36:
            output = processor.apply(logits.clone())
            for row, request in requests.items():
                np.testing.assert_array_equal(output[row], marked(logits[row], [7, 8, 9], request, registry))
    assert len(processor._marker.keys) == 3 + 64


def both_runners(logits: Any, params: list[Any]) -> Iterator[Any]:
    """Logits of one step of these requests after each runner's processor."""
    processor = IETLogitsProcessor(with_end(), CPU)
    added = [(row, item, [7, 8, 9], []) for row, item in enumerate(params)]
    processor.update_state(v1.BatchUpdate(len(params), [], added, []))
    yield processor.apply(logits.clone())
    slots = Slots(len(params))
    processor = IETLogitsProcessor(with_end(), slots.state)
    requests = [Request(f"r{row}", item, None, [7, 8, 9]) for row, item in enumerate(params)]
    for request in requests:
        slots.add(request, processor)
    processor.apply_staged_writes()
    yield processor.apply(logits.clone(), slots.context([(request, []) for request in requests]))


def test_admitted_requests_are_marked(host: Any, validate: Any) -> None:
    registry = host()
    for arguments in ({"iet_agent": "planner", **MANY_KEYS}, {"iet_agent": "planner", "iet_unmarked": 0}):
        params = params_of(arguments, seed=10**30)
        validate(params)
        request = Request("r", params, "planner", [7, 8, 9])
        logits = torch.zeros(1, WIDTH)
        for output in both_runners(logits, [params]):
            np.testing.assert_array_equal(output[0].numpy(), marked(logits[0], [7, 8, 9], request, registry))


@pytest.mark.parametrize("seed", ["7", 1.5, [1]])
def test_rejects_seed_that_is_not_an_integer(host: Any, validate: Any, seed: Any) -> None:
    host()
    params = params_of({"iet_agent": "planner"})
    params.seed = seed
    with pytest.raises(VLLMValidationError, match="seed: got"):
        validate(params)
    for output in both_runners(torch.zeros(1, WIDTH), [params]):
        assert torch.isfinite(output[0]).nonzero().tolist() == [[END]]


def test_agent_unknown_to_the_engine_ends_only_its_request(
    host: Any, validate: Any, logged: io.StringIO
) -> None:
    registry = host()
    slots = Slots(2)
    processor = IETLogitsProcessor(with_end(), slots.state)  # the engine reads
    registry.add("latecomer")
    forget_settings()  # the frontend is another process, and reads later
    late = params_of({"iet_agent": "latecomer"})
    validate(late)
    requests = [
        Request("a", late, None, [7, 8]),
        Request("b", params_of({"iet_agent": "critic"}), "critic", [7, 8]),
    ]
    assert [slots.add(request, processor) for request in requests] == [True, True]
    processor.apply_staged_writes()
    step = slots.context([(requests[0], [3, 4]), (requests[1], [])], padding=1)  # with drafts
    logits = torch.zeros(5, WIDTH)
    output = processor.apply(logits.clone(), step)
    assert [row.isfinite().nonzero().tolist() for row in output[:3]] == [[[END]]] * 3
    np.testing.assert_array_equal(output[3].numpy(), marked(logits[3], [7, 8], requests[1], registry))
    assert torch.equal(output[4], logits[4])
    assert "'latecomer'" in logged.getvalue()
    # The slot is taken by another request.
    slots.remove(requests[0])
    successor = Request("c", params_of(None), None, [7, 8])
    assert slots.add(successor, processor) is False
    processor.apply_staged_writes()
    assert torch.equal(
        processor.apply(torch.zeros(1, WIDTH), slots.context([(successor, [])])), torch.zeros(1, WIDTH)
    )


def test_v1_ended_rows_move_with_the_batch(host: Any) -> None:
    host()
    processor = IETLogitsProcessor(with_end(), CPU)
    bad, good = params_of({"iet_agent": "nobody"}), params_of(None)
    processor.update_state(v1.BatchUpdate(3, [], [(0, good, [7], []), (2, bad, [7], [])], []))
    swap = v1.MoveDirectionality.SWAP
    processor.update_state(v1.BatchUpdate(3, [], [], [(2, 0, swap)]))
    output = processor.apply(torch.zeros(3, WIDTH))
    assert output.isfinite().sum(dim=1).tolist() == [1, WIDTH, WIDTH]
    processor.update_state(v1.BatchUpdate(3, [0], [], []))
    assert processor.apply(torch.zeros(3, WIDTH)).isfinite().all()


def test_failing_step_ends_its_marked_requests(
    host: Any, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    host(n_gram=3)
    params = [params_of({"iet_agent": "critic"}), params_of(None)]

    def failing(*_: Any, **__: Any) -> None:
        raise InputError("logits: another dtype")

    monkeypatch.setattr(HostRows, "mark_", failing)
    monkeypatch.setattr(SequenceRows, "embed_", failing)
    for output in both_runners(torch.zeros(2, WIDTH), params):
        assert output.isfinite().sum(dim=1).tolist() == [1, WIDTH]
    assert logged.getvalue().count("another dtype") == 2


def test_v1_placeholder_ends_only_its_request(host: Any, logged: io.StringIO) -> None:
    registry = host()
    processor = IETLogitsProcessor(config(), CPU, False)
    params = SamplingParams(extra_args={"iet_agent": "critic"})
    good, bad = (Request(name, params, "critic", [4, 5]) for name in ("good", "bad"))
    added = [(row, item.params, item.prompt, item.output) for row, item in enumerate((good, bad))]
    processor.update_state(v1.BatchUpdate(2, [], added, []))
    good.output.append(6)
    bad.output.append(-1)
    for _ in range(2):  # ended for good, and said once
        output = processor.apply(torch.zeros(2, WIDTH))
        np.testing.assert_array_equal(
            output[0].numpy(), marked(torch.zeros(WIDTH), good.history, good, registry)
        )
        assert output[1].isfinite().sum() == 1
    assert len(re.findall(r"placeholder.*row 1.*#52461", logged.getvalue())) == 1


def test_v2_placeholder_ends_its_request(host: Any, logged: io.StringIO) -> None:
    host(n_gram=3)
    slots = Slots(2)
    processor = IETLogitsProcessor(config(), slots.state)
    request = Request("r", SamplingParams(extra_args={"iet_agent": "critic"}), "critic", [4, -1, 5])
    slots.add(request, processor)
    processor.apply_staged_writes()
    result = processor.apply(torch.zeros(1, WIDTH), slots.context([(request, [])]))
    assert torch.isfinite(result[0]).nonzero().tolist() == [[0]]
    assert re.search(r"placeholder.*#52461", logged.getvalue())
    slots.commit(request, [6])
    processor.apply(torch.zeros(1, WIDTH), slots.context([(request, [])]))


def test_processes_compare_registry_digests(
    host: Any, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    registry = host()
    monkeypatch.delenv(settings._DIGEST, raising=False)
    settings.preload()
    assert os.environ[settings._DIGEST] == registry.digest
    registry.add("latecomer")
    settings.preload()  # of a process that has read already: it keeps what it has
    assert not logged.getvalue()
    forget_settings()
    settings.preload()
    assert "the registry has changed since this server was started" in logged.getvalue()


def test_registry_is_read_when_the_class_loads(host: Any) -> None:
    """Not at the first request: an agent that is added later is unknown to all of its processes alike."""
    path = host().path
    code = (
        "from tests.support import vllm_engine\n"
        "from iet.marks.registry import Registry\n"
        f"Registry.load({str(path)!r}).add('latecomer')\n"
        "print('latecomer' in vllm_engine.settings.read_settings().slots)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != settings._DIGEST}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "False\n", done.stderr
