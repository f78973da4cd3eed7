"""A LangGraph team with a guard, which ends the run if a message has another agent's mark.

Run `python examples/langgraph_guard.py` (it needs `pip install langgraph`). A planner and a critic take
turns. The third turn is marked with the critic's key but sent under the planner's name. The guard checks
every message and ends the run there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

import iet
from iet.demo.conversation import TASK, load_model


def guard(auditor: iet.Auditor, go_on: str) -> Callable[[MessagesState], Command[str]]:
    """Return a node that continues with another node, or ends the run if a message is contradicted."""

    def check(state: MessagesState) -> Command[str]:
        messages = state["messages"]
        skip = [i for i, message in enumerate(messages) if message.type != "ai"]
        checked = auditor.check([message.text for message in messages], [m.name for m in messages], skip=skip)
        for piece in checked.of("contradicted"):
            why = f"message {piece.index} was sent as {piece.claim} and bears the mark of {piece.agent}"
            return Command(goto=END, update={"messages": [HumanMessage(why, name="guard")]})
        return Command(goto=go_on)

    return check


def main(tokens: int = 120) -> list[AnyMessage]:
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    registry.add_many(["planner", "critic"])
    model, tokenizer = load_model()

    def speaks(name: str, key: str) -> Callable[[MessagesState], Any]:
        def node(state: MessagesState) -> Any:
            prompt = " ".join(message.text for message in state["messages"])[-1500:]
            inputs = tokenizer(f"{prompt}\n\n{TASK}", return_tensors="pt")
            marking = iet.WatermarkingConfig(registry, agents=[key])
            sampling = {"do_sample": True, "top_k": 0, "min_new_tokens": tokens, "max_new_tokens": tokens}
            row = model.generate(**inputs, watermarking_config=marking, **sampling)[0]
            text = tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            return {"messages": [AIMessage(text, name=name)]}

        return node

    auditor = iet.Auditor(registry)
    graph = StateGraph(MessagesState)
    turns = {
        "planner": ("planner", "planner"),
        "critic": ("critic", "critic"),
        "impostor": ("planner", "critic"),
    }
    graph.add_edge(START, "planner")
    for (node, (name, key)), after in zip(turns.items(), ["critic", "impostor", "last"], strict=True):
        graph.add_node(node, speaks(name, key))
        graph.add_node(f"after {node}", guard(auditor, after), destinations=(after, END))
        graph.add_edge(node, f"after {node}")
    graph.add_node("last", speaks("planner", "planner"))
    torch.manual_seed(0)
    conversation: list[AnyMessage] = graph.compile().invoke({"messages": [HumanMessage(TASK)]})["messages"]
    return conversation


if __name__ == "__main__":
    for message in main():
        text = message.text if message.name == "guard" else f"{len(message.text)} characters"
        print(f"{message.name or 'user':>8}: {text}")
