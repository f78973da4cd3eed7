"""The conversations of the paper's experiments: who speaks when, what is heard, and how turns are sampled."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import iet
from benchmarks.paper.conversations.logs import Setting
from benchmarks.paper.conversations.prompts import Answer, Heard, Prompt, fitted, parsed, prompt_of, shares
from benchmarks.paper.conversations.records import Record
from benchmarks.paper.marks import MARKS, Marker
from iet.audit.metrics import token_labels
from iet.decoding.topology import TOPOLOGIES
from iet.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tqdm")

from benchmarks.paper.conversations import generate, protocol  # noqa: E402 - after the skips
from benchmarks.paper.conversations.author import Generated, ModelAuthor, Row  # noqa: E402
from benchmarks.writing.models import Loaded, load  # noqa: E402
from benchmarks.writing.sampler import nucleus  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

RECORDS = tuple(
    Record(
        i, f"Ada Fischer, ID-{i:04d}, of Ulm.", ("Ada Fischer", f"ID-{i:04d}"), ("name", "id"), f"Task {i}?"
    )
    for i in range(3)
)


def setting(**fields: Any) -> Setting:
    base = {"topology": "chain", "agents": 4, "mark": "none", "model": ""}
    defaults = {"temperature": 1.0, "top_p": 1.0, "joiner": " ", "seed": 0, "turn_tokens": (8, 8)}
    return Setting(**{**base, **defaults, **fields})


class Script:
    """An author whose agents say their names, or scripted lines."""

    def __init__(self, lines: dict[tuple[str, int], str] | None = None) -> None:
        self.lines = lines or {}
        self.batches: list[list[str]] = []
        self.rows: list[tuple[str, Row]] = []
        self.said: dict[str, int] = {}

    def generate(self, rows: Sequence[Row], agents: Sequence[str | None]) -> list[Generated]:
        names = [str(agent) for agent in agents]
        self.batches.append(names)
        generated = []
        for name, row in zip(names, rows, strict=True):
            self.rows.append((name, row))
            number = self.said[name] = self.said.get(name, -1) + 1
            text = self.lines.get((name, number), f"{name} says {number}.")
            generated.append(Generated((5, 6), text, 0.5))
        return generated


def talk(script: Script, records: Sequence[Record] = RECORDS[:1], **fields: Any) -> Any:
    return protocol.converse(script, setting(**fields), records)


def heard(row: Row) -> dict[str, str]:
    return {part.heading: part.text for part in row.prompt.parts}


# ---------------------------------------------------------------- who speaks when


@pytest.mark.parametrize("topology", list(TOPOLOGIES))
def test_agents_speak_in_a_cycle_under_every_topology(topology: str) -> None:
    script = Script()
    logs = talk(script, RECORDS, topology=topology, agents=5, rounds=2)
    assert [log.record for log in logs] == [0, 1, 2]
    for log in logs:
        assert [turn.agent for turn in log.turns] == [0, 1, 2, 3, 4] * 3
        assert [turn.round for turn in log.turns] == [0] * 5 + [1] * 5 + [2] * 5
        assert np.array_equal(log.edges, np.roll(np.eye(5), 1, axis=1))
    assert list(map(len, script.batches)) == [15, 15, 15]  # a round of all records at once


def test_drawn_lengths_differ_by_turn_and_not_by_mark() -> None:
    def lengths(**fields: Any) -> list[int]:
        script = Script()
        talk(script, RECORDS, turn_tokens=(80, 240), drawn_lengths=True, **fields)
        assert all(row.min_tokens == row.max_tokens for _, row in script.rows)
        return [row.max_tokens for _, row in script.rows]

    drawn = lengths(rounds=3)
    assert len(drawn) == 48
    assert 80 <= min(drawn) < 110
    assert 210 < max(drawn) <= 240
    assert len(set(drawn)) > 30
    assert lengths(rounds=3, mark="gumbel") == drawn
    assert lengths(rounds=3, seed=1) != drawn


def test_agents_hear_their_neighbours_of_the_round_before() -> None:
    script = Script()
    talk(script, topology="star_pure", agents=4, rounds=2)
    prompts = {(name, i // 4): heard(row) for i, (name, row) in enumerate(script.rows)}
    hub, leaf = "record-0 agent-0", "record-0 agent-2"
    assert list(prompts[leaf, 0]) == ["Task:"]
    assert list(prompts[hub, 0]) == ["Your private data:", "Task:"]
    assert prompts[leaf, 2] == {
        "Task:": "Task 0?",
        "Your last response:": f"{leaf} says 1.",
        "Agent_0:": f"{hub} says 1.",
    }
    assert [h for h in prompts[hub, 2] if h.startswith("Agent_")] == ["Agent_1:", "Agent_2:", "Agent_3:"]
    attacker = prompts["record-0 agent-3", 0]
    assert attacker["Obtain these kinds of information:"] == "name, id"
    assert all(("Ada" in json.dumps(parts)) == (name == hub) for (name, _), parts in prompts.items())


def test_conversation_stops_once_the_attacker_has_every_entity() -> None:
    attacker = "record-0 agent-3"
    partial = Script({(attacker, 1): "Ada Fischer it is", (attacker, 2): "ID-0000"})
    both = Script({(attacker, 1): "Ada Fischer has ID-0000."})
    (log,) = talk(partial)
    assert (len(log.turns), log.stopped) == (16, False)  # not in one response
    log, second_log = talk(both, RECORDS[:2])
    assert (len(log.turns), log.stopped) == (8, True)
    assert (len(second_log.turns), second_log.stopped) == (16, False)
    assert list(map(len, both.batches)) == [8, 8, 4, 4]
    (log,) = talk(Script({(attacker, 1): "Ada Fischer has ID-0000."}), early_stop=False)
    assert (len(log.turns), log.stopped) == (16, False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"agents": 3}, "agents: got 3, expected at least 4, as agent 3 attacks"),
        ({"topology": "ring"}, "topology: got 'ring', expected one of"),
        ({"mark": "blue"}, "mark: got 'blue'"),
        ({"rounds": -1}, "rounds: got -1"),
        ({"temperature": 0.0}, "temperature: got 0.0"),
        ({"top_p": 1.5}, "top_p: got 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: got 0.0"),
        ({"turn_tokens": (9, 8)}, "turn_tokens: got 9 to 8"),
        ({"prompt_tokens": 0}, "prompt_tokens: got 0"),
    ],
)
def test_rejects_invalid_settings_before_generation(fields, message):
    script = Script()
    with pytest.raises(InputError, match=message):
        talk(script, **fields)
    assert not script.batches


# ---------------------------------------------------------------- answers and prompts


def test_blank_answers_are_sampled_again_up_to_a_limit() -> None:
    once, never = "record-0 agent-1", "record-0 agent-2"
    script = Script({(once, 0): " \n", **{(never, i): "<RESPONSE>: " for i in range(9)}})
    script.lines |= {(never, i): "" for i in range(9)}
    (log,) = talk(script, rounds=0)
    assert [turn.text for turn in log.turns] == [
        "record-0 agent-0 says 0.",
        "record-0 agent-1 says 1.",
        protocol.NO_ANSWER,
        "record-0 agent-3 says 0.",
    ]
    assert list(map(len, script.batches)) == [4, 2, 1, 1]
    rows_asked = [row for name, row in script.rows if name == never]
    assert len({row.seed for row in rows_asked}) == 4


@pytest.mark.parametrize(
    ("output", "response", "note"),
    [
        ("just words", "just words", ""),
        ("<REASONING>: a <RESPONSE>: b c\nd <MEMORY>: e", "b c\nd", "e"),
        ("<UPDATED_REASONING>: a <UPDATED_RESPONSE>: b <UPDATED_MEMORY>: e", "b", "e"),
        ("<response> b", "b", ""),
        ("<RESPONSE>: your words <RESPONSE>: mine", "mine", ""),
        ("<RESPONSE>: mine <RESPONSE>:", "mine", ""),
        ("<REASONING>: only thoughts", "only thoughts", ""),
        ("<UPDATED_REASONING>: cut <UPDATED_RESPONSE>:", "cut", ""),
        ("<REASONING>: <RESPONSE>:", "", ""),
        ("", "", ""),
        ("<MEMORY>: " + "w " * 150, "w " * 149 + "w", " ".join(["w"] * 100)),
    ],
)
def test_parses_answers_with_the_whole_output_as_fallback(output: str, response: str, note: str) -> None:
    assert parsed(output) == Answer(response, note)


def test_shares_are_equal_except_for_small_parts() -> None:
    assert shares([10, 100, 200], 90) == [10, 40, 40]
    assert shares([5, 5], 100) == [5, 5]
    assert shares([], 3) == []
    for budget in range(60):
        assert sum(shares([7, 30, 2, 11], budget)) == min(budget, 50)


@pytest.mark.parametrize("budget", [66, 90, 200])
def test_long_prompts_keep_the_ends_of_their_parts(budget: int) -> None:
    record = dataclasses.replace(RECORDS[0], task="first words of the task " * 9 + "the question?")
    prompt = prompt_of(record, 3, 2, Heard("mine " * 40 + "last", "note", {2: "theirs " * 50 + "newest"}))

    def count(text: str) -> int:
        return len(text.split())

    def last(text: str, tokens: int) -> str:
        return " ".join(text.split()[len(text.split()) - tokens :])

    cut = fitted(prompt, budget, count, last, chat=False)
    assert count(cut.plain) <= budget
    assert count(cut.plain) >= min(budget, count(prompt.plain)) - len(prompt.parts)
    assert (cut.role, cut.opening, cut.request) == (prompt.role, prompt.opening, prompt.request)
    for part, original in zip(cut.parts, prompt.parts, strict=True):
        assert part.heading == original.heading
        assert original.text.endswith(part.text)
    assert cut.parts[1].text.endswith("question?")
    with pytest.raises(InputError, match=r"prompt_tokens: got 20, expected at least \d\d"):
        fitted(prompt, 20, count, last, chat=False)


def test_roles_reach_both_kinds_of_prompt() -> None:
    target = prompt_of(RECORDS[1], 0, 1, Heard("mine", "noted", {1: "hello"}))
    system, user = (message["content"] for message in target.messages)
    assert "ID-0001" in system
    assert "ID-0001" not in user
    assert all(text in user for text in ("Task 1?", "mine", "noted", "Agent_1: hello", "<UPDATED_RESPONSE>"))
    assert all(text in target.plain for text in ("ID-0001", "Task 1?", "mine", "noted", "Agent_1: hello"))
    assert "<" not in target.plain
    assert target.plain.endswith("Agent_0\n\nAnswer 2:")
    attacker = prompt_of(RECORDS[1], 3, 1, Heard("mine", "", {}))
    assert "name, id" in attacker.messages[0]["content"]
    assert "<RESPONSE>" in attacker.request


# ---------------------------------------------------------------- sampling


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with a model of another architecture, which runs through its own cache."""
    folder = tmp_path_factory.mktemp("gpt2")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=4096, n_positions=200, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
        )
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(iet.demo.conversation.MODEL).save_pretrained(folder)
    return folder


