"""Copied texts: changes by copying are undone, and the evidence is corrected for the number of attempts."""

from __future__ import annotations

import html
import json
import math
import re
import textwrap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iet
from iet.audit.layout_restoration import restored
from iet.errors import InputError
from tests.support.teams import WORD_TOKENIZER, WORDS, team
from tests.support.texts import IDS, TEAM, TEXT, reader, spell

PARAGRAPHS = (
    'The planner said: "it\'s done - see below..." and went on to the next of the many things on its list,'
    " which nobody had looked at for a long time, although everybody knew that it was there.\n\n"
    "A second paragraph follows the first one, as it should, and it is long enough to be wrapped at any"
    " width that people use for mail, for commits or for the columns of a newspaper."
)


def wrapped(text: str, width: int = 72) -> str:
    return "\n\n".join(textwrap.fill(paragraph, width) for paragraph in text.split("\n\n"))


def before_lines(text: str, mark: str) -> str:
    return "\n".join(mark + line if line else mark.rstrip() for line in text.splitlines())


WAYS = {
    "wrapped": wrapped(PARAGRAPHS),
    "wrapped with CR": wrapped(PARAGRAPHS, 60).replace("\n", "\r\n").replace("\r\n\r\n", "\n\n"),
    "json": json.dumps(PARAGRAPHS),
    "json without quotes": json.dumps(PARAGRAPHS + " é")[1:-1].replace(" \\u00e9", ""),
    "html": html.escape(PARAGRAPHS),
    "fence": f"```text\n{PARAGRAPHS}\n```",
    "indented": before_lines(PARAGRAPHS, "    "),
    "quoted": before_lines(PARAGRAPHS, "> "),
    "quoted twice": before_lines(before_lines(PARAGRAPHS, "> "), "> "),
    "quoted, wrapped": before_lines(wrapped(PARAGRAPHS), "> "),
    "divided": re.sub(r"\n([a-z]{2})([a-z]{2})", r" \1-\n\2", wrapped(PARAGRAPHS)),
    "typography": PARAGRAPHS.replace(' "', " “").replace('"', "”").replace("'", "’").replace("...", "…"),
    "spaces": PARAGRAPHS.replace(" - ", "\u00a0–\u202f"),
    "ligatures": PARAGRAPHS.replace("fi", "ﬁ"),
    "both": before_lines(wrapped(PARAGRAPHS), "> ").replace("'", "’"),
}


@pytest.mark.parametrize("way", WAYS)
def test_changes_by_copying_are_undone(way: str) -> None:
    copied = WAYS[way]
    ways = restored(copied)
    assert ways[0].text == copied
    assert ways[0].steps == ()
    matching = [reading for reading in ways if reading.text == PARAGRAPHS]
    assert len(matching) == 1, [reading.text for reading in ways]
    assert len({reading.text for reading in ways}) == len(ways) <= 4


def test_texts_without_such_changes_are_read_once() -> None:
    verse = "a short line\nand another\nand one more\n\n- an item\n- another item\n" * 3
    code = "def f():\n    return 1\n\n\ndef g():\n    return 2\n"
    for text in ("", "one line", PARAGRAPHS, verse, code, "> one line of many is quoted\nthe other is not"):
        assert [reading.text for reading in restored(text)] == [text]


def test_steps_are_listed_in_order() -> None:
    both = restored(WAYS["both"])
    assert [reading.steps for reading in both] == [
        (),
        ("quoted", "wrapped"),
        ("typography",),
        ("quoted", "wrapped", "typography"),
    ]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abcd >-\n\"'“’…ﬁ&;\\nu0e9`\u00a0• \t", max_size=200))
def test_positions_refer_to_the_original_text(text: str) -> None:
    for reading in restored(text):
        positions = reading.places
        assert len(positions) == len(reading.text) + 1
        assert positions[-1] == len(text)
        assert (np.diff(positions) >= 0).all()
        assert len(positions) == 1 or positions[0] >= 0
        # Without escapes, each restored letter equals the letter at its place in the given text.
        if not {"json", "html", "typography"} & set(reading.steps):
            same = [
                text[position] == letter for position, letter in zip(positions, reading.text, strict=False)
            ]
            assert all(yes or letter == " " for yes, letter in zip(same, reading.text, strict=False))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["a", "fox", "jumps", "remarkably", "well"]), min_size=40), min_size=1),
    st.integers(45, 120),
)
def test_wrapped_paragraphs_come_back(paragraphs: list[list[str]], width: int) -> None:
    text = "\n\n".join(" ".join(words) for words in paragraphs)
    assert text in [reading.text for reading in restored(wrapped(text, width))]


