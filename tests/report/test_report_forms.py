"""The report for other machines: PROV-JSON, OpenTelemetry attributes, DOT."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

import iet
from iet.decoding.transitions import Transition, Transitions
from iet.report import Report
from iet.report.telemetry import EVENT
from tests.support.reports import TEXT, report_of


@pytest.fixture
def report() -> Report:
    """Planner, critic, a part left out, an unattributed one, planner again."""
    base = report_of()
    planner, unattributed = base.segments
    critic = dataclasses.replace(planner, char_start=22, char_end=30, start=60, end=70, agent="critic")
    left_out = dataclasses.replace(
        unattributed, char_start=30, char_end=35, start=70, end=72, best_guess=None, left_out=True
    )
    unattributed = dataclasses.replace(unattributed, char_start=35, start=72, char_end=40, end=80)
    last = dataclasses.replace(planner, char_start=40, char_end=len(TEXT), start=80, end=90)
    passages = (Transition(60, "planner", "critic", 0.75),)
    return dataclasses.replace(
        base,
        segments=(planner, critic, left_out, unattributed, last),
        transitions=Transitions(base.agents, passages),
    )


def test_prov_package_reads_prov(report: Report, tmp_path: pathlib.Path) -> None:
    model = pytest.importorskip("prov.model")
    data = report.to_prov(tmp_path / "prov.json")
    assert (tmp_path / "prov.json").read_text(encoding="utf-8") == data + "\n"
    read = model.ProvDocument.deserialize(content=data, format="json")
    reparsed = model.ProvDocument.deserialize(content=read.serialize(format="json"), format="json")
    assert read == reparsed
    kinds = {
        kind: len(list(read.get_records(getattr(model, kind))))
        for kind in (
            "ProvEntity",
            "ProvAgent",
            "ProvActivity",
            "ProvAttribution",
            "ProvGeneration",
            "ProvAssociation",
            "ProvCommunication",
            "ProvMembership",
            "ProvUsage",
        )
    }
    assert kinds == {
        "ProvEntity": 6,  # the text and its five segments
        "ProvAgent": 3,  # two that wrote, and the auditor
        "ProvActivity": 4,  # three writings, and the audit
        "ProvAttribution": 3,
        "ProvGeneration": 3,
        "ProvAssociation": 4,
        "ProvCommunication": 1,
        "ProvMembership": 5,
        "ProvUsage": 1,
    }


def test_prov_attributes_segments(report: Report) -> None:
    content = json.loads(report.to_prov())
    labels = {name: agent["prov:label"] for name, agent in content["agent"].items()}
    wrote = {
        record["prov:entity"]: labels[record["prov:agent"]] for record in content["wasAttributedTo"].values()
    }
    assert wrote == {"iet:segment-0": "planner", "iet:segment-1": "critic", "iet:segment-4": "planner"}
    assert content["entity"]["iet:segment-1"] == {
        "iet:start": 22,
        "iet:end": 30,
        "iet:unit": "character",
        "iet:logP": -250.5,
        "iet:posterior": 0.93,
        "iet:share": 0.93,
        "iet:shareLow": 0.89,
        "iet:shareHigh": 0.97,
        "iet:error": 1e-5,
    }
    assert content["entity"]["iet:segment-2"]["iet:leftOut"] is True
    [passage] = content["wasInformedBy"].values()
    assert passage == {
        "prov:informed": "iet:writing-1",
        "prov:informant": "iet:writing-0",
        "iet:confidence": 0.75,
    }
    assert TEXT not in report.to_prov()


def test_prov_transition_skips_unattributed_tokens(report: Report) -> None:
    planner, critic, *remaining = report.segments
    opened = dataclasses.replace(critic, char_end=25, end=63, agent=None)
    named = dataclasses.replace(critic, char_start=25, start=63)
    third = dataclasses.replace(named, char_start=28, start=67)
    segments = (planner, opened, dataclasses.replace(named, char_end=28, end=67), third, *remaining)
    content = json.loads(dataclasses.replace(report, segments=segments).to_prov())
    [passage] = content["wasInformedBy"].values()
    assert passage["prov:informed"] == "iet:writing-2"
    assert passage["prov:informant"] == "iet:writing-0"


def test_prov_of_token_ids_and_of_no_segments() -> None:
    content = json.loads(report_of(text=None).to_prov())
    assert content["entity"]["iet:segment-0"]["iet:unit"] == "token"
    assert "iet:sha256" not in content["entity"]["iet:text"]
    empty = report_of(segments=(), transitions=Transitions((), ()))
    assert set(json.loads(empty.to_prov())) == {
        "prefix",
        "entity",
        "agent",
        "activity",
        "used",
        "wasAssociatedWith",
    }


def test_prov_and_dot_of_an_audit_with_special_names() -> None:
    model = pytest.importorskip("prov.model")
    names = ("planner", 'a "quoted"\\ name')
    registry = iet.Registry.create(None, vocab_size=1000)
    for name in names:
        registry.add(name)
    ids = np.random.default_rng(0).integers(0, 1000, 400)
    report = iet.Auditor(registry, allow_unattributed=False).audit(token_ids=ids)
    read = model.ProvDocument.deserialize(content=report.to_prov(), format="json")
    labels = {str(agent.label) for agent in read.get_records(model.ProvAgent)}
    assert labels - {f"iet {iet.__version__}"} == {segment.agent for segment in report.segments}
    assert report.transitions.to_dot().count(" -> ") == report.transitions.adjacency.sum()


def test_events_use_conventional_names(report: Report) -> None:
    conventions = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    conventional = {
        value for name, value in vars(conventions).items() if name.isupper() and isinstance(value, str)
    }
    events = report.evaluation_events("resp-1")
    assert EVENT == "gen_ai.evaluation.result"
    assert len(events) == 4  # none for what was left out
    for event in events:
        theirs = {name for name in event if not name.startswith("iet.")}
        assert theirs <= conventional
        assert all(type(value) in (str, int, float) for value in event.values())
        assert event["gen_ai.response.id"] == "resp-1"
    assert [event.get("gen_ai.agent.name") for event in events] == ["planner", "critic", None, "planner"]
    assert events[2]["gen_ai.evaluation.score.label"] == "unattributed"
    assert events[2]["gen_ai.evaluation.score.value"] == 0.4
    assert [event["gen_ai.evaluation.explanation"] for event in events[1:3]] == [
        "critic wrote in characters 22 to 30 (error 1e-05, p alone 1.6e-109)",
        "characters 35 to 40 are unattributed at level 0.01; best guess critic (error 0.3, p alone 0.273)",
    ]
    assert (events[0]["iet.char_start"], events[0]["iet.char_end"]) == (0, 22)


def test_dot_parser_reads_dot() -> None:
    pydot = pytest.importorskip("pydot")
    names = ("planner", 'a "quoted" \\ name', "späher → λ")
    passages = (
        Transition(3, names[0], names[1], 0.5),
        Transition(5, names[1], names[0], 0.6),
        Transition(9, names[0], names[1], 0.75),
    )
    [graph] = pydot.graph_from_dot_data(Transitions(names, passages).to_dot())
    unquoted = [
        node.get_name().strip('"').replace('\\"', '"').replace("\\\\", "\\") for node in graph.get_nodes()
    ]
    assert unquoted == list(names)
    labels = [edge.get("label").strip('"') for edge in graph.get_edges()]
    assert labels == ["×2 (0.75)", "×1 (0.60)"]