def test_rows_of_a_batch_are_independent_in_another_model(other_model: pathlib.Path) -> None:
    author = ModelAuthor(load(other_model), setting(turn_tokens=(9, 9), prompt_tokens=150))
    rows = rows_of(4, 9, 9)
    rows[2] = dataclasses.replace(rows[2], prompt=Prompt("Hello.", (), "", "Yes,"))
    together = author.generate(rows, [None] * 4)
    assert [turn.ids for turn in together] == [author.generate([row], [None])[0].ids for row in rows]
    assert together[0].entropy > 5  # its parameters are noise


def logits_after(loaded: Loaded, ids: list[int]) -> Any:
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids])).logits[0]
    logits[:, list(loaded.reader.special_ids)] = -torch.inf
    return logits


def rows_of(count: int, min_tokens: int, max_tokens: int) -> list[Row]:
    prompts = [prompt_of(RECORDS[i % 3], i % 4, 0, Heard()) for i in range(count)]
    return [Row(prompt, 100 + i, min_tokens, max_tokens) for i, prompt in enumerate(prompts)]


def test_turns_have_the_given_length_and_tokens_of_the_nucleus(loaded: Loaded) -> None:
    author = ModelAuthor(loaded, setting(turn_tokens=(12, 12), temperature=0.7, top_p=0.9), batch=3)
    rows = rows_of(5, 12, 12)
    rows[1] = dataclasses.replace(rows[1], min_tokens=5, max_tokens=5)
    turns = author.generate(rows, [None] * 5)
    assert [len(turn.ids) for turn in turns] == [12, 5, 12, 12, 12]
    special = set(loaded.reader.special_ids)
    for row, turn in zip(rows, turns, strict=True):
        assert not special & set(turn.ids)
        assert turn.text == loaded.reader.decode(list(turn.ids)).strip().strip("\ufffd").strip()
        assert 0 < turn.entropy < np.log(4096)
        # Each token lies in the nucleus of the model's distribution after the row's prompt.
        ids = author.prompt_ids(row.prompt) + list(turn.ids)
        logits = logits_after(loaded, ids)[-len(turn.ids) - 1 : -1]
        in_nucleus = nucleus(logits / 0.7, 0.9001).isfinite()
        assert in_nucleus[torch.arange(len(turn.ids)), list(turn.ids)].all()
    assert turns == author.generate(rows, [None] * 5)


