"""Rewritten logs: prompts, lengths, continued runs, and the restore experiment."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
from collections.abc import Sequence

import pytest

from benchmarks.recording import read_rows
from iet.audit.auditor import Auditor
from iet.errors import InputError
from tests.support.failure_logs import algorithm_generated, trajectory, write

for needed in ("torch", "transformers", "matplotlib", "sklearn", "nltk", "langchain_text_splitters"):
    pytest.importorskip(needed)

from benchmarks.paper import __main__ as command  # noqa: E402
from benchmarks.paper.conversations.author import Generated, ModelAuthor, Row  # noqa: E402
from benchmarks.paper.failure import restore  # noqa: E402
from benchmarks.paper.failure.regeneration import (  # noqa: E402
    Rewriting,
    regenerate,
    rewriting_of,
)
from benchmarks.paper.failure.restoration import (  # noqa: E402
    named,
    read_names,
    remove_ids,
    restore_names,
)
from benchmarks.paper.failure.trajectories import Trajectory  # noqa: E402
from benchmarks.paper.marks import Marker  # noqa: E402
from benchmarks.writing.models import Loaded  # noqa: E402

LONG = " ".join(f"The number {i} is even." for i in range(60))
TURNS = [
    ("A", "We start with the file and count its rows."),
    ("Computer_terminal", "exitcode: 0\n"),
    ("B", LONG),
    ("A", ""),
    ("A", "Done."),
]


class Scribe:
    """Writes the most tokens of each row, and records the rows."""

    def __init__(self, loaded: Loaded, token: str = " the") -> None:
        self.loaded = loaded
        (self.id,) = loaded.reader.encode(token).token_ids.tolist()
        self.asked: list[list[tuple[Row, str | None]]] = []

    def generate(self, rows: Sequence[Row], agents: Sequence[str | None]) -> list[Generated]:
        self.asked.append(list(zip(rows, agents, strict=True)))
        return [Generated((self.id,) * row.max_tokens, "", 2.0) for row in rows]


def rewritten(
    loaded: Loaded, out: pathlib.Path, logs: Sequence[Trajectory], rewriting: Rewriting | None = None
) -> tuple[list[Trajectory], Scribe]:
    scribe = Scribe(loaded)
    rewriting = rewriting or rewriting_of(loaded, "Algorithm-Generated")
    return regenerate(logs, rewriting, scribe, loaded, out), scribe


def tokens(loaded: Loaded, text: str) -> int:
    return len(loaded.reader.encode(text).token_ids)


def test_rewrites_turns_of_agents_under_their_keys(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    (rewritten_log,), scribe = rewritten(loaded, tmp_path, [trajectory(TURNS)])
    assert [turn.name for turn in rewritten_log.turns] == [name for name, _ in TURNS]
    assert [turn.content for turn in rewritten_log.turns][1::2] == ["exitcode: 0\n", ""]
    for i in (0, 2, 4):
        words = rewritten_log.turns[i].content.split()
        assert words == ["the"] * tokens(loaded, TURNS[i][1])  # the shipped model writes just as many
    rows_asked = [(row, agent) for batch in scribe.asked for row, agent in batch]
    assert [agent for _, agent in rows_asked] == ["A", *"B" * (len(rows_asked) - 2), "A"]
    assert len({row.seed for row, _ in rows_asked}) == len(rows_asked)


def test_prompt_of_a_turn_holds_the_conversation_and_the_turn(loaded, tmp_path):
    _, scribe = rewritten(loaded, tmp_path, [trajectory(TURNS)])
    rows_asked = [row.prompt for batch in scribe.asked for row, _ in batch]
    assert TURNS[0][1] in rows_asked[0].plain
    assert "You are A" in rows_asked[0].plain
    assert "A: the the" in rows_asked[1].plain  # as it was rewritten, not as it was
    assert TURNS[0][1] not in rows_asked[1].plain
    assert "Computer_terminal: exitcode: 0" in rows_asked[1].plain
    # The parts of a long original are together the original; each part continues the previous one.
    parts = rows_asked[1:-1]
    assert len(parts) == math.ceil(tokens(loaded, LONG) / 256)
    assert len(parts) > 1
    assert "".join(part.parts[1].text for part in parts) == LONG
    assert parts[0].opening == "B\n\nTurn 3:"
    assert all(part.opening.endswith("the the") and "go on" in part.request for part in parts[1:])
    cut = ModelAuthor(loaded, rewriting_of(loaded, "Algorithm-Generated").sampling).prompt_ids(parts[1])
    assert len(cut) <= 257  # 256, and the start token


def test_a_model_that_continues_does_not_see_the_turn(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    continuing = rewriting_of(loaded, "Algorithm-Generated", continues=True)
    _, scribe = rewritten(loaded, tmp_path, [trajectory(TURNS)], continuing)
    prompts = [row.prompt for batch in scribe.asked for row, _ in batch]
    assert not any(TURNS[0][1] in prompt.plain or "number 3 is even" in prompt.plain for prompt in prompts)
    assert all("Write your next turn, in about " in prompt.request for prompt in prompts)
    assert "Computer_terminal: exitcode: 0" in prompts[1].plain


@pytest.mark.parametrize("exact", [True, False])
def test_lengths_stay_within_a_tenth(loaded: Loaded, tmp_path: pathlib.Path, exact: bool) -> None:
    rewriting = Rewriting("Algorithm-Generated", "gumbel", "", part_tokens=40, prompt_tokens=128, exact=exact)
    for number in range(1, 2000):
        min_tokens, max_tokens = rewriting.lengths(number)
        assert 0.9 * number <= min_tokens <= number <= max_tokens <= 1.1 * number
    _, scribe = rewritten(loaded, tmp_path, [trajectory(TURNS)], rewriting)
    rows = [row for batch in scribe.asked for row, agent in batch if agent == "B"]
    assert all(1 <= row.min_tokens <= row.max_tokens <= 40 for row in rows)
    assert [row.min_tokens == row.max_tokens for row in rows[:-1]] == [True] * (len(rows) - 1)
    total = tokens(loaded, LONG)
    assert sum(row.min_tokens for row in rows[:-1]) == total * (len(rows) - 1) // len(rows)
    min_tokens, max_tokens = rewriting.lengths(total)
    assert (
        min_tokens
        <= sum(row.min_tokens for row in rows)
        <= total
        <= sum(row.max_tokens for row in rows)
        <= max_tokens
    )


def test_batches_hold_turns_of_similar_length(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    logs = [trajectory([("A", LONG), ("B", f"Log {i}.")], number=i) for i in range(1, 5)]
    logs.append(trajectory([("A", "Short.")], number=9))
    _, scribe = rewritten(loaded, tmp_path, logs)
    sizes = [[row.max_tokens for row, _ in batch] for batch in scribe.asked]
    assert [len(batch) for batch in sizes] == [1, 4, *[4] * (len(sizes) - 2)]
    assert all(max(batch) <= max(32, 1.4 * min(batch)) for batch in sizes)


def test_blank_turns_are_sampled_again_longer_up_to_a_limit(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    scribe = Scribe(loaded, "\n")
    rewriting = rewriting_of(loaded, "Algorithm-Generated")
    (rewritten_log,) = regenerate([trajectory([("A", "Hi.")])], rewriting, scribe, loaded, tmp_path)
    assert rewritten_log.turns[0].content == "..."
    min_tokens = [batch[0][0].min_tokens for batch in scribe.asked]
    assert min_tokens == [min_tokens[0] + i for i in range(4)]


def test_killed_run_continues_at_the_incomplete_turn(loaded, tmp_path):
    logs = [trajectory(TURNS, number=3)]
    rewriting = rewriting_of(loaded, "Algorithm-Generated")
    complete, _ = rewritten(loaded, tmp_path / "whole", logs)
    data = (tmp_path / "whole" / rewriting.name).read_bytes()
    lines = data.splitlines(keepends=True)
    assert len(lines) == 4  # a header and three turns
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / rewriting.name).write_bytes(b"".join(lines[:2]) + lines[2][:50])
    second_run, scribe = rewritten(loaded, tmp_path / "killed", logs)
    assert second_run == complete
    assert (tmp_path / "killed" / rewriting.name).read_bytes() == data
    assert {agent for batch in scribe.asked for _, agent in batch[:-1]} <= {"B"}
    second_run, scribe = rewritten(loaded, tmp_path / "killed", logs)
    assert (second_run, scribe.asked) == (complete, [])


def test_rejects_files_of_another_text_or_setting(loaded, tmp_path):
    rewritten(loaded, tmp_path, [trajectory(TURNS, number=3)])
    rewriting = rewriting_of(loaded, "Algorithm-Generated")
    with pytest.raises(InputError, match="log 3: rewritten from another text"):
        rewritten(loaded, tmp_path, [trajectory([("A", "Another text.")], number=3)])
    cooler = rewriting_of(loaded, "Algorithm-Generated", temperature=0.7)
    shutil.copy(tmp_path / rewriting.name, tmp_path / cooler.name)
    with pytest.raises(InputError, match="line 1: expected digest"):
        rewritten(loaded, tmp_path, [trajectory(TURNS, number=3)], cooler)
    with pytest.raises(InputError, match="temperature: got 0"):
        rewriting_of(loaded, "Algorithm-Generated", temperature=0.0)


def test_human_turns_marked_by_metadata_are_not_decoded(loaded: Loaded, tmp_path: pathlib.Path) -> None:
    words = " ".join(f"Row {i} is even." for i in range(12))
    turns = [("human", "Where?"), ("Orchestrator (thought)", words), ("Orchestrator (-> WebSurfer)", words)]
    turns += [("WebSurfer", words), ("ComputerTerminal", "exitcode: 0 (execution succeeded)")]
    log = trajectory(turns, subset="Hand-Crafted")
    rewriting = rewriting_of(loaded, "Hand-Crafted")
    author = ModelAuthor(loaded, rewriting.sampling)
    (marked,) = regenerate([log], rewriting, author, loaded, tmp_path)
    registry = Marker(rewriting.sampling, loaded.reader).registry(log.agents)
    assert registry is not None
    assert list(registry) == ["Orchestrator", "WebSurfer"]
    corrupted = remove_ids(marked)
    report = read_names(Auditor(registry), corrupted)
    assert [segment.left_out for segment in report.segments].count(
        True
    ) == 4  # a person, and what joins turns
    restored = restore_names(corrupted, named(report)).trajectory
    assert [turn.name for turn in restored.turns] == ["human", *["Orchestrator"] * 2, "WebSurfer", ""]
    assert restored.turns[0].human
    blank = trajectory([("A", "")])
    assert named(read_names(Auditor(registry), remove_ids(blank))) == []


def test_experiment_restores_the_rewritten_log(loaded, tmp_path, capsys):
    history = [
        {"name": "A_Expert", "role": "user", "content": " ".join(f"Row {i} is even." for i in range(16))},
        {"name": "Computer_terminal", "role": "user", "content": "exitcode: 0 (execution succeeded)\n"},
        {"name": "B_Expert", "role": "user", "content": " ".join(f"Row {i} is odd." for i in range(16))},
    ]
    log = algorithm_generated(history=history, mistake_agent="B_Expert", mistake_step="2")
    data = write(tmp_path / "data", "Algorithm-Generated", {"1.json": log})
    options = restore.Options(batch=4)
    result = tmp_path / "out" / "restore.json"
    restore.run(loaded, data, tmp_path / "out", options, complete=False)
    first, rows = json.loads(result.read_text(encoding="utf-8")), read_rows(result)
    cells = {
        tuple(row[name] for name in ("mark", "corruption", "registry", "hand-overs")): row for row in rows
    }
    assert len(cells) == 2 * (1 + 1 + 2 + 2)
    bare = cells["gumbel", "ID removal", "not restored", ""]
    assert (bare["turns"], bare["right"], bare["ideal_judge"]) == (2, 0, False)
    for registry in ("the log's agents", "all agents"):
        names = cells["gumbel", "ID removal", registry, "known"]
        assert (names["right"], names["tools"], names["tools_open"]) == (2, 1, 1)
        assert names["ideal_judge"]
        assert names["token_accuracy"] > 0.9
    logs_before = {path: path.read_bytes() for path in (tmp_path / "out" / "logs").iterdir()}
    arguments = ["--data", str(data), "--out", str(tmp_path / "out"), "--batch", "4"]
    assert command.main(["restore", *arguments, "--extract"]) == 0
    second = json.loads(result.read_text(encoding="utf-8"))
    assert (read_rows(result), second["table"], second["digest"]) == (rows, first["table"], first["digest"])
    assert logs_before == {path: path.read_bytes() for path in (tmp_path / "out" / "logs").iterdir()}
    assert command.main(["restore", *arguments, "--extract", "--temperature", "0.5"]) == 1
    assert "differs in temperature" in capsys.readouterr().err
    assert command.main(["restore", *arguments]) == 1
    assert "1 logs of 'Algorithm-Generated', expected 126" in capsys.readouterr().err
    assert command.main(["restore", *arguments, "--extract", "--records", "2"]) == 1
    assert "records: got 2, expected 1 to 1 logs" in capsys.readouterr().err
