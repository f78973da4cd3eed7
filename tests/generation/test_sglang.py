"""SGLang: its own interface, watermark and detector out of the wheel, driven by a loop like its own."""

from __future__ import annotations

import io
import json
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet import agents
from iet.errors import BackendUnavailable, InputError, RegistryError
from iet.generation.sampling import HostRows
from iet.generation.sglang import IETLogitsProcessor, native_watermark
from tests.support.sglang_engine import COLUMNS, Engine, load_sglang, needs_sglang, served_registry

torch = pytest.importorskip("torch")
PROCESSOR = agents.SGLANG_PROCESSOR


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    return load_sglang(monkeypatch)


@pytest.fixture
def registry(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[iet.Registry]:
    names = ["planner", "critic", "engineer"]
    with served_registry(tmp_path, monkeypatch, names, kappa=1.2, n_gram=3) as made:
        yield made


def named(agent: str, **more: Any) -> dict[str, Any]:
    body = agents.body(agent, engine="sglang")
    return {**body, "custom_params": {**body["custom_params"], **more}}


@needs_sglang
def test_processor_name_resolves_to_the_class(sglang: types.SimpleNamespace) -> None:
    import dill

    for text in (PROCESSOR, IETLogitsProcessor.to_str()):
        assert isinstance(sglang.processor.from_str(text), IETLogitsProcessor)
    assert dill.loads(dill.dumps(IETLogitsProcessor)) is IETLogitsProcessor
    offered = {name for name in vars(sglang.processor) if not name.startswith("_")}
    assert offered <= {*dir(IETLogitsProcessor), "from_str"}, "SGLang expects more of a processor now"


@needs_sglang
def test_rows_equal_embed(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    """Requests come and go, rows are reordered: each step equals embed_ on what the model was shown."""
    engine = Engine(sglang)
    marked = {
        id(engine.add([7, 8], named("planner"), 0.7)): ("planner", 0.7),
        id(engine.add([9], named("critic"), 1.3)): ("critic", 1.3),  # too short for a context at first
        id(engine.add([7, 8], named("planner", other=1), 1.0, length=5)): ("planner", 1.0),
        id(engine.add([7, 8], named("planner", iet_session="run-7"), 0.9, length=9)): ("planner", 0.9),
        id(engine.add([7, 8], named("critic", iet_session="run-7"), 0.9, length=30)): ("critic", 0.9),
    }
    engine.add([7, 8], {})
    engine.run(8)
    marked[id(engine.add([3, 0, 4], named("engineer"), 0.5))] = ("engineer", 0.5)
    marked[id(engine.add([3, 4], named("planner", iet_session="run-8"), 0.5))] = ("planner", 0.5)
    engine.run(12)
    changed = 0
    for running, unmarked, marked_logits in engine.steps:
        for row, request in enumerate(running):
            step = [entry for entry in engine.steps if any(member is request for member in entry[0])]
            number = next(i for i, entry in enumerate(step) if entry[1] is unmarked)
            prefix = request.truth[: len(request.origin_input_ids) + number]
            expected = unmarked[row : row + 1].clone()
            if id(request) in marked and len(prefix) >= 2:
                agent, temperature = marked[id(request)]
                slot, session = registry.slot(agent), request.sampling_params.custom_params.get("iet_session")
                keys = registry if session is None else registry.session(session)
                iet.embed_(expected, [prefix[-2:]], [slot], keys, temperature=temperature)
                changed += not torch.equal(expected[0], unmarked[row])
            assert torch.equal(marked_logits[row], expected[0])
    assert changed > 40
    assert all(request.to_finish is None for request in engine.requests)


@needs_sglang
def test_stale_context_ends_the_request_and_names_the_flag(
    sglang: types.SimpleNamespace, registry: iet.Registry
) -> None:
    engine = Engine(sglang, overlap=True)
    stale, plain = engine.add([7, 8], named("planner")), engine.add([7, 8], {}, length=20)
    engine.run(30)
    assert stale.finished_reason.to_json()["status_code"] == 500
    assert "--disable-overlap-schedule" in stale.finished_reason.message
    assert len(stale.output_ids) <= 2
    assert plain.finished_reason == "length"
    for running, unmarked, marked_logits in engine.steps[1:]:  # from the first decode on the context is stale
        assert all(torch.equal(marked_logits[row], unmarked[row]) for row in range(len(running)))


@needs_sglang
def test_retracted_and_chunked_requests_are_not_stale(
    sglang: types.SimpleNamespace, registry: iet.Registry
) -> None:
    engine = Engine(sglang)
    request = engine.add([7, 8, 9, 10], named("planner"), length=20)
    request.kv.kv_committed_len = 2  # a chunk of the prompt: its sample is thrown away
    engine.process(engine.model[[8]].clone(), [request])
    engine.run(5)
    request.kv.kv_committed_len, request.prefilled = 0, False  # retracted, then prefilled with its output
    engine.run(15)
    assert request.finished_reason == "length"
    assert len(request.output_ids) == 20


@needs_sglang
@pytest.mark.parametrize(
    ("params", "temperature", "message"),
    [
        ({"iet_agent": "nobody"}, 1.0, "'nobody', which is no agent"),
        ({"iet_agent": 7}, 1.0, "got 7"),
        ({"iet_agent": None}, 1.0, "is missing"),
        ({"other": 1}, 1.0, "is missing"),
        ({"iet_agent": "planner"}, 1e7, "got 10000000.0"),
        ({"iet_agent": "planner"}, 0.05, "temperature: got 0.05, expected 0 or at least 0.1"),
    ],
)
def test_unmarkable_request_ends_alone(
    sglang: types.SimpleNamespace, registry: iet.Registry, params: Any, temperature: float, message: str
) -> None:
    engine = Engine(sglang)
    body = {"custom_logit_processor": PROCESSOR, "custom_params": params}
    refused = engine.add([7, 8], body, temperature)
    served = engine.add([7, 8], named("critic"), length=3)
    engine.run(4)
    assert refused.finished_reason.status_code == 400
    assert message in refused.finished_reason.message
    assert len(refused.output_ids) == 1
    assert served.finished_reason == "length"
    running, unmarked, marked = engine.steps[0]
    assert [torch.equal(unmarked[row], marked[row]) for row in map(running.index, (refused, served))] == [
        True,
        False,
    ]


@needs_sglang
def test_warns_without_custom_params(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    engine = Engine(sglang)
    engine.add([7, 8], {"custom_logit_processor": PROCESSOR})
    with pytest.warns(UserWarning, match="no custom_params"):
        engine.step()
    assert torch.equal(engine.steps[0][1], engine.steps[0][2])


@needs_sglang
@pytest.mark.parametrize(
    "problem",
    ["no registry", "mode", "mount", "larger vocabulary", "no counter", "placeholder"],
)
def test_server_reports_why_it_cannot_mark(
    sglang: types.SimpleNamespace,
    registry: iet.Registry,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    logged: io.StringIO,
) -> None:
    engine = Engine(sglang)
    request = engine.add([7, 8], named("planner"))
    message = {
        "no registry": "no registry",
        "mode": "IET_SECRET_MOUNT=1",
        "mount": "IET_SECRET_MOUNT: got 'yes', expected 0 or 1",
        "larger vocabulary": f"{COLUMNS}",
        "no counter": "0.5.23",
        "placeholder": "got -1, a placeholder",
    }[problem]
    if problem == "no registry":
        monkeypatch.delenv("IET_REGISTRY")
    elif problem == "mode":
        (tmp_path / "team.json").chmod(0o444)
    elif problem == "mount":
        monkeypatch.setenv("IET_SECRET_MOUNT", "yes")
    elif problem == "placeholder":
        request.origin_input_ids[-1] = -1
    elif problem == "no counter":
        request.kv = types.SimpleNamespace(kv_allocated_len=0)
        request.prefilled = True
        engine.process(engine.model[[8]].clone(), [request])
        engine.pending = [(request, 8)]
        engine.record()
    else:
        larger = iet.Registry.create(tmp_path / "other.json", vocab_size=COLUMNS + 1)
        larger.add("planner")
        monkeypatch.setenv("IET_REGISTRY", str(tmp_path / "other.json"))
    if problem != "no counter":
        engine.step()
        assert torch.equal(engine.steps[0][1], engine.steps[0][2])
    assert request.finished_reason.status_code == 500
    message_shown = request.finished_reason.message
    if problem in ("no registry", "mode", "mount"):  # the operator's, not the client's
        assert message in logged.getvalue()
        assert "its log says why" in message_shown
        assert not any(secret in message_shown for secret in (message, str(tmp_path), "0444"))
    else:
        assert message in message_shown


@needs_sglang
def test_device_failure_ends_marked_requests_only(
    sglang: types.SimpleNamespace, registry: iet.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("CUDA: no kernel image is available for execution on the device")

    monkeypatch.setattr(HostRows, "mark_", failing)
    engine = Engine(sglang)
    refused, plain = engine.add([7, 8], named("planner")), engine.add([7, 8], {}, length=3)
    engine.run(3)
    assert refused.finished_reason.status_code == 500
    assert "no kernel image" in refused.finished_reason.message
    assert plain.finished_reason == "length"


@needs_sglang
def test_reads_a_registry_from_a_secret_mount(
    sglang: types.SimpleNamespace,
    registry: iet.Registry,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "team.json").chmod(0o444)
    monkeypatch.setenv("IET_SECRET_MOUNT", "1")
    engine = Engine(sglang)
    request = engine.add([7, 8], named("planner"))
    engine.step()
    assert request.to_finish is request.finished_reason is None
    assert not torch.equal(engine.steps[0][1], engine.steps[0][2])


@needs_sglang
def test_rejects_draft_rows(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    engine = Engine(sglang)
    request = engine.add([7, 8], named("planner"))
    request.kv.kv_committed_len = 2
    engine.process(engine.model[[8, 9, 10]].clone(), [request], rows_of_one=3)
    assert "speculative decoding" in request.to_finish.message


def test_native_watermark_keys_are_separate(registry: iet.Registry) -> None:
    field = native_watermark(registry, "planner", context_window=3)
    assert {name: field[name] for name in ("enabled", "context_window")} == {
        "enabled": True,
        "context_window": 3,
    }
    key = json.loads(json.dumps(field))["key"]
    assert len(bytes.fromhex(key)) == 8
    assert key not in repr(field)
    assert key not in "".join(repr(engine_key) for engine_key in registry.engine_keys("sglang"))
    assert key not in (b"\x01" * 32).hex()
    assert key not in registry.marking_keys().subkeys.tobytes().hex()
    other_keys = {native_watermark(registry, name)["key"] for name in ("critic", "engineer")}
    assert len(other_keys | {key}) == 3

    registry.rotate("planner", secret=b"\x09" * 32)
    assert native_watermark(registry, "planner")["key"] != key
    keys = registry.engine_keys("sglang")
    table = registry.scoring_keys()
    assert [engine_key.agent for engine_key in keys] == [table.names[owner] for owner in table.owners]
    assert [engine_key.epoch for engine_key in keys] == table.epochs.tolist()
    assert keys[0].key.hex() == key


@pytest.mark.parametrize("window", [0, 65, -1, 4.0, True, "4", None])
def test_rejects_window_out_of_range(registry: iet.Registry, window: Any) -> None:
    with pytest.raises(InputError, match="context_window: got"):
        native_watermark(registry, "planner", context_window=window)


def test_engine_keys_rejects_unknown_names(registry: iet.Registry) -> None:
    with pytest.raises(InputError, match="expected one of sglang"):
        registry.engine_keys("vllm")
    with pytest.raises(RegistryError, match="did you mean 'planner'"):
        native_watermark(registry, "planer")
    with pytest.raises(InputError, match=r"expected iet\.Registry"):
        native_watermark("team.json", "planner")  # type: ignore[arg-type]


@needs_sglang
def test_sglangs_detector_distinguishes_agents(sglang: types.SimpleNamespace, registry: iet.Registry) -> None:
    """Text sampled as its README says, argmax log(u)/p, under the key of one agent."""
    module = sglang.detector()
    field = native_watermark(registry, "critic")
    key = module.parse_watermark_key(json.loads(json.dumps(field))["key"])
    draws = np.random.default_rng(3)
    ids = [7, 8, 9, 10]
    for _ in range(60):
        weights = draws.dirichlet(np.ones(50))
        context = module.hash_context(ids[-4:])
        uniform = [(module.watermark_hash(key, context, token) + 0.5) / 2**32 for token in range(50)]
        ids.append(int(np.argmax(np.log(uniform) / weights)))
    p_values = {
        name: module.WatermarkDetector(str(native_watermark(registry, name)["key"]), context_window=4)
        .detect_tokens(ids[4:], prompt_token_ids=ids[:4])
        .combined.p_value
        for name in registry
    }
    assert p_values["critic"] < 1e-6 < 1e-3 < min(p_values["planner"], p_values["engineer"])


@needs_sglang
def test_text_of_sglangs_sampler_is_attributed(sglang: types.SimpleNamespace) -> None:
    """The shipped model, SGLang's state and choice of tokens, and a registry that has rotated a key since."""
    pytest.importorskip("transformers")
    from iet.demo.conversation import TASK, load_model

    module, (model, tokenizer) = sglang.watermark(), load_model()
    registry = iet.Registry.create(None, tokenizer=tokenizer)
    for number, name in enumerate(["planner", "critic", "writer"], 1):
        registry.add(name, secret=bytes([number]) * 32)
    agents = ["critic", None, "planner"]
    fields = [None if agent is None else json.dumps(native_watermark(registry, agent)) for agent in agents]
    registry.rotate("planner", secret=b"\x09" * 32)

    requests = [types.SimpleNamespace(sampling_params=types.SimpleNamespace(top_k=1 << 30)) for _ in agents]
    for request, field in zip(requests, fields, strict=True):
        request_field = None if field is None else json.loads(field)
        request.sampling_params.watermark = module.normalize_watermark_request(request_field)
    server = {"default_key": None, "default_context_window": 4, "default_enabled": False}
    batch = module.build_watermark_batch_config(requests, **server, enforce_all=False, device="cpu")
    rows = torch.arange(len(agents))
    sampling = types.SimpleNamespace(
        has_watermark_candidates=batch.has_candidates,
        watermark_keys=batch.keys,
        watermark_context_windows=batch.context_windows,
        watermark_enabled=batch.enabled,
        temperatures=torch.full((len(agents), 1), 0.9),
        top_ks=torch.full((len(agents),), 1 << 30),
        top_ps=torch.full((len(agents),), 0.95),
        min_ps=torch.zeros(len(agents)),
        max_top_k=1 << 30,
    )
    state = module.WatermarkState(
        max_num_reqs=len(agents), context_window=4, max_contexts_per_req=4096, key=None, device="cpu"
    )
    state._ensure_selection_buffers = lambda *_: (None, None, None)  # of its kernels for GPUs
    prompt = tokenizer(TASK).input_ids[:12]
    state.init_from_prompt(rows, [prompt[-4:]] * len(agents))
    ids, draws = torch.tensor([prompt] * len(agents)), torch.Generator().manual_seed(4)
    with torch.inference_mode():
        out = model(ids, use_cache=True)
        for _ in range(100):
            logits = out.logits[:, -1].float()
            state.force(logits, rows, sampling)
            tokens = torch.multinomial((logits / 0.9).softmax(-1), 1, generator=draws)
            state.append(rows, tokens[:, 0])
            ids = torch.cat([ids, tokens], dim=1)
            out = model(tokens, past_key_values=out.past_key_values, use_cache=True)

    keys = iet.EngineKeys(
        "sglang-gumbel",
        {
            name: [engine_key.key.hex() for engine_key in registry.engine_keys("sglang", agent=name)]
            for name in registry
        },
        tokenizer=tokenizer,
    )
    auditor = iet.Auditor(keys, decoder="window")
    for agent, row in zip(agents, ids, strict=True):
        expected = () if agent is None else (agent,)
        assert auditor.audit(token_ids=row.tolist()).found == expected
        assert auditor.audit(tokenizer.decode(row[len(prompt) :])).found == expected
    scores = iet.score_tokens(ids[2].tolist(), keys)[len(prompt) :].mean(axis=0)
    columns = [(engine_key.agent, engine_key.epoch) for engine_key in registry.engine_keys("sglang")]
    assert columns[int(scores.argmax())] == ("planner", 0)
    assert scores.max() > 1.5 > 1.3 > np.sort(scores)[-2]  # unmarked scores have mean 1
