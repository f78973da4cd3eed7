"""The definition of the options, and the interfaces generated from it."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import pickle

import pytest

import iet
from iet.audit.options import options, reference
from iet.cli.options import add_audit_options, audit_options
from iet.errors import InputError
from tests.support.teams import team

NAMES = [field.name for field in dataclasses.fields(iet.AuditOptions)]


def parse_options(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_audit_options(parser)
    return audit_options(parser.parse_args(words))


def test_reference_page_is_generated_from_the_options() -> None:
    page = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "options.md"
    assert page.read_text(encoding="utf-8") == reference()
    assert all(f"| `{name}` |" in reference() for name in NAMES)


def test_flags_that_are_not_given_are_the_defaults() -> None:
    parsed = parse_options()
    assert {name: value for name, value in parsed.items() if name != "decoder_options"} == {
        name: default
        for name, (option, _, default) in options().items()
        if option.flag and name != "decoder_options"
    }
    assert iet.AuditOptions(**parsed) == iet.AuditOptions()


def test_every_flag_sets_its_option(tmp_path: pathlib.Path) -> None:
    (tmp_path / "runs.txt").write_text("run-1\nrun-2\n")
    parsed = parse_options(
        *("--decoder", "cusum", "--level", "0.2", "--forced", "--profile", "p", "--model", "m"),
        *("--decoys", "7", "--known", "a", "--known", "b", "--attributed", "tokens", "--published", "x.idx"),
        *("--as-copied", "--sessions", str(tmp_path / "runs.txt")),
        *("--decoder-option", "anchor=end", "--decoder-option", "window=32"),
    )
    assert parsed == {
        **{"decoder": "cusum", "level": 0.2, "allow_unattributed": False, "profile": "p", "model": "m"},
        **{"decoys": 7, "known_agents": ["a", "b"], "attributed": "tokens", "published": "x.idx"},
        **{"as_copied": True, "sessions": ["run-1", "run-2"]},
        "decoder_options": {"anchor": "end", "window": 32},
    }
    with pytest.raises(SystemExit):
        parse_options("--decoder-option", "window")


def test_clients_set_only_options_without_files() -> None:
    requests = pytest.importorskip("iet.service.requests")
    fields = set(requests.AuditParameters.model_fields)
    assert fields & set(NAMES) == {name for name, (option, _, _) in options().items() if option.http}
    assert not fields & {"tokenizer", "model", "published"}
    parsed = requests.from_query('attributed=tokens&sessions=["run-1"]&decoder_options={"block":8}')
    assert (parsed.attributed, parsed.sessions, parsed.decoder_options) == ("tokens", ["run-1"], {"block": 8})
    with pytest.raises(ValueError, match="decoys"):
        requests.from_query("decoys=10001")
    with pytest.raises(ValueError, match="at most 1000 items"):
        requests.from_query(f"sessions={[str(number) for number in range(1001)]}".replace("'", '"'))


def test_an_auditor_takes_options_changes_and_the_decoders_own() -> None:
    chosen = iet.AuditOptions(decoder="cusum", level=0.05, decoder_options={"window": 32})
    auditor = iet.Auditor(team(), chosen, step=8, known_agents=["planner"])
    assert auditor.options == dataclasses.replace(
        chosen, known_agents=["planner"], decoder_options={"window": 32, "step": 8}
    )
    assert auditor.options.decoding.level == 0.05
    assert auditor.options.decoding.window == 32
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    for changes, refusal in (
        ({"decoder_options": {"level": 0.5}}, "decoder_options: got 'level'"),
        ({"decoder_options": {"weights": [1]}}, "weights: got some"),
        ({"decoder_options": {"model": "x"}}, "options: got 'model', decoder 'posterior' accepts"),
        ({"model": "x", "decoder": "window"}, "model: got decoder 'window'"),
    ):
        with pytest.raises(InputError, match=refusal):
            iet.AuditOptions(**changes)  # type: ignore[arg-type]
