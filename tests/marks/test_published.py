"""An index of published text: lookups, secrecy, killed writers and damaged files."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pathlib
import random
import signal
import stat
import time
from typing import Any

import numpy as np
import pytest

from iet.errors import InputError, RegistryError
from iet.marks import runs
from iet.marks.published import MANIFEST, Added, PublishedIndex
from iet.marks.registry import Registry
from iet.marks.runs import Run
from iet.marks.scheme import Scheme
from tests.support.conditions import posix
from tests.support.teams import WORD_TOKENIZER, secret, team
from tests.support.texts import spell
from tests.support.waiting import wait_until

TEAM = team()
KEYS = TEAM.scoring_keys()


@pytest.fixture
def index(tmp_path: pathlib.Path) -> PublishedIndex:
    return PublishedIndex(tmp_path / "out.idx", TEAM, create=True)


def drawn(seed: int, tokens: int = 200) -> list[int]:
    return np.random.default_rng(seed).integers(1, 600, tokens).tolist()


def test_published_pairs_are_seen_and_no_others(index: PublishedIndex) -> None:
    first, second = drawn(1), drawn(2)
    assert index.add("planner", token_ids=[first]) == Added(1, 0, len({*itertools.pairwise(first)}))
    assert index.add("critic", spell(second), tokenizer=WORD_TOKENIZER).texts == 1
    for ids in (first, second):
        assert index.seen([*ids[50:100], *drawn(9, 3)], KEYS)[1:50].all()
        assert not index.seen(ids, KEYS).any(), "the text that was first to publish it"
    new = drawn(3, 2000)
    pairs = {*itertools.pairwise(first), *itertools.pairwise(second)}
    expected = [False, *(pair in pairs for pair in itertools.pairwise(new))]
    assert index.seen(new, KEYS).tolist() == expected
    assert index.agents["planner"]["texts"] == index.agents["critic"]["texts"] == 1
    assert index.texts == 2


def test_lookups_use_one_state_of_the_index(
    index: PublishedIndex, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, second = drawn(1), drawn(2)
    index.add("planner", token_ids=[second])
    reader = PublishedIndex(tmp_path / "out.idx", TEAM)
    index.add("planner", token_ids=[ids])
    numbers_of = Run.numbers_of

    def refreshed(run: Run, *arguments: Any) -> Any:  # as by another thread, between two lookups
        numbers = numbers_of(run, *arguments)
        reader.refresh()
        return numbers

    monkeypatch.setattr(Run, "numbers_of", refreshed)
    assert not reader.seen(ids, KEYS).any()
    assert not reader.seen(ids, KEYS).any()


def test_first_publisher_owns_a_pair(index: PublishedIndex) -> None:
    first, new_ids = drawn(1), drawn(2)
    index.add("planner", token_ids=[first])
    later = [*new_ids[:100], *first[20:80], *new_ids[100:]]
    index.add("critic", token_ids=[later])
    seen = index.seen(later, KEYS)
    assert seen[101:160].all()
    assert seen.sum() <= 62
    assert index.seen(later[5:], KEYS)[1:].all(), "a part of a text is another text"


def test_texts_are_recognised_without_surrounding_white_space(index: PublishedIndex) -> None:
    text = spell(drawn(1))
    index.add("planner", text, tokenizer=WORD_TOKENIZER)
    ids = drawn(1)
    assert not index.seen(ids, KEYS, f"\n{text} \n").any()
    longer = [*ids, 5]
    assert not index.seen(longer, KEYS, text).any()  # the caller states which text the ids belong to
    assert index.seen(longer, KEYS, spell(longer))[1:200].all()


def test_adding_twice_changes_nothing(index: PublishedIndex) -> None:
    index.add("planner", token_ids=[drawn(1), drawn(2)])
    digest = index.digest
    assert index.add("critic", token_ids=[drawn(2), drawn(1)]) == Added(0, 2, 0)
    assert index.digest == digest
    assert index.add("critic", token_ids=[drawn(3), drawn(3)]) == Added(1, 1, index.agents["critic"]["pairs"])
    assert index.add("critic", []) == Added(0, 0, 0)


def test_excluding_texts(index: PublishedIndex) -> None:
    first, second = drawn(1), drawn(2)
    index.add("planner", [spell(first), spell(second)], tokenizer=WORD_TOKENIZER)
    conversation = [*first, *second]
    assert index.seen(conversation, KEYS).sum() >= 395
    view = index.excluding([spell(first)])
    assert view.seen(conversation, KEYS).sum() == pytest.approx(199, abs=3)
    assert not index.excluding([spell(first), spell(second)]).seen(conversation, KEYS).any()
    with pytest.raises(InputError, match="number 1 is not in the index"):
        index.excluding([spell(first), "w1 w2"])


def test_runs_are_merged_without_loss(index: PublishedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_SLICE", 64)
    for seed in range(40):
        index.add("planner", token_ids=[drawn(seed, 30 + 7 * (seed % 5))])
        assert len(list(index.path.glob("*.run"))) == len(index._runs) <= 12
    sizes = [len(run) for run in index._runs]
    assert all(a > 2 * b for a, b in itertools.pairwise(sizes))
    hashes = np.concatenate([run.hashes for run in index._runs])
    assert len(np.unique(hashes)) == len(hashes) == len(index)
    assert all((np.diff(run.hashes.astype(object)) > 0).all() for run in index._runs)
    for seed in range(40):
        ids = drawn(seed, 30 + 7 * (seed % 5))
        assert index.seen([7, *ids], KEYS)[2:].all()
        seen = index.seen(ids, KEYS)
        assert not seen.any() or seed  # of the first text nothing was published before
    assert index.agents["planner"]["pairs"] + index.texts == len(index)


def test_rotated_keys_and_new_agents_keep_the_index(tmp_path: pathlib.Path) -> None:
    registry = team()
    index = PublishedIndex(tmp_path / "out.idx", registry, create=True)
    index.add("planner", token_ids=[drawn(1)])
    registry.rotate("planner", secret=secret(77))
    registry.add("fourth", secret=secret(78))
    reopened = PublishedIndex(index.path, registry)
    reopened.add("fourth", token_ids=[drawn(2)])
    assert reopened.seen([3, *drawn(1)], registry.scoring_keys())[2:].all()


def test_index_needs_the_registrys_keys(index: PublishedIndex, tmp_path: pathlib.Path) -> None:
    index.add("planner", token_ids=[drawn(1)])
    with pytest.raises(RegistryError, match="under the key of agent 'planner', epoch 0"):
        PublishedIndex(index.path, team(numbered=3))
    with pytest.raises(RegistryError, match="no agents"):
        PublishedIndex(tmp_path / "b.idx", team(()), create=True)
    data = b"".join(path.read_bytes() for path in index.path.iterdir())
    for key in TEAM.keys("planner"):
        assert key.secret not in data
        assert key.secret.hex().encode() not in data
    second_index = PublishedIndex(tmp_path / "c.idx", TEAM, create=True)  # another salt
    second_index.add("planner", token_ids=[drawn(1)])
    assert not np.isin(index._runs[0].hashes, second_index._runs[0].hashes).any()


@posix
def test_files_are_private(index: PublishedIndex) -> None:
    index.add("planner", token_ids=[drawn(1)])
    assert stat.S_IMODE(index.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in index.path.iterdir()} == {0o600}


def test_rejects_any_flipped_byte(index: PublishedIndex) -> None:
    index.add("planner", token_ids=[drawn(1, 12)])
    for path in index.path.iterdir():
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
            with pytest.raises((InputError, RegistryError), match=r"out\.idx"):
                PublishedIndex(index.path, TEAM)
        for cut in (0, 10, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:cut])
            with pytest.raises(InputError, match=r"damaged|cut off"):
                PublishedIndex(index.path, TEAM)
        path.write_bytes(data)
    assert PublishedIndex(index.path, TEAM).digest == index.digest


def test_large_runs_are_verified_by_check_only(
    index: PublishedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("planner", token_ids=[drawn(1)])
    monkeypatch.setattr(runs, "CHECKED_BYTES", 100)
    run = index._runs[0].path
    data = run.read_bytes()
    run.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    opened = PublishedIndex(index.path, TEAM)
    with pytest.raises(InputError, match="its digest does not fit"):
        opened.check()
    run.write_bytes(data[:-1])
    with pytest.raises(InputError, match="cut off or damaged"):
        PublishedIndex(index.path, TEAM)
    run.write_bytes(data)
    opened.check()


def test_rejects_invalid_input_before_writing(index: PublishedIndex, tmp_path: pathlib.Path) -> None:
    names = sorted(os.listdir(index.path))
    for ids in ([1.5], [[1]], "x"):
        with pytest.raises(InputError):
            index.add("planner", token_ids=[ids])
    with pytest.raises(RegistryError, match="nobody"):
        index.add("nobody", token_ids=[drawn(1)])
    assert sorted(os.listdir(index.path)) == names
    for texts in (5, b"x", None):
        with pytest.raises(InputError, match=f"texts: got {type(texts).__name__}, expected a list"):
            index.add("planner", texts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="texts: got NoneType among them, expected str"):
        index.add("planner", [None])  # type: ignore[list-item]
    for token_ids in (5, "x"):
        with pytest.raises(InputError, match=f"token_ids: got {type(token_ids).__name__}, expected a list"):
            index.add("planner", token_ids=token_ids)  # type: ignore[arg-type]
    assert sorted(os.listdir(index.path)) == names
    with pytest.raises(InputError, match="path: got int, expected a path"):
        PublishedIndex(5, TEAM)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no index of published text"):
        PublishedIndex(tmp_path / "not there", TEAM)
    with pytest.raises(InputError, match="registry: got int"):
        PublishedIndex(index.path, 3)  # type: ignore[arg-type]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(InputError, match=r"holds 'letter.txt', expected an index"):
        PublishedIndex(tmp_path / "full", TEAM, create=True)
    with pytest.raises(InputError, match="cannot be written"):
        PublishedIndex(tmp_path / "full" / "letter.txt", TEAM, create=True)
    (tmp_path / "full" / "letter.txt").rename(tmp_path / "full" / f"{'0' * 16}.run")
    with pytest.raises(InputError, match=r"index.json is lost \(take a backup\), expected an index"):
        PublishedIndex(tmp_path / "full", TEAM, create=True)
    manifest = index.path / "index.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format": "iet.published/9"}))
    with pytest.raises(InputError, match=r"format 'iet.published/9', but this release reads"):
        PublishedIndex(index.path, TEAM)


def test_reopens_a_run_merged_while_opening(index: PublishedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("planner", token_ids=[drawn(1)])
    opened, first = Run.open, True

    def opening(path: pathlib.Path, digest: str) -> Run:
        nonlocal first
        if first:
            first = False
            second_index = PublishedIndex(index.path, TEAM)
            second_index.add("planner", token_ids=[drawn(2)])
        return opened(path, digest)

    monkeypatch.setattr(Run, "open", opening)
    assert PublishedIndex(index.path, TEAM).texts == 2
    index.refresh()
    assert index.texts == 2


def _add_many(path: str, low: int, high: int) -> None:
    index = PublishedIndex(path, TEAM, create=True)
    for seed in range(low, high):
        index.add("planner", token_ids=[drawn(seed, 60)])


@posix
def test_concurrent_writers_lose_nothing(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("fork")
    path = str(tmp_path / "out.idx")
    writers = [context.Process(target=_add_many, args=(path, 20 * i, 20 * i + 20)) for i in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    index = PublishedIndex(path, TEAM)
    index.check()
    assert index.texts == 40
    for seed in range(40):
        assert index.seen([3, *drawn(seed, 60)], KEYS)[2:].all()


@posix
def test_killed_writer_leaves_a_valid_index(tmp_path: pathlib.Path) -> None:
    context, draw = multiprocessing.get_context("fork"), random.Random(0)
    path, kills, done = tmp_path / "out.idx", 0, 0
    PublishedIndex(path, TEAM, create=True)
    while kills < 15:
        writer = context.Process(target=_add_many, args=(str(path), done, done + 200))
        writer.start()
        for _ in range(draw.randrange(4)):  # texts later, and then at some moment within one
            modified = (path / MANIFEST).stat().st_mtime_ns
            wait_until(
                lambda modified=modified, writer=writer: (
                    (path / MANIFEST).stat().st_mtime_ns != modified or not writer.is_alive()
                ),
                pause=0.0005,
            )
        time.sleep(draw.uniform(0, 0.03))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        kills += writer.exitcode == -signal.SIGKILL
        index = PublishedIndex(path, TEAM)
        index.check()
        assert index.texts >= done  # in order, and none of them in part
        for seed in range(done, index.texts):
            assert index.seen([3, *drawn(seed, 60)], KEYS)[2:].all()
        done = index.texts
    assert done > 0
    index.add("critic", token_ids=[drawn(10_000)])
    names = {path.name for path in index.path.iterdir()}
    assert names == {"index.json", *(run.path.name for run in index._runs)}, "temporary files are removed"


def test_profiles_have_separate_pairs(tmp_path: pathlib.Path) -> None:
    registry = Registry.create(None, vocab_size=600)
    registry.add("planner")
    second_profile = registry.add_profile(vocab_size=600, scheme=Scheme(n_gram=3))
    registry.add("critic", profile=second_profile)
    index = PublishedIndex(tmp_path / "out.idx", registry, create=True)
    index.add("planner", token_ids=[drawn(1)])
    tables = [registry.scoring_keys(id) for id in registry.profiles]
    assert [index.seen([3, *drawn(1)], keys).any() for keys in tables] == [True, False]