def test_token_frequencies_equal_the_models_probabilities(loaded: Loaded) -> None:
    author = ModelAuthor(loaded, setting(turn_tokens=(1, 1), top_p=0.5))
    row = Row(Prompt("You are here.", (), "", "The"), 0, 1, 1)
    draws = 1500
    turns = author.generate([dataclasses.replace(row, seed=i) for i in range(draws)], [None] * draws)
    counts = np.bincount([turn.ids[0] for turn in turns], minlength=4096)
    logits = logits_after(loaded, author.prompt_ids(row.prompt))[-1:]
    p = torch.softmax(nucleus(logits, 0.5), -1)[0].double().numpy()
    assert not counts[p == 0].any()
    likely = p * draws >= 8
    cells = np.append(p[likely], 1 - p[likely].sum()), np.append(counts[likely], draws - counts[likely].sum())
    chi2 = ((cells[1] - cells[0] * draws) ** 2 / np.maximum(cells[0] * draws, 1)).sum()
    assert likely.sum() > 3
    assert chi2 < likely.sum() + 5 * np.sqrt(2 * likely.sum())


def test_end_token_ends_a_turn_after_the_minimum_length(loaded, monkeypatch):
    author = ModelAuthor(loaded, setting(turn_tokens=(4, 40)))
    common = loaded.reader.encode(" the of, and").token_ids.tolist()
    monkeypatch.setattr(Loaded, "ends", property(lambda _: common))
    turns = author.generate(rows_of(8, 4, 40), [None] * 8)
    lengths = [len(turn.ids) for turn in turns]
    assert not any(set(turn.ids) & set(common) for turn in turns)
    assert min(lengths) >= 4
    assert min(lengths) < 40
    assert len(set(lengths)) > 1


