"""Audits with a language model: ratios follow its distribution, and a wrong model is down-weighted."""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import iet
from iet.audit import language_model as likelihood
from iet.audit.language_model import LanguageModel
from iet.audit.metrics import token_accuracy
from iet.audit.mixture import mixture_weights
from iet.cli import main
from iet.cli.demo import demo_registry, true_labels
from iet.decoding import decode
from iet.demo.conversation import Conversation, converse, load_model
from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.marks.families import FAMILIES
from iet.marks.registry import Registry
from iet.marks.tokenizer import Tokenizer
from tests.support import teams
from tests.support.models import tiny_model
from tests.support.reports import assert_fits_the_schema
from tests.support.teams import NAMES

V = 64


@functools.cache
def small_model(kind: str = "Llama", vocab_size: int = V) -> Any:
    """A random one-layer model with strong preferences, without a token at the start."""
    # Of kind "Mistral" each token depends on the eight before it.
    local = {"sliding_window": 8, "attn_implementation": "eager"} if kind == "Mistral" else {}
    sizes = {"num_hidden_layers": 1, "num_key_value_heads": 2, "intermediate_size": 32, **local}
    return tiny_model(vocab_size, kind, max_position_embeddings=4096, initializer_range=0.4, **sizes)


@functools.cache
def team(family: str = "fourier", placement: str = "final", kappa: float = 0.8, n_gram: int = 2) -> Registry:
    scheme = {"family": family, "placement": placement, "kappa": kappa, "n_gram": n_gram}
    return teams.team(NAMES, numbered=1, vocab_size=V, **scheme)


def written(agent: str | None, rows: int, tokens: int, temperature: float = 1.0, seed: int = 0) -> Any:
    """Texts [rows, tokens] of the small model, each with a different first token."""
    torch.manual_seed(seed)
    marking = None if agent is None else iet.WatermarkingConfig(team(), agents=agent)
    output = small_model().generate(
        torch.arange(1, rows + 1)[:, None],
        attention_mask=torch.ones(rows, 1, dtype=torch.long),
        do_sample=True,
        temperature=temperature,
        top_k=0,
        max_new_tokens=tokens - 1,
        min_new_tokens=tokens - 1,
        watermarking_config=marking,
        pad_token_id=0,
    )
    return output.numpy()


def read(ids: Any, registry: Registry | None = None, model: Any = None, **options: Any) -> Any:
    registry = team() if registry is None else registry
    reader = LanguageModel(small_model() if model is None else model, **options)
    scored, _ = iet.positions(ids, registry)
    keys = registry.scoring_keys()
    prediction = reader.predict(ids, keys, scored)
    values = prediction.log_ratios(keys, iet.score_tokens(ids, registry))
    summary = {name: getattr(prediction, name) for name in ("temperature", "share", "nats")}
    return SimpleNamespace(values=values, **summary)


# The ratios


@pytest.mark.parametrize(("placement", "temperature"), [("final", 1.0), ("final", 0.7), ("raw", 0.5)])
def test_ratios_equal_those_of_embedding_the_models_logits(placement: str, temperature: float) -> None:
    registry = team("fourier", placement)
    ids = np.random.default_rng(1).permutation(V)  # no token repeats, so the text itself predicts nothing
    actual = read(ids, registry, temperature=temperature, top=V)
    with torch.no_grad():
        logits = small_model()(torch.from_numpy(ids)[None]).logits[0, :-1]
    after, context = ids[1:], ids[:-1, None]
    scores = iet.score_tokens(ids, registry)
    kappa = 0.8 / temperature if placement == "raw" else 0.8
    log_q = torch.log_softmax(logits / temperature, dim=1).numpy()
    chosen = np.exp(log_q[np.arange(V - 1), after])
    w = mixture_weights(
        np.stack([chosen, np.full(V - 1, 1 / V)]), np.zeros(V - 1, int), np.ones(V - 1, np.bool_)
    )[:, 0]
    at_chance = np.exp(registry.profile.family.log_mgf(kappa))
    for slot in range(3):
        marked = log_q.copy()
        factor = 1.0 / temperature if placement == "raw" else 1.0
        iet.embed_(marked, context, np.full(V - 1, slot), registry, temperature=factor)
        tilts = w[0] * np.exp(marked.astype(np.float64)).sum(axis=1) + w[1] * at_chance
        expected = kappa * scores[1:, slot] - np.log(tilts)
        np.testing.assert_allclose(actual.values[1:, slot], expected, atol=1e-5)
    assert (actual.values[0] == 0).all()
    assert actual.share == pytest.approx(w[0])
    assert actual.temperature == temperature


