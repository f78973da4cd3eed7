"""Alterations of a text: what they keep, what they write, and whose each character is afterwards."""

from __future__ import annotations

import collections
import importlib.util
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.transforms import NEEDS, TRANSFORMS
from benchmarks.paper.transforms.altered import NOBODY, Altered, parts_of, sentences_of, tokens_of, touched
from benchmarks.paper.transforms.cutting import paragraphs_of, pasted, shuffled, truncated, unchanged
from benchmarks.paper.transforms.pii import by_presidio, by_rules, redacted, with_entities
from benchmarks.paper.transforms.rewriting import back_translated, edited, quoting, regenerated
from iet.errors import BackendUnavailable, InputError
from iet.marks.tokenizer import Tokenizer
from tests.support import paper_logs

ALPHABETS = ("abcde", "fghij", "klmno")
"""Every agent writes with letters of his own, so that a text tells its truth."""

OTHERS = ("fr", "zh", "es")
HUMAN = "vwxyz"
ENTITIES = [
    {"entity": " a9 b8 ", "types": ["name"]},
    {"entity": "f7-g6", "types": ["passport"]},
    {"entity": "2015-07-26", "types": ["date_of_birth"]},
]


def log_of(turns: list[tuple[int, str]], joiner: str = " ") -> Log:
    return paper_logs.log_of(turns, 3, joiner=joiner)


