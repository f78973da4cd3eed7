"""Mark with transformers: two agents write with one model, and the text alone separates them.

Run `python examples/mark_with_transformers.py` (it needs the extra `demo`). It prints the report on some 440
tokens: a segment of the planner's and one of the critic's, with the evidence for each and its assumptions.
"""

from __future__ import annotations

import torch
import transformers

import iet
from iet.demo.conversation import MODEL  # or any causal language model of transformers


def main(tokens: int = 220) -> iet.Report:
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

    registry = iet.Registry.create(None, tokenizer=tokenizer)  # a path instead of None writes a private file
    registry.add("planner")
    registry.add("critic")

    prompts = ["The plan is to begin with", "What worries me about that plan is"]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    marking = iet.WatermarkingConfig(registry, agents=["planner", "critic"])  # one agent per row
    torch.manual_seed(0)
    rows = model.generate(
        **inputs,
        watermarking_config=marking,
        do_sample=True,
        top_k=0,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
    )
    turns = tokenizer.batch_decode(rows[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    text = " ".join(turns)  # the only input of the audit

    return iet.Auditor(registry).audit(text)


if __name__ == "__main__":
    print(main())
