"""The team in LangGraph: nodes that call a model and name the next node, or LangChain's agents in turn."""

from __future__ import annotations

from typing import Any

import answers
from langchain.agents import create_agent
from langchain_core.messages import SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}


def run_nodes(config: Any = None) -> dict[str, Any]:
    """Return the state of a graph whose nodes are functions that return Command(goto=...)."""
    with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
        model = ChatOpenAI(model="gpt-5", base_url=f"{url}/v1", api_key="-")

        def node(name: str, next_name: str) -> Any:
            def call(state: MessagesState) -> Command[Any]:
                message = model.invoke([SystemMessage(SYSTEM[name]), *state["messages"]])
                message.name = name
                is_end = len(state["messages"]) == 3
                return Command(goto=END if is_end else next_name, update={"messages": [message]})

            return call

        graph = StateGraph(MessagesState).add_edge(START, "planner")
        graph.add_node("planner", node("planner", "critic"), destinations=("critic", END))
        graph.add_node("critic", node("critic", "planner"), destinations=("planner",))
        return graph.compile(name="garden").invoke({"messages": [("user", answers.USER)]}, config)


def run_agents(config: Any = None) -> dict[str, Any]:
    """Return the state of a graph whose nodes are agents of LangChain, each with one text."""
    with answers.server(answers.PLANNER, answers.CRITIC) as url:
        model = ChatOpenAI(model="gpt-5", base_url=f"{url}/v1", api_key="-")
        planner = create_agent(model, [], system_prompt=answers.PLANNER_SYSTEM, name="planner")
        critic = create_agent(model, [], system_prompt=answers.CRITIC_SYSTEM, name="critic")
        graph = StateGraph(MessagesState).add_node("planner", planner).add_node("critic", critic)
        graph.add_edge(START, "planner").add_edge("planner", "critic")
        return graph.compile(name="garden").invoke({"messages": [("user", answers.USER)]}, config)
