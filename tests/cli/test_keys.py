"""`iet keys`: create, change, export and open registries, with private files and atomic writes."""

from __future__ import annotations

import json
import os
import pathlib
import stat

import pytest

import iet
from iet.marks.commitment import Opening
from iet.marks.registry import Registry
from tests.support.commands import RunIet, run
from tests.support.conditions import posix


def modes(*paths: pathlib.Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_an_export_names_the_agents_that_it_no_longer_holds(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team, host = tmp_path / "team.json", tmp_path / "host.json"
    assert run("keys", "init", team, "--vocab-size", "99") == 0
    assert run("keys", "add", "-r", team, "planner", "critic", "writer") == 0
    export = ["keys", "export", "-r", team, host, "--agents"]
    assert run(*export, "planner", "critic") == 0
    assert run(*export, "critic", "planner", "--replace") == 0
    assert "no longer" not in capsys.readouterr().out
    assert run(*export, "writer", "--replace") == 0
    assert "no longer in it: critic, planner" in capsys.readouterr().out


@posix
def test_keys_are_made_listed_rotated_exported_and_imported_privately(
    tmp_path: pathlib.Path, tokenizer: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team, host = tmp_path / "new.json", tmp_path / "host.json"
    assert (
        run("keys", "init", team, "--tokenizer", tokenizer, "--kappa", "1.5", "--parameter", "n_gram=3") == 0
    )
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


def test_lists_show_no_key(team: pathlib.Path, run_iet: RunIet) -> None:
    assert run("keys", "rotate", "-r", team, "critic") == 0
    registry = Registry.load(team)
    plain, data = run_iet(0, "keys", "list", "-r", team), run_iet(0, "keys", "list", "-r", team, "--json")
    assert "critic  epoch 1" in plain
    assert "fourier, κ 3, n 2" in plain
    listed = json.loads(data)
    assert [key["epoch"] for key in listed["agents"]["critic"]["epochs"]] == [0, 1]
    assert listed["digest"] == registry.digest
    for key in (key for name in registry for key in registry.keys(name)):
        assert key.secret.hex() not in plain + data


def test_keys_that_are_refused_change_nothing(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = team.read_bytes()
    for arguments, message in [
        (["add", "-r", team, "writer", "planner"], "agent 'planner' exists"),
        (["add", "-r", team, "writer", "writer"], "agent name: got 'writer' twice, expected each once"),
        (["add", "-r", team, "writer", " editor"], "agent name"),
        (["add", "-r", team, "writer\u200b"], "invisible character U+200B"),
        (["add", "-r", team, "writer", "--profile", "0123"], "profile '0123'"),
        (["rotate", "-r", team, "planner", "critik"], "did you mean 'critic'"),
        (["rotate", "-r", team, "planner", "critic", "planner"], "got 'planner' twice, expected each once"),
        (["export", "-r", team, tmp_path / "host.json", "--agents", "planner", "nobody"], "'nobody'"),
        (["export", "-r", team, team, "--agents", "planner"], "it is the registry itself"),
        (["import", "-r", team, tmp_path / "none.json"], "cannot be read"),
        (["init", team, "--vocab-size", "10"], "it exists, and its keys would be lost"),
    ]:
        assert run("keys", *arguments) == 3, arguments
        assert message in capsys.readouterr().err
        assert team.read_bytes() == original
        assert not (tmp_path / "host.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--tokenizer, --vocab-size: got neither"),
        (["--vocab-size", "0"], "vocab_size: got 0"),
        (["--vocab-size", "-3"], "vocab_size: got -3, expected an int from 1 to 16777216"),
        (["--vocab-size", str(2**24 + 1)], "vocab_size: got 16777217"),
        (["--vocab-size", "10", "--kappa", "-1"], "kappa: got -1.0"),
        (["--vocab-size", "10", "--kappa", "nan"], "kappa: got nan"),
        (["--vocab-size", "10", "--parameter", "n_gram=1"], "n_gram: got 1"),
        (["--vocab-size", "10", "--family", "gumbel", "--kappa", "0.5"], "kappa: got 0.5, expected none"),
        (["--vocab-size", "10", "--parameter", "n_gram=17"], "n_gram: got 17"),
        (["--vocab-size", "10", "--parameter", "k_p=5"], "k_p: got 5, expected at most 4"),
        (["--vocab-size", "10", "--parameter", "k_p=0"], "k_p: got 0"),
        (["--vocab-size", "10", "--parameter", "k_p=many"], "k_p: got 'many'"),
        (["--vocab-size", "10", "--parameter", "k_p=²"], "k_p: got '²'"),
        (["--tokenizer", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_registries_out_of_range_are_not_made(
    tmp_path: pathlib.Path, options: list[str], message: str, run_iet: RunIet
) -> None:
    assert message in run_iet(3, "keys", "init", tmp_path / "new.json", *options)
    assert os.listdir(tmp_path) == []


def test_a_folder_without_a_tokenizer_is_said_to_be_one(tmp_path: pathlib.Path, run_iet: RunIet) -> None:
    refusal = run_iet(3, "keys", "init", tmp_path / "new.json", "--tokenizer", tmp_path)
    assert f"got the folder {str(tmp_path)!r}, in which there is no tokenizer.json" in refusal


def test_agents_of_one_call_are_saved_together(team: pathlib.Path, run_iet: RunIet) -> None:
    assert "4 agents" in run_iet(0, "keys", "add", "-r", team, "writer", "editor")
    registry = Registry.load(team)
    assert tuple(registry) == ("planner", "critic", "writer", "editor")
    assert len({key.secret for name in registry for key in registry.keys(name)}) == 4


def test_an_opening_is_printed_and_an_unknown_epoch_refused(
    team: pathlib.Path, capsys: pytest.CaptureFixture[str], run_iet: RunIet
) -> None:
    assert run("keys", "open", "critic", "-r", team) == 0
    opening = Opening.from_dict(json.loads(capsys.readouterr().out))
    assert opening == Registry.load(team).open_key("critic")
    assert "got epoch 4, expected one of [0]" in run_iet(
        3, "keys", "open", "critic", "--epoch", "4", "-r", team
    )


@pytest.mark.parametrize(
    ("family", "message"), [("fourier", "the paper's mark"), ("gumbel", "it needs sampling")]
)
def test_init_says_what_the_family_means(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], family: str, message: str
) -> None:
    assert run("keys", "init", tmp_path / "team.json", "--vocab-size", "4096", "--family", family) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(f"family {family}: ")
    assert message in line


def test_names_come_from_a_file_too(team: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet) -> None:
    names = tmp_path / "names.txt"
    names.write_text("# our team\nwriter\n\n  the editor \r\n  #more\nПрораб\n", encoding="utf-8")
    assert "6 agents" in run_iet(0, "keys", "add", "-r", team, "reader", "--from", names)
    registry = Registry.load(team)
    assert tuple(registry)[2:] == ("reader", "writer", "the editor", "Прораб")
    original = team.read_bytes()
    names.write_bytes(b"writer\xff")
    (tmp_path / "empty.txt").write_text("\n  \n# nobody\n")
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\n")
    (tmp_path / "keys.json").write_text('{"planner": 42, "critic": 4711}\n')
    for arguments, message in (
        (["--from", names], "byte 6 is 0xff, which is not UTF-8"),
        (["--from", tmp_path / "none.txt"], "cannot be read"),
        (["--from", tmp_path / "empty.txt"], "empty.txt: got no name, expected one on each line"),
        (["--from", team], "team.json: got a registry"),
        (["--from", tmp_path / "key.pem"], "key.pem: got a private key"),
        (["--from", tmp_path / "keys.json"], "keys.json: got a JSON object, as keys of engines are"),
    ):
        assert message in run_iet(3, "keys", "add", "-r", team, *arguments)
    assert team.read_bytes() == original


@posix
def test_a_path_is_shown_without_control_characters(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\x1b[2J\x1b]0;owned\x07\u202e"
    folder.mkdir()
    team, host = folder / "team.json", folder / "host.json"
    for arguments in (
        ["init", team, "--vocab-size", "100"],
        ["add", "-r", team, "planner"],
        ["profile", "-r", team, "--vocab-size", "200"],
        ["rotate", "-r", team, "planner"],
        ["export", "-r", team, host, "--agents", "planner"],
        ["import", "-r", team, host],
        ["list", "-r", team],
    ):
        assert run("keys", *arguments) == 0
    assert run("keys", "export", "-r", team, host, "--agents", "planner") == 3
    output = "".join(capsys.readouterr())
    assert output.count("\u241b[2J") >= 6
    assert not {"\x1b", "\x07", "\u202e"} & set(output)


def test_invalid_schemes_and_tokenizers_are_rejected(
    tmp_path: pathlib.Path, tokenizer: pathlib.Path, run_iet: RunIet
) -> None:
    init = "keys", "init", tmp_path / "new.json", "--tokenizer", tokenizer
    assert "kappa: got 1, expected none" in run_iet(3, *init, "--family", "gumbel", "--kappa", "1")
    assert "--vocab-size: got 399, expected at least 400" in run_iet(3, *init, "--vocab-size", "399")
    assert not (tmp_path / "new.json").exists()
    assert run(*init, "--vocab-size", "512") == 0
    assert "iet keys add adds to a registry" in run_iet(3, *init)
    assert run("keys", "add", "planner", "-r", tmp_path / "new.json") == 0
    assert "iet keys rotate gives it a new key (not in an export" in run_iet(
        3, "keys", "add", "planner", "-r", tmp_path / "new.json"
    )