def test_the_ratio_of_unmarked_text_is_one_on_average() -> None:
    ratios = np.concatenate([np.exp(read(ids).values[1:]) for ids in written(None, rows=8, tokens=500)])
    error = ratios.std(axis=0) / len(ratios) ** 0.5
    assert (np.abs(ratios.mean(axis=0) - 1) < 4 * error).all()
    assert (ratios.std(axis=0) > 0.1).all()


def test_the_right_model_adds_evidence() -> None:
    gains = []
    for ids in written("critic", rows=4, tokens=400):
        scores = iet.score_tokens(ids, team())
        actual = read(ids)
        without = 0.8 * scores - iet.marks.families.FAMILIES["fourier"].log_mgf(0.8)
        sums = actual.values.sum(axis=0)
        assert sums[1] > 10 > max(sums[0], sums[2])
        gains.append(sums[1] - without.sum(axis=0)[1])
    assert np.mean(gains) > 0


def test_certain_tokens_and_repeated_phrases_have_no_weight() -> None:
    phrase = np.random.default_rng(2).permutation(V)[:40]
    values = np.abs(read(np.tile(phrase, 8)).values)
    first, last = values[1:40].mean(), values[-40:].mean()
    assert last < first / 4


def test_truncated_probabilities_change_little() -> None:
    ids = written(None, rows=1, tokens=400)[0]
    exact, truncated = read(ids, top=V), read(ids, top=V // 2)
    assert np.abs(exact.values - truncated.values).max() < 0.05
    assert (exact.values != truncated.values).any()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_the_temperature_is_estimated(temperature: float) -> None:
    ids = written(None, rows=1, tokens=800, temperature=temperature)[0]
    grid = list(likelihood.TEMPERATURES)
    assert abs(grid.index(read(ids).temperature) - grid.index(temperature)) <= 1


def test_an_uninformative_model_gets_no_weight() -> None:
    registry = teams.team(["planner"], vocab_size=V)
    ids = written(None, rows=1, tokens=600)[0]
    renumbered = 1 + (ids + 7) % (V - 1)  # the same text, renumbered: the model cannot predict it
    assert read(ids, registry).share > 0.7
    assert read(renumbered, registry).share < 0.3


# Windows


def test_windows_and_batches_equal_one_pass() -> None:
    model = small_model("Mistral")
    ids = np.random.default_rng(3).integers(0, V, 210)
    one_pass = read(ids, model=model, temperature=1.0)
    for window, stride, batch in [(32, 16, 3), (32, 20, 1), (64, 50, 16), (210, 1, 1), (209, None, 4)]:
        parts = read(ids, model=model, temperature=1.0, window=window, stride=stride, batch=batch)
        np.testing.assert_allclose(parts.values, one_pass.values, atol=2e-5)
        assert parts.nats == pytest.approx(one_pass.nats, abs=1e-5)


def test_a_window_that_is_too_short_changes_the_ratios() -> None:
    ids = np.random.default_rng(3).integers(0, V, 210)
    model = small_model("Mistral")
    short = read(ids, model=model, temperature=1.0, window=16, stride=16)
    assert np.abs(short.values - read(ids, model=model, temperature=1.0).values).max() > 1e-3


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_short_texts_are_read(length: int) -> None:
    actual = read(np.arange(1, length + 1))
    assert actual.values.shape == (length, 3)
    assert np.isfinite(actual.values).all()
    assert (actual.values != 0).any() == (length > 1)


def test_ids_outside_the_models_vocabulary_are_ignored() -> None:
    ids = np.arange(1, 30)
    ids[[5, 9]] = -1, 1 << 40
    actual = read(ids)
    assert (actual.values[[5, 6, 9, 10]] == 0).all()
    assert (actual.values[[4, 7, 8, 11]] != 0).all()


# Gumbel


@pytest.mark.skipif("gumbel" not in FAMILIES, reason="no family gumbel here")
def test_gumbel_text_is_read_with_the_model_that_wrote_it() -> None:
    registry = team("gumbel", kappa=1.0, n_gram=4)
    draw = np.random.default_rng(9)
    ids, seen = draw.integers(1, V, 4).tolist(), set()
    for step in range(360):
        with torch.no_grad():
            logits = torch.log_softmax(small_model()(torch.tensor([ids])).logits[:, -1] / 0.8, dim=1).numpy()
        context, slot = tuple(ids[-3:]), step // 120
        if context in seen:
            q = np.exp(logits[0].astype(np.float64))
            ids.append(int(draw.choice(V, p=q / q.sum())))
        else:
            iet.embed_(logits, [context], [slot], registry)
            ids.append(int(logits.argmax()))
        seen.add(context)
    actual = read(np.array(ids), registry)
    sums = actual.values[4:].reshape(3, 120, 3).sum(axis=1)
    assert (sums.diagonal() > 30).all()
    assert (sums[~np.eye(3, dtype=np.bool_)] < 0).all()
    labels = decode(np.zeros_like(actual.values), log_ratios=actual.values).token_agents
    assert token_accuracy(np.repeat([0, 1, 2], 120), labels[4:]) > 0.9


# The audit


@functools.cache
def talk() -> tuple[Conversation, Registry]:
    registry = demo_registry(NAMES, 3)
    rounds = [["planner", "critic"], ["writer", "planner"], ["critic", "writer"]]
    model, tokenizer = load_model()
    text = converse(
        model, tokenizer, registry, rounds, temperature=0.7, top_p=0.9, turn_tokens=(150, 150), seed=3
    )
    return text, registry


def test_an_audit_with_the_right_model_attributes_more() -> None:
    conversation, registry = talk()
    truth = true_labels(conversation, registry)
    with_model = iet.Auditor(registry, allow_unattributed=False, model="iet:demo")
    report = with_model.audit(conversation.text)
    without = iet.Auditor(registry, allow_unattributed=False).audit(conversation.text)
    assert token_accuracy(truth, report.token_agents) >= token_accuracy(truth, without.token_agents)
    assert token_accuracy(truth, report.token_agents) > 0.6
    assert report.model["name"] == "iet:demo"
    assert report.model["temperature"] in (0.6, 0.7, 0.8)
    assert report.model["temperature_fitted"]
    assert report.model["share"] > 0.5
    assert report.strengths is None
    assert f"read with iet:demo at temperature {report.model['temperature']:g} (fitted), weight" in str(
        report
    )
    assert without.model is None
    assert without.to_dict()["model"] is None
    assert_fits_the_schema(report)


def test_p_values_depend_on_the_scores_alone() -> None:
    conversation, registry = talk()
    ids = registry.open_tokenizer().encode(conversation.text).token_ids
    scores = iet.score_tokens(ids, registry)
    report = iet.Auditor(registry, model="iet:demo").audit(conversation.text)
    columns = np.array([registry.names().index(segment.best_guess) for segment in report.segments])
    expected = iet.evidence.segment_log_p(
        scores,
        iet.kernels.pair_numbers(ids, registry),
        np.array([segment.start for segment in report.segments]),
        np.array([segment.end for segment in report.segments]),
        columns,
        registry.profile.family,
        len(registry),
    )
    np.testing.assert_allclose([segment.log_p for segment in report.segments], expected)


def test_token_ids_model_objects_and_pickles_give_the_same_report() -> None:
    conversation, registry = talk()
    model = load_model()[0]
    model.train()
    frozen = next(iter(model.model.layers)).eval()
    reader = LanguageModel(model, window=512, batch=2)
    auditor = iet.Auditor(registry, model=reader)
    ids = registry.open_tokenizer().encode(conversation.text).token_ids
    report = auditor.audit(token_ids=ids)
    assert model.training  # as it was, and yet read without dropout
    assert not frozen.training
    restored = iet.Auditor(registry, model=pickle.loads(pickle.dumps(reader))).audit(token_ids=ids)
    text = iet.Auditor(registry, model=LanguageModel("iet:demo", window=512)).audit(conversation.text)
    assert (report.token_agents == text.token_agents).all()
    assert report.to_json() == restored.to_json()
    assert report.model["digest"] == text.model["digest"]
    assert report.model["nats"] == pytest.approx(text.model["nats"])


def test_the_digest_follows_the_parameters() -> None:
    original = LanguageModel(small_model())
    changed = transformers.LlamaForCausalLM(small_model().config)
    changed.load_state_dict(small_model().state_dict())
    assert LanguageModel(changed).digest == original.digest
    with torch.no_grad():
        changed.model.norm.weight[3] += 1e-3
    assert LanguageModel(changed).digest != original.digest


def test_ratios_of_many_keys_are_computed_for_candidates_only() -> None:
    conversation, registry = talk()
    crowd = Registry.loads(registry.dumps())
    for number in range(300):
        crowd.add(f"stranger {number}", secret=number.to_bytes(32, "big"))
    report = iet.Auditor(crowd, model="iet:demo").audit(conversation.text)
    assert report.posterior.shape[1] == len(report.posterior_agents) < len(crowd)
    assert report.model is not None
    assert {segment.agent for segment in report.segments} <= {*NAMES, None}


def test_the_command_line_takes_a_model(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    conversation, registry = talk()
    (tmp_path / "final.txt").write_text(conversation.text[:1500], encoding="utf-8")
    Registry.loads(registry.dumps()).save(tmp_path / "team.json")
    arguments = ["audit", str(tmp_path / "final.txt"), "-r", str(tmp_path / "team.json"), "--json"]
    assert main([*arguments, "--model", "iet:demo"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["name"] == "iet:demo"
    assert main([*arguments, "--model", str(tmp_path)]) == 3
    assert "holds no causal language model" in capsys.readouterr().err


# A model with another tokenizer

SECOND = pathlib.Path(__file__).parents[2] / "benchmarks" / "accuracy" / "model"
"""A model with a tokenizer of its own."""


@functools.cache
def second() -> LanguageModel:
    return LanguageModel(str(SECOND), temperature=0.7)


def test_a_tokens_surprise_is_that_of_the_models_tokens_that_start_in_it() -> None:
    conversation, registry = talk()
    text = conversation.text[:300]
    encoding = registry.open_tokenizer().encode(text)
    reader, model = second(), transformers.AutoModelForCausalLM.from_pretrained(SECOND, dtype="float32")
    own = Tokenizer(SECOND).encode(text)
    assert len(own.token_ids) != len(encoding.token_ids)
    begin = model.config.bos_token_id
    ids = [*([] if begin is None else [begin]), *own.token_ids.tolist()]
    with torch.no_grad():
        log_p = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double() / 0.7, dim=1).numpy()
    surprise = -log_p[np.arange(len(ids) - 1), ids[1:]][-(len(own.token_ids) - 1) :]
    expected = np.zeros(len(encoding.token_ids))
    expected[0] = np.log(model.config.vocab_size)  # no prediction of the first token
    for start, nats in zip(own.char_starts[1:].tolist(), surprise, strict=True):
        expected[np.flatnonzero(encoding.char_starts <= start)[-1]] += nats
    chances, temperature = reader._aligned(encoding.token_ids, (text, encoding.char_starts))
    assert temperature == 0.7
    np.testing.assert_allclose(-np.log(chances), expected, atol=1e-3)


def test_a_model_with_another_tokenizer_adds_evidence() -> None:
    model, tokenizer = load_model()
    registry = Registry.create(None, tokenizer=tokenizer, scheme=iet.Scheme(family="gumbel"))
    for name in NAMES:
        registry.add(name, secret=teams.secret(name))
    rounds = [["planner", "critic"], ["writer", "planner"], ["critic", "writer"]]
    talk = converse(model, tokenizer, registry, rounds, temperature=0.7, turn_tokens=(150, 150), seed=5)
    encoding = registry.open_tokenizer().encode(talk.text)
    ids, truth, keys = encoding.token_ids, true_labels(talk, registry), registry.scoring_keys()
    scores, (scored, _) = iet.score_tokens(ids, keys), iet.positions(ids, keys)
    reader = LanguageModel(str(SECOND))
    prediction = reader.predict(ids, keys, scored, spelled=(talk.text, encoding.char_starts))
    ratios = prediction.log_ratios(keys, scores)
    written = np.flatnonzero((truth >= 0) & scored)
    own = scores[written, truth[written]].astype(np.float64)
    strengths = np.linspace(0.01, 0.9, 90)
    alone = max((s * own + np.log1p(-s)).mean() for s in strengths)
    assert ratios[written, truth[written]].mean() > 1.1 * alone
    report = iet.Auditor(registry, model=reader).audit(talk.text)
    assert report.model["name"] == str(SECOND)
    assert report.coverage > 0.5


def test_a_cosine_mark_needs_a_model_with_the_profiles_tokenizer() -> None:
    _, registry = talk()
    with pytest.raises(InputError, match="whose family 'fourier' needs the same one"):
        iet.Auditor(registry, model=second())


def test_a_known_context_makes_its_continuation_less_surprising() -> None:
    conversation, _ = talk()
    text, rest = conversation.text[:400], conversation.text[400:700]
    ids = Tokenizer("iet:demo").encode(rest)
    without = LanguageModel("iet:demo", temperature=1.0)
    with_context = LanguageModel("iet:demo", temperature=1.0, context=text)
    keys = demo_registry(NAMES, 3).scoring_keys()
    scored, _ = iet.positions(ids.token_ids, keys)
    nats = [model.predict(ids.token_ids, keys, scored).nats for model in (without, with_context)]
    assert nats[1] < nats[0]


def test_token_ids_need_the_profiles_tokenizer() -> None:
    conversation, _ = talk()
    registry = demo_registry(NAMES, 3, iet.Scheme(family="gumbel"))
    ids = registry.open_tokenizer().encode(conversation.text[:200]).token_ids
    with pytest.raises(InputError, match="another one than the profile's; expected a text, not token ids"):
        iet.Auditor(registry, model=second()).audit(token_ids=ids)


# Rejected arguments


def test_rejects_unusable_models() -> None:
    waterfall = iet.WaterfallKeys({"planner": 1}, vocab_size=V)
    small, narrow, wide = small_model(), small_model(vocab_size=32), small_model(vocab_size=2048)
    for keys, options, error, message in (
        (team(), {"model": 5}, InputError, "model: got int, expected a causal model"),
        (
            team(),
            {"model": wide},
            InputError,
            "with 2048 ids and no tokenizer, expected the profile's 64 ids",
        ),
        (team(), {"model": narrow}, ShapeError, "vocabulary: got 32, expected at least 64"),
        (team(), {"model": small, "decoder": "cusum"}, InputError, "decoder 'cusum', expected 'posterior'"),
        (team(), {"model": small, "strengths": [1.0] * 3}, InputError, "strengths: got some and log_ratios"),
        (waterfall, {"model": small}, InputError, "waterfall, n 2, k_p 1, whose strength is not known"),
    ):
        with pytest.raises(error, match=message):
            iet.Auditor(keys, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": "1"},
        {"window": 8},
        {"window": 64, "stride": 65},
        {"stride": 0},
        {"batch": 0},
        {"top": 0},
    ],
)
def test_rejects_options_out_of_range(options: dict[str, Any]) -> None:
    name = list(options)[-1]
    with pytest.raises(InputError, match=f"{name}: got .*, expected"):
        LanguageModel(small_model(), **options)


def test_rejects_mismatched_shapes() -> None:
    reader, keys = LanguageModel(small_model()), team().scoring_keys()
    ids, scores, scored = np.arange(9), np.zeros((9, 3), np.float32), np.ones(9, np.bool_)
    with pytest.raises(ShapeError, match="scores: got"):
        reader.predict(ids, keys, scored).log_ratios(keys, scores[:, :2])
    with pytest.raises(ShapeError, match="scored: got"):
        reader.predict(ids, keys, scored[1:])
    with pytest.raises(ShapeError, match="log_ratios: got"):
        decode(scores, log_ratios=scores[1:])


def test_a_model_without_torch_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import iet; iet.LanguageModel('iet:demo')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert BackendUnavailable.__name__ in done.stderr
    assert re.search(r'pip install .*\[transformers\]"', done.stderr)


def test_an_audit_without_a_model_loads_no_torch() -> None:
    code = (
        "import sys, iet; r = iet.Registry.create(None, vocab_size=64); r.add('a');"
        " iet.Auditor(r).audit(token_ids=list(range(60))); import iet.audit.language_model;"
        " print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_decoding_ratios_is_decoding_scores_of_strength_one() -> None:
    draw = np.random.default_rng(8)
    scores = np.cos(np.pi * draw.uniform(size=(600, 3))).astype(np.float32)
    scores[:300, 1] += 0.4
    scores[300:, 2] += 0.4
    ratios = 0.8 * scores - 0.15
    decoded = decode(scores, log_ratios=ratios)
    assert decoded.strengths is None
    assert token_accuracy(np.repeat([1, 2], 300), decoded.token_agents) > 0.9
    restored = decode(np.zeros_like(scores), log_ratios=ratios, repeated=np.ones(600, np.bool_))
    assert (decoded.token_agents == restored.token_agents).all()
    assert [span.agent for span in decoded.segments] == list(
        itertools.chain.from_iterable((agent,) for agent in (1, 2))
    )
