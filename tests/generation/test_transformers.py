"""Marking in transformers: every step of `generate` against the model's own logits and the oracle."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import pathlib
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet.audit.metrics import token_accuracy, token_labels
from iet.demo import conversation
from iet.errors import InputError, RegistryError, SchemeMismatch, ShapeError
from iet.marks.keys import derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer import DEMO_SOURCE
from iet.native import reference

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

V = 300
PAD = 0
PROMPT = [[5, 6, 7, 8], [9, 10, 11, 12]]
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are tiny: more threads would only wait for each other
    yield
    torch.set_num_threads(threads)


def tiny(columns: int = V, seed: int = 0) -> Any:
    """A random Llama whose next tokens are neither certain nor all alike."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=columns,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).train(False)


MODEL = tiny()


def team(**scheme: Any) -> Registry:
    registry = Registry.create(None, vocab_size=V, unmarked_ids=[PAD], scheme=Scheme(**scheme))
    for number, name in enumerate(["planner", "critic"], 1):
        registry.add(name, secret=bytes([number]) * 32)
    return registry


TEAM = team()


def generate(marking: Any = None, prompt: Any = PROMPT, model: Any = MODEL, **options: Any) -> Any:
    """Everything `generate` returns, by default from greedy search."""
    torch.manual_seed(1)
    ids = torch.tensor(prompt)
    defaults = {
        "attention_mask": (ids != PAD).long(),
        "max_new_tokens": STEPS,
        "do_sample": False,
        "top_k": 0,
        "output_scores": True,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    if marking is not None:
        defaults["watermarking_config"] = marking
    return model.generate(ids, **{**defaults, **options})


def shift(registry: Registry, agent: str | None, prefix: Any, columns: int = V) -> Any:
    """κ·φ(P(v)) [columns] for the position after `prefix`, from the readable definition alone."""
    scheme = registry.profile.scheme
    found = np.zeros(columns, dtype=np.float32)
    context = np.asarray(prefix)[len(prefix) - scheme.n_gram + 1 :]
    if agent is None or len(prefix) < scheme.n_gram - 1 or (context >= V).any() or (context == PAD).any():
        return torch.tensor(found)
    subkey = np.frombuffer(derive_subkey(registry.keys(agent)[-1].secret), dtype=np.uint8)
    ranks = reference.permute(np.arange(V), reference.context_seed(subkey, context), V)
    found[:V] = np.float32(scheme.kappa) * reference.phi(ranks, scheme.k_p, V, scheme.family)
    found[PAD] = 0
    return torch.tensor(found)


def raw_logits(model: Any, prefix: Any) -> Any:
    """The model's logits [columns] for the position after `prefix`, left padding cut off, without a cache."""
    ids = torch.as_tensor(prefix)
    start = int((ids != PAD).nonzero()[0])
    with torch.no_grad():
        return model(ids[None, start:], use_cache=False).logits[0, -1].float()


def assert_close(found: Any, expected: Any) -> None:
    assert torch.equal(torch.isinf(found), torch.isinf(expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


# Every step against the oracle


@pytest.mark.parametrize("columns", [V, V + 20], ids=["V", "padded"])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "temperature": 0.7, "top_p": 0.8}])
def test_every_step_is_the_models_warped_logits_and_the_oracles_shift(columns: int, options: Any) -> None:
    model = tiny(columns)
    agents = ["planner", "critic", None]
    prompt = [*PROMPT, PROMPT[0]]
    found = generate(iet.WatermarkingConfig(TEAM, agents), prompt, model, **options)
    for step, scores in enumerate(found.scores):
        for row, agent in enumerate(agents):
            prefix = found.sequences[row, : 4 + step]
            expected = raw_logits(model, prefix)[None]
            if options:
                expected = transformers.TemperatureLogitsWarper(options["temperature"])(None, expected)
                expected = transformers.TopPLogitsWarper(options["top_p"])(None, expected)
            assert_close(scores[row], expected[0] + shift(TEAM, agent, prefix, columns))
            assert torch.isfinite(scores[row, found.sequences[row, 4 + step]])