def labels_of(altered: Altered | Log) -> list[int]:
    """A label for every character."""
    return [agent for start, end, agent in altered.spans for _ in range(end - start)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def turn_of(agent: int) -> st.SearchStrategy[tuple[int, str]]:
    words = st.text(ALPHABETS[agent], min_size=1, max_size=6)
    marks = st.sampled_from(
        [" ", " ", " ", ". ", ", ", "? ", "\n", "\n\n", "... ", " 2020-01-02 ", "。", "é "]
    )
    text = st.lists(st.tuples(words, marks), max_size=12).map(lambda found: "".join(w + m for w, m in found))
    return st.tuples(st.just(agent), text)


logs = st.builds(
    log_of,
    st.lists(st.integers(0, 2).flatmap(turn_of), min_size=1, max_size=6),
    st.sampled_from([" ", "\n\n", "", "\n---\n"]),
)
seeds = st.integers(0, 2**32)


def upper_and_back() -> dict[str, Any]:
    """A language with a word more in each sentence; coming back, the order of the words is another."""

    def forth(sentences: list[str]) -> list[str]:
        return [f"{sentence.upper()} " for sentence in sentences]

    def back(sentences: list[str]) -> list[str]:
        return [" ".join(reversed(sentence.lower().split())) for sentence in sentences]

    return {f"en_{other}": forth for other in OTHERS} | {f"{other}_en": back for other in OTHERS}


def brought() -> dict[str, Any]:
    return upper_and_back() | {
        "regenerate": lambda log, turn: f"{HUMAN} {turn}.",
        "entities": ENTITIES,
        "human": f"{HUMAN} {HUMAN}, " * 200,
    }


@pytest.mark.parametrize("name", TRANSFORMS)
@settings(max_examples=25, deadline=None)
@given(log=logs, seed=seeds, twice=st.booleans())
def test_every_old_character_keeps_its_agent(name, log, seed, twice):
    source: Any = log
    if twice and name != "regeneration-10":
        source = edited(log, rng(seed), rate=0.3, edits=("delete", "swap"))
    altered = TRANSFORMS[name](source, rng(seed), **brought())

    assert altered == TRANSFORMS[name](source, rng(seed), **brought())
    assert "".join(altered.text[s:e] for s, e, _ in altered.spans) == altered.text
    assert all(s < e for s, e, _ in altered.spans)
    assert all(a[2] != b[2] for a, b in zip(altered.spans, altered.spans[1:], strict=False))
    new = {i for start, end in altered.new for i in range(start, end)}
    for i, (character, label) in enumerate(zip(altered.text, labels_of(altered), strict=True)):
        for agent, letters in enumerate(ALPHABETS):
            if character in letters and i not in new:
                assert label == agent
        if character in HUMAN:
            assert i in new
            assert label == NOBODY or not name.startswith("pasted")
    assert all(0 <= share <= 1 for key, share in altered.figures.items() if key in SHARES)


SHARES = (
    "kept",
    "regenerated",
    "rewritten",
    "edited",
    "quoted",
    "changed",
    "inserted",
    "turns",
    "human",
    "moved",
)


@settings(deadline=None)
@given(log=logs, seed=seeds)
def test_nothing_changes_at_a_rate_of_zero(log, seed):
    same = [
        unchanged(log, rng(seed)),
        truncated(log, rng(seed), keep=1),
        truncated(log, rng(seed), keep=1, per="turn"),
        edited(log, rng(seed), rate=0),
        regenerated(log, rng(seed), regenerate=lambda log, turn: "new", share=0),
        quoting(log, rng(seed), share=0),
        back_translated(log, rng(seed), forth=list, back=list),
        redacted(log, rng(seed), find=lambda text, entities: []),
        with_entities(log, rng(seed), entities=[]),
        with_entities(log, rng(seed), entities=ENTITIES, least=0),
        pasted(log, rng(seed), human="", share=1, around=0),
    ]
    for altered in same:
        assert altered.text == log.text
        assert labels_of(altered) == labels_of(log)
        assert altered.new == ()
        if all(turn.text for turn in log.turns):
            assert (altered.edges(3) == log.edges).all()


def test_transitions_do_not_cross_nobody():
    altered = Altered("abcdef", ((0, 1, 0), (1, 2, 1), (2, 3, NOBODY), (3, 4, 2), (4, 6, 0)))
    assert altered.edges(3).tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("spans", [(), ((0, 2, 0),), ((0, 2, 0), (1, 3, 1)), ((1, 3, 0),), ((0, 4, 0),)])
def test_spans_tile_the_text(spans):
    with pytest.raises(InputError, match="tiling of 3"):
        Altered("abc", spans)


def test_every_need_is_described_and_named_when_it_is_missing():
    log = log_of([(0, "a b c."), (1, "f g h.")])
    asked = {need for entry in TRANSFORMS.values() for need in entry.needs.values()}
    assert asked == set(NEEDS)
    for entry in TRANSFORMS.values():
        for need in entry.needs.values():
            with pytest.raises(BackendUnavailable, match=re.escape(f"{need} = {NEEDS[need]}")):
                entry(log, rng(), **(brought() | {need: None}))


def test_what_is_counted_as_a_token_is_passed_on(tokenizer: Tokenizer) -> None:
    text = "extraordinary circumstances " * 20
    log = log_of([(0, text)])
    ends = tokenizer.encode(text).char_ends
    altered = TRANSFORMS["truncation-75"](log, rng(), tokenizer=tokenizer)
    assert altered.text == text[: ends[int(0.75 * len(ends)) - 1]]
    assert TRANSFORMS["truncation-75"](log, rng()).text == text.split(" ", 1)[0] + text[13 : 28 * 15 - 1]


@settings(deadline=None)
@given(text=st.text("ab1_. ,\n-é。", max_size=60), places=st.sets(st.integers(0, 60)), data=st.data())
def test_tokens_that_are_touched(text, places, data):
    ordered = sorted(places)
    ranges = list(zip(ordered[::2], ordered[1::2], strict=False))
    tokens = tokens_of(text)
    naive = sum(any(s < end and e > start for start, end in ranges) for s, e in tokens.tolist())
    assert touched(tokens, ranges) == naive
    assert re.sub(r"\s", "", text) == "".join(text[s:e] for s, e in tokens.tolist())


@given(st.text("ab.!?… \n\t\"')。”", max_size=40))
def test_only_blanks_lie_between_sentences(text):
    position = 0
    for start, end in [*sentences_of(text), (len(text), len(text))]:
        assert not text[position:start].strip()
        assert "\n" not in text[start:end]
        position = end


def test_sentences():
    text = 'It rains. "Really?" he asked… Yes!\n\nAn open line\n 3.5 litres 。好。'
    found = [text[s:e] for s, e in sentences_of(text)]
    assert found == ["It rains.", '"Really?"', "he asked…", "Yes!", "An open line", "3.5 litres 。", "好。"]


# Truncation, pasting, shuffling.


@pytest.mark.parametrize("keep", [0.9, 0.75, 0.1, 0.0])
def test_truncation_keeps_the_first_tokens(keep):
    texts = ["a b, c. " * 5, "", "f g"]
    log = log_of([(0, texts[0]), (1, texts[1]), (2, texts[2])], joiner="\n\n")
    per_turn = truncated(log, rng(), keep=keep, per="turn")
    kept = 0
    for text in texts:
        tokens = re.findall(r"\w|[,.]", text)
        short = per_turn.text.split("\n\n")[texts.index(text)]
        assert text.startswith(short)
        assert re.findall(r"\w|[,.]", short) == tokens[: int(keep * len(tokens) + 1e-9)]
        kept += len(re.findall(r"\w|[,.]", short))
    assert per_turn.figures["kept"] == pytest.approx(kept / (25 + 2))
    per_text = truncated(log, rng(), keep=keep)
    assert log.text.startswith(per_text.text)
    assert len(tokens_of(per_text.text)) == int(keep * 27)


@pytest.mark.parametrize("place", ["before", "behind", "around"])
def test_a_part_is_pasted_into_human_text(place):
    log = log_of([(0, "aa bb cc dd. " * 40), (1, "ff gg hh. " * 40)])
    human = "one two three four. " * 200
    starts = set()
    for seed in range(20):
        altered = pasted(log, rng(seed), human=human, share=0.5, around=2, place=place, joiner="\n##\n")
        agents = "".join(altered.text[s:e] for s, e, agent in altered.spans if agent != NOBODY)
        assert agents in log.text
        assert 0.45 * len(log.text) < len(agents) <= 0.5 * len(log.text)
        starts.add(log.text.index(agents))
        people = [altered.text[s:e] for s, e, agent in altered.spans if agent == NOBODY]
        first, last = altered.spans[0][2] == NOBODY, altered.spans[-1][2] == NOBODY
        assert (first, last) == (place != "behind", place != "before")
        assert all(words.strip("\n#") in human for words in people)
        assert sum(map(len, people)) == pytest.approx(2 * len(agents), rel=0.15)
        assert altered.figures["human"] == sum(map(len, people)) / len(altered.text)
    assert len(starts) > 1


@given(log=logs, seed=seeds)
def test_shuffled_paragraphs_are_all_there(log, seed):
    altered = shuffled(log, rng(seed))

    assert collections.Counter(altered.text) == collections.Counter(log.text)
    assert all(log.text[start:end] in altered.text for start, end in paragraphs_of(log.text))
    assert altered.figures.get("paragraphs", 0) == len(paragraphs_of(log.text))


def test_the_order_of_paragraphs_is_drawn_and_changes_the_transitions():
    log = log_of([(0, "a."), (1, "f."), (2, "k.")], joiner="\n\n")
    found = {shuffled(log, rng(seed)).text for seed in range(60)}
    assert len(found) == 6
    for seed in range(10):
        altered = shuffled(log, rng(seed))
        order = [next(a for a in range(3) if p[0] in ALPHABETS[a]) for p in altered.text.split("\n\n")]
        expected = np.zeros((3, 3))
        expected[order[0], order[1]] = expected[order[1], order[2]] = 1
        assert (altered.edges(3) == expected).all()
        moved = [b != a + 1 for a, b in zip([-1, *order], order, strict=False)]
        assert altered.figures["moved"] == np.mean(moved)


def test_paragraphs_of_a_text_without_any_are_sentences():
    text = "One. Two!\nThree"
    assert [text[s:e] for s, e in paragraphs_of(text)] == ["One.", "Two!", "Three"]
    text = "One. Two!\n \n\nThree\n\n"
    assert [text[s:e] for s, e in paragraphs_of(text)] == ["One. Two!", "Three\n\n"]


# Rewriting.


def test_a_share_of_the_turns_is_regenerated():
    log = log_of([(i % 3, f"{ALPHABETS[i % 3]} text") for i in range(16)], joiner="\n")
    counts = []
    for seed in range(300):
        drawn: list[int] = []

        def regenerate(given: Log, turn: int, drawn: list[int] = drawn) -> str:
            assert given is log
            drawn.append(turn)
            return f"new {turn}"

        nobody = regenerated(log, rng(seed), regenerate=regenerate, share=0.1, writer="nobody")
        lines = nobody.text.split("\n")
        assert [i for i, line in enumerate(lines) if line.startswith("new")] == drawn
        assert nobody.figures["regenerated"] == len(drawn) / 16
        new = {nobody.text[s:e] for s, e in nobody.new}
        assert {text.strip("\n") for text in new} == {f"new {turn}" for turn in drawn}
        assert sum(agent == NOBODY for agent in labels_of(nobody)) == sum(
            len(f"new {turn}") + (turn > 0) for turn in drawn
        )
        agents = regenerated(log, rng(seed), regenerate=regenerate, share=0.1)
        assert agents.text == nobody.text
        assert NOBODY not in labels_of(agents)
        assert (agents.edges(3) == log.edges).all()
        counts.append(len(drawn) // 2)
    assert set(counts) == {1, 2}
    assert np.mean(counts) == pytest.approx(1.6, abs=0.15)  # five standard errors


def test_sentences_are_translated_one_by_one_and_blanks_stay():
    log = log_of([(0, "a b c.  d e!\n\n- c d\n"), (1, "12 ... 3. f g? 。")], joiner="\n---\n")
    seen = []

    def forth(sentences):
        seen.append(list(sentences))
        return [s.upper() for s in sentences]

    altered = back_translated(log, rng(), forth=forth, back=lambda found: [f" <{s}>" for s in found])
    assert seen == [["a b c.", "d e!", "- c d", "f g?"]]
    assert altered.text == "<A B C.>  <D E!>\n\n<- C D>\n\n---\n12 ... 3. <F G?> 。"
    assert [altered.text[s:e] for s, e in altered.new] == ["<A B C.>", "<D E!>", "<- C D>", "<F G?>"]
    assert altered.text[altered.spans[1][0] :].startswith("\n---\n12")
    assert altered.figures["rewritten"] == 1
    lost = back_translated(log, rng(), forth=forth, back=lambda found: [" "] * len(found))
    assert (lost.text, lost.figures["rewritten"]) == (log.text, 0)


def test_long_sentences_are_divided():
    words = [f"a{i}" for i in range(10)]
    seen = []
    altered = back_translated(
        log_of([(0, " ".join(words))]), rng(), forth=lambda s: seen.extend(s) or s, back=list, longest=4
    )
    assert seen == [" ".join(words[i : i + 4]) for i in (0, 4, 8)]
    assert altered.text == " ".join(words)


def test_a_translator_must_answer_for_every_sentence():
    log = log_of([(0, "a. b.")])
    with pytest.raises(InputError, match="back: got 1 sentences, expected 2"):
        back_translated(log, rng(), forth=list, back=lambda sentences: sentences[:1])


@pytest.mark.parametrize("edit", ["delete", "replace", "swap", "insert"])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2, 1.0])
def test_words_are_edited_at_the_rate(edit, rate):
    words = [f"{letter}{i}" for i in range(100) for letter in "af"]
    log = log_of([(0, " ".join(words[0::2]) + "."), (1, ", ".join(words[1::2]))])
    altered = edited(log, rng(3), rate=rate, edits=(edit,))
    found = re.findall(r"\w+", altered.text)
    count = int(rate * 200)
    assert altered.figures["edited"] == rate
    assert set(found) <= set(words)
    assert len(found) == 200 + {"delete": -count, "insert": count}.get(edit, 0)
    if edit == "swap":
        assert collections.Counter(found) == collections.Counter(words)
        assert altered.new == ()
        assert found != re.findall(r"\w+", log.text)
    if edit == "delete":
        assert altered.new == ()
        assert "  " not in altered.text
    if edit == "replace":  # a word may be replaced by itself
        places = [i for i, (a, b) in enumerate(zip(found, words[0::2] + words[1::2], strict=True)) if a != b]
        assert count * 0.8 - 1 <= len(places) <= count
    if edit == "insert" and rate < 1:
        nobody = edited(log, rng(3), rate=rate, edits=(edit,), writer="nobody")
        assert nobody.text == altered.text
        assert [(s, e) for s, e, agent in nobody.spans if agent == NOBODY] == list(nobody.new)
        assert len(nobody.new) == count


