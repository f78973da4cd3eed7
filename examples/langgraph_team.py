"""A LangGraph team whose calls are marked: the final text alone reveals the graph.

Run `python examples/langgraph_team.py` (it needs `pip install langgraph`). A planner hands over to a
researcher, a critic returns the work once, and a writer finishes the text, which contains no names. The
program prints the recovered agents in order, and each edge of the graph with its confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import torch
from langgraph.graph import END, START, StateGraph

import iet
from iet.demo.conversation import TASK, load_model

AGENTS = ("planner", "researcher", "critic", "writer")
Edge = tuple[str, str]


class State(TypedDict):
    text: str
    reviews: int


def main(tokens: int = 150) -> tuple[iet.Report, set[Edge], dict[Edge, float]]:
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    for agent in AGENTS:
        registry.add(agent)
    model, tokenizer = load_model()

    def call(agent: str, prompt: str) -> str:
        # With a vLLM server two lines replace these; docs/guides/vllm.md shows one that runs on a CPU:
        #   llm = ChatOpenAI(base_url="http://server/v1", model="name", extra_body=iet.agents.body(agent))
        #   return llm.invoke(prompt).content
        inputs = tokenizer(prompt, return_tensors="pt")
        row = model.generate(
            **inputs,
            watermarking_config=iet.WatermarkingConfig(registry, agents=[agent]),
            do_sample=True,
            top_k=0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )[0]
        return tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def node(agent: str) -> Callable[[State], State]:
        def speak(state: State) -> State:
            turn = call(agent, f"{state['text'][-1500:]}\n\n{TASK}").strip()
            return {"text": f"{state['text']} {turn}", "reviews": state["reviews"] + (agent == "critic")}

        return speak

    graph = StateGraph(State)
    for agent in AGENTS:
        graph.add_node(agent, node(agent))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "researcher")
    graph.add_edge("researcher", "critic")
    graph.add_conditional_edges(
        "critic", lambda state: "researcher" if state["reviews"] < 2 else "writer", ["researcher", "writer"]
    )
    graph.add_edge("writer", END)
    team = graph.compile()
    graph_edges = {
        (e.source, e.target) for e in team.get_graph().edges if {e.source, e.target} <= set(AGENTS)
    }

    torch.manual_seed(0)
    text = team.invoke({"text": "", "reviews": 0})["text"]  # the only input of the audit

    report = iet.Auditor(registry).audit(text)
    observed: dict[Edge, float] = {}
    for _, source, target, confidence in report.transitions.observed:
        observed[source, target] = max(confidence, observed.get((source, target), 0.0))
    return report, graph_edges, observed


if __name__ == "__main__":
    report, graph_edges, observed = main()
    print("who wrote, in order:", " → ".join(segment.agent or "?" for segment in report.segments))
    for edge in sorted(graph_edges | observed.keys()):
        seen = f"seen, confidence {observed[edge]:.2f}" if edge in observed else "not seen"
        planned = "in the graph" if edge in graph_edges else "not there"
        print(f"{edge[0]:>10} → {edge[1]:10}  {planned:12}  {seen}")
