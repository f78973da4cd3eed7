"""The texts of the accuracy benchmark: how they are sampled, stored and formed, and the unmarked ones."""

from __future__ import annotations

import csv
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet.audit.metrics import token_labels
from iet.demo.conversation import load_model
from iet.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks.accuracy import sampler, texts, unmarked  # noqa: E402 - after the skips

CELL = texts.Cell("shipped", 1.0, 4, "fourier")
FAMILIES = tuple(texts.SCHEMES)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shipped() -> Any:
    return load_model()[0]


# Sampling


def small_model(architecture: str) -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if architecture == "llama":
        config = transformers.LlamaConfig(
            **shape, intermediate_size=64, num_key_value_heads=2, initializer_range=0.2
        )
    else:
        config = transformers.GPTNeoXConfig(**shape, intermediate_size=64, initializer_range=0.2)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def registry_of(agents: int, vocab_size: int, family: str = "fourier") -> iet.Registry:
    registry = iet.Registry.create(None, vocab_size=vocab_size, scheme=texts.scheme(family))
    for slot in range(agents):
        registry.add(f"a{slot}", secret=bytes([slot] * 32))
    return registry


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_continuations_that_share_a_prompt_are_those_of_the_model(architecture: str) -> None:
    # Almost greedy: after the temperature the likeliest token is certain, whatever the draw.
    model = small_model(architecture)
    prompts = np.random.default_rng(0).integers(3, 100, (3, 7))
    slots = np.full((3, 2), -1)
    keys = registry_of(1, 100).marking_keys()
    found = sampler.sample(model, prompts, slots, keys, tokens=20, temperature=1e-4, barred=(0, 5), seed=0)
    model.set_attn_implementation("eager")
    ids = torch.from_numpy(prompts)
    expected = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=20,
        max_new_tokens=20,
        suppress_tokens=[0, 5],
        pad_token_id=0,
    )[:, 7:].numpy()
    assert np.array_equal(found.ids.reshape(3, 2, 20), np.repeat(expected[:, None], 2, axis=1))
    assert len(np.unique(expected)) > 10
    assert np.all(found.entropy < 0.1)


def test_draws_follow_the_distribution() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 150, generator=generator) * 1.5  # no multiple of the block
    logits[0, [0, 63, 64, 149]] = -torch.inf
    drawn = sampler._draw(logits.repeat(100_000, 1), generator)
    counts = np.bincount(drawn.numpy(), minlength=150)
    expected = torch.softmax(logits[0].double(), -1).numpy() * 100_000
    assert counts[[0, 63, 64, 149]].sum() == 0
    kept = expected > 5
    assert (
        stats.chisquare(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()).pvalue
        > 1e-3
    )


def test_the_entropy_is_that_of_the_model_and_the_mark_lowers_it() -> None:
    model = small_model("llama")
    prompts = np.random.default_rng(1).integers(3, 100, (40, 5))
    keys = registry_of(2, 100).marking_keys()
    slots = np.tile([0, 1], (40, 1))
    found = sampler.sample(model, prompts, slots, keys, tokens=1, temperature=0.8, barred=(0,), seed=0)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.from_numpy(prompts)).logits[:, -1].double() / 0.8
    logits[:, 0] = -torch.inf
    entropy = torch.special.entr(torch.softmax(logits, -1)).sum(-1).numpy()
    assert found.entropy == pytest.approx(np.repeat(entropy, 2), abs=1e-4)
    assert found.marked_entropy.mean() < found.entropy.mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_continuation_carries_the_mark_of_its_key(family: str) -> None:
    model = small_model("llama")
    registry = registry_of(3, 100, family)
    prompts = np.random.default_rng(2).integers(3, 100, (4, 8))
    slots = np.array([[0, 1], [2, -1], [1, 0], [-1, 2]])
    options = {"tokens": 150, "temperature": 3.0, "barred": (0,)}
    found = sampler.sample(model, prompts, slots, registry.marking_keys(), seed=1, **options)
    for row, slot in zip(found.ids, slots.reshape(-1), strict=True):
        scores = iet.score_tokens(row, registry)[registry.get_profile(None).scheme.n_gram - 1 :].mean(axis=0)
        unmarked_score = registry.get_profile(None).family.mean(0)
        best = int(np.argmax(scores))
        assert (best == slot) if slot >= 0 else (abs(scores - unmarked_score) < 0.35).all()
    again = sampler.sample(model, prompts, slots, registry.marking_keys(), seed=1, **options)
    assert np.array_equal(found.ids, again.ids)