def test_every_kind_of_edit_is_drawn():
    log = log_of([(0, " ".join(f"a{i}" for i in range(2000)))])
    altered = edited(log, rng(1), rate=0.2)
    words = collections.Counter(re.findall(r"\w+", altered.text))
    missing = sum(f"a{i}" not in words for i in range(2000))  # deleted or replaced
    assert 150 < missing < 250
    assert 150 < len(altered.new) < 250  # replaced or inserted


def test_a_quotation_is_verbatim_and_counted():
    log = log_of(
        [
            (0, "a b c d e. b b."),
            (1, "f g h i j! g g g g g? g."),
            (2, "k l m n o. k."),
            (0, "e d c b a."),
            (1, "short."),
        ]
    )
    seen = set()
    for seed in range(50):
        altered = quoting(log, rng(seed), share=0.5)
        assert altered.figures["quotations"] == len(altered.new) in (2, 3)
        quoted = 0
        for start, end in altered.new:
            sentence = altered.text[start:end]
            assert sentence[0] == sentence[-1] == '"'
            origin = log.text.index(sentence[1:-1])
            agent = labels_of(altered)[start]
            assert labels_of(log)[origin] != agent  # another agent's
            assert len(sentence.split()) >= 4
            seen.add((labels_of(log)[origin], agent))
            quoted += len(tokens_of(sentence))
        assert altered.figures["quoted"] == quoted / len(tokens_of(altered.text))
        rest = altered.text
        for start, end in reversed(altered.new):
            rest = rest[:start] + rest[end:]
        assert rest.split() == log.text.split()
    assert seen == {(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)}


