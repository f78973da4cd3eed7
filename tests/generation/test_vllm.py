"""The vLLM processor through vLLM's own interfaces: request arguments, settings, rejected input."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import pathlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from iet.errors import InputError, RegistryError, ShapeError
from iet.generation.free import request_key, warn_of_limit
from iet.marks.registry import Registry
from tests.support.vllm_engine import (
    CPU,
    NAME,
    IETLogitsProcessor,
    SamplingParams,
    Slots,
    adapter,
    config,
    forget_settings,
    host_of,
    torch,
    v1,
    v2,
)

from vllm.exceptions import VLLMValidationError  # isort: skip - after the stubs


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "REGISTRY",
        "SECRET_MOUNT",
        "PROFILE",
        "REQUIRE_AGENT",
        "DEFAULT_AGENT",
        "MIN_TEMPERATURE",
        "MIN_TOP_P",
    ):
        monkeypatch.delenv(f"IET_{name}", raising=False)


@pytest.fixture
def host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    return host_of(tmp_path, monkeypatch)


def test_class_implements_both_interfaces_and_loads_by_name(host: Any) -> None:
    host()
    assert issubclass(IETLogitsProcessor, v1.LogitsProcessor)
    assert issubclass(IETLogitsProcessor, v2.LogitsProcessor)
    (loaded,) = v1.build_logitsprocs(config(), CPU, False, False, [NAME]).non_argmax_invariant[2:]
    assert isinstance(loaded, IETLogitsProcessor)
    assert not loaded.is_argmax_invariant()
    (loaded,) = v2.build_custom_logits_processors(config(), Slots(4), False, [NAME])
    assert isinstance(loaded, IETLogitsProcessor)


def test_package_registers_no_entry_point() -> None:
    assert not [
        entry
        for entry in importlib.metadata.entry_points(group="vllm.logits_processors")
        if entry.value.startswith("iet")
    ]


def test_import_does_not_initialise_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched() -> None:
        raise AssertionError("CUDA was initialised")

    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    monkeypatch.setattr(torch.cuda, "device_count", touched)
    monkeypatch.delitem(sys.modules, "iet.generation.vllm")
    fresh = importlib.import_module("iet.generation.vllm")
    assert fresh.IETLogitsProcessor is not IETLogitsProcessor
    sys.modules["iet.generation.vllm"] = adapter


@pytest.fixture(params=["V1", "V2"])
def validate(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    """vLLM's validation of a request in its frontend, under either runner."""
    if request.param == "V2":
        return v2.build_custom_logits_processors_params_validator([NAME])
    return lambda params: v1.validate_logits_processors_parameters([NAME], params)


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (None, None),
        ({}, None),
        ({"other": 1}, None),
        ({"iet_agent": "planner"}, None),
        ({"iet_agent": None}, None),
        ({"iet_unmarked": True}, None),
        ({"iet_unmarked": 1}, None),
        ({"iet_unmarked": 0, "iet_agent": "critic"}, None),
        ({"iet_agent": "planer"}, "'planer'"),
        ({"iet_agents": "planner"}, "iet_agents: expected iet_agent"),
        ({"iet_unmarked": "yes"}, "'yes'"),
        ({"iet_unmarked": True, "iet_agent": "planner"}, "got both"),
    ],
)
def test_request_arguments(host: Any, validate: Any, arguments: Any, refused: str | None) -> None:
    host()
    params = SamplingParams(extra_args=arguments)
    if refused is None:
        validate(params)
        return
    with pytest.raises(VLLMValidationError, match="iet_") as error:  # HTTP 400
        validate(params)
    assert refused in str(error.value)
    assert "writer" not in str(error.value)