def test_gumbel_draws_freely_where_the_context_is_not_new() -> None:
    model = small_model("llama")
    registry = registry_of(2, 100, "gumbel")
    prompts = np.array([[3, 4, 5, 6, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3]])  # the first ends as it begins
    slots = np.array([[0, 1], [1, -1]])
    options = {"tokens": 120, "temperature": 0.2, "barred": ()}
    first, second = (
        sampler.sample(model, prompts, slots, registry.marking_keys(), seed=seed, **options)
        for seed in (1, 2)
    )
    for row, ids in enumerate(first.ids):
        whole = [*prompts[row // 2], *ids]
        contexts = [tuple(whole[t - 3 : t]) for t in range(3, len(whole))]
        fresh = [context not in contexts[:i] for i, context in enumerate(contexts)][4:]
        assert first.unmarked[row].tolist() == [row == 3 or not f for f in fresh]
    assert first.unmarked[:2, 0].all()
    # Where the context is new the key alone decides: two seeds agree up to the first free draw.
    until = int(np.argmax(first.unmarked[2])) if first.unmarked[2].any() else 120
    assert until >= 1
    assert np.array_equal(first.ids[2, :until], second.ids[2, :until])
    assert not np.array_equal(first.ids[3], second.ids[3])


# Texts


@pytest.mark.parametrize("agents", texts.AGENTS)
def test_everybody_speaks_once_a_round_and_nobody_follows_himself(agents: int) -> None:
    walks = {texts.speakers(agents, texts.TURNS, seed) for seed in range(50)}
    assert len(walks) > 40
    for walk in walks:
        assert all(a != b for a, b in itertools.pairwise(walk))
        for start in range(0, texts.TURNS, agents):
            assert sorted(walk[start : start + agents]) == list(range(agents))


def test_one_agent_alone_is_refused() -> None:
    with pytest.raises(InputError, match="agents: got 1"):
        texts.speakers(1, 12, 0)


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, shipped: Any) -> list[texts.Turns]:
    cell = texts.Cell("shipped", 1.0, 4, request.param)
    return texts.generate(shipped, cell, [11, 12], turn_tokens=70, turns=8)


def test_a_text_is_audited_with_its_own_keys_however_many_others_there_are(made: list[texts.Turns]) -> None:
    for turns in made:
        talk, registry = texts.form(turns, 70, spurious=4)
        assert registry.names() == tuple(texts.agent_name(slot) for slot in range(8))
        assert registry.names()[:4] == turns.registry().names()
        encoded = registry.open_tokenizer().encode(talk.text)
        spans = [(s.start, s.end, registry.slot(str(s.agent))) for s in talk.spans]
        truth = token_labels(spans, encoded.char_ends)
        scores = iet.score_tokens(encoded.token_ids, registry)
        for slot in range(4):
            assert int(np.argmax(scores[truth == slot].mean(axis=0))) == slot
        foreign = iet.score_tokens(encoded.token_ids, turns.strangers())
        level = registry.get_profile(None).family.mean(0)
        assert (abs(foreign.mean(axis=0) - level) < 0.25).all()
        assert turns.strangers(0).digest != turns.strangers(1).digest


def test_a_shorter_text_has_the_beginnings_of_the_same_turns(made: list[texts.Turns]) -> None:
    turns = made[0]
    long, short = turns.strings(70), turns.strings(25)
    assert all(a.startswith(b.rstrip("\ufffd ")) for a, b in zip(long, short, strict=True))
    assert all(len(a) > len(b) for a, b in zip(long, short, strict=True))
    talk = turns.conversation(25, joiner="\n\n")
    assert talk.text == "\n\n".join(short)
    assert [span.start for span in talk.spans] == [0, *(span.end for span in talk.spans[:-1])]
    assert talk.spans[-1].end == len(talk.text)
    assert [span.agent for span in talk.spans] == [texts.agent_name(slot) for slot in turns.speakers]
    assert [talk.text[s.start : s.end].removeprefix("\n\n") for s in talk.spans] == short


@pytest.mark.parametrize("length", [0, 71])
def test_lengths_that_were_not_generated_are_refused(made: list[texts.Turns], length: int) -> None:
    with pytest.raises(InputError, match=f"turn_tokens: got {length}, expected 1 to 70"):
        texts.form(made[0], length)


def test_prompts_of_a_round_have_one_length() -> None:
    said = "The roof leaks. " * 100
    for model in texts.MODELS:
        for text, length in (("", texts.OPENING_TOKENS), (said, texts.OPENING_TOKENS + texts.TAIL_TOKENS)):
            lengths = {
                len(texts.prompt(model, text, seed, number)) for seed in range(20) for number in range(3)
            }
            assert lengths == {length}
    assert texts.prompt("shipped", "", 1, 0) != texts.prompt("shipped", "", 1, 1)


def test_generation_goes_on_where_it_was_stopped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "SPLITS", {"tuning": 1, "evaluation": 3})
    monkeypatch.setattr(texts, "UNIT_TEXTS", 2)
    monkeypatch.setattr(texts, "TURN_TOKENS", (6, 12))
    monkeypatch.setattr(texts, "TURNS", 4)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    texts.run(whole, [CELL])
    real, calls = texts.save, itertools.count()

    def die(path: pathlib.Path, found: Any) -> None:
        if next(calls) == 1:
            path.with_suffix(".part").write_bytes(b"half of it")
            raise KeyboardInterrupt
        real(path, found)

    monkeypatch.setattr(texts, "save", die)
    with pytest.raises(KeyboardInterrupt):
        texts.run(broken, [CELL])
    assert len(texts.load(broken, CELL, "tuning")) == 1
    assert texts.load(broken, CELL) == []
    assert len(list(texts.missing(broken, [CELL]))) == 2
    kept = texts.path_of(broken, CELL, "tuning", range(1)).stat().st_mtime_ns
    texts.run(broken, [CELL])
    assert texts.path_of(broken, CELL, "tuning", range(1)).stat().st_mtime_ns == kept
    assert list(texts.missing(broken, [CELL])) == []
    for a, b in zip(texts.load(whole, CELL), texts.load(broken, CELL), strict=True):
        assert (a.cell, a.seed, a.speakers) == (b.cell, b.seed, b.speakers)
        for field in ("ids", "entropy", "marked_entropy", "unmarked"):
            assert np.array_equal(getattr(a, field), getattr(b, field))
    assert [text.seed for text in texts.load(whole, CELL)] == [
        texts.text_seed(CELL, "evaluation", index) for index in range(3)
    ]
    assert "1 tuning   3 evaluation  entropy_nats" in texts.status(whole, [CELL])


