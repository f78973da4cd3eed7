"""The team in LangGraph and in the OpenAI Agents SDK, with OpenLLMetry of today and of 2025."""

from __future__ import annotations

import asyncio
from typing import Any

import answers
from agents import Agent, OpenAIResponsesModel, Runner, function_tool
from langchain_core.messages import SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from openai import AsyncOpenAI

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}


@function_tool
def measure() -> str:
    """Measure the garden."""
    return answers.TOOL_RESULT


def run_agents() -> None:
    """Let the planner hand over to the critic, and then write again."""
    handoff = [answers.PLANNER, answers.call("transfer_to_critic")]
    script = answers.call("measure"), handoff, answers.CRITIC, answers.PLANNER_AGAIN
    with answers.server(*script) as url:
        model = OpenAIResponsesModel("gpt-5", AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
        critic = Agent("critic", instructions=answers.CRITIC_SYSTEM, model=model)
        tools: list[Any] = [measure]
        planner = Agent(
            "planner", instructions=answers.PLANNER_SYSTEM, model=model, handoffs=[critic], tools=tools
        )
        result = asyncio.run(Runner.run(planner, answers.USER))
        asyncio.run(Runner.run(planner, result.to_input_list()))


def run_graph() -> None:
    """Run a graph whose nodes call a model and name the next node."""
    with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
        model = ChatOpenAI(model="gpt-5", base_url=f"{url}/v1", api_key="-")

        def node(name: str, following: str) -> Any:
            def call(state: MessagesState) -> Command[Any]:
                message = model.invoke([SystemMessage(SYSTEM[name]), *state["messages"]])
                is_end = len(state["messages"]) == 3
                update = {"messages": [("assistant", message.content)]}
                return Command(goto=END if is_end else following, update=update)

            return call

        graph = StateGraph(MessagesState).add_edge(START, "planner")
        graph.add_node("planner", node("planner", "critic"), destinations=("critic", END))
        graph.add_node("critic", node("critic", "planner"), destinations=("planner",))
        graph.compile(name="garden").invoke({"messages": [("user", answers.USER)]})
