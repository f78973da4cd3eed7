"""Who speaks when, and what each speaker has heard.

`round-major`, as in MAMA: every agent answers the task (Genesis, round 0), then in each of R rounds all
agents speak at once, each from what was said in the round before. The text has the turns round by round,
agents in order. **So the true transition graph is the cycle 0 -> 1 -> .. -> n-1 -> 0 for every topology**:
chain, star and tree only change what agents read, not who follows whom. The paper does not say how its turns
are laid out.

`edge-walk`, our own: n·(1 + R) turns one after another, each speaker a neighbour of the one before, every
edge of the topology used. A hub speaks more often, and the transition graphs of chain, star and tree differ.
An agent speaks from its neighbours' last responses, those before its own first turn included. The walk is
drawn for each record; since every edge is used, every agent speaks.

All agents of a round are one batch, and many records go into one, too; a walk is batched over records.

Early stop: once every entity of a record occurs in one response of the attacker (agent 3), letter for letter,
the conversation ends: after the round in `round-major`, in `edge-walk` after the turn, but not before every
edge was used.

A turn is never empty. Where a model answers nothing (no text, or only blanks, after tags are read), the turn
is drawn again, up to `ATTEMPTS` times, each time longer. If it still says nothing, the turn's text is
`NO_ANSWER`, which carries no mark.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from benchmarks.paper.conversations.author import Author, Row
from benchmarks.paper.conversations.logs import Log, Setting, Turn, check_sampling
from benchmarks.paper.conversations.prompts import ATTACKER, Answer, Heard, parsed, prompt_of
from benchmarks.paper.conversations.records import Record
from benchmarks.paper.marks import agent_name, mark_of
from iet.audit.metrics import token_labels
from iet.decoding.topology import Adjacency, template, walk
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

ATTEMPTS = 3
NO_ANSWER = "..."
_WALKS = 64  # that are tried until one uses every edge


def check_setting(setting: Setting) -> None:
    template(setting.topology, setting.agents)
    if setting.agents <= ATTACKER:
        raise InputError(
            f"agents: got {setting.agents}, expected at least {ATTACKER + 1}, as agent {ATTACKER} attacks"
        )
    mark_of(setting.mark)
    if setting.protocol not in PROTOCOLS:
        raise InputError(f"protocol: got {setting.protocol!r}, expected one of {sorted(PROTOCOLS)}")
    if isinstance(setting.rounds, bool) or not isinstance(setting.rounds, int) or setting.rounds < 0:
        raise InputError(f"rounds: got {setting.rounds!r}, expected an int of at least 0")
    check_sampling(setting.temperature, setting.top_p, setting.repetition_penalty)
    low, high = setting.turn_tokens
    if not 1 <= low <= high:
        raise InputError(f"turn_tokens: got {low} to {high}, expected 1 <= fewest <= most")
    if setting.prompt_tokens < 1:
        raise InputError(f"prompt_tokens: got {setting.prompt_tokens}, expected at least 1")
    if setting.protocol == "edge-walk":
        speakers_of_walk(setting, 0)


def converse(
    author: Author,
    setting: Setting,
    records: Sequence[Record],
    tokenizer: Tokenizer,
    on_turns: Callable[[int], object] = lambda turns: None,
) -> list[Log]:
    """Hold the conversations of some records together, and return a log per record, in their order.

    What is drawn for a turn follows from the setting's topology, agents, protocol and seed, the record, the
    turn and the attempt, not from the mark or the other records. (Sums in another order, as in a batch of
    another shape, change single draws.) `on_turns` is called with the number of turns after each batch.
    """
    check_setting(setting)
    talks = [_Talk(setting, record) for record in records]
    PROTOCOLS[setting.protocol](author, setting, talks, on_turns)
    return [talk.log(tokenizer) for talk in talks]


def speakers_of_walk(setting: Setting, record: int) -> list[int]:
    """Return who speaks in `edge-walk`: n·(1 + R) agents, each a neighbour of the last, every edge used."""
    n, length = setting.agents, setting.agents * (1 + setting.rounds)
    adjacency = template(setting.topology, n)
    edges = int(adjacency.sum()) // 2
    for attempt in range(_WALKS):
        seed = drawn_seed("walk", setting.topology, n, setting.seed, record, attempt)
        steps = walk(adjacency, length, start=seed % n, seed=seed)
        if len({frozenset(step) for step in pairwise(steps)}) == edges:
            return steps
    raise InputError(
        f"rounds: got {setting.rounds}, {length} turns, in which no walk over {setting.topology} with {n}"
        f" agents was found that uses all its {edges} edges"
    )


def drawn_seed(*names: object) -> int:
    """Return 63 bits that follow from some names."""
    text = "iet paper/" + "/".join(map(str, names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class _Talk:
    def __init__(self, setting: Setting, record: Record) -> None:
        self.setting, self.record = setting, record
        self.neighbours: Adjacency = template(setting.topology, setting.agents)
        self.turns: list[Turn] = []
        self.answers: dict[int, Answer] = {}  # of each agent the last one
        self.spoken = [0] * setting.agents
        self.stopped = False
        self.entropies: list[float] = []

    def row(self, agent: int, attempt: int) -> Row:
        own = self.answers.get(agent, Answer(""))
        others = {
            other: self.answers[other].response
            for other in np.flatnonzero(self.neighbours[:, agent]).tolist()
            if other in self.answers
        }
        number = self.spoken[agent]
        prompt = prompt_of(self.record, agent, number, Heard(own.response, own.note, others))
        s = self.setting
        seed = drawn_seed(
            "turn", s.topology, s.agents, s.protocol, s.seed, self.record.index, len(self.turns)
        )
        low, high = s.turn_tokens
        # All turns of a round see the same len(turns), so the agent tells them apart.
        if s.drawn_lengths:
            own_length = int(np.random.default_rng(drawn_seed(seed, agent, "length")).integers(low, high + 1))
            low = high = min(high, own_length + 8 * attempt)
        return Row(prompt, drawn_seed(seed, agent, attempt), min(high, low + 8 * attempt), high)

    def say(self, agent: int, ids: tuple[int, ...], answer: Answer, entropy: float) -> None:
        self.turns.append(Turn(agent, self.spoken[agent], ids, answer.response))
        self.spoken[agent] += 1
        self.answers[agent] = answer
        self.entropies.append(entropy)

    def leaked(self) -> bool:
        """Tell whether the attacker's last response holds every entity."""
        said = self.answers[ATTACKER].response if ATTACKER in self.answers else ""
        return self.setting.early_stop and all(entity in said for entity in self.record.entities)

    def log(self, tokenizer: Tokenizer) -> Log:
        known = [entropy for entropy in self.entropies if entropy == entropy]
        log = Log(self.setting, self.record.index, tuple(self.turns), (), None, self.stopped)
        labels = token_labels(log.spans, tokenizer.encode(log.text).char_ends)
        return dataclasses.replace(
            log, token_spans=runs(labels.tolist()), entropy=float(np.mean(known)) if known else None
        )


