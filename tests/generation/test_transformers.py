"""Marking in transformers: every step of `generate` against the model's own logits and the oracle's shift."""

from __future__ import annotations

import concurrent.futures
import gc
import pathlib
import pickle
import sys
import warnings
from typing import Any

import pytest

import iet
from iet.demo import conversation
from iet.errors import InputError, RegistryError, ShapeError
from iet.marks.registry import Registry
from tests.support import teams
from tests.support.generation import (
    MODEL,
    PAD,
    PROMPT,
    STEPS,
    TEAM,
    V,
    assert_close,
    generate,
    raw_logits,
    shift,
    team,
    tiny,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Every step against the oracle


@pytest.mark.parametrize("columns", [V, V + 20], ids=["V", "padded"])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "temperature": 0.7, "top_p": 0.8}])
def test_every_step_adds_the_oracles_shift_to_the_warped_logits(columns: int, options: Any) -> None:
    model = tiny(columns)
    agents = ["planner", "critic", None]
    prompt = [*PROMPT, PROMPT[0]]
    output = generate(iet.WatermarkingConfig(TEAM, agents), prompt, model, **options)
    for step, scores in enumerate(output.scores):
        for row, agent in enumerate(agents):
            prefix = output.sequences[row, : 4 + step]
            expected = raw_logits(model, prefix)[None]
            assert_close(output.logits[step][row], expected[0])  # returned logits are the model's own
            if options:
                expected = transformers.TemperatureLogitsWarper(options["temperature"])(None, expected)
                expected = transformers.TopPLogitsWarper(options["top_p"])(None, expected)
            assert_close(scores[row], expected[0] + shift(TEAM, agent, prefix, columns))
            assert torch.isfinite(scores[row, output.sequences[row, 4 + step]])