def test_returned_logits_stay_the_models_own() -> None:
    found = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]))
    for step in range(STEPS):
        for row in range(2):
            assert_close(found.logits[step][row], raw_logits(MODEL, found.sequences[row, : 4 + step]))


@pytest.mark.parametrize("sampled", [False, True])
def test_rows_of_one_prompt_share_its_agent_in_beams(sampled: bool) -> None:
    options = {"num_beams": 3, "num_return_sequences": 2, "do_sample": sampled}
    found = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]), **options)
    assert len(found.sequences) == 4
    for row, sequence in enumerate(found.sequences):
        for step in range(STEPS):
            prefix = sequence[: 4 + step]
            scores = found.scores[step][found.beam_indices[row, step]]
            expected = torch.log_softmax(raw_logits(MODEL, prefix), -1)
            assert_close(scores, expected + shift(TEAM, ["planner", "critic"][row // 2], prefix))


@pytest.mark.parametrize("agents", ["planner", ["planner", "critic"]])
def test_embeddings_in_place_of_ids_are_marked_from_the_second_token_on(agents: Any) -> None:
    embedded = MODEL.get_input_embeddings()(torch.tensor([[5, 6, 7], [8, 9, 10]]))
    marking = iet.WatermarkingConfig(TEAM, agents)
    found = MODEL.generate(
        inputs_embeds=embedded, watermarking_config=marking, do_sample=True, max_new_tokens=8
    )
    assert found.shape == (2, 8)


def test_rows_of_one_prompt_share_its_agent_in_num_return_sequences() -> None:
    marking = iet.WatermarkingConfig(TEAM, ["planner", None])
    found = generate(marking, do_sample=True, num_return_sequences=3)
    assert len({tuple(sequence.tolist()) for sequence in found.sequences}) > 2
    for row, sequence in enumerate(found.sequences):
        prefix = sequence[: 4 + STEPS - 1]
        expected = raw_logits(MODEL, prefix) + shift(TEAM, ["planner", None][row // 3], prefix)
        assert_close(found.scores[-1][row], expected)


def test_left_padding_changes_no_mark() -> None:
    padded = [[PAD, PAD, 5, 6], [9, 10, 11, 12]]
    found = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]), padded)
    alone = generate(iet.WatermarkingConfig(TEAM, "planner"), [[5, 6]])
    assert torch.equal(found.sequences[0, 2:], alone.sequences[0])
    for step in range(STEPS):
        prefix = found.sequences[0, : 4 + step]
        expected = raw_logits(MODEL, prefix) + shift(TEAM, "planner", prefix[2:])
        assert_close(found.scores[step][0], expected)


@pytest.mark.parametrize("draft_seed", [0, 3], ids=["agreeing", "disagreeing"])
def test_assisted_decoding_writes_the_same_text(draft_seed: int) -> None:
    marking = iet.WatermarkingConfig(TEAM, ["planner"])
    options = {"max_new_tokens": 20}
    plain = generate(marking, PROMPT[:1], **options)
    assisted = generate(marking, PROMPT[:1], assistant_model=tiny(seed=draft_seed), **options)
    assert torch.equal(assisted.sequences, plain.sequences)
    assert not torch.equal(plain.sequences, generate(None, PROMPT[:1], **options).sequences)


def test_prompt_lookup_writes_the_same_text() -> None:
    marking, prompt = iet.WatermarkingConfig(TEAM, ["planner"]), [[5, 6, 7, 5, 6, 7, 5, 6]]
    plain = generate(marking, prompt, max_new_tokens=20)
    looked_up = generate(marking, prompt, max_new_tokens=20, prompt_lookup_num_tokens=3)
    assert torch.equal(looked_up.sequences, plain.sequences)


@pytest.mark.parametrize("kind", ["config", "processor"])
def test_what_a_grammar_forbids_stays_forbidden(kind: str) -> None:
    allowed = list(range(20, 60))
    options: dict[str, Any] = {"prefix_allowed_tokens_fn": lambda row, ids: allowed}
    if kind == "config":
        marking = iet.WatermarkingConfig(TEAM, ["planner", "critic"])
    else:
        marking = None
        options["logits_processor"] = [iet.LogitsProcessor(TEAM, ["planner", "critic"], 1.0)]
    found = generate(marking, **options)
    assert set(found.sequences[:, 4:].flatten().tolist()) <= set(allowed)
    for step, scores in enumerate(found.scores):
        for row, agent in enumerate(["planner", "critic"]):
            prefix = found.sequences[row, : 4 + step]
            expected = raw_logits(MODEL, prefix) + shift(TEAM, agent, prefix)
            assert torch.isinf(scores[row]).sum() == V - len(allowed)
            assert_close(scores[row, allowed], expected[allowed])


def test_rows_without_an_agent_are_those_of_an_unmarked_run() -> None:
    unmarked = generate()
    mixed = generate(iet.WatermarkingConfig(TEAM, ["planner", None]))
    assert torch.equal(mixed.sequences[1], unmarked.sequences[1])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(mixed.scores, unmarked.scores, strict=True))
    assert not torch.equal(mixed.scores[0][0], unmarked.scores[0][0])
    nobody = generate(iet.WatermarkingConfig(TEAM, [None, None]))
    assert torch.equal(nobody.sequences, unmarked.sequences)


def test_one_name_marks_every_row() -> None:
    found = generate(iet.WatermarkingConfig(TEAM, "critic"))
    named = generate(iet.WatermarkingConfig(TEAM, ["critic", "critic"]))
    assert all(torch.equal(a, b) for a, b in zip(found.scores, named.scores, strict=True))


def test_interleaved_calls_do_not_disturb_each_other() -> None:
    processor = iet.LogitsProcessor(TEAM, ["planner", "critic"], 1.0)
    marking = iet.WatermarkingConfig(TEAM, ["critic", "planner"])
    alone = generate(logits_processor=[processor]).sequences, generate(marking).sequences
    inner = []

    class OtherCalls(transformers.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            inner.append((generate(logits_processor=[processor]).sequences, generate(marking).sequences))
            return torch.zeros(len(input_ids), dtype=torch.bool)

    outer = generate(logits_processor=[processor], stopping_criteria=[OtherCalls()]).sequences
    assert torch.equal(outer, alone[0])
    assert not torch.equal(alone[0], alone[1])
    assert len(inner) == STEPS
    for by_processor, by_config in inner:
        assert torch.equal(by_processor, alone[0])
        assert torch.equal(by_config, alone[1])


def test_before_and_after_the_temperature_give_the_same_scores() -> None:
    options = {"do_sample": True, "temperature": 0.7}
    after = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]), **options)
    before = generate(
        logits_processor=[iet.LogitsProcessor(TEAM, ["planner", "critic"], temperature=0.7)], **options
    )
    assert torch.equal(before.sequences, after.sequences)
    for a, b in zip(before.scores, after.scores, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_raw_placement_adds_kappa_to_the_models_logits() -> None:
    registry = team(placement="raw")
    found = generate(
        logits_processor=[iet.LogitsProcessor(registry, ["planner", "critic"])],
        do_sample=True,
        temperature=0.5,
    )
    for row, agent in enumerate(["planner", "critic"]):
        prefix = found.sequences[row, : 4 + STEPS - 1]
        expected = (raw_logits(MODEL, prefix) + shift(registry, agent, prefix)) / 0.5
        assert_close(found.scores[-1][row], expected)


def test_positions_without_enough_context_carry_no_mark() -> None:
    registry = team(n_gram=4)
    found = generate(iet.WatermarkingConfig(registry, ["planner"]), [[5]])
    unmarked = [
        torch.equal(scores, logits) for scores, logits in zip(found.scores, found.logits, strict=True)
    ]
    assert unmarked == [True, True, False, False, False, False]
    for step in range(2, STEPS):
        prefix = found.sequences[0, : 1 + step]
        assert_close(found.scores[step][0], raw_logits(MODEL, prefix) + shift(registry, "planner", prefix))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_models_are_marked_in_float32(dtype: str) -> None:
    model = tiny().to(getattr(torch, dtype))
    found = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]), model=model)
    for step in range(STEPS):
        assert found.scores[step].dtype == torch.float32
        for row, agent in enumerate(["planner", "critic"]):
            mark = shift(TEAM, agent, found.sequences[row, : 4 + step])
            assert torch.equal(found.scores[step][row], found.logits[step][row] + mark)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_processor_takes_every_dtype_and_leaves_its_argument(dtype: str) -> None:
    processor = iet.LogitsProcessor(TEAM, ["planner"], temperature=2.0)
    scores = torch.linspace(-4, 4, V)[None].to(getattr(torch, dtype))
    before = scores.clone()
    marked = processor(torch.tensor([[7, 9]]), scores)
    expected = (before[0].float() + 2 * shift(TEAM, "planner", [7, 9])).to(scores.dtype)
    assert torch.equal(scores, before)
    assert marked.dtype == scores.dtype
    assert torch.equal(marked[0], expected)


