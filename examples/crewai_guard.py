"""A CrewAI guardrail: an answer that its agent did not write is sent back.

Run `python examples/crewai_guard.py` (it needs `pip install crewai`). The planner's first answer is
marked with the critic's key, so the guardrail sends it back. The second one has the planner's own mark and is
accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from crewai import Agent, BaseLLM, Crew, Task, TaskOutput

import iet
from iet.demo.conversation import TASK, load_model


def guardrail(auditor: iet.Auditor) -> Callable[[TaskOutput], tuple[bool, Any]]:
    """Return a guardrail that rejects an answer marked by another agent than its role."""

    def check(output: TaskOutput):  # CrewAI cannot read postponed annotations
        (piece,) = auditor.check([output.raw], [output.agent]).pieces
        if piece.verdict == "contradicted":
            print(f"sent back: it was sent as {piece.claim} and bears the mark of {piece.agent}")
            return False, f"This is the text of {piece.agent}, not of {piece.claim}. Answer yourself."
        print(f"{piece.verdict}: it was sent as {piece.claim}")
        return True, output.raw

    return check


class Marked(BaseLLM):
    """The package's small model; each answer is marked with the next key."""

    written: Any = None

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        return f"Final Answer: {next(self.written)}"


def main(tokens: int = 120) -> str:
    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=iet.Scheme(family="gumbel"))
    registry.add_many(["planner", "critic"])
    model, tokenizer = load_model()
    torch.manual_seed(0)

    def texts() -> Any:
        inputs = tokenizer(TASK, return_tensors="pt")
        for key in ("critic", "planner"):
            marking = iet.WatermarkingConfig(registry, agents=[key])
            sampling = {"do_sample": True, "top_k": 0, "min_new_tokens": tokens, "max_new_tokens": tokens}
            row = model.generate(**inputs, watermarking_config=marking, **sampling)[0]
            yield tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    planner = Agent(
        role="planner", goal="plan", backstory="plans", llm=Marked(model="iet:demo", written=texts())
    )
    # The guard checks every answer, so it needs a low false-positive rate.
    guard = guardrail(iet.Auditor(registry, level=0.001))
    task = Task(description=TASK, expected_output="a plan", agent=planner, guardrail=guard)
    return Crew(agents=[planner], tasks=[task]).kickoff().raw


if __name__ == "__main__":
    print(f"accepted: {len(main())} characters")
