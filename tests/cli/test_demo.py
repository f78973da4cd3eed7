"""The demo: speakers, output files, and that it overwrites no other registry."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import stat
import sys
from typing import Any

import pytest

import iet
from iet.cli import demo
from iet.cli.demo import Outcome, demo_registry, stage, true_labels
from iet.decoding.topology import classify, template
from iet.demo import conversation
from iet.demo.conversation import JOINER, Conversation, converse, speakers_of_walk
from iet.errors import BackendUnavailable, InputError, RegistryError
from iet.marks.registry import Registry
from tests.support.commands import RunIet
from tests.support.shipped import shipped_model

NAMES = conversation.ROLES[:4]
TOPOLOGIES = ("chain", "star_pure", "tree", "circle", "star_ring", "complete")


# Who speaks


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_neighbouring_turns_follow_the_edges(topology: str) -> None:
    rounds = speakers_of_walk(topology, NAMES, rounds=3, seed=1)
    assert [len(names) for names in rounds] == [4, 4, 4]
    speakers = [name for names in rounds for name in names]
    edges = template(topology, 4)
    for a, b in itertools.pairwise(speakers):
        assert edges[NAMES.index(a), NAMES.index(b)] or edges[NAMES.index(b), NAMES.index(a)]
    assert set(speakers) == set(NAMES)
    assert rounds == speakers_of_walk(topology, NAMES, rounds=3, seed=1)


def test_impossible_walks_are_rejected() -> None:
    for rounds in (0, 1001):
        with pytest.raises(InputError, match=f"rounds: got {rounds}, expected an int from 1 to 1000"):
            speakers_of_walk("chain", NAMES, rounds=rounds, seed=0)
    with pytest.raises(InputError, match="'ring'"):
        speakers_of_walk("ring", NAMES, rounds=1, seed=0)
    with pytest.raises(InputError, match="got 1"):
        speakers_of_walk("chain", NAMES[:1], rounds=1, seed=0)


# Output files


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, Any]:
    return shipped_model()


def talk(shipped: tuple[Any, Any], rounds: Any, seed: int = 7, **options: Any) -> Conversation:
    model, tokenizer = shipped
    registry = demo_registry(NAMES, seed=0)
    return converse(model, tokenizer, registry, rounds, turn_tokens=(12, 16), seed=seed, **options)


def test_a_conversation_follows_from_its_seed(shipped: tuple[Any, Any]) -> None:
    rounds = [["planner", "critic"], ["planner", None]]
    first = talk(shipped, rounds)
    assert talk(shipped, rounds) == first
    assert talk(shipped, rounds, seed=8).text != first.text
    assert first.speakers == ("planner", "critic", "planner", None)


def test_the_callers_random_numbers_are_left_alone(shipped: tuple[Any, Any]) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    talk(shipped, [["planner"]])
    assert torch.equal(torch.rand(2), expected)


def test_spans_tile_the_text_turn_by_turn(shipped: tuple[Any, Any]) -> None:
    steps: list[float] = []
    talked = talk(shipped, [["planner", "critic"], ["critic", "engineer"]], on_step=steps.append)
    assert [span.agent for span in talked.spans] == list(talked.speakers)
    assert [span.start for span in talked.spans] == [0, *(span.end for span in talked.spans[:-1])]
    assert talked.spans[-1].end == len(talked.text)
    for span in talked.spans[1:]:
        assert talked.text[span.start : span.end].startswith(JOINER)
    assert 24 <= len(steps) <= 32  # a step is a token of every row of a round
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(2)
    assert talked.truth()["turns"][1] == {
        "char_start": talked.spans[1].start,
        "char_end": talked.spans[1].end,
        "agent": "critic",
    }
    assert talked.text not in json.dumps(talked.truth())


def test_turns_know_the_text_before_their_round_as_far_as_the_prompt_reaches(
    shipped: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = shipped
    prompts: list[Any] = []
    real = type(model).generate

    def watch(self: Any, **options: Any) -> Any:
        prompts.append(options["input_ids"])
        return real(self, **options)

    monkeypatch.setattr(type(model), "generate", watch)
    task = tokenizer(conversation.TASK, add_special_tokens=False).input_ids
    talk(shipped, [["planner", "critic"], ["planner", "critic"]], max_prompt_tokens=len(task) + 10)
    assert [tuple(prompt.shape) for prompt in prompts] == [(2, len(task)), (2, len(task) + 10)]
    assert all(prompt[0, : len(task)].tolist() == task for prompt in prompts)


# The stage


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, shipped: tuple[Any, Any]) -> None:
    monkeypatch.setattr(demo, "TURN_TOKENS", (12, 16))


def play(out: pathlib.Path, **options: Any) -> Outcome:
    return stage(out, **{"rounds": 1, **options})


@pytest.mark.usefixtures("small")
def test_a_demo_leaves_a_text_its_truth_and_a_private_registry(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    outcome = play(tmp_path / "new" / "folder", seed=4)
    out = tmp_path / "new" / "folder"
    assert sorted(os.listdir(out)) == ["final.txt", "report.html", "team.json", "truth.json"]
    assert (out / "final.txt").read_bytes().decode() == outcome.conversation.text == outcome.report.text
    assert (out / "report.html").read_text(encoding="utf-8") == outcome.report.to_html() + "\n"
    truth = json.loads((out / "truth.json").read_text())
    assert (truth["seed"], truth["topology"]) == (4, "chain")
    assert truth["speakers"] == list(outcome.conversation.speakers)
    if os.name == "posix":
        assert stat.S_IMODE((out / "team.json").stat().st_mode) == 0o600
    registry = Registry.load(out / "team.json")
    assert registry.digest == outcome.report.registry_digest
    repeated = iet.Auditor(registry).audit((out / "final.txt").read_bytes().decode())
    assert repeated.to_dict() == outcome.report.to_dict()
    edges = [[False] * 4 for _ in range(4)]
    for a, b in itertools.pairwise(truth["speakers"]):
        edges[NAMES.index(a)][NAMES.index(b)] = a != b
    assert outcome.true_topology == classify(edges).name
    for report, figures in ((outcome.report, outcome.figures), (outcome.forced, outcome.forced_figures)):
        labels = true_labels(outcome.conversation, registry)
        assert figures.token_accuracy == (labels == report.token_agents).mean()
        assert figures.coverage == report.coverage
        assert 0 <= figures.mean_iou <= 1
        assert 0 <= figures.edge_similarity <= 1
    assert outcome.forced.coverage == 1
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("small")
def test_a_demo_replaces_an_earlier_demo(tmp_path: pathlib.Path) -> None:
    first = play(tmp_path, seed=0, agents=5)
    second = play(tmp_path, seed=1)
    assert first.conversation.text != second.conversation.text
    assert Registry.load(tmp_path / "team.json").digest == second.report.registry_digest
    assert tuple(Registry.load(tmp_path / "team.json")) == NAMES


@pytest.mark.parametrize("remains", ["alone", "beside a truth", "with one more agent", "rotated"])
def test_a_registry_that_no_demo_wrote_is_never_replaced(tmp_path: pathlib.Path, remains: str) -> None:
    path = tmp_path / "team.json"
    if remains in ("alone", "beside a truth"):
        registry = Registry.create(path, vocab_size=100)
        registry.add("planner")
    else:
        registry = demo_registry(NAMES, seed=0)
        registry.save(path)
        if remains == "rotated":
            registry.rotate("planner")
        else:
            registry.add("mine")
    if remains != "alone":
        (tmp_path / "truth.json").write_text('{"seed": 0}')
    (tmp_path / "final.txt").write_text("mine")
    original = path.read_bytes()
    with pytest.raises(RegistryError, match=r"no demo wrote it, and its keys would be lost"):
        stage(tmp_path)
    assert path.read_bytes() == original
    assert (tmp_path / "final.txt").read_text() == "mine"


def test_other_files_are_not_replaced(tmp_path: pathlib.Path) -> None:
    (tmp_path / "team.json").write_text("notes of the team")
    (tmp_path / "truth.json").write_text("[]")
    with pytest.raises(RegistryError, match="no demo wrote it"):
        stage(tmp_path)
    assert (tmp_path / "team.json").read_text() == "notes of the team"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": 3}, "agents: got 3, expected 4 to 6"),
        ({"agents": 7}, "agents: got 7"),
        ({"rounds": 0}, "rounds: got 0"),
        ({"temperature": 0.0}, "temperature: got 0.0"),
        ({"temperature": float("nan")}, "temperature: got nan"),
    ],
)
def test_bad_options_leave_nothing_behind(
    tmp_path: pathlib.Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refusal:
        stage(tmp_path / "out", **options)
    assert message in str(refusal.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("small")
def test_an_interrupted_demo_leaves_the_last_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    play(tmp_path)
    original = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    threads = torch.get_num_threads()
    monkeypatch.setattr(conversation, "converse", interrupt)
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            play(tmp_path, seed=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == original


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_package_is_named_with_its_remedy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BackendUnavailable, match=rf"(?s){missing}.*pip install .*\[(demo|transformers)\]"):
        stage(tmp_path)
    assert os.listdir(tmp_path) == []


def test_the_keys_of_a_demo_follow_from_its_seed() -> None:
    assert demo_registry(NAMES, 1).digest == demo_registry(NAMES, 1).digest
    assert demo_registry(NAMES, 1).digest != demo_registry(NAMES, 2).digest


# The command


@pytest.mark.usefixtures("small")
def test_a_demo_shows_figures_and_how_to_audit_again(tmp_path: pathlib.Path, run_iet: RunIet) -> None:
    output = run_iet(0, "demo", "--rounds", "1", "--out", tmp_path)
    assert "TokenAcc" in output
    assert f"iet audit {tmp_path}/final.txt -r {tmp_path}/team.json" in output
    audit = ["audit", tmp_path / "final.txt", "-r", tmp_path / "team.json", "--json"]
    report = json.loads(run_iet(0, *audit))
    assert report["text"] == (tmp_path / "final.txt").read_bytes().decode()
    assert report["coverage"] > 0.5


def test_a_demo_keeps_other_registries(team: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet) -> None:
    pytest.importorskip("torch")
    original = team.read_bytes()
    assert "no demo wrote it" in run_iet(3, "demo", "--out", tmp_path)
    assert team.read_bytes() == original


def test_a_demo_without_torch_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run_iet: RunIet
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install" in run_iet(3, "demo", "--out", tmp_path)