# Refusals


def test_wrong_numbers_of_agents_are_refused() -> None:
    four = [[5, 6], [7, 8], [9, 10], [11, 12]]
    for agents, prompt in [
        (["planner", "critic", "planner"], PROMPT),
        (["planner", "critic"], PROMPT[:1]),
        (["planner", "critic"], four),  # not two prompts twice: the texts would go to the wrong agents
        (["planner"], PROMPT),
    ]:
        with pytest.raises(ShapeError, match=f"{len(agents)} agents for {len(prompt)} rows, expected one"):
            generate(iet.WatermarkingConfig(TEAM, agents), prompt)


@pytest.mark.parametrize("make", [iet.WatermarkingConfig, iet.LogitsProcessor])
def test_agents_that_are_none_or_unknown_are_refused(make: Any) -> None:
    for agents in ([], "", None, 3, b"planner"):
        with pytest.raises((InputError, RegistryError), match=r"agents: got|agent ''"):
            make(TEAM, agents)
    with pytest.raises(RegistryError, match="did you mean 'planner'"):
        make(TEAM, ["planer"])
    with pytest.raises(InputError, match="got int, expected str"):
        make(TEAM, [3])
    with pytest.raises(InputError, match=r"registry: got str, expected iet\.Registry"):
        make("team.json", ["planner"])