@pytest.mark.parametrize("sampled", [False, True])
def test_rows_of_one_prompt_share_its_agent_in_beams(sampled: bool) -> None:
    options = {"num_beams": 3, "num_return_sequences": 2, "do_sample": sampled}
    output = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]), **options)
    assert len(output.sequences) == 4
    for row, sequence in enumerate(output.sequences):
        for step in range(STEPS):
            prefix = sequence[: 4 + step]
            scores = output.scores[step][output.beam_indices[row, step]]
            expected = torch.log_softmax(raw_logits(MODEL, prefix), -1)
            assert_close(scores, expected + shift(TEAM, ["planner", "critic"][row // 2], prefix))


@pytest.mark.parametrize("agents", ["planner", ["planner", "critic"]])
def test_accepts_input_embeddings(agents: Any) -> None:
    embedded = MODEL.get_input_embeddings()(torch.tensor([[5, 6, 7], [8, 9, 10]]))
    marking = iet.WatermarkingConfig(TEAM, agents)
    output = MODEL.generate(
        inputs_embeds=embedded, watermarking_config=marking, do_sample=True, max_new_tokens=8
    )
    assert output.shape == (2, 8)


def test_rows_of_one_prompt_share_its_agent_in_num_return_sequences() -> None:
    marking = iet.WatermarkingConfig(TEAM, ["planner", None])
    output = generate(marking, do_sample=True, num_return_sequences=3)
    assert len({tuple(sequence.tolist()) for sequence in output.sequences}) > 2
    for row, sequence in enumerate(output.sequences):
        prefix = sequence[: 4 + STEPS - 1]
        expected = raw_logits(MODEL, prefix) + shift(TEAM, ["planner", None][row // 3], prefix)
        assert_close(output.scores[-1][row], expected)


def test_left_padding_does_not_change_the_mark() -> None:
    padded = [[PAD, PAD, 5, 6], [9, 10, 11, 12]]
    output = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]), padded)
    alone = generate(iet.WatermarkingConfig(TEAM, "planner"), [[5, 6]])
    assert torch.equal(output.sequences[0, 2:], alone.sequences[0])
    for step in range(STEPS):
        prefix = output.sequences[0, : 4 + step]
        expected = raw_logits(MODEL, prefix) + shift(TEAM, "planner", prefix[2:])
        assert_close(output.scores[step][0], expected)


def test_assisted_decoding_writes_the_same_text() -> None:
    marking, prompt = iet.WatermarkingConfig(TEAM, ["planner"]), [[5, 6, 7, 5, 6, 7, 5, 6]]
    plain = generate(marking, prompt, max_new_tokens=20)
    drafts = [{"assistant_model": tiny(seed=seed)} for seed in (0, 3)]  # agreeing, disagreeing
    for options in (*drafts, {"prompt_lookup_num_tokens": 3}):
        assisted = generate(marking, prompt, max_new_tokens=20, **options)
        assert torch.equal(assisted.sequences, plain.sequences)
    assert not torch.equal(plain.sequences, generate(None, prompt, max_new_tokens=20).sequences)


@pytest.mark.parametrize("kind", ["config", "processor"])
def test_forbidden_tokens_stay_forbidden(kind: str) -> None:
    allowed = list(range(20, 60))
    options: dict[str, Any] = {"prefix_allowed_tokens_fn": lambda row, ids: allowed}
    if kind == "config":
        marking = iet.WatermarkingConfig(TEAM, ["planner", "critic"])
    else:
        marking = None
        options["logits_processor"] = [iet.LogitsProcessor(TEAM, ["planner", "critic"], 1.0)]
    output = generate(marking, **options)
    assert set(output.sequences[:, 4:].flatten().tolist()) <= set(allowed)
    for step, scores in enumerate(output.scores):
        for row, agent in enumerate(["planner", "critic"]):
            prefix = output.sequences[row, : 4 + step]
            expected = raw_logits(MODEL, prefix) + shift(TEAM, agent, prefix)
            assert torch.isinf(scores[row]).sum() == V - len(allowed)
            assert_close(scores[row, allowed], expected[allowed])


def test_rows_without_an_agent_equal_an_unmarked_run() -> None:
    unmarked = generate()
    mixed = generate(iet.WatermarkingConfig(TEAM, ["planner", None]))
    assert torch.equal(mixed.sequences[1], unmarked.sequences[1])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(mixed.scores, unmarked.scores, strict=True))
    assert not torch.equal(mixed.scores[0][0], unmarked.scores[0][0])
    unnamed = generate(iet.WatermarkingConfig(TEAM, [None, None]))
    assert torch.equal(unnamed.sequences, unmarked.sequences)


def test_one_name_marks_every_row() -> None:
    output = generate(iet.WatermarkingConfig(TEAM, "critic"))
    named = generate(iet.WatermarkingConfig(TEAM, ["critic", "critic"]))
    assert all(torch.equal(a, b) for a, b in zip(output.scores, named.scores, strict=True))


def test_interleaved_calls_are_independent() -> None:
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


def test_raw_placement_adds_kappa_to_the_models_logits() -> None:
    registry = team(placement="raw")
    output = generate(
        logits_processor=[iet.LogitsProcessor(registry, ["planner", "critic"])],
        do_sample=True,
        temperature=0.5,
    )
    for row, agent in enumerate(["planner", "critic"]):
        prefix = output.sequences[row, : 4 + STEPS - 1]
        expected = (raw_logits(MODEL, prefix) + shift(registry, agent, prefix)) / 0.5
        assert_close(output.scores[-1][row], expected)


def test_positions_without_enough_context_carry_no_mark() -> None:
    registry = team(n_gram=4)
    output = generate(iet.WatermarkingConfig(registry, ["planner"]), [[5]])
    unmarked = [
        torch.equal(scores, logits) for scores, logits in zip(output.scores, output.logits, strict=True)
    ]
    assert unmarked == [True, True, False, False, False, False]
    for step in range(2, STEPS):
        prefix = output.sequences[0, : 1 + step]
        assert_close(output.scores[step][0], raw_logits(MODEL, prefix) + shift(registry, "planner", prefix))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_models_are_marked_in_float32(dtype: str) -> None:
    model = tiny().to(getattr(torch, dtype))
    output = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"]), model=model)
    for step in range(STEPS):
        assert output.scores[step].dtype == torch.float32
        for row, agent in enumerate(["planner", "critic"]):
            mark = shift(TEAM, agent, output.sequences[row, : 4 + step])
            assert torch.equal(output.scores[step][row], output.logits[step][row] + mark)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_processor_keeps_the_dtype_and_its_argument(dtype: str) -> None:
    processor = iet.LogitsProcessor(TEAM, ["planner"], temperature=2.0)
    scores = torch.linspace(-4, 4, V)[None].to(getattr(torch, dtype))
    original = scores.clone()
    marked = processor(torch.tensor([[7, 9]]), scores)
    expected = (original[0].float() + 2 * shift(TEAM, "planner", [7, 9])).to(scores.dtype)
    assert torch.equal(scores, original)
    assert marked.dtype == scores.dtype
    assert torch.equal(marked[0], expected)


# Refusals


def test_rejects_wrong_numbers_of_agents() -> None:
    four = [[5, 6], [7, 8], [9, 10], [11, 12]]
    for agents, prompt in [
        (["planner", "critic", "planner"], PROMPT),
        (["planner", "critic"], PROMPT[:1]),
        (["planner", "critic"], four),  # not two prompts twice: the texts would go to the wrong agents
        (["planner"], PROMPT),
    ]:
        with pytest.raises(ShapeError, match=f"{len(agents)} agents for {len(prompt)} rows, expected one"):
            generate(iet.WatermarkingConfig(TEAM, agents), prompt)


def encoder_decoder() -> Any:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": V}
    config = transformers.T5Config(**sizes, decoder_start_token_id=1, eos_token_id=None, pad_token_id=PAD)
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("family", ["fourier", "gumbel"])
@pytest.mark.parametrize("hidden", ["embeddings", "encoder"])
def test_counts_prompts_whose_ids_are_not_shown(family: str, hidden: str) -> None:
    registry = team(family=family)
    model = MODEL if hidden == "embeddings" else encoder_decoder()
    four = torch.tensor([[5, 6, 7], [7, 8, 9], [9, 10, 11], [11, 12, 13]])

    def answer(prompts: Any, agents: Any, **options: Any) -> Any:
        inputs = {"input_ids": prompts}
        if hidden == "embeddings":
            inputs = {"inputs_embeds": model.get_input_embeddings()(prompts)}
        marking = iet.WatermarkingConfig(registry, agents, free=iet.FreeTokens(0, 0))
        settings = {"do_sample": True, "max_new_tokens": 5, **options}
        return model.generate(**inputs, watermarking_config=marking, **settings)

    two = ["planner", "critic"]
    for agents in (two, ["planner"]):
        with pytest.raises(ShapeError, match=f"{len(agents)} agents for 4 rows, expected one agent per row"):
            answer(four, agents)
    with pytest.raises(ShapeError, match="2 agents for 8 rows"):
        answer(four, two, num_return_sequences=2)
    assert len(answer(four, two * 2)) == len(answer(four, "planner")) == 4
    assert len(answer(four[:2], two, num_return_sequences=2)) == 4
    if family == "fourier":
        assert len(answer(four[:2], two, num_beams=3, num_return_sequences=2)) == 4


@pytest.mark.parametrize("make", [iet.WatermarkingConfig, iet.LogitsProcessor])
def test_rejects_invalid_and_unknown_agents(make: Any) -> None:
    for agents in ([], "", None, 3, b"planner"):
        with pytest.raises((InputError, RegistryError), match=r"agents: got|agent ''"):
            make(TEAM, agents)
    with pytest.raises(RegistryError, match="did you mean 'planner'"):
        make(TEAM, ["planer"])
    with pytest.raises(InputError, match="got int, expected str"):
        make(TEAM, [3])
    with pytest.raises(InputError, match=r"registry: got str, expected iet\.Registry"):
        make("team.json", ["planner"])


def test_processor_rejects_invalid_temperatures() -> None:
    for temperature in (None, 0, -1.0, float("inf"), float("nan"), "0.7"):
        with pytest.raises(InputError, match="temperature: got"):
            iet.LogitsProcessor(TEAM, "planner", temperature)


def test_processor_warns_of_a_temperature_near_0() -> None:
    with pytest.warns(UserWarning, match="hardly anything is marked: temperature is 0.09,") as caught:
        processor = iet.LogitsProcessor(TEAM, "planner", 0.09)
    processor(torch.tensor([[7, 9]]), torch.zeros(1, V))  # or it warns that it was never called
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for registry, temperature in ((TEAM, 0.1), (team(placement="raw"), 0.001)):  # raw: κ is not scaled
            processor = iet.LogitsProcessor(registry, "planner", temperature)
            processor(torch.tensor([[7, 9]]), torch.zeros(1, V))


def test_config_rejects_raw_placement() -> None:
    with pytest.raises(InputError, match=r'placement: got "raw".*LogitsProcessor'):
        iet.WatermarkingConfig(team(placement="raw"), "planner")


def test_rejects_a_model_with_a_smaller_vocabulary() -> None:
    with pytest.raises(ShapeError, match=f"vocabulary: got {V - 1}, expected at least {V}"):
        generate(iet.WatermarkingConfig(TEAM, "planner"), model=tiny(V - 1))
    with pytest.raises(ShapeError, match=f"logits: got .*{V - 1}"):
        generate(logits_processor=[iet.LogitsProcessor(TEAM, "planner", 1.0)], model=tiny(V - 1))


@pytest.mark.parametrize("scheme", [{}, {"family": "gumbel"}])
def test_config_rejects_continuous_batching(scheme: dict[str, Any]) -> None:
    if not hasattr(MODEL, "generate_batch"):
        pytest.skip("this transformers has no continuous batching")
    model, _ = conversation.load_model()
    registry = teams.team(["planner"], tokenizer=conversation.MODEL / "tokenizer.json", **scheme)
    marking = iet.WatermarkingConfig(registry, "planner")
    config = transformers.GenerationConfig(do_sample=True, max_new_tokens=3, watermarking_config=marking)
    with pytest.raises(InputError, match=r"generate_batch: .* use generate, or a server"):
        model.generate_batch([[5, 6, 7], [8, 9]], generation_config=config, progress_bar=False)


def test_ignored_processor_warns_that_it_was_never_called() -> None:
    if not hasattr(MODEL, "generate_batch"):
        pytest.skip("this transformers has no continuous batching")
    model, _ = conversation.load_model()
    registry = teams.team(["planner"], tokenizer=conversation.MODEL / "tokenizer.json")
    config = transformers.GenerationConfig(do_sample=True, max_new_tokens=3)
    small: dict[str, Any] = {}  # by itself it takes most of the memory for its cache, and fills it
    if hasattr(transformers, "ContinuousBatchingConfig"):
        sizes = transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=32)
        small["continuous_batching_config"] = sizes
    with pytest.warns(
        RuntimeWarning, match=r"never called, so it marked nothing\. generate_batch ignores"
    ) as caught:
        model.generate_batch(
            [[5, 6, 7], [8, 9]],
            generation_config=config,
            progress_bar=False,
            logits_processor=[iet.LogitsProcessor(registry, "planner", 1.0)],
            **small,
        )
    assert [warning.filename for warning in caught if "never called" in str(warning.message)] == [__file__]


