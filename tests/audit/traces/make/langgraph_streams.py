"""LangGraph: the streams and the state of nodes, and of LangChain's agents that hand over with tools."""
# requires: langgraph==1.2.24 langchain==1.5.2

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import answers
from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_to_dict,
)
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

PIECE = 30  # characters
start = {"messages": [HumanMessage(answers.USER)]}


class Model(GenericFakeChatModel):
    """A model that answers with its messages in turn, and streams a text in pieces."""

    def bind_tools(self, tools: Any, **options: Any) -> Model:
        return self

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        text = str(next(self.messages).content)
        for position in range(0, len(text), PIECE):
            yield ChatGenerationChunk(message=AIMessageChunk(text[position : position + PIECE]))


def graph() -> Any:
    """Return a graph whose nodes are functions that return Command(goto=...)."""

    def node(system: str, next_name: str, *texts: str) -> Callable[[MessagesState], Command[Any]]:
        model = Model(messages=iter([AIMessage(text) for text in texts]))

        def call(state: MessagesState) -> Command[Any]:
            message = model.invoke([SystemMessage(system), *state["messages"]])
            is_end = len(state["messages"]) == 3
            return Command(goto=END if is_end else next_name, update={"messages": [message]})

        return call

    planner = node(answers.PLANNER_SYSTEM, "critic", answers.PLANNER, answers.PLANNER_AGAIN)
    team = StateGraph(MessagesState).add_edge(START, "planner")
    team.add_node("planner", planner, destinations=("critic", END))
    team.add_node("critic", node(answers.CRITIC_SYSTEM, "planner", answers.CRITIC), destinations=("planner",))
    return team.compile()


def call(text: str, name: str, **arguments: Any) -> AIMessage:
    return AIMessage(text, tool_calls=[{"name": name, "args": arguments, "id": f"call_{name}"}])


@tool
def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def transfer(target: str) -> Any:
    """Return a tool that hands over, with its call and its result, to another node of the team."""

    @tool(f"transfer_to_{target}", description=f"Hand over to the {target}.")
    def hand_over(runtime: ToolRuntime) -> Command[Any]:
        result = ToolMessage(
            f"Transferred to {target}", name=f"transfer_to_{target}", tool_call_id=runtime.tool_call_id
        )
        update = {"messages": [runtime.state["messages"][-1], result]}
        return Command(goto=target, graph=Command.PARENT, update=update)

    return hand_over


def swarm() -> Any:
    """Return a graph whose nodes are agents of LangChain that hand over with tools."""
    planner_script = [
        call("", "measure_beds", garden="school"),
        call(answers.PLANNER, "transfer_to_critic"),
        AIMessage(answers.PLANNER_AGAIN),
    ]
    critic_script = [call(answers.CRITIC, "transfer_to_planner")]
    planner = create_agent(
        Model(messages=iter(planner_script)),
        [measure_beds, transfer("critic")],
        system_prompt=answers.PLANNER_SYSTEM,
        name="planner",
    )
    critic = create_agent(
        Model(messages=iter(critic_script)),
        [transfer("planner")],
        system_prompt=answers.CRITIC_SYSTEM,
        name="critic",
    )
    team = StateGraph(MessagesState).add_edge(START, "planner")
    team.add_node("planner", planner, destinations=("critic", END))
    return team.add_node("critic", critic, destinations=("planner",)).compile()


def plain(value: Any) -> Any:
    """Return the value with the fields of messages instead of messages."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def main() -> None:
    def lines(team: Any, mode: str, **options: Any) -> list[Any]:
        return plain(list(team.stream(start, stream_mode=mode, **options)))

    answers.write("langgraph_updates.jsonl", lines(graph(), "updates"))
    answers.write("langgraph_stream_messages.jsonl", lines(graph(), "messages"))
    answers.write("langgraph_state.json", plain(graph().invoke(start)))
    answers.write("langgraph_swarm_updates.jsonl", lines(swarm(), "updates"))
    answers.write("langgraph_swarm_subgraph_updates.jsonl", lines(swarm(), "updates", subgraphs=True))
    state = swarm().invoke(start)
    answers.write("langgraph_swarm_values.json", plain(state))
    answers.write("langchain_messages_to_dict.json", messages_to_dict(state["messages"]))
    answers.write("langchain_dumpd.json", dumpd(state))


if __name__ == "__main__":
    main()
