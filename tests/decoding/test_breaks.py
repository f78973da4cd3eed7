"""Hand-overs where the text has a break: which token a break counts for, and what an audit makes of it."""

from __future__ import annotations

import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.decoding.breaks import BREAK_ODDS, break_odds
from iet.errors import InputError
from tests.support.teams import WORD_TOKENIZER, team
from tests.support.texts import IDS, TEAM, TEXT, reader, spell, write

ODDS = {"paragraph": 4.0, "line": 3.0, "sentence": 2.0}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["One", ".", " Two", " three"], [1, 1, 2, 1]),
        (["One", ".", "\n", "Two"], [1, 1, 3, 1]),
        (["One", "\n\n", "Two"], [1, 4, 1]),
        (["One", "\n", "\n", "Two"], [1, 4, 1, 1]),
        (["One", ".\n\n", "Two"], [1, 1, 4]),  # the break's white space is the end of the token before
        (["One", " \n \n  ", "Two"], [1, 4, 1]),
        (["One", "\r\n", "Two"], [1, 3, 1]),
        (["One", ".", " ", " Two"], [1, 1, 2, 1]),
        (["One", ".\nTwo", " three"], [1, 1, 1]),  # no token starts there
        (["She", ' said "No!"', " He"], [1, 1, 2]),
        (["He", " asked", "?)", " Yes"], [1, 1, 1, 2]),
        (["Version", " 3", ".1", ".2", " is"], [1, 1, 1, 1, 1]),
        (["好", "。", "再见", "！"], [1, 1, 2, 1]),
        (["「好。」", "再"], [1, 2]),
        (["\n\n", "One"], [4, 1]),
        (["One", "\n\n"], [1, 4]),
        (["", "", "One"], [1, 1, 1]),
        ([], []),
    ],
)
def test_a_break_counts_for_the_first_token_behind_the_last_word(
    tokens: list[str], expected: list[float]
) -> None:
    starts = np.cumsum([0, *map(len, tokens)])[: len(tokens)]
    assert break_odds("".join(tokens), starts, ODDS).tolist() == expected