def test_processor_that_was_called_copied_or_pickled_does_not_warn(tmp_path: pathlib.Path) -> None:
    registry = Registry.create(tmp_path / "team.json", vocab_size=V, unmarked_ids=[PAD])
    registry.merge(TEAM)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        generate(logits_processor=[iet.LogitsProcessor(registry, ["planner", "critic"], 1.0)])
        data = pickle.dumps(iet.LogitsProcessor(registry, ["planner", "critic"], 1.0))
        generate(logits_processor=[pickle.loads(data)])
        gc.collect()
    assert not [warning for warning in caught if "never called" in str(warning.message)]


def test_rejects_input_without_contexts() -> None:
    processor = iet.WatermarkingConfig(TEAM, "planner").construct_processor(V, "cpu")
    with pytest.raises(ShapeError, match="continuous batching"):
        processor(torch.tensor([3, 4]), torch.zeros(2, V))


def test_rejects_a_placeholder_in_the_context() -> None:
    processor = iet.LogitsProcessor(TEAM, ["planner"], 1.0)
    with pytest.raises(InputError, match="holds the id -1"):
        processor(torch.tensor([[5, -1]]), torch.zeros(1, V))


def test_threads_can_share_a_processor() -> None:
    batches = {n: (torch.randint(2, V, (n, 5)), torch.zeros(n, V)) for n in (1, 2, 3)}
    alone = {n: iet.LogitsProcessor(TEAM, "planner", 0.7)(*batch) for n, batch in batches.items()}
    shared = iet.LogitsProcessor(TEAM, "planner", 0.7)

    def num_equal(rows: int) -> int:
        return sum(torch.equal(shared(*batches[rows]), alone[rows]) for _ in range(300))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they meet
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            assert list(pool.map(num_equal, batches)) == [300] * 3
    finally:
        sys.setswitchinterval(interval)


def test_rejects_an_agent_of_another_profile() -> None:
    registry = team()
    second_profile = registry.add_profile(vocab_size=V + 1)
    registry.add("writer", profile=second_profile)
    with pytest.raises(InputError, match="profile: got None, expected one of"):
        iet.WatermarkingConfig(registry, "planner")
    with pytest.raises(RegistryError, match="agent 'writer' has profile"):
        iet.WatermarkingConfig(registry, ["planner", "writer"], profile=registry.profile_of("planner").id)
    output = generate(iet.WatermarkingConfig(registry, "planner", profile=registry.profile_of("planner").id))
    assert torch.equal(output.sequences, generate(iet.WatermarkingConfig(TEAM, "planner")).sequences)
