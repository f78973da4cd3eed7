"""Stage a conversation of marked agents: a walk along a topology, generated a round at a time."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from iet.audit.language_model import no_progress_bars
from iet.decoding.topology import template, walk
from iet.errors import check_number, missing
from iet.marks.registry import Registry
from iet.report import Span

MODEL = pathlib.Path(__file__).parent / "model"
"""Folder of the model that ships with the package."""

WORDS = pathlib.Path(__file__).parent / "words.txt"
"""Words of the speeches that the model was trained on, one a line (`benchmarks/lm/words.py` lists them)."""

TASK = (
    "A small city wants to reopen its public library after the flood. The roof leaks over the reading room, "
    "half of the catalogue is on paper, and the budget covers either two librarians for a year or new "
    "shelves and computers. The mayor asks for a plan that the council can vote on next week. "
    "Discuss what should be done first, what it costs, and what could go wrong."
)
"""A task for agents. It is their prompt, and no part of the final text."""

ADDRESS = (
    "To the Congress of the United States: The people of our country have asked for a plan, and in this"
    " report we say what should be done first, what it costs, and what could go wrong."
)
"""The prompt of the demo: such addresses are the easiest to read of all that the model was trained on."""

ROLES = ("planner", "researcher", "critic", "engineer", "writer", "treasurer")
"""Names of the demo's agents, 4 to 6 of them."""

JOINER = " "
"""The text between turns: one space, which occurs everywhere inside turns too."""


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A text, and the truth about it.

    Attributes:
        text: the turns, joined; all that survives.
        spans: one per turn, over the characters of `text`; a joiner belongs to the turn after it.
        speakers: agents in the order of the turns, None for an unmarked one.
    """

    text: str
    spans: tuple[Span, ...]
    speakers: tuple[str | None, ...]

    def truth(self) -> dict[str, Any]:
        """Return the JSON form of the truth, without the text."""
        return {
            "speakers": list(self.speakers),
            "turns": [{"char_start": s.start, "char_end": s.end, "agent": s.agent} for s in self.spans],
        }


def load_model(path: str | pathlib.Path = MODEL) -> tuple[Any, Any]:
    """Return a causal language model of transformers in float32 evaluation mode, and its tokenizer.

    Raises:
        BackendUnavailable: torch or transformers is missing.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise missing(f"generating text: {error}", "transformers") from None
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
    with no_progress_bars():
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.train(False)
    return model, tokenizer


def speakers_of_walk(topology: str, agents: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """Return the speakers of every round: a walk along the edges, with a turn for each agent in a round.

    Raises:
        InputError: unknown topology, fewer than two agents, or rounds out of range.
    """
    check_number("rounds", rounds, 1, 1000)
    n = len(agents)
    steps = walk(template(topology, n), n * rounds, seed=seed)
    return [[agents[i] for i in steps[r * n : (r + 1) * n]] for r in range(rounds)]


def converse(
    model: Any,
    tokenizer: Any,
    registry: Registry,
    rounds: Sequence[Sequence[str | None]],
    *,
    task: str = TASK,
    temperature: float = 1.0,
    top_p: float = 1.0,
    turn_tokens: tuple[int, int] = (150, 250),
    max_prompt_tokens: int = 1024,
    seed: int = 0,
    words: Iterable[str] | None = None,
    on_token: Callable[[], object] = lambda: None,
) -> Conversation:
    """Let marked agents write a text together.

    All rows of a round are one batch, generated from the task and the text before that round.

    Args:
        model, tokenizer: of transformers, as `load_model` returns them.
        registry: holds every agent's key.
        rounds: the speakers of each round, one row of the batch for each; None speaks unmarked.
        task: the prompt.
        temperature, top_p: of the sampler; κ counts after both.
        turn_tokens: lengths are drawn uniformly from [low, high]. No turn ends earlier.
        max_prompt_tokens: maximum length of the prompt; the oldest text is cut off, the task stays.
        seed: draws lengths and tokens. Two runs on one machine and version of torch agree to the bit.
        words: a list; a turn is then of whole sentences of these words alone: what is cut inside a sentence
            falls away, unless the turn has no other. None: whatever the model samples.
        on_token: called after every step of a batch.

    Returns:
        The conversation. Costs one `generate` a round.
    """
    import torch
    import transformers

    from iet.generation.transformers import WatermarkingConfig

    class Step(transformers.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            on_token()
            return torch.zeros(len(input_ids), dtype=torch.bool)

    sentences = None
    if words is not None:
        from iet.demo.words import Sentences, whole_sentences

        sentences = Sentences(tokenizer, words)
    draw = random.Random(seed)
    text, spans, speakers = "", list[Span](), list[str | None]()
    for names in rounds:
        lengths = [draw.randint(*turn_tokens) for _ in names]
        task_ids = tokenizer(task, add_special_tokens=False).input_ids
        tail = tokenizer(text, add_special_tokens=False).input_ids
        prompt = task_ids + tail[max(0, len(tail) - max(0, max_prompt_tokens - len(task_ids))) :]
        ids = torch.tensor([prompt] * len(names))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(63))
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                watermarking_config=WatermarkingConfig(registry, names),
                do_sample=True,
                temperature=temperature,
                top_p=top_p,
                top_k=0,
                min_new_tokens=max(lengths),
                max_new_tokens=max(lengths),
                pad_token_id=tokenizer.pad_token_id,
                logits_processor=[] if sentences is None else [sentences],
                stopping_criteria=[Step()],
            )
        for name, row, length in zip(names, output[:, len(prompt) :], lengths, strict=True):
            turn = tokenizer.decode(row[:length], skip_special_tokens=True).strip()
            # A cut inside a character decodes to U+FFFD, which nobody sampled.
            turn = turn.strip("\ufffd").strip()
            if sentences is not None:
                turn = whole_sentences(turn)
            start = len(text)
            text += (JOINER if text else "") + turn
            spans.append(Span(start, len(text), name))
            speakers.append(name)
    return Conversation(text, tuple(spans), tuple(speakers))
