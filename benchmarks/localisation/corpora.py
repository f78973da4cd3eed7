"""What is read: published scores of one key, drawn scores of several, and texts of the shipped model.

A corpus is read on its later texts, and what is tuned or estimated is so on its first ones.

* Published: the score files of WISER (Bonnerjee et al. 2025), from a folder. 31 of its 34 files hold scores
  ("pivots"). In 28 of these the intervals that `configuration` names as marked stand out: Gumbel-max, green
  lists, permute-and-flip and inverse sampling by OPT, Gemma, Sheared-LLaMA, Mistral and Llama 3. In the three
  named synthid they do not (means of both parts are equal within chance), so these count as unmarked. The
  three without scores are unmarked texts, scored here as their green lists and Gumbel noise would have been.
  Infinite scores become the largest finite one of their file.
* Moved: the same scores at places that are drawn for each text. In a published file all texts have one
  layout, of whose ends most are multiples of 25, and one noise at each place (its seed is the place's), so
  whoever is tuned on some texts has learnt where the others are marked, and which tokens stand out there.
* Drawn: lengths, agents and scores of stated laws.
* Written: turns of the shipped model under marks of `iet`, cut to drawn lengths, tokenized again as one text.
  One of the speakers is not in the registry, so his turns are nobody's. The model runs in float64, so that
  they are the same texts everywhere.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.localisation import bayes
from benchmarks.localisation.laws import GREEN, INVERSE, THREE_BITS, Floats, draw, standardised
from iet.decoding import Segmentation
from iet.errors import InputError
from iet.marks.families import FAMILIES, Family

TUNING = 20
"""Texts of a published file that are not reported; a third as many of ours."""

LAWS = {
    "gumbel": FAMILIES["gumbel"],
    "pf": FAMILIES["gumbel"],  # -log u of a low u: the same law
    "redgreen": GREEN,
    "strong": GREEN,
    "weak": GREEN,
    "inverse": INVERSE,
    "synthid": THREE_BITS,
}
"""Name of a mark in the published files -> law of its scores."""


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """A text as it is read.

    Attributes:
        scores: float32 [T, A].
        truth: the agent of each token [T], -1 nobody.
        more: what else `decode` takes.
        kinds: of each token [T], how much of it was there before, where that is known: small integers. The
            law of marked scores depends on it, and the Bayes reader knows how.
        text: what was written; None: scores alone are known or drawn.
        ids: int64 [T], its tokens.
    """

    scores: NDArray[np.float32]
    truth: NDArray[np.int64]
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    kinds: NDArray[np.int64] | None = None
    text: str | None = None
    ids: NDArray[np.int64] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Texts of one kind.

    Attributes:
        group: "published", "moved", "unmarked", "drawn" or "written".
        family: the null law of the scores.
        tuning: texts that nothing is reported of.
        lengths: what the Bayes reader knows of the layout; None: it does not read.
        strength: λ of the scores' law where that is known; None: it is estimated.
        tuned_with: the family of `tuning`, where those are others' texts.
    """

    name: str
    group: str
    family: Family
    tuning: Sequence[Text]
    texts: Sequence[Text]
    lengths: bayes.Lengths | None = None
    strength: float | None = None
    tuned_with: Family | None = None


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A kind of drawn text: agents speak 40 to 160 tokens with marks of one strength, a quarter is not."""

    family: str
    strength: float
    agents: int
    tokens: int = 1000
    shortest: int = 40
    longest: int = 160
    nobody: float = 0.25

    @property
    def name(self) -> str:
        return f"drawn, {self.family} λ = {self.strength:g}, {self.agents} agents"


DRAWN = tuple(
    Drawn(family, strength, agents)
    for family, strength in (("fourier", 0.8), ("green list", 0.6), ("gumbel", 0.5))
    for agents in (2, 4, 8)
)

Cell = tuple[str, float, int]  # family, temperature, agents of the registry
WRITTEN: tuple[Cell, ...] = (
    *(("fourier", 1.0, agents) for agents in (2, 5, 8)),
    *(("gumbel", 1.0, agents) for agents in (2, 5, 8)),
    ("gumbel", 0.5, 5),
)
_TURNS, _SHORTEST, _LONGEST = 18, 30, 120
_AT_ONCE = 6  # texts that are written together: one of them is the same only beside the others
_LEAST_GAP = 20


def published(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the score files of a folder.

    Raises:
        InputError: there are none.
    """
    found = sorted(folder.glob("data_*.json"))
    if not found:
        raise InputError(f"--data: got {folder}, expected a folder with data_*.json")
    return found


