"""Stage a conversation of marked agents: a walk along a topology, generated a round at a time."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from iet.audit.progress_bars import no_progress_bars
from iet.decoding.topology import template, walk
from iet.errors import InputError, check_number, missing
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

Turn: TypeAlias = "tuple[str | None, str]"
"""A speaker and the text of one turn."""

JOINER = " "
"""The text between turns: one space, which occurs everywhere inside turns too."""


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A text, and the truth about it.

    Attributes:
        text: the turns, joined; all that survives.
        spans: one per turn, over the characters of `text`; a joiner belongs to the turn after it.
        speakers: agents in the order of the turns, None for an unmarked one.
        token_ids: the ids that the model drew for the text of each turn.
        entropy: mean entropy of the sampler's distribution, in nats a token; None if nothing was generated.
    """

    text: str
    spans: tuple[Span, ...]
    speakers: tuple[str | None, ...]
    token_ids: tuple[tuple[int, ...], ...] = ()
    entropy: float | None = None

    def truth(self) -> dict[str, Any]:
        """Return the JSON form of the truth, without the text."""
        return {
            "speakers": list(self.speakers),
            "turns": [{"char_start": s.start, "char_end": s.end, "agent": s.agent} for s in self.spans],
        }


def load_model(path: str | pathlib.Path = MODEL, chat: bool = False) -> tuple[Any, Any]:
    """Return a causal language model of transformers in float32 evaluation mode, and its tokenizer.

    Args:
        path: a folder or an id on the Hub.
        chat: refuse a tokenizer without a chat template, before the model is loaded.

    Raises:
        BackendUnavailable: torch or transformers is missing.
        InputError: the model or its chat template is missing.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise missing(f"generating text: {error}", "transformers") from None
    tokenizer = _load(transformers.AutoTokenizer, path, padding_side="left")
    if chat and not tokenizer.chat_template:
        raise InputError(f"model: {str(path)!r} has no chat template; expected an instruct model")
    model = _load(transformers.AutoModelForCausalLM, path, dtype=torch.float32)
    model.train(False)
    return model, tokenizer


def _load(kind: Any, path: str | pathlib.Path, **options: Any) -> Any:
    try:
        with no_progress_bars():
            return kind.from_pretrained(path, **options)
    except Exception as error:  # of transformers, safetensors or the Hub
        reason = " ".join(str(error).split())
        raise InputError(f"model: {str(path)!r} holds no causal language model ({reason:.300})") from None


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
    prompt: Callable[[str | None, Sequence[Turn]], list[int]] | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    turn_tokens: tuple[int, int] = (150, 250),
    max_prompt_tokens: int = 1024,
    seed: int = 0,
    words: Iterable[str] | None = None,
    on_step: Callable[[float], object] = lambda done: None,
) -> Conversation:
    """Let marked agents write a text together.

    All rows of a round are one batch, generated from the task and the text before that round.

    Args:
        model, tokenizer: of transformers, as `load_model` returns them.
        registry: holds every agent's key.
        rounds: the speakers of each round, one row of the batch for each; None speaks unmarked.
        task: the prompt.
        prompt: returns the ids of a speaker's prompt in place of the task and the text, as `iet.demo.chat`
            does. The model may then end a turn itself; a turn that it does not end is cut after a sentence.
        temperature, top_p: of the sampler; κ counts after both.
        turn_tokens: lengths are drawn uniformly from [low, high]. No turn ends earlier than at `low`, without
            `prompt` none ends earlier than its length.
        max_prompt_tokens: maximum length of the prompt; the oldest text is cut off, the task stays.
        seed: draws lengths and tokens. Two runs on one machine and version of torch agree to the bit.
        words: a list; a turn is then of whole sentences of these words alone: what is cut inside a sentence
            falls away, unless the turn has no other. None: whatever the model samples.
        on_step: called after every step of a batch, with the number of rounds written so far.

    Returns:
        The conversation. Costs one `generate` a round.
    """
    import torch
    import transformers

    from iet.demo.words import Sentences, whole_sentences
    from iet.generation.transformers import WatermarkingConfig

    warpers: list[Any] = [transformers.TemperatureLogitsWarper(float(temperature))]
    if top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(float(top_p)))
    nats = list[float]()
    done = 0.0

    class Meter(transformers.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            nonlocal done
            sampled = scores
            for warper in warpers:
                sampled = warper(input_ids, sampled)
            log_q = sampled.log_softmax(dim=-1)
            nats.extend((-log_q.exp() * log_q).nansum(dim=-1).tolist())
            done += 1 / max(lengths)
            on_step(done)
            return scores

    sentences = [] if words is None else [Sentences(tokenizer, words)]
    draw = random.Random(seed)
    text, spans, turns, drawn = "", list[Span](), list[Turn](), list[tuple[int, ...]]()
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    for number, names in enumerate(rounds):
        done = float(number)
        lengths = [draw.randint(*turn_tokens) for _ in names]
        if prompt is None:
            task_ids = tokenizer(task, add_special_tokens=False).input_ids
            tail = tokenizer(text, add_special_tokens=False).input_ids
            prompts = [task_ids + tail[max(0, len(tail) - max(0, max_prompt_tokens - len(task_ids))) :]]
            prompts *= len(names)
        else:
            prompts = [prompt(name, turns) for name in names]
        width = max(map(len, prompts))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(63))
            output = model.generate(
                input_ids=torch.tensor([[pad] * (width - len(ids)) + ids for ids in prompts]),
                attention_mask=torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]),
                watermarking_config=WatermarkingConfig(registry, names),
                do_sample=True,
                temperature=temperature,
                top_p=top_p,
                top_k=0,
                min_new_tokens=max(lengths) if prompt is None else turn_tokens[0],
                max_new_tokens=max(lengths),
                pad_token_id=pad,
                logits_processor=[*sentences, Meter()],
            )
        for name, row, length in zip(names, output[:, width:].tolist(), lengths, strict=True):
            turn = tokenizer.decode(row[:length], skip_special_tokens=True).strip()
            # A cut inside a character decodes to U+FFFD, which the model did not sample.
            turn = turn.strip("\ufffd").strip()
            is_cut = prompt is not None and not set(row[:length]) & set(tokenizer.all_special_ids)
            if sentences or is_cut:
                turn = whole_sentences(turn)
            end = length
            while end and turn in tokenizer.decode(row[: end - 1], skip_special_tokens=True):
                end -= 1
            start = len(text)
            text += (JOINER if text else "") + turn
            spans.append(Span(start, len(text), name))
            turns.append((name, turn))
            drawn.append(tuple(row[:end]))
    speakers = tuple(name for name, _ in turns)
    return Conversation(text, tuple(spans), speakers, tuple(drawn), sum(nats) / len(nats) if nats else None)