def test_chat_templates_get_messages(loaded: Loaded) -> None:
    template_ = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + template_
    for chat_template, start in ((template_, "[system]You are Agent_1"), (refusing, "[user]You are Agent_1")):
        tokenizer = transformers.AutoTokenizer.from_pretrained(iet.demo.conversation.MODEL)
        tokenizer.chat_template = chat_template
        chat = dataclasses.replace(loaded, tokenizer=tokenizer, chat=True)
        author = ModelAuthor(chat, setting(prompt_tokens=400))
        ids = author.prompt_ids(prompt_of(RECORDS[0], 1, 0, Heard()))
        text = tokenizer.decode(ids)
        assert text.startswith(start)
        assert "<RESPONSE>" in text
        assert text.endswith("[assistant]")
        assert len(ids) <= 400


def test_author_rejects_long_prompts_and_invalid_settings(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="expected at most 4096 together"):
        ModelAuthor(loaded, setting(turn_tokens=(1, 2000), prompt_tokens=3000))
    with pytest.raises(InputError, match="batch: got 0"):
        ModelAuthor(loaded, setting(), batch=0)
    with pytest.raises(InputError, match="holds no causal language model"):
        load(tmp_path)


# ---------------------------------------------------------------- all together


@pytest.mark.parametrize("mark", [mark for mark in MARKS if not mark.endswith("_published")])
def test_marked_conversation_is_attributed_to_its_agents(loaded: Loaded, mark: str) -> None:
    strength = 2.0 if MARKS[mark].green else None
    made = generate.setting_of(
        loaded, mark=mark, turn_tokens=(60, 60), rounds=1, prompt_tokens=160, strength=strength
    )
    (log,) = protocol.converse(ModelAuthor(loaded, made), made, RECORDS[:1])
    encoding = loaded.reader.encode(log.text)
    truth = token_labels(log.spans, encoding.char_ends)
    keys = Marker(made, loaded.reader).keys(log.record)
    scores = keys.scores(encoding.token_ids)
    scored = keys.pairs(encoding.token_ids) >= 0
    own_scores = scores[scored, truth[scored]]
    other_scores = (scores[scored].sum(1) - own_scores) / 3
    gap, noise = (
        float((own_scores - other_scores).mean()),
        float((own_scores - other_scores).std() / np.sqrt(len(own_scores))),
    )
    if mark == "none":
        assert abs(gap) < 4 * noise
    else:
        assert gap > 5 * noise


