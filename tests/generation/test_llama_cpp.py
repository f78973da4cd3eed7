"""llama.cpp: the real engine, on the shipped model written as GGUF by the test."""

from __future__ import annotations

import functools
import json
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet import Registry
from iet.errors import InputError, RegistryError, ShapeError
from iet.generation.free import request_key
from iet.generation.llama_cpp import LogitsProcessor
from tests.support import teams

MODEL = pathlib.Path(iet.__file__).parent / "demo" / "model"
TEMPERATURE = 0.9


def team(**scheme: Any) -> Registry:
    return teams.team(["planner", "critic"], numbered=1, tokenizer=MODEL / "tokenizer.json", **scheme)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    llama_cpp = pytest.importorskip("llama_cpp", reason="pip install llama-cpp-python (it is compiled)")
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path)
    model = llama_cpp.Llama(str(path), n_ctx=1024, n_threads=1, seed=7, verbose=False, logits_all=False)
    yield model
    model.close()


def write_gguf(path: pathlib.Path) -> None:
    """Write the shipped model as llama.cpp reads it."""
    gguf = pytest.importorskip("gguf")
    safetensors = pytest.importorskip("safetensors.torch")
    config = json.loads((MODEL / "config.json").read_text())
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for _, i in vocabulary]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in safetensors.load_file(MODEL / "model.safetensors").items():
        values = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # Hugging Face keeps the two halves of what rotary embeddings rotate apart, llama.cpp interleaves.
            count = heads if "q_proj" in name else kv_heads
            values = values.reshape(count, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ids_of(llm: Any, text: str) -> list[int]:
    return list(llm.tokenize(text.encode(), add_bos=False))


def test_gguf_file_equals_the_shipped_model(llm: Any) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    text = "The planner said: we'll measure it again, twice. 1234"
    ids = iet.marks.tokenizer.Tokenizer(MODEL / "tokenizer.json").encode(text).token_ids.tolist()
    assert ids_of(llm, text) == list(ids)
    seen = []

    def look(input_ids: Any, scores: Any) -> Any:
        seen.append((list(input_ids), np.array(scores)))
        return scores

    list(take(1, llm.generate(list(ids), logits_processor=[look])))
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([list(ids)])).logits[0, -1].numpy()
    assert seen[0][0] == list(ids)
    np.testing.assert_allclose(seen[0][1], expected, atol=0.02)


def take(count: int, tokens: Iterator[int]) -> Iterator[int]:
    for _, token in zip(range(count), tokens, strict=False):
        yield token


def test_logits_and_contexts_equal_embed(llm: Any) -> None:
    registry = team(n_gram=3)
    processor = LogitsProcessor(registry, "critic", TEMPERATURE, model=llm)
    seen: list[tuple[list[int], Any, tuple[int, ...]]] = []
    marked = []

    def record_input(input_ids: Any, scores: Any) -> Any:
        seen.append((list(input_ids), np.array(scores), scores.strides))
        return scores

    def record_output(input_ids: Any, scores: Any) -> Any:
        marked.append(np.array(scores))
        return scores

    prompt = ids_of(llm, "We should")
    tokens = list(
        take(
            12,
            llm.generate(prompt, temp=TEMPERATURE, logits_processor=[record_input, processor, record_output]),
        )
    )
    assert len(seen) == len(marked) == 12
    for step, ((ids, scores, strides), result) in enumerate(zip(seen, marked, strict=True)):
        assert ids == [*prompt, *tokens[:step]]
        assert strides == (12,)  # one field of records of three
        expected = scores[None].copy()
        iet.embed_(expected, [ids[-2:]], [registry.slot("critic")], registry, temperature=TEMPERATURE)
        np.testing.assert_array_equal(result, expected[0])
        assert not np.array_equal(result, scores)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "temperature"),
    [(40, 0.95, 0.05, 0.8), (0, 1.0, 0.0, 1.0), (7, 1.0, 0.0, 1.3), (0, 0.6, 0.0, 0.5), (0, 1.0, 0.1, 1.0)],
)
def test_gumbel_filters_equal_the_engines_chain(
    llm: Any, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    internals = pytest.importorskip("llama_cpp._internals")
    logits = np.random.default_rng(2).normal(0, 2, 4096).astype(np.float32)
    chain = internals.LlamaSampler()
    chain.add_top_k(top_k)
    chain.add_top_p(top_p, 1)
    chain.add_min_p(min_p, 1)
    chain.add_temp(temperature)
    candidates = (llama_cpp.llama_token_data * 4096)(*((i, float(x), 0.0) for i, x in enumerate(logits)))
    array = llama_cpp.llama_token_data_array(candidates, 4096, -1, False)
    llama_cpp.llama_sampler_apply(chain.sampler, array)
    expected = np.full(4096, -np.inf, np.float32)
    for at in range(array.size):
        expected[array.data[at].id] = array.data[at].logit
    registry = team(family="gumbel")
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "free": iet.FreeTokens(0, 0.0)}
    processor = LogitsProcessor(registry, "critic", temperature, model=llm, **filters)
    rng = np.random.default_rng(3)
    for _ in range(40):
        ids, scores, noisy = rng.integers(5, 4000, 9).astype(np.intc), logits.copy(), expected.copy()
        iet.embed_(noisy[None], [ids[-3:]], [registry.slot("critic")], registry)
        processor(ids, scores)
        token = int(noisy.argmax())
        assert np.flatnonzero(np.isfinite(scores)).tolist() == [token]
        assert scores[token] == logits[token]


