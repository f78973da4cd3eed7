"""Auditor options: accepted and rejected values, tokenizers, profiles, copies, and secrecy of keys."""

from __future__ import annotations

import copy
import json
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError, RegistryError, ShapeError, TokenizerMismatch
from iet.marks.derivation import derive_subkey
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from tests.support.teams import WORD_TOKENIZER, WORDS, byte_tokenizer, team, word_tokenizer
from tests.support.texts import IDS, TEAM, TEXT, agents_of, reader


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "guess"}, "decoder: got 'guess', expected one of"),
        ({"level": 0}, "level: got 0, expected a number between 0 and 1"),
        ({"level": 1}, "level: got 1,"),
        ({"level": -0.5}, "level: got -0.5"),
        ({"level": float("nan")}, "level: got nan"),
        ({"level": "0.01"}, "level: got '0.01'"),
        ({"level": True}, "level: got True"),
        ({"level": np.float32("nan")}, "level: got "),
        ({"allow_unattributed": "no"}, "allow_unattributed: got 'no', expected True or False"),
        ({"allow_unattributed": 1}, "allow_unattributed: got 1,"),
        ({"as_copied": "yes"}, "as_copied: got 'yes', expected True or False"),
        ({"decoder": ["posterior"]}, "decoder: got ['posterior'], expected one of"),
        ({"strengths": "abc"}, "strengths: got 'abc', expected numbers"),
        ({"tau": 0.1}, "options: got 'tau', decoder 'posterior' accepts"),
        ({"decoder": "cusum", "window": 0}, "window: got 0, expected an int of at least 1"),
        ({"profile": "no such id"}, "profile 'no such id' is not in the registry"),
    ],
)
def test_rejects_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, RegistryError)) as refusal:
        iet.Auditor(TEAM, **options)
    assert message in str(refusal.value)


def test_decoys_reach_the_level_for_copied_texts() -> None:
    single = team(["planner"])
    iet.Auditor(single, decoys=99)
    with pytest.raises(InputError, match="decoys: got 99, expected at least 399"):
        iet.Auditor(single, decoys=99, as_copied=True)
    iet.Auditor(single, decoys=399, as_copied=True)


def test_numpy_bools_are_accepted() -> None:
    configuration = iet.Auditor(TEAM, allow_unattributed=np.False_, as_copied=np.False_).configuration  # type: ignore[arg-type]
    assert configuration == iet.Auditor(TEAM, allow_unattributed=False).configuration


def test_rejects_registries_without_agents() -> None:
    with pytest.raises(InputError, match="no agents; expected at least one"):
        iet.Auditor(team([]))
    with pytest.raises(InputError, match=r"registry: got str, expected iet\.Registry"):
        iet.Auditor("team.json")  # type: ignore[arg-type]


def test_reads_the_given_profile() -> None:
    registry = Registry.loads(TEAM.dumps())
    word_profile = registry.add_profile(tokenizer=WORD_TOKENIZER, scheme=Scheme(kappa=1.0))
    registry.add("lawyer", profile=word_profile)
    auditor = iet.Auditor(registry, profile=TEAM.profile.id, tokenizer=WORD_TOKENIZER)
    assert agents_of(auditor.audit(TEXT)) == ["planner", "critic", None, "writer"]
    assert iet.Auditor(registry, profile=word_profile, tokenizer=WORD_TOKENIZER).audit(TEXT).agents == (
        "lawyer",
    )
    with pytest.raises(RegistryError, match="profile 'other' is not in the registry"):
        iet.Auditor(registry, profile="other")


def test_rejects_invalid_texts() -> None:
    auditor = reader()
    for arguments, message in (
        ({}, "neither or both"),
        ({"text": TEXT, "token_ids": IDS}, "neither or both"),
        ({"text": TEXT.encode()}, "text: got bytes, expected str"),
        ({"text": "w1 \ud83d w2"}, r"character 3 is the lone surrogate U\+D83D"),
        ({"token_ids": np.array([1, 2**64 - 1], np.uint64)}, "token_ids: got 18446744073709551615"),
    ):
        with pytest.raises(InputError, match=message):
            auditor.audit(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[[1, 2]], [1.5, 2.0], 7, ["w1"], [True, False], [[1], [2, 3]]])
def test_rejects_invalid_token_ids(ids: Any) -> None:
    with pytest.raises(ShapeError, match="token_ids: got"):
        reader().audit(token_ids=ids)


def test_rejects_another_tokenizer(tmp_path: pathlib.Path) -> None:
    for wrong in (word_tokenizer(WORDS + 1), byte_tokenizer()):
        with pytest.raises(TokenizerMismatch, match=r"got digest .* expects"):
            iet.Auditor(TEAM, tokenizer=wrong).audit(TEXT)
    with pytest.raises(TokenizerMismatch, match="does not exist"):
        iet.Auditor(TEAM, tokenizer=tmp_path / "tokenizer.json").audit(TEXT)
    with pytest.raises(InputError, match="tokenizer: got int"):
        iet.Auditor(TEAM, tokenizer=3).audit(TEXT)
    WORD_TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    assert iet.Auditor(TEAM, tokenizer=tmp_path / "tokenizer.json").audit(TEXT).coverage > 0


def test_rejects_a_replaced_tokenizer_file(tmp_path: pathlib.Path) -> None:
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    registry = team(tokenizer=tmp_path / "tokenizer.json", kappa=2.0)
    assert iet.Auditor(registry).audit(TEXT).tokens == len(IDS)
    word_tokenizer(WORDS - 1).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerMismatch, match="got digest"):
        iet.Auditor(registry).audit(TEXT)


def test_reports_and_auditors_hide_secrets(tmp_path: pathlib.Path) -> None:
    registry = team()
    registry.save(tmp_path / "team.json")
    auditor = reader(registry, "cusum", window=32)
    report = auditor.audit(TEXT)
    outputs = [
        repr(auditor),
        str(vars(auditor)),
        repr(report),
        str(report),
        report.to_json(),
        report.to_html(),
        report._repr_html_(),
        report.to_prov(),
        report.transitions.to_dot(),
        str(report.evaluation_events()),
        str(vars(report)),
    ]
    pickled = pickle.dumps(auditor)
    for key in (key for name in registry for key in registry.keys(name)):
        for secret in (bytes(key.secret), derive_subkey(key.secret)):
            assert secret not in pickled
            assert not any(secret.hex() in text or repr(secret)[2:-1] in text for text in outputs)
    with pytest.raises(RegistryError, match="in memory is not pickled"):
        pickle.dumps(iet.Auditor(team()))


def test_copies_of_an_auditor_agree(tmp_path: pathlib.Path) -> None:
    registry = team()
    registry.save(tmp_path / "team.json")
    auditor = iet.Auditor(
        registry, "window", level=0.05, allow_unattributed=False, tokenizer=WORD_TOKENIZER, window=32
    )
    expected = auditor.audit(TEXT).to_dict()
    for copied in (copy.deepcopy(auditor), pickle.loads(pickle.dumps(auditor))):
        assert copied.audit(TEXT).to_dict() == expected


def test_options_of_numpy_are_written_as_json() -> None:
    options = {"strengths": [np.float32(0.5)] * 3, "block": np.int64(8), "repeats": "count"}
    report = reader(level=np.float32(0.01), **options).audit(token_ids=IDS)
    written = json.loads(report.to_json())
    assert written["decoder"]["options"] == {"strengths": [0.5] * 3, "block": 8, "repeats": "count"}
    assert written["level"] == float(np.float32(0.01))
