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
    registry = teams.team(["planner"], tokenizer=conversation.MODEL / "tokenizer.json", **scheme)
    marking = iet.WatermarkingConfig(registry, "planner")
    config = transformers.GenerationConfig(do_sample=True, max_new_tokens=3, watermarking_config=marking)
    with pytest.raises(InputError, match=r"generate_batch: .* use generate, or a server"):
        model.generate_batch([[5, 6, 7], [8, 9]], generation_config=config, progress_bar=False)


def test_a_processor_that_continuous_batching_ignores_warns_that_it_was_never_called() -> None:
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
    ) as told:
        model.generate_batch(
            [[5, 6, 7], [8, 9]],
            generation_config=config,
            progress_bar=False,
            logits_processor=[iet.LogitsProcessor(registry, "planner", 1.0)],
            **small,
        )
    assert [warning.filename for warning in told if "never called" in str(warning.message)] == [__file__]


def test_a_processor_that_was_called_copied_or_pickled_does_not_warn(tmp_path: pathlib.Path) -> None:
    registry = Registry.create(tmp_path / "team.json", vocab_size=V, unmarked_ids=[PAD])
    registry.merge(TEAM)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        generate(logits_processor=[iet.LogitsProcessor(registry, ["planner", "critic"], 1.0)])
        data = pickle.dumps(iet.LogitsProcessor(registry, ["planner", "critic"], 1.0))
        generate(logits_processor=[pickle.loads(data)])
        gc.collect()
    assert not [warning for warning in told if "never called" in str(warning.message)]


def test_a_processor_that_is_shown_no_contexts_says_so() -> None:
    processor = iet.WatermarkingConfig(TEAM, "planner").construct_processor(V, "cpu")
    with pytest.raises(ShapeError, match="continuous batching"):
        processor(torch.tensor([3, 4]), torch.zeros(2, V))


def test_a_placeholder_in_the_context_is_refused() -> None:
    processor = iet.LogitsProcessor(TEAM, ["planner"], 1.0)
    with pytest.raises(InputError, match="holds the id -1"):
        processor(torch.tensor([[5, -1]]), torch.zeros(1, V))


def test_threads_that_share_a_processor_get_the_marks_of_their_own_rows() -> None:
    batches = {n: (torch.randint(2, V, (n, 5)), torch.zeros(n, V)) for n in (1, 2, 3)}
    alone = {n: iet.LogitsProcessor(TEAM, "planner", 0.7)(*batch) for n, batch in batches.items()}
    shared = iet.LogitsProcessor(TEAM, "planner", 0.7)

    def told(rows: int) -> int:
        return sum(torch.equal(shared(*batches[rows]), alone[rows]) for _ in range(300))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they meet
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            assert list(pool.map(told, batches)) == [300] * 3
    finally:
        sys.setswitchinterval(before)


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