def test_a_processor_needs_the_samplers_temperature() -> None:
    for temperature in (None, 0, -1.0, float("inf"), float("nan"), "0.7"):
        with pytest.raises(InputError, match="temperature: got"):
            iet.LogitsProcessor(TEAM, "planner", temperature)


def test_the_config_refuses_raw_placement() -> None:
    with pytest.raises(InputError, match=r'placement: got "raw".*LogitsProcessor'):
        iet.WatermarkingConfig(team(placement="raw"), "planner")


def test_a_model_with_a_smaller_vocabulary_is_refused() -> None:
    with pytest.raises(ShapeError, match=f"vocabulary: got {V - 1}, expected at least {V}"):
        generate(iet.WatermarkingConfig(TEAM, "planner"), model=tiny(V - 1))
    with pytest.raises(ShapeError, match=f"logits: got .*{V - 1}"):
        generate(logits_processor=[iet.LogitsProcessor(TEAM, "planner", 1.0)], model=tiny(V - 1))


@pytest.mark.parametrize("scheme", [{}, {"family": "gumbel"}])
def test_continuous_batching_is_refused_before_it_starts(scheme: dict[str, Any]) -> None:
    if not hasattr(MODEL, "generate_batch"):
        pytest.skip("this transformers has no continuous batching")
    model, _ = conversation.load_model()
    registry = Registry.create(None, tokenizer=conversation.MODEL / "tokenizer.json", scheme=Scheme(**scheme))
    registry.add("planner")
    marking = iet.WatermarkingConfig(registry, "planner")
    config = transformers.GenerationConfig(do_sample=True, max_new_tokens=3, watermarking_config=marking)
    with pytest.raises(InputError, match=r"generate_batch: .* use generate, or a server"):
        model.generate_batch([[5, 6, 7], [8, 9]], generation_config=config, progress_bar=False)


