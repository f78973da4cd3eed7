"""`iet.select`: the choice among candidates is unbiased, carries the mark, and refuses bad input."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from scipy.stats import chisquare

import iet
from iet.generation import selection
from iet.generation.selection import TextChooser
from tests.support.small_writer import gumbel_team, words


@pytest.fixture(scope="module")
def registry() -> iet.Registry:
    return gumbel_team(["planner", "critic", "writer"])


@pytest.fixture(scope="module")
def many() -> iet.Registry:
    return gumbel_team(f"agent-{number}" for number in range(3000))


def draft(rng: np.random.Generator) -> str:
    return "".join(rng.choice(words(), 12))


def written(registry: iet.Registry, agent: str, chunks: int, seed: int, **options: str) -> str:
    rng, text = np.random.default_rng(seed), ""
    for _ in range(chunks):
        drafts = [draft(rng) for _ in range(8)]
        text += drafts[iet.select(registry, agent, text, drafts, **options).index]
    return text


def test_the_unchanged_auditor_names_the_agent_and_no_other(registry: iet.Registry) -> None:
    report = iet.Auditor(registry, level=1e-4).audit(written(registry, "critic", 40, 1))
    assert report.found == ("critic",)


def test_a_session_is_found_only_with_its_id(registry: iet.Registry) -> None:
    text = written(registry, "critic", 40, 2, session="run-7")
    assert iet.Auditor(registry, level=1e-4).audit(text).found == ()
    assert iet.Auditor(registry, level=1e-4, sessions=["run-7"]).audit(text).found == ("critic",)


def test_the_mark_of_a_fourier_profile_is_found() -> None:
    registry = iet.Registry.create(None, tokenizer="iet:demo")
    registry.add_many(["planner", "critic"])
    report = iet.Auditor(registry, level=1e-4).audit(written(registry, "planner", 60, 3))
    assert report.found == ("planner",)


@pytest.mark.parametrize("ended", [None, [False, False, True, False]])
def test_candidates_that_share_their_first_tokens_are_chosen_equally_often(
    many: iet.Registry, monkeypatch: pytest.MonkeyPatch, ended: list[bool] | None
) -> None:
    monkeypatch.setattr(selection, "_SIMULATED", 63)
    before = " the small dog sees the river"
    shared = " and then the big cat takes the red house with"
    options = [
        shared + " the dog",
        shared + " a river",
        shared + " a river in",
        " in the house under a river",
    ]
    weights = [1.0, 2.0, 1.0, 4.0]
    chosen = collections.Counter(
        TextChooser(many, name).choose(before, options, weights, ended).index for name in many
    )
    expected = np.array(weights) / sum(weights) * len(many)
    assert chisquare([chosen[i] for i in range(4)], expected).pvalue > 1e-3


def test_equal_candidates_count_together(many: iet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_SIMULATED", 63)
    candidates = [" a river runs under the house", " the dog sees a cat", " the dog sees a cat"]
    chosen = [iet.select(many, name, " then", candidates).index for name in many]
    assert set(chosen) == {0, 1}
    assert chisquare([chosen.count(0), chosen.count(1)], [1000, 2000]).pvalue > 1e-3


def test_options_without_a_scored_token_are_chosen_by_weight(many: iet.Registry) -> None:
    # The first three tokens of a text have no context, and the end of a text has no token.
    choosers = [TextChooser(many, f"agent-{number}") for number in range(1000)]
    chosen = [chooser.choose("", [" the", ""], [3.0, 1.0], [False, True]).index for chooser in choosers]
    assert chisquare([chosen.count(0), chosen.count(1)], [750, 250]).pvalue > 1e-3


def test_the_choice_depends_on_texts_and_not_on_their_order(registry: iet.Registry) -> None:
    rng = np.random.default_rng(4)
    drafts = [draft(rng) for _ in range(6)]
    chosen = iet.select(registry, "writer", " then", drafts)
    again = iet.select(registry, "writer", " then", drafts[::-1])
    assert drafts[chosen.index] == drafts[::-1][again.index]
    assert chosen.score == again.score
    assert isinstance(chosen, iet.Selection)


def test_the_score_is_that_of_the_tokens_that_a_reader_sees(registry: iet.Registry) -> None:
    before, candidate = " the big dog runs and the", " cat takes a house with the river"
    chosen = iet.select(registry, "planner", before, [candidate])
    tokenizer = registry.open_tokenizer()
    scores = iet.score_tokens(tokenizer.encode(before + candidate).token_ids, registry)
    old = len(tokenizer.encode(before).token_ids)
    assert chosen.score == pytest.approx(scores[old:, registry.slot("planner")].sum(), rel=1e-6)


def test_more_than_thirty_two_candidates_are_taken(registry: iet.Registry) -> None:
    rng = np.random.default_rng(5)
    assert 0 <= iet.select(registry, "planner", "", [draft(rng) for _ in range(40)]).index < 40


def test_a_rotated_key_marks_at_once() -> None:
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    registry.add("planner")
    drafts = [draft(np.random.default_rng(6)) for _ in range(2)]
    old = iet.select(registry, "planner", "", drafts[:1]).score
    registry.rotate("planner")
    assert iet.select(registry, "planner", "", drafts[:1]).score != old


@pytest.mark.parametrize(
    ("before", "candidates", "message"),
    [
        ("", [], "candidates: got none, expected at least one text"),
        ("", "abc", "candidates: got str, expected a list of texts"),
        ("", [" a", ""], r"candidates\[1\]: got '', expected a text that is not empty"),
        ("", [" a", 7], r"candidates\[1\]: got 7, expected a text"),
        (None, [" a"], "before: got None, expected text"),
        ("", ["\ud800"], "lone surrogate"),
    ],
)
def test_bad_candidates_are_refused(
    registry: iet.Registry, before: str, candidates: list[str], message: str
) -> None:
    with pytest.raises(iet.InputError, match=message):
        iet.select(registry, "planner", before, candidates)


def test_an_unknown_agent_session_or_registry_is_refused(registry: iet.Registry) -> None:
    with pytest.raises(iet.RegistryError, match="nobody"):
        iet.select(registry, "nobody", "", [" a"])
    with pytest.raises(iet.InputError, match="session"):
        iet.select(registry, "planner", "", [" a"], session="")
    with pytest.raises(iet.InputError, match="registry: got dict"):
        iet.select({}, "planner", "", [" a"])  # type: ignore[arg-type]


def test_no_secret_is_shown(registry: iet.Registry) -> None:
    subkey = registry.marking_keys().subkeys[0].tobytes()
    chooser = TextChooser(registry, "planner")
    assert subkey.hex() not in repr(vars(chooser))
    assert "KeyTable(names" in repr(vars(chooser)["_keys"])


def test_a_long_text_is_tokenized_as_a_reader_does(registry: iet.Registry) -> None:
    rng = np.random.default_rng(8)
    chooser, tokenizer = TextChooser(registry, "planner"), registry.open_tokenizer()
    for text in (
        "".join(draft(rng) for _ in range(12)),
        "x" * 600,
        "a" + " " * 400,
        "\n" * 300 + " a b" * 90,
    ):
        options = [draft(rng), ".", "  a", "\n\nb"]
        ids = chooser._token_ids(text, options)
        expected = [tokenizer.encode(text + option).token_ids for option in ("", *options)]
        assert all(np.array_equal(one, another) for one, another in zip(ids, expected, strict=True))