# What identifies a person.


@settings(deadline=None)
@given(log=logs, seed=seeds, writer=st.sampled_from(["agent", "nobody"]))
def test_redaction_leaves_the_rest_untouched(log, seed, writer):
    entities = [{"entity": word, "types": ["name"]} for word in re.findall(r"\w+", log.text)[::5]]
    places = by_rules(log.text, entities)
    altered = redacted(log, rng(seed), entities=entities, writer=writer)
    kept, position = [], 0
    for start, end, _ in places:
        kept += [(c, a) for c, a in zip(log.text, labels_of(log), strict=True)][position:start]
        position = end
    kept += [(c, a) for c, a in zip(log.text, labels_of(log), strict=True)][position:]
    new = {i for start, end in altered.new for i in range(start, end)}
    found = list(zip(altered.text, labels_of(altered), strict=True))
    assert [pair for i, pair in enumerate(found) if i not in new] == kept
    assert "".join(found[i][0] for i in sorted(new)) == "".join(f"[{name}]" for *_, name in places)
    if writer == "nobody":
        assert {found[i][1] for i in new} <= {NOBODY}
    else:
        assert NOBODY not in labels_of(altered)
    words = tokens_of(log.text)
    assert altered.figures["changed"] == touched(words, [(s, e) for s, e, _ in places]) / max(1, len(words))
    assert altered.figures["places"] == len(places)


