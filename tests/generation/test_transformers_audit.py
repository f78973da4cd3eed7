"""Audits of text that transformers marked with the shipped model."""

from __future__ import annotations

import pytest

import iet
from iet.audit.metrics import token_accuracy, token_labels
from iet.demo import conversation
from iet.marks.registry import Registry
from iet.marks.tokenizer import DEMO_SOURCE
from tests.support.shipped import shipped_model
from tests.support.teams import team


class Studio:
    """The shipped model, and two turns of 150 tokens at the default and at a high strength."""

    def __init__(self) -> None:
        self.model, self.tokenizer = shipped_model()
        self.default = team(numbered=11, tokenizer=DEMO_SOURCE)
        self.strong = team(numbered=11, tokenizer=DEMO_SOURCE, kappa=2.5)
        self.default_talk = self.say(self.default, ["planner", "critic"])
        self.strong_talk = self.say(self.strong, ["planner", "critic"])

    def say(self, registry: Registry, agents: list[str]) -> conversation.Conversation:
        return conversation.converse(
            self.model, self.tokenizer, registry, [agents], turn_tokens=(150, 150), seed=5
        )


@pytest.fixture(scope="module")
def studio() -> Studio:
    return Studio()


def attributed(report: iet.Report) -> list[str]:
    """Who wrote the attributed segments, in order, each once in a row."""
    names = [segment.agent for segment in report.segments if segment.agent is not None]
    return [agent for i, agent in enumerate(names) if i == 0 or names[i - 1] != agent]


def test_forced_choice_finds_both_agents(studio: Studio) -> None:
    registry, talk = studio.default, studio.default_talk
    report = iet.Auditor(registry, allow_unattributed=False).audit(talk.text)
    ends = registry.open_tokenizer().encode(talk.text).char_ends
    spans = [(s.start, s.end, registry.slot(str(s.agent))) for s in talk.spans]
    assert token_accuracy(token_labels(spans, ends), report.token_agents) > 0.7


def test_audit_finds_agents_order_and_boundary(studio: Studio) -> None:
    report = iet.Auditor(studio.strong).audit(studio.strong_talk.text)
    assert attributed(report) == ["planner", "critic"]
    assert ("planner", "critic") in [(t.source, t.target) for t in report.transitions.observed]
    boundary = next(s.char_start for s in report.segments if s.agent == "critic")
    assert boundary is not None
    assert abs(boundary - studio.strong_talk.spans[1].start) < 100


def test_other_keys_attribute_nothing(studio: Studio) -> None:
    for registry, talk in ((studio.default, studio.default_talk), (studio.strong, studio.strong_talk)):
        scheme = {"kappa": registry.profile.scheme.kappa}
        strangers = team(["a", "b", "c"], numbered=100, tokenizer=DEMO_SOURCE, **scheme)
        assert strangers.profile.scheme == registry.profile.scheme
        report = iet.Auditor(strangers, level=0.01).audit(talk.text)
        assert {segment.agent for segment in report.segments} == {None}
        assert report.coverage == 0
        assert report.transitions.observed == ()


def test_text_of_a_rotated_key_keeps_its_agent(studio: Studio) -> None:
    rotated = Registry.loads(studio.strong.dumps())
    rotated.rotate("planner", secret=bytes([99]) * 32)
    assert attributed(iet.Auditor(rotated).audit(studio.strong_talk.text)) == ["planner", "critic"]
    current_only = rotated.export(None, ["planner", "critic"])
    assert attributed(iet.Auditor(current_only).audit(studio.strong_talk.text)) == ["critic"]


def test_full_registry_reads_text_marked_by_an_export(studio: Studio) -> None:
    text = studio.say(studio.strong.export(None, ["writer"]), ["writer"]).text
    report = iet.Auditor(studio.strong).audit(text)
    assert attributed(report) == ["writer"]
    assert report.coverage > 0.7