def of_file(path: pathlib.Path, texts: int) -> list[Corpus]:
    """Return the corpora of a published file: as it is and `moved`; without scores, as two marks."""
    content = _content(path)
    configuration, data = content["configuration"], content["data"]
    marks = {mark for _, _, mark in configuration["intervals"]} - {"unwatermarked"}
    name = path.stem.removeprefix("data_")
    if len(marks) > 1 or not marks <= set(LAWS):
        raise InputError(f"{path.name}: got marks {sorted(marks)}, expected one of {sorted(LAWS)}")
    if not marks:
        ids = np.array([row["gen_tokens"] for row in data[TUNING : TUNING + texts]])
        return [
            _unmarked(f"{name}, as {mark}", path, LAWS[mark], noise_scores(ids, mark, configuration))
            for mark in ("gumbel", "redgreen")
        ]
    mark = marks.pop()
    raw = np.array([row["pivots"] for row in data], np.float64)
    raw[np.isinf(raw)] = raw[np.isfinite(raw)].max()
    family = LAWS[mark]
    scores = standardised(raw, family)
    if mark == "synthid":
        return [_unmarked(name, path, family, scores[TUNING : TUNING + texts])]
    truth = np.full(raw.shape[1], -1)
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for start, end, kind in configuration["intervals"]:
        sizes[kind == mark].append(end - start)
        truth[start:end] = 0 if kind == mark else -1
    laws = [bayes.uniform(min(sizes[own]) // 2, 2 * max(sizes[own])) for own in (True, False)]
    lengths = bayes.Lengths(laws[0], laws[1], np.array([0.5, 0.5]), np.array([0.0, 1.0]))
    every = [Text(row[:, None].astype(np.float32), truth) for row in scores]
    corpus = Corpus(name, "published", family, every[:TUNING], every[TUNING : TUNING + texts], lengths)
    return [corpus, moved(corpus)]


def moved(corpus: Corpus) -> Corpus:
    """Return the corpus with the scores of each text at other places of their kind, intervals at drawn ones.

    Intervals have the lengths that they have in the file, in any order, and what lies around them is drawn
    evenly from all that leaves `_LEAST_GAP` unmarked tokens, or as many as there are room for, on each side.
    """
    assert corpus.lengths is not None
    rng = np.random.default_rng([*corpus.name.encode()])
    tuning, texts = ([_moved_text(text, rng) for text in each] for each in (corpus.tuning, corpus.texts))
    free = int((corpus.tuning[0].truth < 0).sum())
    lengths = dataclasses.replace(corpus.lengths, nobody=bayes.uniform(min(_LEAST_GAP, free), free))
    return Corpus(f"{corpus.name}, moved", "moved", corpus.family, tuning, texts, lengths)


def _moved_text(text: Text, rng: np.random.Generator) -> Text:
    spans = Segmentation(text.truth.astype(np.int32)).segments
    marked = rng.permutation([span.end - span.start for span in spans if span.agent >= 0])
    free = len(text.truth) - int(marked.sum())
    least = min(_LEAST_GAP, free // (len(marked) + 1))
    room = free - least * (len(marked) + 1)
    inner = np.sort(rng.integers(0, room + 1, len(marked)))
    gaps = np.diff(np.concatenate([[0], inner, [room]])) + least
    lengths = np.append(np.stack([gaps[:-1], marked], axis=1).ravel(), gaps[-1])
    truth = np.repeat(np.arange(len(lengths)) % 2 - 1, lengths)
    scores = np.empty_like(text.scores)
    for agent in (-1, 0):
        scores[truth == agent] = rng.permutation(text.scores[text.truth == agent])
    return Text(scores, truth)


def _unmarked(name: str, path: pathlib.Path, family: Family, scores: Floats) -> Corpus:
    """Return unmarked texts, to be read with what is tuned on a marked file of the same model."""
    model = path.stem.rpartition("_")[0]
    ours = "gumbel" if family is FAMILIES["gumbel"] else "redgreen"
    marked = next(
        found
        for found in (path.with_name(f"{model}_{ours}.json"), path.with_name(f"{model}_redgreen.json"))
        if found.is_file()
    )
    like = of_file(marked, 0)[0]
    nobody = np.full(scores.shape[1], -1)
    texts = [Text(row[:, None].astype(np.float32), nobody) for row in scores]
    return Corpus(name, "unmarked", family, like.tuning, texts, tuned_with=like.family)


def noise_scores(ids: NDArray[np.int64], mark: str, configuration: dict[str, Any]) -> Floats:
    """Return the scores of ids [N, T] under a published key, "gumbel" or "redgreen".

    Its noise at output token t is that of a torch generator seeded with its seed + prompt tokens + t: uniform
    numbers u of all V tokens, and scores -log(1 - u); or a permutation, of which the first quarter is green.
    The scores of the published marked files come out to 5e-7.
    """
    import torch

    size = configuration["vocab_size"]
    scores = np.empty(ids.shape)
    for t in range(ids.shape[1]):
        generator = torch.Generator().manual_seed(
            configuration["initial_seed"] + configuration["prompt_tokens"] + t
        )
        if mark == "gumbel":
            scores[:, t] = -np.log1p(-torch.rand(size, generator=generator).numpy()[ids[:, t]].astype(float))
        else:
            green = np.zeros(size)
            green[torch.randperm(size, generator=generator).numpy()[: round(size / 4)]] = 1
            scores[:, t] = (green[ids[:, t]] - 0.25) / (0.25 * 0.75) ** 0.5
    return scores


def of_law(law: Drawn, texts: int) -> list[Corpus]:
    """Return drawn texts; the same for the same law, however many."""
    family = GREEN if law.family == GREEN.name else FAMILIES[law.family]
    shares = np.append(np.full(law.agents, (1 - law.nobody) / law.agents), law.nobody)
    length = bayes.uniform(law.shortest, law.longest)
    drawn = [_text_of_law(law, family, shares, index) for index in range(TUNING // 3 + texts)]
    corpus = Corpus(
        law.name,
        "drawn",
        family,
        drawn[: TUNING // 3],
        drawn[TUNING // 3 :],
        bayes.Lengths(length, length, shares, shares),
        law.strength,
    )
    return [corpus]


def _text_of_law(law: Drawn, family: Family, shares: Floats, index: int) -> Text:
    rng = np.random.default_rng([law.agents, index, *law.family.encode()])
    truth = np.empty(law.tokens, np.int64)
    speaker, start = int(rng.choice(len(shares), p=shares)), 0
    while start < law.tokens:
        end = start + int(rng.integers(law.shortest, law.longest + 1))
        truth[start:end] = speaker if speaker < law.agents else -1
        others = np.where(np.arange(len(shares)) == speaker, 0, shares)
        speaker, start = int(rng.choice(len(shares), p=others / others.sum())), end
    scores = draw(family, 0.0, rng, (law.tokens, law.agents))
    marked = np.flatnonzero(truth >= 0)
    scores[marked, truth[marked]] = draw(family, law.strength, rng, len(marked))
    return Text(scores.astype(np.float32), truth)


def written(cell: Cell, texts: int, work: pathlib.Path | None = None) -> list[Corpus]:
    """Return texts of the shipped model; the same for the same cell, however many. `work` keeps its turns."""
    from benchmarks.accuracy import texts as sampled

    family, temperature, agents = cell
    voices = sampled.Cell("shipped", temperature, agents + 1, family)
    count = TUNING // 3 + texts
    path = work and work / f"localisation-float64-{voices.name}-{count}.npz"
    if path is not None and path.is_file():
        turns = sampled.read(path, voices)
    else:
        from iet.demo.conversation import load_model

        model = load_model(sampled.MODELS["shipped"])[0].double()
        turns = []
        for first in range(0, count, _AT_ONCE):
            together = range(first, first + _AT_ONCE)
            seeds = [sampled.text_seed(voices, "localisation", index) for index in together]
            turns += sampled.generate(model, voices, seeds, turn_tokens=_LONGEST, turns=_TURNS)
        turns = turns[:count]
        if path is not None:
            sampled.save(path, turns)
    found = [_written_text(each, agents) for each in turns]
    length = bayes.uniform(_SHORTEST, _LONGEST)
    shares = np.full(agents + 1, 1 / (agents + 1))
    corpus = Corpus(
        f"written, {family} T = {temperature:g}, {agents} agents",
        "written",
        FAMILIES[family],
        found[: TUNING // 3],
        found[TUNING // 3 :],
        bayes.Lengths(length, length, shares, shares),
    )
    return [corpus]


def _written_text(turns: Any, agents: int) -> Text:
    from benchmarks.accuracy import texts as sampled
    from iet.cli.demo import true_labels
    from iet.demo.conversation import JOINER
    from iet.kernels import pair_numbers, score_tokens
    from iet.native.pairs import fresh_weights, novelty_weights, repeats

    lengths = np.random.default_rng(turns.seed).integers(_SHORTEST, _LONGEST + 1, len(turns.speakers))
    registry = sampled.keys(turns.cell.model, turns.cell.family, turns.seed, agents)
    strings = [
        sampled.turn_text(turns.cell.model, ids[:length])
        for ids, length in zip(turns.ids, lengths, strict=True)
    ]
    names = [sampled.agent_name(slot) if slot < agents else None for slot in turns.speakers]
    talk = sampled.joined(strings, names, JOINER)
    ids = registry.open_tokenizer().encode(talk.text).token_ids
    pairs = pair_numbers(ids, registry)
    more: dict[str, Any] = {"pairs": pairs}
    kinds = repeats(pairs).astype(np.int64)
    if turns.cell.family == "gumbel":
        more["weights"] = novelty_weights(ids)
        kinds = np.where(fresh_weights(pairs) > 0, np.digitize(more["weights"], (0.3, 0.5, 0.9)) + 1, 0)
    truth = np.asarray(true_labels(talk, registry))
    return Text(score_tokens(ids, registry), truth, more, kinds, talk.text, ids)


def _content(path: pathlib.Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