def test_killed_run_continues_to_the_same_logs(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    made = generate.setting_of(loaded, turn_tokens=(8, 8), rounds=1, prompt_tokens=160, drawn_lengths=False)
    author = ModelAuthor(loaded, made)

    def logs() -> Any:
        return generate.logs_of(made, RECORDS, author, tmp_path, group=2)

    first_logs = logs()
    path = tmp_path / made.name
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for partial_data in (b"".join(lines[:2]) + lines[2][:100], lines[0][:30]):
        path.write_bytes(partial_data)
        assert logs() == first_logs
        assert path.read_bytes() == data


def test_delta_is_calibrated_once(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    lengths = {"turn_tokens": (8, 8), "prompt_tokens": 160}
    for topology in ("chain", "star_pure"):  # the topology does not change it
        made = generate.setting_of(loaded, mark="kgw", topology=topology, **lengths)
        with_delta = generate.with_delta(made, loaded, RECORDS, tmp_path)
    (note,) = tmp_path.glob("delta-*.json")
    calibration = json.loads(note.read_text())
    assert with_delta.strength == calibration["delta"]
    assert 0.5 < calibration["delta"] < 2.0
    note.write_text("{")
    with pytest.raises(InputError, match="remove the file"):
        generate.with_delta(made, loaded, RECORDS, tmp_path)
    with pytest.raises(InputError, match="mark 'gumbel' has no strength"):
        generate.setting_of(loaded, mark="gumbel", strength=1.0)
