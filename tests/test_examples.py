"""The examples run, and show what they say."""

from __future__ import annotations

import pathlib
import runpy

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def test_two_agents() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        report = runpy.run_path(str(EXAMPLES / "two_agents.py"))["main"](tokens=60)
    finally:
        torch.set_num_threads(threads)
    assert report.agents == ("planner", "critic")
    assert report.tokens > 100
    assert report.char_agents[-1].end == len(report.text)