def test_gumbel_gives_repeated_contexts_new_noise() -> None:
    registry = team(family="gumbel")
    filters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "free": iet.FreeTokens(0, 0.0)}
    processor = LogitsProcessor(registry, "planner", 1.0, model=Stub(), **filters)
    logits = np.random.default_rng(1).normal(size=4096).astype(np.float32)
    tokens = []
    for ids, count in (([5, 7, 8, 9], 0), ([7, 8, 9, 5, 7, 8, 9], 1), ([7, 7, 7, 7, 7], 2)):
        scores, noisy = logits.copy(), logits.copy()
        iet.embed_(noisy[None], [ids[-3:]], [registry.slot("planner")], registry, counts=[count])
        processor(np.array(ids, dtype=np.intc), scores)
        tokens.append(int(noisy.argmax()))
        assert np.flatnonzero(np.isfinite(scores)).tolist() == tokens[-1:]
    assert len({*tokens}) == 3
    for ids in ([8, 9], [5, 0, 9]):  # no context, a special id
        np.testing.assert_array_equal(processor(np.array(ids, dtype=np.intc), logits.copy()), logits)


def test_free_tokens_and_the_start_of_a_request() -> None:
    registry, logits = team(family="gumbel"), np.random.default_rng(1).normal(size=4096).astype(np.float32)

    def free(processor: LogitsProcessor, ids: list[int]) -> bool:
        scores = logits.copy()
        processor(np.array(ids, dtype=np.intc), scores)
        return bool(np.isfinite(scores).all())

    ids = np.random.default_rng(2).integers(5, 4000, 300).tolist()
    made = functools.partial(LogitsProcessor, registry, "planner", 1.0, model=Stub())
    processor = made(free=iet.FreeTokens(3, 0.2), seed=7)
    first_request = [free(processor, ids[: 10 + step]) for step in range(200)]
    assert first_request[:3] == [True] * 3
    assert 20 < sum(first_request[3:]) < 60
    key = np.array([request_key(7, 1)] * 200)
    assert first_request == iet.FreeTokens(3, 0.2).are_free(key, np.arange(200)).tolist()
    second_request = [free(processor, ids[: 10 + step]) for step in range(200)]  # the next request
    assert second_request[:3] == [True] * 3
    assert second_request != first_request
    same_seed = made(free=iet.FreeTokens(3, 0.2), seed=7)
    assert [free(same_seed, ids[: 10 + step]) for step in range(200)] == first_request
    assert not free(made(free=iet.FreeTokens(0, 0.0)), ids[:10])