@settings(deadline=None)
@given(log=logs, seed=seeds, least=st.sampled_from([0.02, 0.1, 0.2]))
def test_entities_are_inserted_until_enough_of_each_turn_would_change(log, seed, least):
    altered = with_entities(log, rng(seed), entities=ENTITIES, least=least)
    rest = altered.text
    for start, end in reversed(altered.new):
        for inserted in re.findall(r" \((.*?)\)", rest[start:end]):
            assert inserted in {entity["entity"].strip() for entity in ENTITIES}
        rest = rest[:start] + rest[end:]
    assert rest == log.text
    assert NOBODY not in labels_of(altered)
    turns = [log_of([(0, part.text)]) for part in parts_of(log)]
    poor = [redacted(turn, rng()).figures["changed"] < least for turn in turns if turn.text.strip()]
    assert (altered.figures["turns"] == 0) == (not any(poor)) == (altered.new == ())
    for turn in turns:
        full = with_entities(turn, rng(seed), entities=ENTITIES, least=least)
        if turn.text.strip():
            assert redacted(full, rng(), entities=ENTITIES).figures["changed"] >= least
        else:
            assert full.text == turn.text
    nobody = with_entities(log, rng(seed), entities=ENTITIES, least=least, writer="nobody")
    assert nobody.text == altered.text
    assert [(s, e) for s, e, agent in nobody.spans if agent == NOBODY] == list(nobody.new)


@pytest.mark.skipif(importlib.util.find_spec("presidio_analyzer") is not None, reason="presidio is installed")
def test_without_presidio_there_is_a_sentence():
    with pytest.raises(BackendUnavailable, match="pip install presidio-analyzer"):
        by_presidio()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: truncated(log, rng(), keep=1.5), "keep: got 1.5, expected 0 to 1"),
        (lambda log: truncated(log, rng(), keep=0.5, per="word"), "per: got 'word'"),
        (lambda log: edited(log, rng(), rate=float("nan")), "rate: got nan"),
        (lambda log: edited(log, rng(), rate=0.1, edits=("drop",)), "edits: got .*drop"),
        (lambda log: edited(log, rng(), rate=0.1, writer="me"), "writer: got 'me'"),
        (lambda log: pasted(log, rng(), human="short"), "human: got 5 characters, expected at least"),
        (lambda log: pasted(log, rng(), human="", around=-1), "around: got -1"),
        (lambda log: pasted(log, rng(), human="", place="above"), "place: got 'above'"),
        (lambda log: quoting(log, rng(), least_words=0), "least_words: got 0"),
        (lambda log: back_translated(log, rng(), forth=list, back=list, longest=0), "longest: got 0"),
        (lambda log: with_entities(log, rng(), entities=ENTITIES, least=0.5), "least: got 0.5"),
        (lambda log: regenerated(log, rng(), regenerate=lambda log, turn: None, share=1), "got NoneType"),
        (
            lambda log: regenerated(unchanged(log, rng()), rng(), regenerate=str),
            "got Altered, expected a Log",
        ),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(InputError, match=message):
        change(log_of([(0, "a b c d e."), (1, "f g h i j.")]))