def runs(labels: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return `[start, end)` and label of each run of equal labels.

    >>> runs([2, 2, 0])
    ((0, 2, 2), (2, 3, 0))
    """
    starts = [t for t in range(len(labels)) if t == 0 or labels[t] != labels[t - 1]]
    return tuple((s, e, labels[s]) for s, e in zip(starts, [*starts[1:], len(labels)], strict=True))


def _speak(author: Author, turns: Sequence[tuple[_Talk, int]], on_turns: Callable[[int], object]) -> None:
    """Let agents of conversations speak at once: nobody hears what the others of this batch say."""
    said: list[tuple[tuple[int, ...], Answer, float] | None] = [None] * len(turns)
    for attempt in range(1 + ATTEMPTS):
        silent = [i for i, found in enumerate(said) if found is None or not found[1].response]
        if not silent:
            break
        rows = [turns[i][0].row(turns[i][1], attempt) for i in silent]
        agents = [agent_name(turns[i][0].record.index, turns[i][1]) for i in silent]
        for i, found in zip(silent, author.generate(rows, agents), strict=True):
            said[i] = found.ids, parsed(found.text), found.entropy
    for (talk, agent), turn in zip(turns, said, strict=True):
        assert turn is not None
        ids, answer, entropy = turn
        talk.say(agent, ids, answer if answer.response else Answer(NO_ANSWER), entropy)
    on_turns(len(turns))


def _round_major(
    author: Author, setting: Setting, talks: Sequence[_Talk], on_turns: Callable[[int], object]
) -> None:
    for number in range(1 + setting.rounds):
        going = [talk for talk in talks if not talk.stopped]
        if not going:
            break
        _speak(author, [(talk, agent) for talk in going for agent in range(setting.agents)], on_turns)
        for talk in going:
            talk.stopped = number < setting.rounds and talk.leaked()


def _edge_walk(
    author: Author, setting: Setting, talks: Sequence[_Talk], on_turns: Callable[[int], object]
) -> None:
    walks = {id(talk): speakers_of_walk(setting, talk.record.index) for talk in talks}
    edges = int(template(setting.topology, setting.agents).sum()) // 2
    for step in range(setting.agents * (1 + setting.rounds)):
        going = [talk for talk in talks if not talk.stopped]
        if not going:
            break
        _speak(author, [(talk, walks[id(talk)][step]) for talk in going], on_turns)
        for talk in going:
            steps = walks[id(talk)]
            used = {frozenset(pair) for pair in pairwise(steps[: step + 1])}
            talk.stopped = (
                step + 1 < len(steps) and len(used) == edges and steps[step] == ATTACKER and talk.leaked()
            )


PROTOCOLS: Mapping[str, Callable[[Author, Setting, Sequence[_Talk], Callable[[int], object]], None]] = {
    "round-major": _round_major,
    "edge-walk": _edge_walk,
}
"""Name -> who speaks when."""
