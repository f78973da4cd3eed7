"""Audits as tools of agents, called by the protocol's own client over standard streams."""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys
from typing import Any

import pytest

from tests.support import teams
from tests.support.texts import spell, write

mcp = pytest.importorskip("mcp")
pytest.importorskip("mcp.server.mcpserver")

WORDS = 400


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tools")
    teams.word_tokenizer(WORDS).save(str(folder / "tokenizer.json"))
    return teams.team(
        ("planner", "critic"), folder / "team.json", tokenizer=folder / "tokenizer.json", kappa=3.0
    )


def said(registry: Any, agent: str, seed: int) -> str:
    return spell(write(registry, [(agent, 120)], seed, ids=range(1, WORDS), flat=True))


def call_tools(path: pathlib.Path, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Return the tools of a server that a client starts as agents do, and its answers to the calls."""
    from mcp.client.stdio import StdioServerParameters

    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    line = ["-m", "iet", "mcp", "-r", str(path)]
    parameters = StdioServerParameters(command=sys.executable, args=line, env=environment)

    async def talk() -> list[Any]:
        async with mcp.Client(parameters, read_timeout_seconds=300) as client:
            tools = (await client.list_tools()).tools
            return [tools, *[await client.call_tool(name, arguments) for name, arguments in calls]]

    return asyncio.run(talk())


def test_tools(registry: Any) -> None:
    plan, review = said(registry, "planner", 1), said(registry, "critic", 2)
    messages = [
        {"text": "w1 w2 w3", "skip": True},
        {"text": plan, "agent": "planner"},
        {"text": review, "agent": "planner"},
    ]
    tools, audited, checked, long, odd, short = call_tools(
        registry.path,
        ("audit", {"text": f"{plan} {review}"}),
        ("check", {"messages": messages}),
        ("audit", {"text": "w1 " * 500_000}),
        ("check", {"messages": [{"text": 3}]}),
        ("audit", {"text": "w5"}),
    )
    assert [tool.name for tool in tools] == ["audit", "check"]
    assert all("planner, critic" in tool.description for tool in tools)

    answer = audited.structured_content
    assert set(answer["found"]) == {"planner", "critic"}
    assert [segment["agent"] for segment in answer["segments"]] == ["planner", "critic"]
    assert answer["segments"][-1]["end"] == len(plan) + 1 + len(review)
    verdicts = [(piece["verdict"], piece["agent"]) for piece in checked.structured_content["pieces"]]
    assert verdicts == [("skipped", None), ("confirmed", "planner"), ("contradicted", "critic")]

    # A text that cannot be read fails only its call.
    assert long.is_error
    assert "expected at most 1,048,576 in a call" in long.content[0].text
    assert odd.is_error
    assert not short.is_error
    answers = "".join(str(answer) for answer in (audited, checked, long, odd, short))
    for agent in ("planner", "critic"):
        assert teams.secret(agent).hex() not in answers
    assert str(registry.path) not in answers