def test_gumbel_rejects_greedy_requests(host: Any, validate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host(family="gumbel")
    marked = {"iet_agent": "planner"}
    for sampling, refused in (
        ({"temperature": 0}, "temperature: got 0, expected at least 0.1"),
        ({"temperature": 0.001}, "temperature: got 0.01, expected at least 0.1"),  # vLLM raises it
        ({"top_k": 1}, r"top_k: got 1 \(or temperature 0\), expected more"),
        ({"top_p": 1e-5}, "top_p: got 1e-05, expected at least 0.1"),
        ({"top_p": 0.01}, "top_p: got 0.01, expected at least 0.1"),
        ({"min_p": 0.95}, "min_p: got 0.95, expected at most 0.9"),
    ):
        with pytest.raises(VLLMValidationError, match=f"{refused}.*gumbel"):
            validate(SamplingParams(**sampling, extra_args=marked))
    validate(SamplingParams(temperature=0.2, top_k=2, extra_args=marked))
    validate(SamplingParams(temperature=0, extra_args={"iet_unmarked": True}))
    validate(SamplingParams(temperature=0))
    monkeypatch.setenv("IET_DEFAULT_AGENT", "critic")
    with pytest.raises(VLLMValidationError, match="temperature"):
        validate(SamplingParams(temperature=0))
    processor = IETLogitsProcessor(config(), Slots(4).state)
    assert processor.add_request(0, SamplingParams(temperature=0)) is False  # a warm-up of vLLM's own
    assert processor.add_request(0, SamplingParams()) is True


def test_fourier_rejects_temperatures_near_0(host: Any, validate: Any) -> None:
    host()
    marked = {"iet_agent": "planner"}
    with pytest.raises(VLLMValidationError, match=r"temperature: got 0\.05, expected 0 or at least 0\.1"):
        validate(SamplingParams(temperature=0.05, extra_args=marked))
    validate(SamplingParams(temperature=0, extra_args=marked))
    validate(SamplingParams(temperature=0.05))
    host(placement="raw")
    validate(SamplingParams(temperature=0.05, extra_args=marked))


def test_a_beam_search_is_no_request_of_the_default_agent(
    host: Any, validate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IET_DEFAULT_AGENT", "critic")
    step = SamplingParams(logprobs=4, max_tokens=1, detokenize=False)
    host(family="gumbel")
    validate(step)
    greedy = SamplingParams(logprobs=4, max_tokens=1, detokenize=False, temperature=0)
    validate(greedy)
    with pytest.raises(VLLMValidationError, match="temperature"):
        validate(SamplingParams(max_tokens=1, temperature=0))  # of the default agent
    monkeypatch.setenv("IET_REQUIRE_AGENT", "1")
    validate(SamplingParams(logprobs=4, max_tokens=1))
    with pytest.raises(VLLMValidationError, match="A beam search loses the name"):
        validate(step)


def test_rejects_drafts_that_are_accepted_at_random(host: Any) -> None:
    host()
    synthetic = config()
    synthetic.speculative_config = SimpleNamespace(rejection_sample_method="synthetic")
    with pytest.raises(InputError, match="rejection_sample_method: got 'synthetic'"):
        IETLogitsProcessor(synthetic, Slots(4).state)


def test_an_operator_sets_a_floor(host: Any, validate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IET_MIN_TEMPERATURE", "0.5")
    monkeypatch.setenv("IET_MIN_TOP_P", "0.8")
    host(family="gumbel")
    marked = {"iet_agent": "planner"}
    validate(SamplingParams(temperature=0.5, top_p=0.8, min_p=0.2, extra_args=marked))
    validate(SamplingParams(temperature=0.1))  # names no agent
    for sampling in ({"temperature": 0.4}, {"top_p": 0.7}, {"min_p": 0.3}):
        with pytest.raises(VLLMValidationError, match=r"expected at (least|most)"):
            validate(SamplingParams(**sampling, extra_args=marked))
    monkeypatch.setenv("IET_MIN_TOP_P", "2")
    with pytest.raises(InputError, match=r"IET_MIN_TOP_P: got '2', expected a number from 0\.01 to 1"):
        IETLogitsProcessor(config(), Slots(4).state)


def test_required_agent(host: Any, validate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host()
    monkeypatch.setenv("IET_REQUIRE_AGENT", "1")
    validate(SamplingParams(extra_args={"iet_agent": "planner"}))
    with pytest.raises(VLLMValidationError, match="got none, but this server marks every text"):
        validate(SamplingParams())
    with pytest.raises(VLLMValidationError, match="got an opt-out"):
        validate(SamplingParams(extra_args={"iet_unmarked": 1}))
    monkeypatch.setenv("IET_DEFAULT_AGENT", "critic")
    validate(SamplingParams())
    with pytest.raises(VLLMValidationError, match="got an opt-out"):
        validate(SamplingParams(extra_args={"iet_unmarked": 1}))


def test_reads_a_registry_from_a_secret_mount(
    host: Any, validate: Any, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    path = host().path
    path.chmod(0o444)
    params = SamplingParams(extra_args={"iet_agent": "planner"})
    with pytest.raises(VLLMValidationError, match="its log says why") as error:
        validate(params)
    assert "0444" not in str(error.value)
    assert str(path.parent) not in str(error.value)
    assert "mode 0444" in logged.getvalue()
    assert "IET_SECRET_MOUNT=1" in logged.getvalue()
    monkeypatch.setenv("IET_SECRET_MOUNT", "1")
    validate(params)


def test_rejects_requests_without_a_registry(validate: Any, logged: io.StringIO) -> None:
    forget_settings()
    with pytest.raises(VLLMValidationError, match="this server cannot mark text"):
        validate(SamplingParams(extra_args={"iet_agent": "planner"}))
    assert "no registry" in logged.getvalue()


@pytest.mark.parametrize("device_or_state", [CPU, None], ids=["V1", "V2"])
def test_processor_rejects_invalid_settings(
    host: Any, monkeypatch: pytest.MonkeyPatch, device_or_state: Any
) -> None:
    device_or_state = Slots(4).state if device_or_state is None else device_or_state
    forget_settings()
    with pytest.raises(RegistryError, match="IET_REGISTRY"):
        IETLogitsProcessor(config(), device_or_state)
    host(family="gumbel")
    with pytest.raises(InputError, match="logprobs_mode: got processed_logprobs, expected"):
        IETLogitsProcessor(config(logprobs_mode="processed_logprobs"), device_or_state)
    native = config(logprobs_mode="raw_logprobs")
    IETLogitsProcessor(native, device_or_state)
    native.watermark_config = object()
    with pytest.raises(InputError, match="watermark_config: got vLLM's own watermark"):
        IETLogitsProcessor(native, device_or_state)
    registry = host()
    with pytest.raises(ShapeError, match="vocabulary: got 96, expected at least 97"):
        IETLogitsProcessor(config(96), device_or_state)
    with pytest.raises(InputError, match="diffusion"):
        IETLogitsProcessor(SimpleNamespace(model_config=SimpleNamespace(is_diffusion=True)), device_or_state)
    for name, value in (("REQUIRE_AGENT", "yes"), ("SECRET_MOUNT", "2"), ("DEFAULT_AGENT", "nobody")):
        monkeypatch.setenv(f"IET_{name}", value)
        with pytest.raises(InputError, match=f"IET_{name}: got '{value}'"):
            IETLogitsProcessor(config(), device_or_state)
        monkeypatch.delenv(f"IET_{name}")
    second_profile = registry.add_profile(vocab_size=50)
    forget_settings()
    with pytest.raises(InputError, match=f"expected one of .*{second_profile}"):
        IETLogitsProcessor(config(), device_or_state)
    monkeypatch.setenv("IET_PROFILE", registry.get_profile(registry.profile_of("critic").id).id)
    IETLogitsProcessor(config(), device_or_state)


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_free_token_keys_follow_seed_or_request_number(host: Any, runner: str) -> None:
    host(family="gumbel")

    def keys(engine: str, seeds: list[int | None]) -> list[int]:
        """Keys of the free tokens of each request of one engine."""
        setting = config()
        setting.instance_id = engine
        slots = Slots(4)
        processor = IETLogitsProcessor(setting, CPU if runner == "V1" else slots.state)
        keys_used = []
        for seed in seeds:
            params = SamplingParams(seed=seed, extra_args={"iet_agent": "planner"})
            if runner == "V1":
                processor.update_state(v1.BatchUpdate(1, [0], [(0, params, [5, 6, 7], [])], []))
                keys_used.append(processor._marker._requests[0].key)
            else:
                processor.add_request(0, params)
                keys_used.append(int(processor._marker._requests[0]))
        return keys_used

    none: list[int | None] = [None] * 20
    assert len({*keys("a", none)}) == 20
    assert keys("a", none) == keys("a", none)  # another rank of the same engine
    assert not {*keys("a", none)} & {*keys("b", none)}
    seeded = request_key("seed 7")
    assert keys("a", [7, 7, None, 7]) == [seeded, seeded, keys("a", none)[2], seeded]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FIRST", "-1", "first: got -1"),
        ("FIRST", "many", "IET_FREE_FIRST: got 'many', expected a number"),
        ("RATE", "1", "rate: got 1.0, expected a probability"),
        ("RATE", "nan", "rate: got nan"),
    ],
)
def test_rejects_invalid_free_tokens(
    host: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    host(family="gumbel")
    monkeypatch.setenv(f"IET_FREE_{name}", value)
    forget_settings()
    with pytest.raises(InputError, match=words):
        IETLogitsProcessor(config(), CPU)


def test_warns_if_max_tokens_are_all_free(
    host: Any, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    host(family="gumbel")
    warn_of_limit.cache_clear()
    monkeypatch.setenv("IET_FREE_FIRST", "8")
    forget_settings()
    for limit in (9, 8, 8):
        params = SamplingParams(max_tokens=limit, extra_args={"iet_agent": "planner"})
        IETLogitsProcessor.validate_params(params)
    assert logged.getvalue().count("requests with max_tokens 8 are not marked") == 1
    assert "max_tokens 9" not in logged.getvalue()
