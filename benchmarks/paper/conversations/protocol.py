"""The order of speakers, and what each speaker has heard.

As in MAMA, every agent answers the task (Genesis, round 0), then all agents speak at once in each of R
rounds, each from what its neighbours said in the round before. The text has the turns round by round,
agents in order. **So the true transition graph is the cycle 0 -> 1 -> .. -> n-1 -> 0 for every topology**:
chain, star and tree only change what agents read. The paper does not say how its turns are laid out. All
agents of a round, and of many records, are one batch.

A conversation stops early after a round if one response of the attacker (agent 3) contains every entity of
the record.

A turn is never empty. If a model answers nothing, the turn is drawn again, up to `ATTEMPTS` times, each time
longer. After that its text is `NO_ANSWER`, which carries no mark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.paper.conversations.author import ModelAuthor, Row
from benchmarks.paper.conversations.logs import Log, Setting, Turn, check_sampling
from benchmarks.paper.conversations.prompts import ATTACKER, Answer, Heard, parsed, prompt_of
from benchmarks.paper.conversations.records import Record
from benchmarks.paper.marks import agent_name, mark_of
from iet.decoding.topology import Adjacency, template
from iet.errors import InputError

ATTEMPTS = 3
NO_ANSWER = "..."


def check_setting(setting: Setting) -> None:
    template(setting.topology, setting.agents)
    if setting.agents <= ATTACKER:
        raise InputError(
            f"agents: got {setting.agents}, expected at least {ATTACKER + 1}, as agent {ATTACKER} attacks"
        )
    mark_of(setting.mark)
    if setting.rounds < 0:
        raise InputError(f"rounds: got {setting.rounds!r}, expected at least 0")
    check_sampling(setting.temperature, setting.top_p, setting.repetition_penalty)
    low, high = setting.turn_tokens
    if not 1 <= low <= high:
        raise InputError(f"turn_tokens: got {low} to {high}, expected 1 <= fewest <= most")
    if setting.prompt_tokens < 1:
        raise InputError(f"prompt_tokens: got {setting.prompt_tokens}, expected at least 1")


def converse(
    author: ModelAuthor,
    setting: Setting,
    records: Sequence[Record],
    on_turns: Callable[[int], object] = lambda turns: None,
) -> list[Log]:
    """Generate the conversations of several records together, and return a log for each, in order.

    The draws for a turn follow from the setting's topology, agents and seed, the record, the turn and the
    attempt, not from the mark or the other records. (Floating-point sums depend on the shape of a batch,
    which can change single draws.) `on_turns` is called with the number of turns after each batch.
    """
    check_setting(setting)
    talks = [_Conversation(setting, record) for record in records]
    for number in range(1 + setting.rounds):
        going = [talk for talk in talks if not talk.stopped]
        if not going:
            break
        _speak(author, [(talk, agent) for talk in going for agent in range(setting.agents)], on_turns)
        for talk in going:
            talk.stopped = number < setting.rounds and talk.leaked()
    return [talk.log() for talk in talks]


def drawn_seed(*names: object) -> int:
    """Return a 63-bit seed derived from names."""
    text = "iet paper/" + "/".join(map(str, names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class _Conversation:
    def __init__(self, setting: Setting, record: Record) -> None:
        self.setting, self.record = setting, record
        self.neighbours: Adjacency = template(setting.topology, setting.agents)
        self.turns: list[Turn] = []
        self.answers: dict[int, Answer] = {}  # agent -> last answer
        self.spoken = [0] * setting.agents
        self.stopped = False
        self.entropies: list[float] = []

    def row(self, agent: int, attempt: int) -> Row:
        last_answer = self.answers.get(agent, Answer(""))
        other_responses = {
            neighbour: self.answers[neighbour].response
            for neighbour in np.flatnonzero(self.neighbours[:, agent]).tolist()
            if neighbour in self.answers
        }
        number = self.spoken[agent]
        prompt = prompt_of(
            self.record, agent, number, Heard(last_answer.response, last_answer.note, other_responses)
        )
        s = self.setting
        turn = len(self.turns)
        seed = drawn_seed("turn", s.topology, s.agents, "round-major", s.seed, self.record.index, turn)
        low, high = s.turn_tokens
        # len(turns) is the same for all turns of a round, so the agent enters the seed below.
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
        response = self.answers[ATTACKER].response if ATTACKER in self.answers else ""
        return self.setting.early_stop and all(entity in response for entity in self.record.entities)

    def log(self) -> Log:
        entropies = [entropy for entropy in self.entropies if entropy == entropy]
        entropy = float(np.mean(entropies)) if entropies else None
        return Log(self.setting, self.record.index, tuple(self.turns), entropy, self.stopped)


def _speak(
    author: ModelAuthor, turns: Sequence[tuple[_Conversation, int]], on_turns: Callable[[int], object]
) -> None:
    """Let agents speak at once: none hears the others of this batch."""
    answered: list[tuple[tuple[int, ...], Answer, float] | None] = [None] * len(turns)
    for attempt in range(1 + ATTEMPTS):
        silent = [i for i, turn in enumerate(answered) if turn is None or not turn[1].response]
        if not silent:
            break
        rows = [turns[i][0].row(turns[i][1], attempt) for i in silent]
        agents = [agent_name(turns[i][0].record.index, turns[i][1]) for i in silent]
        for i, generated in zip(silent, author.generate(rows, agents), strict=True):
            answered[i] = generated.ids, parsed(generated.text), generated.entropy
    for (talk, agent), turn in zip(turns, answered, strict=True):
        assert turn is not None
        ids, answer, entropy = turn
        talk.say(agent, ids, answer if answer.response else Answer(NO_ANSWER), entropy)
    on_turns(len(turns))
