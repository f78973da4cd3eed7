"""The command line: every command, its exit code, and what it leaves behind."""

from __future__ import annotations

import importlib
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import iet
from iet import kernels
from iet.cli import doctor, main
from iet.marks.commitment import Opening
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

posix = pytest.mark.skipif(os.name != "posix", reason="file modes and pipes are POSIX")
WORDS = 400


@pytest.fixture
def tokenizer(tmp_path: pathlib.Path) -> pathlib.Path:
    vocabulary = {"<unk>": 0, **{f"w{i}": i for i in range(1, WORDS)}}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<unk>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def team(tmp_path: pathlib.Path, tokenizer: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.delenv("IET_REGISTRY", raising=False)
    registry = Registry.create(tmp_path / "team.json", tokenizer=tokenizer, scheme=Scheme(kappa=3.0))
    for name in ("planner", "critic"):
        registry.add(name, secret=name.encode().ljust(32, b"."))
    return tmp_path / "team.json"


def written_by(team: pathlib.Path, agent: str | None, tokens: int = 150) -> str:
    """Words as a model without preferences would sample them under an agent's mark."""
    registry, draw, ids = Registry.load(team), np.random.default_rng(0), [1]
    for _ in range(tokens):
        logits = np.zeros((1, WORDS), dtype=np.float32)
        iet.embed_(logits, [ids[-1:]], [-1 if agent is None else registry.slot(agent)], registry)
        ids.append(1 + int((logits[0, 1:] + draw.gumbel(size=WORDS - 1)).argmax()))
    return " ".join(f"w{i}" for i in ids)


@pytest.fixture
def text(team: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "final.txt").write_text(written_by(team, "critic"))
    return tmp_path / "final.txt"


def run(*arguments: Any) -> int:
    """The exit code of the command line, also where argparse exits."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else -1


def spawn(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "iet", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)


def modes(*paths: pathlib.Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


# audit


def test_audit_shows_who_wrote_what(
    team: pathlib.Path,
    text: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run("audit", text, "-r", team) == 0
    output = capsys.readouterr()
    assert "1 segment · 100% attributed at level 0.01" in output.out
    assert "critic" in output.out
    assert output.err == ""


def test_audit_as_json_is_the_report(
    team: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = iet.Auditor(Registry.load(team)).audit(text.read_text())
    assert run("audit", text, "-r", team, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(expected.to_json())
    assert run("audit", text, "-r", team, "--json", "--no-text") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(expected.to_json(text=False))


def test_audit_writes_the_report_to_a_file(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    assert run("audit", text, "-r", team, "-o", out, "--no-text") == 0
    assert capsys.readouterr().out == ""
    report = json.loads(out.read_text(encoding="utf-8"))
    assert (report["schema"], report["text"]) == ("iet.report/1", None)
    assert run("audit", text, "-r", team, "-o", tmp_path / "nowhere" / "report.json") == 3
    assert "nowhere" in capsys.readouterr().err


def test_audit_options_reach_the_auditor(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unmarked.txt").write_text(written_by(team, None))
    arguments = ["audit", tmp_path / "unmarked.txt", "-r", team, "--json"]
    found = []
    for more in ([], ["--forced"], ["--decoder", "window", "--level", "0.2"]):
        assert run(*arguments, *more) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [report["coverage"] for report in found[:2]] == [0.0, 1.0]
    assert found[1]["allow_unattributed"] is False
    assert (found[2]["decoder"]["name"], found[2]["level"]) == ("window", 0.2)
    assert run(*arguments, "--breaks") == 0
    assert json.loads(capsys.readouterr().out)["decoder"]["options"]["break_odds"]["paragraph"] > 1
    assert run(*arguments, "--breaks", "--decoder", "cusum") == 3
    assert "break_odds: got decoder 'cusum'" in capsys.readouterr().err


def test_what_cannot_work_is_refused_before_the_work(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no" / "report.json"
    assert run("audit", text, "-r", team, "-o", missing) == 3
    assert f"{missing}: got a folder that is not there" in capsys.readouterr().err
    assert run("audit", tmp_path / "nothing.txt", "-r", team, "--model", "no/such/model") == 3
    assert "nothing.txt: cannot be read" in capsys.readouterr().err
    assert run("audit", text, "-r", team, "--model", "no/such/model", "--decoder", "cusum") == 3
    assert "model: got decoder 'cusum'" in capsys.readouterr().err
    assert run("calibrate", "--null", text, "-r", team, "--level", "0.2") == 2
    assert "--level goes with --power" in capsys.readouterr().err
    assert run("calibrate", "--power", "--registries", "3") == 2
    assert "go with --null" in capsys.readouterr().err


def test_decoys_and_known_agents_reach_the_auditor(
    team: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("audit", text, "-r", team, "--decoys", "120", "--known", "planner", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    registry = iet.Registry.load(team)
    same = iet.Auditor(registry, decoys=120, known_agents=["planner"]).audit(text.read_text(encoding="utf-8"))
    assert found["decoys"] == 120
    assert found["evidence"] == same.evidence
    assert run("audit", text, "-r", team, "--known", "stranger") == 3
    assert "known_agents: got 'stranger'" in capsys.readouterr().err


def test_parts_of_a_text_are_read_or_left_out(
    team: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, auditor = text.read_text(), iet.Auditor(Registry.load(team))
    half, end = len(content) // 2, len(content)
    for arguments, parts in (
        (["--skip", f"0:{half}"], {"skip": [(0, half)]}),
        (["--span", f"{half}:{end}"], {"spans": [(half, end)]}),
        (["--skip", "3:40", "--skip", "60:90"], {"skip": [(3, 40), (60, 90)]}),
    ):
        assert run("audit", text, "-r", team, "--json", *arguments) == 0
        report = json.loads(capsys.readouterr().out)
        assert report == json.loads(auditor.audit(content, **parts).to_json())
        assert any(segment["left_out"] for segment in report["segments"])
    assert run("audit", text, "-r", team, "--skip", f"0:{end}", "--fail-on", "unattributed") == 0
    assert run("audit", text, "-r", team, "--skip", "0:99999") == 3
    assert "skip: got (0, 99999)" in capsys.readouterr().err
    assert run("audit", text, "-r", team, "--skip", "7-9") == 2
    assert "got '7-9', expected characters START:END" in capsys.readouterr().err


def test_a_registry_takes_a_second_profile_and_both_are_read(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("keys", "profile", "-r", team, "--tokenizer", "iet:demo", "--kappa", "1.5") == 0
    first, second = Registry.load(team).profiles
    assert f"profile {second}; iet keys add --profile {second} NAME" in capsys.readouterr().out
    assert Registry.load(team).get_profile(second).scheme.kappa == 1.5
    assert run("keys", "add", "-r", team, "--profile", second, "writer") == 0
    assert run("keys", "profile", "-r", team) == 3
    assert "tokenizer and vocab_size: got neither" in capsys.readouterr().err
    assert run("audit", text, "-r", team, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [profile["id"] for profile in report["profiles"]] == [first, second]
    assert {segment["agent"] for segment in report["segments"]} == {"critic"}
    moved = tmp_path / "elsewhere.json"
    (tmp_path / "tokenizer.json").rename(moved)
    assert run("audit", text, "-r", team) == 3
    capsys.readouterr()
    assert run("audit", text, "-r", team, "--tokenizer", f"{first}={moved}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["segments"] == report["segments"]
    assert run("audit", text, "-r", team, "--profile", first, "--tokenizer", moved) == 0
    assert run("audit", text, "-r", team, "--tokenizer", moved, "--tokenizer", moved) == 3
    assert "expected PROFILE=PATH" in capsys.readouterr().err


def test_fail_on_tells_by_the_exit_code(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    unmarked, empty = tmp_path / "unmarked.txt", tmp_path / "empty.txt"
    unmarked.write_text(written_by(team, None))
    empty.write_text("")
    for file, attributed, unattributed in ((text, 1, 0), (unmarked, 0, 1), (empty, 0, 0)):
        assert run("audit", file, "-r", team, "--fail-on", "attributed") == attributed
        assert run("audit", file, "-r", team, "--fail-on", "unattributed") == unattributed
        assert run("audit", file, "-r", team) == 0


def test_the_registry_may_come_from_the_environment(
    team: pathlib.Path,
    text: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("audit", text) == 3
    assert "IET_REGISTRY" in capsys.readouterr().err
    monkeypatch.setenv("IET_REGISTRY", str(team))
    assert run("audit", text) == 0
    assert run("keys", "list") == 0


class Standard:
    """A standard input of bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_a_dash_is_the_standard_input(
    team: pathlib.Path,
    text: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Standard(b"\xef\xbb\xbf" + text.read_bytes()))
    assert run("audit", "-", "-r", team, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["invisible"], report["segments"][0]["agent"]) == (1, "critic")  # the byte-order mark
    monkeypatch.setattr(sys, "stdin", Standard(b"w1 \xff"))
    assert run("audit", "-", "-r", team) == 3
    assert "standard input: byte 3 is 0xff, which is not UTF-8" in capsys.readouterr().err


def test_what_cannot_be_audited_fails_with_a_sentence_and_leaves_nothing(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latin, utf16 = tmp_path / "latin.txt", tmp_path / "utf16.txt"
    latin.write_bytes("w1 naïve w2".encode("latin-1"))
    utf16.write_bytes("w1 w2".encode("utf-16"))
    out = tmp_path / "report.json"
    for arguments, message in [
        ([latin, "-r", team], "latin.txt: byte 5 is 0xef, which is not UTF-8"),
        ([utf16, "-r", team], "utf16.txt: byte 0 is 0xff"),
        ([tmp_path / "none.txt", "-r", team], "No such file"),
        ([tmp_path, "-r", team], "expected a folder for the tables"),
        ([text, "-r", tmp_path / "none.json"], "none.json: cannot be read"),
        ([text, "-r", text], "expected 0600" if os.name == "posix" else "not JSON"),
        ([text, "-r", team, "--level", "2"], "level: got 2.0"),
        ([text, "-r", team, "--profile", "0123"], "profile '0123' is not in the registry"),
        ([text, "-r", team, "--tokenizer", tmp_path / "none"], "is not there"),
        ([text, "-r", team, "--tokenizer", text], "is no tokenizer.json"),
    ]:
        assert run("audit", *arguments, "-o", out) == 3, arguments
        output = capsys.readouterr()
        assert message in output.err
        assert output.err.startswith("iet: ")
        assert output.err.count("\n") == 1
        assert output.out == ""
        assert not out.exists()


def test_damaged_registries_are_refused_and_none_of_their_content_is_shown(
    team: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    intact = team.read_text()
    secrets = [key.secret.hex() for key in Registry.load(team).keys("planner")]
    for damaged, message in [
        (intact[:-200], "not JSON from line"),
        (intact.replace('"critic"', '"critik"'), "its checksum does not fit"),
        (intact.replace("iet.registry/1", "iet.registry/9"), "format iet.registry/9"),
        (intact.replace("iet.registry/1", "iet.registry/0"), "format iet.registry/0 (a draft"),
        ("", "not JSON"),
        ("[]", "no registry file"),
    ]:
        team.write_text(damaged)
        assert run("audit", text, "-r", team) == 3
        output = capsys.readouterr()
        assert message in output.err
        assert not any(secret in output.err + output.out for secret in secrets)


@posix
def test_a_registry_that_others_can_read_is_refused(
    team: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team.chmod(0o640)
    assert run("audit", text, "-r", team) == 3
    assert "mode 0640, expected 0600; run: chmod 600" in capsys.readouterr().err
    team.chmod(0o444)
    if os.geteuid() == 0 or not os.access(team, os.W_OK):
        assert run("audit", text, "-r", team, "--secret-mount") == 0


def test_another_tokenizer_is_refused(
    team: pathlib.Path, text: pathlib.Path, tokenizer: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer.write_text(tokenizer.read_text().replace('"w7"', '"x7"'))
    assert run("audit", text, "-r", team) == 3
    assert "tokenizer: got digest" in capsys.readouterr().err


# keys


@posix
def test_keys_are_made_listed_rotated_exported_and_imported_privately(
    tmp_path: pathlib.Path, tokenizer: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team, host = tmp_path / "new.json", tmp_path / "host.json"
    assert run("keys", "init", team, "--tokenizer", tokenizer, "--kappa", "1.5", "--n-gram", "3") == 0
    assert run("keys", "add", "-r", team, "planner", "critic") == 0
    assert run("keys", "rotate", "-r", team, "planner") == 0
    assert run("keys", "export", "-r", team, host, "--agents", "planner") == 0
    assert modes(team, host) == {0o600}
    assert "planner: epoch 1" in capsys.readouterr().out

    registry, exported = Registry.load(team), Registry.load(host)
    assert (registry.profile.scheme.kappa, registry.profile.scheme.n_gram) == (1.5, 3)
    assert tuple(exported) == ("planner",)
    assert exported.keys("planner") == registry.keys("planner")[1:]

    assert run("keys", "init", tmp_path / "gumbel.json", "--vocab-size", "99", "--family", "gumbel") == 0
    assert Registry.load(tmp_path / "gumbel.json").profile.scheme == iet.Scheme(family="gumbel", n_gram=4)
    assert run("keys", "init", tmp_path / "other.json", "--tokenizer", tokenizer) == 0
    assert run("keys", "import", "-r", tmp_path / "other.json", team) == 0
    assert tuple(Registry.load(tmp_path / "other.json")) == ("planner", "critic")
    assert (
        run("keys", "export", "-r", team, tmp_path / "all.json", "--all-epochs", "--agents", "planner") == 0
    )
    assert len(Registry.load(tmp_path / "all.json").keys("planner")) == 2
    assert modes(tmp_path / "other.json", tmp_path / "all.json") == {0o600}
    assert run("audit", __file__, "-r", team) == 0


def test_lists_show_no_key(team: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keys", "rotate", "-r", team, "critic") == 0
    registry = Registry.load(team)
    assert run("keys", "list", "-r", team) == 0
    assert run("keys", "list", "-r", team, "--json") == 0
    output = capsys.readouterr().out
    plain, _, data = output.partition("{")
    assert "critic  epoch 1" in plain
    assert "fourier, κ 3, n 2" in plain
    listed = json.loads("{" + data)
    assert [key["epoch"] for key in listed["agents"]["critic"]["epochs"]] == [0, 1]
    assert listed["digest"] == registry.digest
    for key in (key for name in registry for key in registry.keys(name)):
        assert key.secret.hex() not in output


def test_keys_that_are_refused_change_nothing(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = team.read_bytes()
    for arguments, message in [
        (["add", "-r", team, "writer", "planner"], "agent 'planner' is here already"),
        (["add", "-r", team, "writer", "writer"], "agent 'writer' is here already"),
        (["add", "-r", team, "writer", " editor"], "agent name"),
        (["add", "-r", team, "writer\u200b"], "invisible character U+200B"),
        (["add", "-r", team, "writer", "--profile", "0123"], "profile '0123'"),
        (["rotate", "-r", team, "planner", "critik"], "did you mean 'critic'"),
        (["export", "-r", team, tmp_path / "host.json", "--agents", "planner", "nobody"], "'nobody'"),
        (["export", "-r", team, team, "--agents", "planner"], "it exists, and its keys would be lost"),
        (["import", "-r", team, tmp_path / "none.json"], "cannot be read"),
        (["init", team, "--vocab-size", "10"], "it exists, and its keys would be lost"),
    ]:
        assert run("keys", *arguments) == 3, arguments
        assert message in capsys.readouterr().err
        assert team.read_bytes() == before
        assert not (tmp_path / "host.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "tokenizer and vocab_size: got neither"),
        (["--vocab-size", "0"], "vocab_size: got 0"),
        (["--vocab-size", str(2**24 + 1)], "vocab_size: got 16777217"),
        (["--vocab-size", "10", "--kappa", "-1"], "kappa: got -1.0"),
        (["--vocab-size", "10", "--kappa", "nan"], "kappa: got nan"),
        (["--vocab-size", "10", "--n-gram", "1"], "n_gram: got 1"),
        (["--vocab-size", "10", "--family", "gumbel", "--kappa", "0.5"], "kappa: got 0.5, expected 1.0"),
        (["--vocab-size", "10", "--n-gram", "17"], "n_gram: got 17"),
        (["--vocab-size", "10", "--k-p", "5"], "k_p: got 5, expected at most 4"),
        (["--vocab-size", "10", "--k-p", "0"], "k_p: got 0"),
        (["--vocab-size", "10", "--k-p", "many"], "k_p: got 'many'"),
        (["--vocab-size", "10", "--k-p", "²"], "k_p: got '²'"),
        (["--tokenizer", "nowhere"], "'nowhere' is not there"),
    ],
)
def test_registries_out_of_range_are_not_made(
    tmp_path: pathlib.Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("keys", "init", tmp_path / "new.json", *options) == 3
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_agents_of_one_call_are_saved_together(
    team: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("keys", "add", "-r", team, "writer", "editor") == 0
    assert "4 agents" in capsys.readouterr().out
    registry = Registry.load(team)
    assert tuple(registry) == ("planner", "critic", "writer", "editor")
    assert len({key.secret for name in registry for key in registry.keys(name)}) == 4


# doctor


def test_a_healthy_installation_passes_its_self_test(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") == 0
    output = capsys.readouterr().out
    assert f"iet {iet.__version__}" in output
    assert "FAILED" not in output
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    assert found["backends"]["host"] == kernels.backends().host
    assert all(good == total > 0 for good, total in found["checks"].values())
    assert set(found["checks"]) == {"derive", "permute", "score", "embed"}


@pytest.mark.parametrize("altered", ["derive", "permute", "score", "embed"])
def test_a_wrong_answer_fails_the_self_test(
    altered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = doctor._vectors()
    assert vectors is not None
    if altered == "derive":
        vectors["derive"][0]["subkey"] = "00" * 16
    elif altered == "permute":
        vectors["permute"][0]["ranks"][0] ^= 1
    elif altered == "score":
        vectors["ops"][0]["scores"][-1][0] = "0x3F800001"
    else:
        marked = vectors["ops"][0]["embed"]["float32"]["marked"]
        marked[0] = hex(int(marked[0], 16) ^ 1)
    monkeypatch.setattr(doctor, "_vectors", lambda: vectors)
    assert run("doctor") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.endswith("FAILED")] == [f"self-test {altered}"]


def test_missing_answers_fail_the_self_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_vectors", lambda: None)
    assert run("doctor") == 1
    assert "the known answers are not installed  FAILED" in capsys.readouterr().out
    assert run("doctor", "--json") == 1
    assert json.loads(capsys.readouterr().out)["healthy"] is False


# demo


def test_a_demo_shows_figures_and_how_to_audit_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from iet.demo import conversation

    if not (conversation.MODEL / "model.safetensors").is_file():
        pytest.skip("the model that ships with the package is not in this checkout")
    monkeypatch.setattr(importlib.import_module("iet.cli.demo"), "TURN_TOKENS", (12, 16))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert run("demo", "--rounds", "1", "--out", tmp_path) == 0
        output = capsys.readouterr().out
        assert "TokenAcc" in output
        assert f"iet audit {tmp_path}/final.txt -r {tmp_path}/team.json" in output
        assert run("demo", "--rounds", "1", "--out", tmp_path, "--json", "--topology", "star_ring") == 0
        figures = json.loads(capsys.readouterr().out)
    finally:
        torch.set_num_threads(threads)
    assert 0 <= figures["forced_choice"]["token_accuracy"] <= 1
    assert figures["forced_choice"]["coverage"] == 1
    assert figures["report"]["text"] == (tmp_path / "final.txt").read_bytes().decode()
    assert run("audit", tmp_path / "final.txt", "-r", tmp_path / "team.json", "--json") == 0
    assert json.loads(capsys.readouterr().out) == figures["report"]


def test_a_demo_keeps_other_registries(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    before = team.read_bytes()
    assert run("demo", "--out", tmp_path) == 3
    assert "no demo wrote it" in capsys.readouterr().err
    assert team.read_bytes() == before


def test_a_demo_without_torch_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run("demo", "--out", tmp_path) == 3
    assert "pip install" in capsys.readouterr().err


# Usage


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["audit"],
        ["audit", "x", "--decoder", "guess"],
        ["audit", "x", "--fail-on", "anything"],
        ["audit", "x", "--level", "low"],
        ["keys"],
        ["keys", "add"],
        ["keys", "export", "x"],
        ["demo", "--agents", "7"],
        ["demo", "--topology", "ring"],
        ["doctor", "--loud"],
    ],
)
def test_wrong_usage_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert output.err.startswith("usage: iet")
    assert output.out == ""


def test_help_and_version_exit_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["audit", "--help"], ["keys", "--help"], ["keys", "add", "--help"]):
        assert run(*arguments) == 0
        assert "usage: iet" in capsys.readouterr().out
    assert run("--version") == 0
    assert capsys.readouterr().out == f"iet {iet.__version__}\n"


def test_an_interrupt_is_a_failure_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupt)
    assert run("doctor") == 3
    assert capsys.readouterr().err == "iet: interrupted\n"


# As a process of its own


def test_a_process_reads_a_pipe_and_answers_by_its_exit_code(team: pathlib.Path, text: pathlib.Path) -> None:
    done = spawn("audit", "-", "-r", team, "--json", "--fail-on", "attributed", input=text.read_bytes())
    assert (done.returncode, done.stderr) == (1, b"")
    assert json.loads(done.stdout)["segments"][0]["agent"] == "critic"
    done = spawn("audit", "-", input=b"w1", env={**os.environ, "IET_REGISTRY": str(team.parent / "none")})
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr


def test_an_output_without_unicode_is_no_failure(team: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "naïve.txt").write_text("w1 w2 naïve 漢", encoding="utf-8")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for more in ([], ["--json"]):
        done = spawn("audit", tmp_path / "naïve.txt", "-r", team, *more, env=ascii_only)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
    assert json.loads(done.stdout)["text"] == "w1 w2 naïve 漢"


@posix
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_failure(
    team: pathlib.Path, tmp_path: pathlib.Path, more: list[str]
) -> None:
    (tmp_path / "long.txt").write_text("w1 w2 w3 " * 40_000)  # more than a pipe holds
    command = [sys.executable, "-m", "iet", "audit", str(tmp_path / "long.txt"), "-r", str(team), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


# report, verify, keys open


@pytest.fixture
def signing(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """An auditor's private and public key, as openssl writes them."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = tmp_path / "auditor.pem", tmp_path / "auditor.pub.pem"
    pem = serialization.Encoding.PEM
    pkcs8, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, pkcs8, none))
    private.chmod(0o600)
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(pem, spki))
    return private, public


def test_report_writes_what_the_names_ask_for(
    text: pathlib.Path, team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["r.html", "r.json", "r.prov.json", "r.dot", "r.svg", "r.png"]
    outputs = [argument for name in names for argument in ("-o", str(tmp_path / name))]
    assert main(["report", str(text), "-r", str(team), "--no-text", *outputs]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    report = iet.Auditor(Registry.load(team)).audit(text.read_text(encoding="utf-8"))
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == report.to_html() + "\n"
    assert json.loads((tmp_path / "r.json").read_bytes()) == json.loads(report.to_json(text=False))
    assert json.loads((tmp_path / "r.prov.json").read_bytes()) == json.loads(report.to_prov())
    assert (tmp_path / "r.dot").read_text(encoding="utf-8") == report.transitions.to_dot() + "\n"
    assert (tmp_path / "r.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_report_writes_all_or_nothing(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("")
    page = tmp_path / "r.html"
    arguments = ["report", str(tmp_path / "empty.txt"), "-r", str(team), "-o", str(page)]
    assert main([*arguments, "-o", str(tmp_path / "r.svg")]) == 3  # there is nothing to draw
    assert "report: got one without scores" in capsys.readouterr().err
    assert not page.exists()
    assert main(arguments) == 0
    assert page.exists()


def test_a_signed_report_is_verified_with_what_it_speaks_of(
    text: pathlib.Path,
    team: pathlib.Path,
    tmp_path: pathlib.Path,
    signing: tuple[pathlib.Path, pathlib.Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    private, public = signing
    envelope, opening = tmp_path / "r.dsse.json", tmp_path / "planner.opening.json"
    assert main(["report", str(text), "-r", str(team), "-o", str(envelope), "--sign", str(private)]) == 0
    assert main(["keys", "open", "planner", "-r", str(team), "-o", str(opening)]) == 0
    Registry.load(team).export(tmp_path / "planner.json", ["planner"])
    capsys.readouterr()
    check = ["verify", str(envelope), "--key", str(public)]
    assert main([*check, "--text", str(text), "-r", str(team)]) == 0
    shown = capsys.readouterr().out
    assert f"text {text.name!r}, sha256 " in shown
    assert "agents found: critic; " in shown
    assert "compared with it: text, registry" in shown
    assert main([*check, "--opening", str(opening), "-r", str(tmp_path / "planner.json")]) == 0
    capsys.readouterr()
    assert main([*check, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["subject"][0]["name"] == text.name

    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8") + " w1", encoding="utf-8")
    for arguments, what in (
        (["--text", str(other)], "not verified: text: got sha256"),
        (["-r", str(tmp_path / "planner.json")], "not verified: registry: got digest"),
    ):
        assert main([*check, *arguments]) == 1
        assert what in capsys.readouterr().err
    envelope.write_bytes(envelope.read_bytes().replace(b'"sig"', b'"Sig"'))
    assert main(check) == 1
    assert "not verified: envelope: " in capsys.readouterr().err


def test_what_report_and_verify_refuse_before_any_work(
    text: pathlib.Path,
    team: pathlib.Path,
    tmp_path: pathlib.Path,
    signing: tuple[pathlib.Path, pathlib.Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    private, public = signing
    start = ["report", str(text), "-r", str(team)]
    good = str(tmp_path / "r.html")
    for arguments, what in (
        (["-o", good, "-o", "r.docx"], "r.docx: got a name that ends otherwise, expected one of .html"),
        (["-o", good, "-o", str(tmp_path / "none" / "r.html")], "got a folder that is not there"),
        (["-o", good, "--sign", str(private)], "--sign: got one without the other"),
        (["-o", good, "-o", str(tmp_path / "r.dsse.json")], "--sign: got one without the other"),
        (
            ["-o", good, "-o", str(tmp_path / "r.dsse.json"), "--sign", str(public)],
            "auditor.pub.pem: got",
        ),
    ):
        assert main([*start, *arguments]) == 3
        assert what in capsys.readouterr().err
        assert not pathlib.Path(good).exists()
    assert main(["verify", str(tmp_path / "none"), "--key", str(public)]) == 3
    assert "none: cannot be read (No such file" in capsys.readouterr().err
    broken = tmp_path / "opening.json"
    broken.write_text("{}")
    assert main(["verify", str(broken), "--key", str(public), "--opening", str(broken)]) == 3
    assert "opening.json: opening: got one that cannot be read" in capsys.readouterr().err
    for arguments in (
        ["report", str(text)],
        [*start, "-o", good, "--keys", "planner=42"],
        ["report", str(text), "-o", good, "--scheme", "waterfall"],
    ):
        with pytest.raises(SystemExit) as usage:
            main(arguments)
        assert usage.value.code == 2
        assert not pathlib.Path(good).exists()
    assert "report: --scheme takes --keys and one --tokenizer" in capsys.readouterr().err


def test_an_opening_is_printed_and_an_unknown_epoch_refused(
    team: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "open", "critic", "-r", str(team)]) == 0
    opening = Opening.from_dict(json.loads(capsys.readouterr().out))
    assert opening == Registry.load(team).open_key("critic")
    assert main(["keys", "open", "critic", "--epoch", "4", "-r", str(team)]) == 3
    assert "got epoch 4, expected one of [0]" in capsys.readouterr().err
