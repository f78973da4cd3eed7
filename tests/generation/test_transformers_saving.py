"""Saving, copying, pickling and printing of configs and processors, which never contain a secret."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import pathlib
import pickle
import traceback

import pytest

import iet
from iet.errors import InputError, RegistryError, SchemeMismatch, ShapeError
from iet.marks.derivation import derive_subkey
from iet.marks.registry import Registry
from tests.support.generation import (
    MODEL,
    PAD,
    PROMPT,
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


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> Registry:
    registry = Registry.create(tmp_path / "team.json", vocab_size=V, unmarked_ids=[PAD])
    registry.merge(TEAM)
    return registry


def secrets_of(registry: Registry) -> list[bytes]:
    """Secrets and subkeys, as bytes and in hex."""
    secrets = [bytes(key.secret) for name in registry for key in registry.keys(name)]
    values = [*secrets, *map(derive_subkey, secrets)]
    return [*values, *(value.hex().encode() for value in values)]


def test_reprs_files_and_pickles_contain_no_secret(saved: Registry, tmp_path: pathlib.Path) -> None:
    marking = iet.WatermarkingConfig(saved, ["planner", None])
    config = transformers.GenerationConfig(watermarking_config=marking)
    marking.to_json_file(tmp_path / "marking.json")
    written = (tmp_path / "marking.json").read_text()
    assert json.loads(written) == {
        "_iet.WatermarkingConfig": 1,
        "registry": str(saved.path),
        "registry_digest": saved.digest,
        "profile": saved.profile.id,
        "profile_digest": saved.profile.digest,
        "agents": ["planner", None],
        "free": {"first": 8, "rate": 0.05},
    }
    processor = iet.LogitsProcessor(saved, "planner", 1.0)
    texts = [repr(config), repr(marking), repr(processor), str(vars(marking)), written, str(vars(processor))]
    pickled = [pickle.dumps(marking), pickle.dumps(processor)]
    for secret in secrets_of(saved):
        assert not any(secret in text.encode() for text in texts)
        assert not any(secret in data for data in pickled)


def test_logs_and_tracebacks_contain_no_secret(saved: Registry, logged: io.StringIO) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    with pytest.raises(ShapeError) as refusal:
        generate(iet.WatermarkingConfig(saved, ["planner", "critic", "planner"]), do_sample=True)
    texts = logged.getvalue()
    for frame, _ in traceback.walk_tb(refusal.value.__traceback__):
        for value in frame.f_locals.values():
            with contextlib.suppress(TypeError):  # transformers cannot show a config that it has prepared
                texts += repr(value)
    assert "WatermarkingConfig" in texts
    assert "Registry(" in texts
    for secret in secrets_of(saved):
        assert repr(secret)[2:-1] not in texts
        assert repr(list(secret))[1:-1] not in texts


def test_copies_and_pickles_mark_the_same_text(saved: Registry) -> None:
    marking = iet.WatermarkingConfig(saved, ["planner", "critic"])
    expected = generate(marking).sequences
    config = copy.deepcopy(transformers.GenerationConfig(watermarking_config=marking))
    assert config.watermarking_config == marking
    for copied in (config.watermarking_config, pickle.loads(pickle.dumps(marking))):
        assert torch.equal(generate(copied).sequences, expected)
    processor = iet.LogitsProcessor(saved, ["planner", "critic"], 1.0)
    for same in (copy.deepcopy(processor), pickle.loads(pickle.dumps(processor))):
        assert torch.equal(generate(logits_processor=[same]).sequences, expected)
    with pytest.raises(RegistryError, match="in memory is not pickled"):
        pickle.dumps(iet.LogitsProcessor(TEAM, "planner", 1.0))


def test_config_in_the_models_generation_config_marks() -> None:
    model = tiny()
    model.generation_config.watermarking_config = iet.WatermarkingConfig(TEAM, ["planner", "critic"])
    expected = generate(iet.WatermarkingConfig(TEAM, ["planner", "critic"])).sequences
    assert torch.equal(generate(model=model).sequences, expected)


def test_dict_round_trip(saved: Registry, tmp_path: pathlib.Path) -> None:
    marking = iet.WatermarkingConfig(saved, ["planner", "critic"])
    marking.to_json_file(tmp_path / "marking.json")
    for data in (marking.to_dict(), dict(marking), json.loads((tmp_path / "marking.json").read_text())):
        copied = iet.WatermarkingConfig.from_dict(data)
        assert copied == marking
        assert torch.equal(generate(copied).sequences, generate(marking).sequences)
    assert json.loads(marking.to_json_string()) == marking.to_dict()
    saved.rotate("planner")  # keys may change: the next text is marked with the new one
    assert iet.WatermarkingConfig.from_dict(data).to_dict() != data


def test_in_memory_registry_comes_from_the_environment_or_an_argument(
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


def test_rejects_dict_of_another_profile_or_kind(saved: Registry) -> None:
    data = iet.WatermarkingConfig(team(kappa=2.0), "planner").to_dict()
    with pytest.raises(SchemeMismatch, match=f"expected {data['profile_digest']}"):
        iet.WatermarkingConfig.from_dict({**data, "registry": str(saved.path)})
    for invalid in ({"greenlist_ratio": 0.25, "bias": 2.0}, {}, None):
        with pytest.raises(InputError, match=r"config_dict: got .*to_dict returns"):
            iet.WatermarkingConfig.from_dict(invalid)
    with pytest.raises(RegistryError, match="cannot be read"):
        iet.WatermarkingConfig.from_dict({**data, "registry": "nowhere/team.json"})


def test_saved_model_omits_the_config_and_loads(saved: Registry, tmp_path: pathlib.Path) -> None:
    model, marking = tiny(), iet.WatermarkingConfig(saved, ["planner", "critic"])
    model.generation_config.watermarking_config = marking
    with pytest.warns(UserWarning, match="watermarking_config is left out"):
        model.save_pretrained(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert written["watermarking_config"] is None
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.generation_config.watermarking_config is None
    assert model.generation_config.watermarking_config is marking  # it goes on marking
    assert torch.equal(generate(marking, model=loaded).sequences, generate(model=model).sequences)


def test_updated_config_is_validated() -> None:
    marking = iet.WatermarkingConfig(TEAM, ["planner", "critic"])
    marking.update(agents=["critic", "planner"])
    expected = generate(iet.WatermarkingConfig(TEAM, ["critic", "planner"])).sequences
    assert torch.equal(generate(marking).sequences, expected)
    marking.update(agents=["nobody we know"])
    with pytest.raises(RegistryError, match="nobody we know"):
        generate(marking)


def test_next_call_uses_the_rotated_key() -> None:
    registry = team()
    marking = iet.WatermarkingConfig(registry, ["planner"])
    first = generate(marking, PROMPT[:1])
    registry.rotate("planner", secret=bytes([9]) * 32)
    second = generate(marking, PROMPT[:1])
    assert not torch.equal(first.scores[0], second.scores[0])
    assert_close(second.scores[0][0], raw_logits(MODEL, PROMPT[0]) + shift(registry, "planner", PROMPT[0]))
