"""A registry on another host, where its tokenizer has to be found again."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import shutil

import pytest

from iet.marks.registry import Registry
from iet.marks.tokenizer import Tokenizer
from tests.support import teams
from tests.support.commands import RunIet, run, spawn


def test_an_exported_tokenizer_moves_with_its_registry(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    (tmp_path / "there").mkdir()
    exported = tmp_path / "host.json"
    output = run_iet(0, "keys", "export", exported, "--agents", "critic", "--with-tokenizer", "-r", team)
    beside = tmp_path / f"host.{Registry.load(team).profile.id}.tokenizer.json.gz"
    assert f"its tokenizer goes with it: {beside.name}" in output
    for file in (exported, beside):
        shutil.move(file, tmp_path / "there")
    (tmp_path / "tokenizer.json").unlink()
    moved = tmp_path / "there" / "host.json"
    assert json.loads(run_iet(0, "audit", text, "-r", moved, "--json"))["segments"][0]["agent"] == "critic"
    (tmp_path / "there" / beside.name).write_bytes(gzip.compress(teams.word_tokenizer(300).to_str().encode()))
    assert "got digest" in run_iet(3, "audit", text, "-r", moved)  # it is no longer that one
    (tmp_path / "there" / beside.name).write_bytes(b"no gzip")
    assert "is no tokenizer.json" in run_iet(3, "audit", text, "-r", moved)


def test_a_lost_tokenizer_is_named_with_the_way_out(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    (tmp_path / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    profile = Registry.load(team).profile
    assert profile.tokenizer_digest is not None
    lost = run_iet(3, "audit", text, "-r", team)
    for part in (
        profile.tokenizer_digest[:16],
        "V 400",
        "--tokenizer PATH",
        "iet keys export --with-tokenizer",
    ):
        assert part in lost
    assert run("audit", text, "-r", team, "--tokenizer", tmp_path / "elsewhere.json") == 0
    teams.word_tokenizer(300).save(str(tmp_path / "other.json"))
    output = run_iet(3, "audit", text, "-r", team, "--tokenizer", tmp_path / "other.json")
    assert f"got digest {Tokenizer(tmp_path / 'other.json').digest[:16]} of 300 tokens" in output
    assert f"expects the tokenizer of digest {profile.tokenizer_digest[:16]}, V 400" in output
    assert "found at 'tokenizer.json' when it was made" in output


def test_a_tokenizer_is_named_by_its_id_on_the_hub(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("huggingface_hub")
    commit = "0" * 40  # the cache as huggingface_hub keeps it, and no network
    repository = tmp_path / "home" / "hub" / "models--someone--words"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    (tmp_path / "tokenizer.json").rename(repository / "snapshots" / commit / "tokenizer.json")
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    done = spawn("audit", text, "-r", team, "--json", "--tokenizer", "someone/words", env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["segments"][0]["agent"] == "critic"
    made = tmp_path / "made.json"
    done = spawn("keys", "init", made, "--tokenizer", "someone/words", env=environment)
    assert done.returncode == 0, done.stderr
    assert Registry.load(made).profile.tokenizer_source == "hf:someone/words"
    (tmp_path / "there").mkdir()
    made.rename(tmp_path / "there" / "made.json")
    spawn("keys", "add", "critic", "-r", tmp_path / "there" / "made.json", env=environment)
    done = spawn("audit", text, "-r", tmp_path / "there" / "made.json", env=environment)
    assert done.returncode == 0, done.stderr
    done = spawn("audit", text, "-r", team, "--tokenizer", "someone/else", env=environment)
    assert done.returncode == 3
    assert b"'someone/else' is no file here, and the Hub did not give it" in done.stderr
