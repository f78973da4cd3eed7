"""Marking in transformers as the Waterfall package does: audits, rows, rejected arguments."""

from __future__ import annotations

import json
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.cli import main
from iet.demo.conversation import MODEL, TASK
from iet.errors import InputError, RegistryError, ShapeError
from iet.marks.foreign.waterfall import waterfall_phi
from tests.support.permutations import numpys
from tests.support.reports import assert_fits_the_schema
from tests.support.shipped import shipped_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def turns(agents: list[str | None], tokens: int, kappa: float) -> list[str]:
    """One turn per agent, all from the task, marked under the ids 42 and 43."""
    model, tokenizer = shipped_model()
    ids = tokenizer([TASK] * len(agents), return_tensors="pt", add_special_tokens=False).input_ids
    keys = iet.WaterfallKeys({"planner": 42, "critic": 43}, tokenizer=MODEL)
    processor = iet.WaterfallLogitsProcessor(keys, agents, prompt_length=ids.shape[1], kappa=kappa)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[pickle.loads(pickle.dumps(processor))],
            do_sample=True,
            top_k=0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
    return [tokenizer.decode(row[ids.shape[1] :], skip_special_tokens=True).strip() for row in output]


@pytest.fixture(scope="module")
def written() -> list[str]:
    return turns(["planner", "critic", None], 200, 2.0)


def test_audit_distinguishes_two_agents(
    written: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, unmarked = written
    text = f"{first} {second}"
    keys = iet.WaterfallKeys({"planner": 42, "critic": 43, "writer": 44}, tokenizer=MODEL)
    report = pickle.loads(pickle.dumps(iet.Auditor(keys))).audit(text)
    assert [segment.agent for segment in report.segments] == ["planner", "critic"]
    assert abs(report.segments[0].char_end - len(first)) < 60
    assert all(segment.log_p < -20 for segment in report.segments)
    assert "waterfall, n 2, k_p 1, V 4096" in str(report)
    assert report.registry_digest == keys.digest
    for decoder in ("cusum", "window"):
        runs = iet.Auditor(keys, decoder, allow_unattributed=False).audit(text).char_agents
        assert {run.agent for run in runs} <= {"planner", "critic"}
    other_keys = iet.WaterfallKeys({"planner": 52, "critic": 53}, tokenizer=MODEL)
    assert iet.Auditor(other_keys).audit(text).coverage == 0
    assert iet.Auditor(keys).audit(unmarked).coverage == 0

    assert_fits_the_schema(report)
    assert report.to_dict()["profiles"][0]["scheme"] == {
        "name": "waterfall",
        "n_gram": 2,
        "k_p": 1,
        "version": 1,
    }

    (tmp_path / "final.txt").write_text(text, encoding="utf-8")
    command = ["audit", str(tmp_path / "final.txt"), "--scheme", "waterfall", "--tokenizer", str(MODEL)]
    assert main([*command, "--keys", "planner=42, critic=43,writer=44", "--json"]) == 0
    by_command = json.loads(capsys.readouterr().out)
    assert by_command["segments"] == json.loads(report.to_json())["segments"]
    assert by_command["profiles"][0]["id"] == report.profile.id


def test_registry_keys_do_not_find_waterfall_marks(written: list[str]) -> None:
    registry = iet.Registry.create(None, tokenizer=MODEL)
    registry.add("planner", secret=b"p" * 32)
    assert iet.Auditor(registry).audit(" ".join(written)).coverage == 0


def test_rows_equal_the_formula() -> None:
    keys = iet.WaterfallKeys({"a": 42, "b": 43}, vocab_size=300)
    processor = iet.WaterfallLogitsProcessor(keys, ["a", None, "b"], prompt_length=2, kappa=1.0)
    ids = torch.tensor([[1, 2, 3]] * 6)
    result = processor(ids, torch.zeros(6, 310))
    for row, key in enumerate([42, 42, None, None, 43, 43]):
        expected = np.zeros(310, dtype=np.float32)
        if key is not None:
            expected[:300] = waterfall_phi(300, 1)[numpys(key, [3], 300)]
        assert np.array_equal(result[row].numpy(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": None}, "keys: got NoneType, expected iet.WaterfallKeys"),
        ({"agents": []}, "agents: got"),
        ({"prompt_length": -1}, "prompt_length: got -1"),
        ({"prompt_length": 2.0}, "prompt_length: got 2.0"),
        ({"prompt_length": True}, "prompt_length: got True"),
        ({"kappa": "1"}, "kappa: got '1'"),
        ({"kappa": -0.1}, "kappa: got -0.1"),
        ({"kappa": float("nan")}, "kappa: got nan"),
    ],
)
def test_rejects_invalid_processor_arguments(change: dict[str, Any], message: str) -> None:
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    arguments: dict[str, Any] = {"keys": keys, "agents": "a", "prompt_length": 3, "kappa": 0.8, **change}
    with pytest.raises(InputError, match=message):
        iet.WaterfallLogitsProcessor(arguments.pop("keys"), arguments.pop("agents"), **arguments)


def test_accepts_numpy_numbers() -> None:
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    ids, logits = torch.tensor([[1, 2, 3, 4]]), torch.zeros(1, 100)
    plain = iet.WaterfallLogitsProcessor(keys, "a", prompt_length=2, kappa=0.5)
    numpys = iet.WaterfallLogitsProcessor(keys, "a", prompt_length=np.int64(2), kappa=np.float32(0.5))
    assert plain(ids, logits).any()
    assert torch.equal(numpys(ids, logits), plain(ids, logits))


def test_rejects_invalid_calls() -> None:
    keys = iet.WaterfallKeys({"a": 42}, vocab_size=100)
    with pytest.raises(RegistryError, match="'b' is not among a"):
        iet.WaterfallLogitsProcessor(keys, "b", prompt_length=3, kappa=0.8)
    two = iet.WaterfallLogitsProcessor(keys, ["a", None], prompt_length=3, kappa=0.8)
    ids, logits = torch.tensor([[1, 2, 3, 4]] * 2), torch.zeros(2, 100)
    with pytest.raises(ShapeError, match="agents: got 2 agents for 3 rows"):
        two(torch.cat([ids, ids[:1]]), torch.zeros(3, 100))
    with pytest.raises(ShapeError, match="input_ids"):
        two(ids[:, :2], logits)
    with pytest.raises(ShapeError, match="scores"):
        two(ids, logits[:, :99])
    with pytest.raises(ShapeError, match=r"scores: got torch\.int64 \[2, 100\], expected floating-point"):
        two(ids, logits.long())
    with pytest.raises(InputError, match="context: got -1"):
        two(torch.tensor([[1, 2, 3, -1]] * 2), logits)