def test_a_processor_that_is_shown_no_contexts_says_so() -> None:
    processor = iet.WatermarkingConfig(TEAM, "planner").construct_processor(V, "cpu")
    with pytest.raises(ShapeError, match="continuous batching"):
        processor(torch.tensor([3, 4]), torch.zeros(2, V))


def test_a_placeholder_in_the_context_is_refused() -> None:
    processor = iet.LogitsProcessor(TEAM, ["planner"], 1.0)
    with pytest.raises(InputError, match="holds the id -1"):
        processor(torch.tensor([[5, -1]]), torch.zeros(1, V))


def test_an_agent_of_another_profile_is_refused() -> None:
    registry = team()
    other = registry.add_profile(vocab_size=V + 1)
    registry.add("writer", profile=other)
    with pytest.raises(InputError, match="profile: got None, expected one of"):
        iet.WatermarkingConfig(registry, "planner")
    with pytest.raises(RegistryError, match="agent 'writer' has profile"):
        iet.WatermarkingConfig(registry, ["planner", "writer"], profile=registry.profile_of("planner").id)
    found = generate(iet.WatermarkingConfig(registry, "planner", profile=registry.profile_of("planner").id))
    assert torch.equal(found.sequences, generate(iet.WatermarkingConfig(TEAM, "planner")).sequences)


# Saving, copying, showing


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> Registry:
    registry = Registry.create(tmp_path / "team.json", vocab_size=V, unmarked_ids=[PAD])
    registry.merge(TEAM)
    return registry


def secrets_of(registry: Registry) -> list[bytes]:
    """Whatever a mark could be made with, as bytes and in hex."""
    secrets = [bytes(key.secret) for name in registry for key in registry.keys(name)]
    values = [*secrets, *map(derive_subkey, secrets)]
    return [*values, *(value.hex().encode() for value in values)]


def test_a_generation_config_with_marks_is_saved_without_secrets(
    saved: Registry, tmp_path: pathlib.Path
) -> None:
    marking = iet.WatermarkingConfig(saved, ["planner", None])
    config = transformers.GenerationConfig(watermarking_config=marking)
    config.save_pretrained(tmp_path)
    written = (tmp_path / "generation_config.json").read_text()
    assert json.loads(written)["watermarking_config"] == {
        "_iet.WatermarkingConfig": 1,
        "registry": str(saved.path),
        "registry_digest": saved.digest,
        "profile": saved.profile.id,
        "profile_digest": saved.profile.digest,
        "agents": ["planner", None],
    }
    processor = iet.LogitsProcessor(saved, "planner", 1.0)
    shown = [repr(config), repr(marking), repr(processor), str(vars(marking)), written, str(vars(processor))]
    pickled = [pickle.dumps(marking), pickle.dumps(processor)]
    for secret in secrets_of(saved):
        assert not any(secret in text.encode() for text in shown)
        assert not any(secret in data for data in pickled)


def test_logs_and_tracebacks_with_local_variables_show_no_secret(
    saved: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ShapeError) as refusal:
        generate(iet.WatermarkingConfig(saved, ["planner", "critic", "planner"]), do_sample=True)
    shown = caplog.text
    for frame, _ in traceback.walk_tb(refusal.value.__traceback__):
        for value in frame.f_locals.values():
            with contextlib.suppress(TypeError):  # transformers cannot show a config that it has prepared
                shown += repr(value)
    assert "WatermarkingConfig" in shown
    assert "Registry(" in shown
    for secret in secrets_of(saved):
        assert repr(secret)[2:-1] not in shown
        assert repr(list(secret))[1:-1] not in shown


def test_copies_and_pickles_mark_alike(saved: Registry) -> None:
    marking = iet.WatermarkingConfig(saved, ["planner", "critic"])
    expected = generate(marking).sequences
    config = copy.deepcopy(transformers.GenerationConfig(watermarking_config=marking))
    assert config.watermarking_config == marking
    for again in (config.watermarking_config, pickle.loads(pickle.dumps(marking))):
        assert torch.equal(generate(again).sequences, expected)
    processor = iet.LogitsProcessor(saved, ["planner", "critic"], 1.0)
    for same in (copy.deepcopy(processor), pickle.loads(pickle.dumps(processor))):
        assert torch.equal(generate(logits_processor=[same]).sequences, expected)
    with pytest.raises(RegistryError, match="in memory is not pickled"):
        pickle.dumps(iet.LogitsProcessor(TEAM, "planner", 1.0))