def test_a_long_text_of_white_space_and_marks_takes_linear_time() -> None:
    for piece in (" ", ".", '."', ".)", "。」", "\n "):  # seconds at least, if it were quadratic
        text = piece * 300_000
        assert len(break_odds(text, np.arange(0, len(text), 4))) == -(-len(text) // 4)


# In an audit


TURNS = [("planner", 200), ("critic", 200)]
WORDS = spell(write(TEAM, TURNS)).split(" ")


def broken(place: int, joiner: str) -> str:
    """A text whose ids are those of the turns, with a break before the word at `place`."""
    return " ".join(WORDS[:place]) + joiner + " ".join(WORDS[place:])


@pytest.mark.parametrize(("joiner", "kind"), [("\n\n", "paragraph"), ("\n", "line")])
@pytest.mark.parametrize("place", [196, 201, 205])
def test_a_boundary_moves_to_a_break_nearby(place: int, joiner: str, kind: str) -> None:
    text = broken(place, joiner)
    report = reader(break_odds={kind: 1e6}, allow_unattributed=False).audit(text)
    assert [segment.start for segment in report.segments] == [0, place]
    other = {"paragraph": "line", "line": "paragraph"}[kind]
    plain, elsewhere = (
        reader(allow_unattributed=False, **more).audit(text) for more in ({}, {"break_odds": {other: 1e6}})
    )
    assert elsewhere.segments == plain.segments
    assert [s.log_p for s in report.segments] == pytest.approx([s.log_p for s in plain.segments], rel=0.3)
    assert report.log_p == plain.log_p


def test_a_break_where_nothing_else_speaks_for_a_hand_over_is_none() -> None:
    text = broken(100, "\n\n")
    places = [s.start for s in reader(break_odds=True, allow_unattributed=False).audit(text).segments]
    assert len(places) == 2
    assert abs(places[1] - 201) < 10


def test_without_the_switch_breaks_say_nothing() -> None:
    texts = [broken(205, joiner) for joiner in (" ", "\n\n")]
    a, b = (reader().audit(text) for text in texts)
    assert np.array_equal(a.posterior, b.posterior)  # type: ignore[arg-type]
    assert json.loads(a.to_json())["decoder"]["options"] == {}


def test_breaks_count_beside_what_is_left_out() -> None:
    text = broken(205, "\n\n")
    cut = [text.index(WORDS[60] + " "), text.index(WORDS[60] + " ") + len(WORDS[60])]
    report = reader(break_odds={"paragraph": 1e6}, allow_unattributed=False).audit(text, skip=[cut])
    starts = [s.start for s in report.segments if not s.left_out]
    agents = [s.agent for s in report.segments if not s.left_out]
    assert starts[-1] == 205
    assert [agent for agent, _ in itertools.groupby(agents)] == ["planner", "critic"]
    assert text[slice(*cut)] == WORDS[60]


def test_agents_of_two_profiles_meet_at_a_break() -> None:
    registry = iet.Registry.loads(TEAM.dumps())
    other = registry.add_profile(
        tokenizer=WORD_TOKENIZER, scheme=iet.Scheme(kappa=TEAM.profile.scheme.kappa, n_gram=3)
    )
    registry.add("lawyer", profile=other)
    tokenizer = {id: WORD_TOKENIZER for id in registry.profiles}
    starts = []
    for place in (198, 204):
        auditor = iet.Auditor(
            registry, tokenizer=tokenizer, break_odds={"paragraph": 1e6}, allow_unattributed=False
        )
        text = broken(place, "\n\n")
        report = auditor.audit(text)
        assert report.segments[0].agent == "planner"
        starts.append(text[: report.segments[1].char_start].count("w"))
    assert starts == [198, 204]


@pytest.mark.filterwarnings("error")
def test_a_text_without_tokens_has_no_breaks() -> None:
    auditor = reader(break_odds=True)
    assert auditor.audit("").segments == ()
    assert auditor.audit(TEXT, spans=[]).coverage == 0


def test_the_report_and_a_pickle_keep_the_odds() -> None:
    auditor = reader(break_odds=True)
    report = auditor.audit(TEXT)
    assert report.options["break_odds"] == BREAK_ODDS
    assert json.loads(report.to_json())["decoder"]["options"] == {"break_odds": dict(BREAK_ODDS)}
    rebuild, arguments = auditor.__reduce__()[:2]
    assert pickle.loads(pickle.dumps(rebuild.keywords["break_odds"])) == BREAK_ODDS
    assert rebuild(*arguments).audit(TEXT).segments == report.segments
    assert [r.segments for r in auditor.audit_many([TEXT, TEXT])] == [report.segments] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"break_odds": True, "decoder": "cusum"}, "break_odds: got decoder 'cusum', expected 'posterior'"),
        ({"break_odds": {"line": 2.0}, "decoder": "window"}, "break_odds: got decoder 'window'"),
        ({"break_odds": {"page": 2.0}}, "break_odds: got 'page', expected some of"),
        (
            {"break_odds": {"line": 0}},
            r"break_odds\['line'\]: got 0, expected a number from 0.001 to 1000000",
        ),
        ({"break_odds": {"line": True}}, r"break_odds\['line'\]: got True"),
        ({"break_odds": {"line": float("nan")}}, r"break_odds\['line'\]: got nan"),
        ({"break_odds": {"line": "2"}}, r"break_odds\['line'\]: got '2'"),
        ({"break_odds": [1.0, 2.0]}, r"break_odds: got \[1.0, 2.0\], expected True, False or a mapping"),
    ],
)
def test_odds_that_cannot_be_read_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        iet.Auditor(team(), **options)


def test_ids_have_no_breaks() -> None:
    with pytest.raises(InputError, match="token_ids: got ids and break_odds, expected text"):
        reader(break_odds=True).audit(token_ids=IDS)
    assert reader(break_odds=False).audit(token_ids=IDS).tokens == len(IDS)