@pytest.mark.parametrize("piece", [" ", '"', "&", ">", "`", "\\u12", "-\n", "\n", "word \n", "> \n", "• "])
def test_long_runs_of_restored_characters(piece: str) -> None:
    text = piece * 100_000 + "x"
    assert restored(text)[0].text == text


def test_copy_equals_the_text_with_a_penalty() -> None:
    copied = before_lines(textwrap.fill(TEXT, 80), "> ")
    plain, copy = reader().audit(TEXT), reader(as_copied=True).audit(copied)
    assert copy.restored == ("quoted", "wrapped")
    assert plain.restored is None
    assert copy.text == copied
    assert copy.token_agents.tolist() == plain.token_agents.tolist()
    assert copy.log_p == pytest.approx(plain.log_p + math.log(2))
    for name, log_p in plain.evidence.items():
        assert copy.evidence[name] == pytest.approx(min(0.0, log_p + math.log(2)))
    with_error = [segment for segment in plain.segments if segment.error]
    errors = [segment.error for segment in copy.segments if segment.error]
    assert errors == pytest.approx([reading.error for reading in with_error], rel=1e-3)
    # Character offsets refer to the text as passed.
    for ours, theirs in zip(copy.segments, plain.segments, strict=True):
        words = copied[ours.char_start : ours.char_end].replace("\n> ", " ").removeprefix("> ")
        assert words == TEXT[theirs.char_start : theirs.char_end]
    # Without restoration the evidence is weaker, because the quotation marks separate the words.
    assert reader().audit(copied).log_p > copy.log_p


def test_an_unchanged_text_has_no_penalty() -> None:
    plain, restored_report = reader().audit(TEXT), reader(as_copied=True).audit(TEXT)
    assert restored_report.restored == ()
    assert {**restored_report.to_dict(), "restored": 0} == {
        **plain.to_dict(),
        "restored": 0,
        "decoder": {**plain.to_dict()["decoder"], "options": {"as_copied": True}},
    }


def test_several_texts_and_profiles() -> None:
    copied = before_lines(TEXT.replace("w1", "\nw1"), "> ")
    reports = list(reader(as_copied=True).audit_many([TEXT, copied]))
    assert [report.restored for report in reports] == [(), ("quoted",)]
    word_team = team(names=["fourth"], tokenizer=WORD_TOKENIZER, n_gram=3)
    tokenizers = {registry.profile.id: WORD_TOKENIZER for registry in (TEAM, word_team)}
    both = iet.Auditor([TEAM, word_team], tokenizer=tokenizers, as_copied=True).audit(copied)
    assert both.restored == ("quoted",)
    assert set(both.found) == {"planner", "critic", "writer"}


def test_false_positives_of_unmarked_copies_match_the_level() -> None:
    draw, auditor = np.random.default_rng(5), reader(level=0.1, as_copied=True)
    false_positives = 0
    for _ in range(300):
        text = spell(draw.integers(1, WORDS, 60).tolist())
        false_positives += auditor.audit(before_lines(textwrap.fill(text, 60), "> ")).log_p <= math.log(0.1)
    assert false_positives <= 46  # at most 30 are expected; 46 is three standard deviations more


def test_rejects_parts_token_ids_and_invalid_texts() -> None:
    auditor = reader(as_copied=True)
    for options in ({"spans": [(0, 5)]}, {"skip": [(0, 5)]}, {"boundaries": [5]}):
        with pytest.raises(InputError, match="spans, skip or boundaries and as_copied"):
            auditor.audit(TEXT, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got token_ids and as_copied"):
        auditor.audit(token_ids=IDS)
    with pytest.raises(InputError, match="as_copied: got it and many documents"):
        auditor.audit_batch(pa.RecordBatch.from_pydict({"text": [TEXT]}))
    with pytest.raises(InputError, match="text: got int, expected str"):
        auditor.audit(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="character 3 is the lone surrogate"):
        auditor.audit("> a\ud800")


def test_the_report_lists_the_restored_changes() -> None:
    report = reader(as_copied=True).audit(before_lines(TEXT.replace(" w1", "\n\nw1"), "> "))
    line = "as before it was copied, without marks of quotation"
    assert line in str(report)
    assert line in report.to_html()
    assert json.loads(report.to_json())["restored"] == ["quoted"]
    assert iet.Auditor(TEAM, as_copied=True, tokenizer=None).configuration["options"] == {"as_copied": True}