def test_a_config_kept_in_the_models_generation_config_marks() -> None:
    model = tiny()
    model.generation_config.watermarking_config = iet.WatermarkingConfig(TEAM, ["planner", "critic"])
    expected = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"])).sequences
    assert torch.equal(generate(model=model).sequences, expected)


def test_the_dict_form_round_trips(saved: Registry, tmp_path: pathlib.Path) -> None:
    marking = iet.WatermarkingConfig(saved, ["planner", "critic"])
    marking.to_json_file(tmp_path / "marking.json")
    for data in (marking.to_dict(), dict(marking), json.loads((tmp_path / "marking.json").read_text())):
        again = iet.WatermarkingConfig.from_dict(data)
        assert again == marking
        assert torch.equal(generate(again).sequences, generate(marking).sequences)
    assert json.loads(marking.to_json_string()) == marking.to_dict()
    saved.rotate("planner")  # keys may change: the next text is marked with the new one
    assert iet.WatermarkingConfig.from_dict(data).to_dict() != data


def test_a_registry_in_memory_is_found_by_the_environment_or_passed(
    saved: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = iet.WatermarkingConfig(TEAM, "planner").to_dict()
    assert data["registry"] is None
    monkeypatch.delenv("IET_REGISTRY", raising=False)
    with pytest.raises(RegistryError, match="IET_REGISTRY"):
        iet.WatermarkingConfig.from_dict(data)
    monkeypatch.setenv("IET_REGISTRY", str(saved.path))
    assert iet.WatermarkingConfig.from_dict(data).registry.path == saved.path
    assert iet.WatermarkingConfig.from_dict(data, registry=TEAM).registry is TEAM


def test_a_dict_of_another_profile_or_kind_is_refused(saved: Registry) -> None:
    data = iet.WatermarkingConfig(team(kappa=2.0), "planner").to_dict()
    with pytest.raises(SchemeMismatch, match=f"expected {data['profile_digest']}"):
        iet.WatermarkingConfig.from_dict({**data, "registry": str(saved.path)})
    for other in ({"greenlist_ratio": 0.25, "bias": 2.0}, {}, None):
        with pytest.raises(InputError, match=r"config_dict: got .*to_dict returns"):
            iet.WatermarkingConfig.from_dict(other)
    with pytest.raises(RegistryError, match="cannot be read"):
        iet.WatermarkingConfig.from_dict({**data, "registry": "nowhere/team.json"})


def test_a_model_saved_with_marks_says_why_it_does_not_load_and_loads_as_documented(
    saved: Registry, tmp_path: pathlib.Path
) -> None:
    model, marking = tiny(), iet.WatermarkingConfig(saved, ["planner", "critic"])
    model.generation_config.watermarking_config = marking
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(TypeError, match=r"'_iet\.WatermarkingConfig'"):
        transformers.GenerationConfig.from_pretrained(tmp_path / "model")
    loaded = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", generation_config=transformers.GenerationConfig()
    )
    written = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    again = iet.WatermarkingConfig.from_dict(written["watermarking_config"])
    assert torch.equal(generate(again, model=loaded).sequences, generate(marking).sequences)


def test_an_updated_config_is_checked_again() -> None:
    marking = iet.WatermarkingConfig(TEAM, ["planner", "critic"])
    marking.update(agents=["critic", "planner"])
    expected = generate(iet.WatermarkingConfig(TEAM, ["critic", "planner"])).sequences
    assert torch.equal(generate(marking).sequences, expected)
    marking.update(agents=["nobody we know"])
    with pytest.raises(RegistryError, match="nobody we know"):
        generate(marking)


def test_a_rotated_key_marks_the_next_call() -> None:
    registry = team()
    marking = iet.WatermarkingConfig(registry, ["planner"])
    before = generate(marking, PROMPT[:1])
    registry.rotate("planner", secret=bytes([9]) * 32)
    after = generate(marking, PROMPT[:1])
    assert not torch.equal(before.scores[0], after.scores[0])
    assert_close(after.scores[0][0], raw_logits(MODEL, PROMPT[0]) + shift(registry, "planner", PROMPT[0]))


