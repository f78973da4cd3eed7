"""A report that no audit made, and the schema that every report fits."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

import iet.report
from iet.decoding.transitions import Transition, Transitions
from iet.marks.scheme import Profile, Scheme
from iet.report import Report, Segment

SCHEMA = pathlib.Path(iet.report.__file__).with_name("schema.json")
TEXT = "The plan is naïve 🙂.\nThe critic [b]disagrees[/b], and says why."


def report_of(
    text: str | None = TEXT, agents: tuple[str, ...] = ("planner", "critic"), **changes: Any
) -> Report:
    """A report on two segments, the second unattributed, though its best guess is found in the text."""
    start = None if text is None else 0
    middle, end = (None, None) if text is None else (22, len(text))
    segments = (
        Segment(
            *(start, middle, 0, 60, agents[0], agents[0], -250.5, 0.93, 1e-5, (0, 0), (58, 63)),
            share=0.93,
            share_interval=(0.89, 0.97),
        ),
        Segment(
            *(middle, end, 60, 90, None, agents[1], -1.3, 0.4, 0.3, (58, 63), (90, 90)),
            share=0.4,
            share_interval=(0.0, 0.8),
        ),
    )
    report = Report(
        text=text,
        profiles=(Profile(Scheme(), 1000),),
        registry_digest="0" * 64,
        agents=agents,
        decoder="posterior",
        options={},
        level=0.01,
        allow_unattributed=True,
        decoys=0,
        log_p=-240.0,
        evidence={name: -240.0 if i == 0 else -5.0 for i, name in enumerate(agents)},
        tokens=90,
        left_out=0,
        scored=89,
        repeated=3,
        invisible=0,
        coverage=60 / 90,
        seam_share=None if text is None else 0.0125,
        segments=segments,
        transitions=Transitions(agents, (Transition(60, agents[0], agents[1], 0.75),)),
        labels=np.repeat(np.array([0, -1], dtype=np.int32), [60, 30]),
        posterior=np.full((90, 2), 0.5, dtype=np.float32),
        posterior_agents=np.arange(2, dtype=np.int32),
        strengths={agents[0]: 0.8, agents[1]: 0.0},
    )
    return dataclasses.replace(report, **changes)


def validator() -> Any:
    """Return a validator of a report's JSON: `.validate(data)`, `.is_valid(data)`, `.iter_errors(data)`."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def assert_fits_the_schema(report: Report) -> None:
    validator().validate(json.loads(report.to_json()))