def test_turns_that_leave_a_round_unfinished_are_refused(shipped: Any) -> None:
    with pytest.raises(InputError, match="turns: got 6, expected a multiple of the 4 agents"):
        texts.generate(shipped, CELL, [1], turn_tokens=5, turns=6)


# Unmarked text


WORDS = ("mill", "stands", "beside", "river", "where", "seven", "boats", "wait", "wind", "nobody", "days")


def prose(words: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(f"{WORDS[i]}{rng.integers(1000)}" for i in rng.integers(len(WORDS), size=words))


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "data"
    for folder in ("corpus/peps", "corpus/speeches/inaugural", "corpus/speeches/state_union"):
        (root / folder).mkdir(parents=True)
    for folder in ("corpus/tinyshakespeare", "gsm8k", "mama"):
        (root / folder).mkdir(parents=True)
    (root / "corpus/peps/pep-0001.rst").write_text(f"PEP: 1\nTitle: Mills\n\n{prose(9000, 1)}\n")
    (root / "corpus/speeches/inaugural/1789.txt").write_text(prose(900, 2))
    (root / "corpus/tinyshakespeare/input.txt").write_text(prose(900, 3))
    for name, seed in (("train", 4), ("test", 5)):
        record = {"question": prose(300, seed), "answer": prose(300, seed + 50) + "\n#### 7"}
        (root / f"gsm8k/{name}.jsonl").write_text(json.dumps(record) + "\n")
    solution = {"question": "?", "175b_verification": {"solution": prose(300, 6)}}
    (root / "corpus/example_model_solutions.jsonl").write_text(json.dumps(solution) + "\n")
    with open(root / "mama/llama3.1_num484_nopii.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["generated_texts"], [prose(300, 7)]])
    for folder, turn in (("Algorithm-Generated", {"name": "Expert"}), ("Hand-Crafted", {"role": "human"})):
        (root / "who_and_when" / folder).mkdir(parents=True)
        log = {"history": [{**turn, "content": prose(400, len(folder))}]}
        (root / "who_and_when" / folder / "1.json").write_text(json.dumps(log))
    return root


def test_every_source_gives_texts_and_all_lengths_occur(data: pathlib.Path) -> None:
    found = unmarked.texts(data)
    kinds = {text.kind for text in found}
    sources = ("peps", "gsm8k", "gsm8k test", "solutions", "speeches", "shakespeare", "tasks")
    assert kinds > {*sources, "who_and_when Algorithm-Generated", "who_and_when Hand-Crafted"}
    sizes = sorted(len(text.text) for text in found)
    assert sizes[0] >= unmarked.CHARACTERS[0] - 1
    assert sizes[-1] > 2 * sizes[0]
    assert unmarked.texts(data) == found
    assert unmarked.texts(data, seed=1) != found
    assert len({text.text for text in found}) == len(found)


def test_stretches_of_a_source_are_disjoint_and_some_repeat_themselves() -> None:
    stream = prose(60_000, 8)
    found = list(unmarked.stretches("book", stream))
    pieces = [text.text for text in found if text.kind == "pieces"]
    twice = [text.text for text in found if text.kind == "twice"]
    assert pieces
    assert twice
    for text in pieces:
        assert any(text[:size] == text[size : 2 * size] for size in range(10, len(text) // 2))
    for text in twice:
        half = len(text) // 2
        assert text[:half] == text[half + 1 :]
    end = 0
    for text in found:
        # Text that repeats itself takes the place of the stretch it begins like.
        beginning = text.text if text.kind == "book" else text.text[:15]
        end = stream.index(beginning, end) + len(beginning)
    assert sum(len(text.text) for text in found) > 0.95 * len(stream)


def test_models_are_sampled_without_a_mark_once(
    tmp_path: pathlib.Path, data: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unmarked.generate(tmp_path, ["shipped"], rows=16, tokens=24)
    assert capsys.readouterr().out.count("entropy") == 2
    found = unmarked.samples(tmp_path)
    assert {text.kind for text in found} == {"shipped T=0.2", "shipped T=0.5"}
    assert len(found) == 32
    unmarked.generate(tmp_path, ["shipped"], rows=16, tokens=24)
    assert capsys.readouterr().out == ""
    assert {*found} <= {*unmarked.texts(data, tmp_path)}