# The closed loop, on the model that ships with the package


def team_of_demo(**scheme: Any) -> Registry:
    registry = Registry.create(None, tokenizer=DEMO_SOURCE, scheme=Scheme(**scheme))
    for number, name in enumerate(["planner", "critic", "writer"], 11):
        registry.add(name, secret=bytes([number]) * 32)
    return registry


class Studio:
    """The shipped model, and two turns of 150 tokens at the default strength and at one beyond doubt."""

    def __init__(self) -> None:
        self.model, self.tokenizer = conversation.load_model()
        self.default, self.strong = team_of_demo(), team_of_demo(kappa=2.5)
        self.default_talk = self.say(self.default, ["planner", "critic"])
        self.strong_talk = self.say(self.strong, ["planner", "critic"])

    def say(self, registry: Registry, agents: list[str]) -> conversation.Conversation:
        return conversation.converse(
            self.model, self.tokenizer, registry, [agents], turn_tokens=(150, 150), seed=5
        )


@pytest.fixture(scope="module")
def studio() -> Studio:
    if not (conversation.MODEL / "model.safetensors").is_file():
        pytest.skip("the model that ships with the package is not in this checkout")
    return Studio()


def attributed(report: iet.Report) -> list[str]:
    """Who wrote the attributed segments, in order, each once in a row."""
    found = [segment.agent for segment in report.segments if segment.agent is not None]
    return [agent for i, agent in enumerate(found) if i == 0 or found[i - 1] != agent]


def test_a_forced_choice_audit_finds_both_agents(studio: Studio) -> None:
    registry, talk = studio.default, studio.default_talk
    report = iet.Auditor(registry, allow_unattributed=False).audit(talk.text)
    ends = registry.open_tokenizer().encode(talk.text).char_ends
    spans = [(s.start, s.end, registry.slot(str(s.agent))) for s in talk.spans]
    assert token_accuracy(token_labels(spans, ends), report.token_agents) > 0.7


def test_an_audit_finds_both_agents_in_order_and_their_passage(studio: Studio) -> None:
    report = iet.Auditor(studio.strong).audit(studio.strong_talk.text)
    assert attributed(report) == ["planner", "critic"]
    assert ("planner", "critic") in [(t.source, t.target) for t in report.transitions.observed]
    boundary = next(s.char_start for s in report.segments if s.agent == "critic")
    assert boundary is not None
    assert abs(boundary - studio.strong_talk.spans[1].start) < 100


def test_other_keys_attribute_nothing(studio: Studio) -> None:
    for registry, talk in ((studio.default, studio.default_talk), (studio.strong, studio.strong_talk)):
        strangers = Registry.create(None, tokenizer=DEMO_SOURCE, scheme=registry.profile.scheme)
        for number in range(3):
            strangers.add(f"stranger {number}", secret=bytes([100 + number]) * 32)
        report = iet.Auditor(strangers, level=0.01).audit(talk.text)
        assert {segment.agent for segment in report.segments} == {None}
        assert report.coverage == 0
        assert report.transitions.observed == ()


def test_text_of_a_rotated_key_is_found_under_the_same_name(studio: Studio) -> None:
    rotated = Registry.loads(studio.strong.dumps())
    rotated.rotate("planner", secret=bytes([99]) * 32)
    assert attributed(iet.Auditor(rotated).audit(studio.strong_talk.text)) == ["planner", "critic"]
    current_only = rotated.export(None, ["planner", "critic"])
    assert attributed(iet.Auditor(current_only).audit(studio.strong_talk.text)) == ["critic"]


def test_an_export_marks_and_the_full_registry_reads(studio: Studio) -> None:
    text = studio.say(studio.strong.export(None, ["writer"]), ["writer"]).text
    report = iet.Auditor(studio.strong).audit(text)
    assert attributed(report) == ["writer"]
    assert report.coverage > 0.7
