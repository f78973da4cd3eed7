"""Chat prompts: one instruct model plays every role of a conversation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from iet.demo.conversation import Turn

TASK = (
    "Our town wants to reopen its public library after a flood. The roof leaks over the reading room, and the"
    " budget pays for either two librarians for a year or new shelves and computers."
)
"""What the team works on. It is in every prompt, and no part of the final text."""

QUESTIONS = {
    "planner": "What should we do first, and why? Which option should the council choose, and why?"
    " What is the plan for the council?",
    "researcher": "What have other towns done in such a case? What do the people need from their library?"
    " Which numbers does the council need before it can decide?",
    "critic": "What could go wrong with this? What have we forgotten? Why might the council vote against it?",
    "engineer": "How do we repair the roof, and how long does it take? How do we protect the books from the"
    " next flood? What has to be checked before people come in again?",
    "writer": "How do we explain this to the people? What should the newspaper say? How do we sum this up?",
    "treasurer": "What does this cost? Where can we save money? Which costs come back every year?",
}
"""What each role is asked, one question a turn."""


def chat_prompts(
    tokenizer: Any, max_prompt_tokens: int = 448
) -> Callable[[str | None, Sequence[Turn]], list[int]]:
    """Return a function that makes the prompt of a turn: the role, the task, the last turns, a question.

    Args:
        tokenizer: of transformers, with a chat template.
        max_prompt_tokens: maximum length of a prompt; the oldest turns are left out, the task stays.
    """
    import jinja2

    def encode(system: str, dialogue: Sequence[str]) -> list[int]:
        roles = itertools.cycle(("user", "assistant"))
        messages = [{"role": role, "content": text} for role, text in zip(roles, dialogue, strict=False)]
        render = functools.partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
        try:
            text = render([{"role": "system", "content": system}, *messages])
        except jinja2.TemplateError:  # a template without a system role
            messages[0]["content"] = f"{system}\n\n{dialogue[0]}"
            text = render(messages)
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def prompt(name: str | None, turns: Sequence[Turn]) -> list[int]:
        role = name if name in QUESTIONS else "writer"
        system = f"You are the {role} of a team. {TASK}"
        questions = QUESTIONS[role].rstrip("?").split("? ")
        question = questions[sum(speaker == name for speaker, _ in turns) % len(questions)] + "?"
        for first in range(len(turns)):
            reply = "\n\n".join(text for _, text in turns[first:])
            ids = encode(system, ("What have we found so far?", reply, question))
            if len(ids) <= max_prompt_tokens:
                return ids
        return encode(system, (question,))

    return prompt