@pytest.mark.parametrize("scheme", [{"kappa": 1.6}, {"family": "gumbel"}], ids=["fourier", "gumbel"])
def test_audit_distinguishes_two_agents(llm: Any, scheme: dict[str, Any]) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    registry = team(**scheme)
    text, turns = "", []
    for agent in ["planner", "critic"]:
        processor = LogitsProcessor(registry, agent, 1.0, model=llm, top_k=0, top_p=1.0, min_p=0.0)
        processors = llama_cpp.LogitsProcessorList([processor])
        answer = llm.create_completion(
            "The ",
            max_tokens=250,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            logit_bias=None,
            logits_processor=processors,
            seed=11,
        )
        text += answer["choices"][0]["text"]
        turns.append(len(text))
    report = iet.Auditor(registry).audit(text)
    assert set(report.found) == {"planner", "critic"}
    middle = [turns[0] // 2, (turns[0] + turns[1]) // 2]
    agents = [
        segment.agent
        for position in middle
        for segment in report.segments
        if segment.char_start <= position < segment.char_end
    ]
    assert agents == ["planner", "critic"]


class Stub:
    """The attributes of a model that a processor reads."""

    def __init__(self, size: int = 4096, draft_model: Any = None) -> None:
        self.size, self.draft_model = size, draft_model

    def n_vocab(self) -> int:
        return self.size


def test_marks_strided_scores_in_place() -> None:
    registry = team(n_gram=3)
    processor = LogitsProcessor(registry, "planner", 2.0, model=Stub())
    records = np.recarray(4100, dtype=[("id", np.intc), ("logit", np.single), ("p", np.single)])
    records.id, records.p = np.arange(4100), 0.5
    records.logit = np.random.default_rng(1).normal(size=4100)
    expected = np.ascontiguousarray(records.logit)[None].copy()
    iet.embed_(expected, [[8, 9]], [0], registry, temperature=2.0)
    view = records.logit
    assert processor(np.array([7, 8, 9], dtype=np.intc), view) is view
    np.testing.assert_array_equal(records.logit, expected[0])
    np.testing.assert_array_equal(records.id, np.arange(4100))
    assert (records.p == 0.5).all()

    untouched = records.copy()
    processor(np.array([7], dtype=np.intc), records.logit)  # no context yet
    np.testing.assert_array_equal(records, untouched)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"temperature": None}, InputError, "temperature: got None"),
        ({"temperature": 0}, InputError, "temperature: got 0"),
        ({"temperature": 0.09}, InputError, "temperature: got 0.09, expected at least 0.1, or 1.0 if"),
        (
            {"registry": team(family="gumbel"), "temperature": 0.09},
            InputError,
            "temperature: got 0.09, expec",
        ),
        ({"model": Stub(4095)}, ShapeError, "vocabulary: got 4095, expected at least 4096"),
        ({"model": "model.gguf"}, InputError, r"model: got str, expected llama_cpp\.Llama"),
        ({"agent": "planer"}, RegistryError, "did you mean 'planner'"),
        ({"registry": "team.json"}, InputError, r"expected iet\.Registry"),
        ({"top_k": 0.5}, InputError, "top_k: got 0.5, expected an int"),
        (
            {"registry": team(family="gumbel"), "top_k": 1},
            InputError,
            "top_k: got 1 .*, expected more, or all",
        ),
        ({"registry": team(family="gumbel"), "top_p": 1e-5}, InputError, "top_p: got 1e-05, expected at"),
        ({"top_p": 0.0}, InputError, "top_p: got 0.0, expected a number above 0"),
        ({"min_p": 1.1}, InputError, "min_p: got 1.1, expected a number from 0 to 1"),
        ({"model": Stub(draft_model=types.SimpleNamespace())}, InputError, "draft_model"),
        ({"seed": "x"}, InputError, "seed: got 'x'"),
        ({"free": 8}, InputError, "free: got int, expected iet.FreeTokens"),
    ],
)
def test_rejects_invalid_arguments(options: dict[str, Any], error: type[Exception], named: str) -> None:
    arguments = {
        "registry": team(),
        "agent": "planner",
        "temperature": 1.0,
        "model": Stub(),
        **options,
    }
    with pytest.raises(error, match=named):
        LogitsProcessor(**arguments)


def test_raw_placement_needs_no_temperature() -> None:
    registry = team(placement="raw")
    scores, expected = np.zeros(4096, dtype=np.single), np.zeros((1, 4096), dtype=np.single)
    LogitsProcessor(registry, "planner", model=Stub())(np.array([7, 8, 9], dtype=np.intc), scores)
    iet.embed_(expected, [[9]], [0], registry)
    np.testing.assert_array_equal(scores, expected[0])
