"""`iet warm`: compile the loops of audits now, so that no audit waits for them (in an image, say)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from iet.cli.options import Commands, say
from iet.cli.progress import progress


def add(commands: Commands) -> None:
    """Add `iet warm`."""
    warm = commands.add_parser(
        "warm", help="compile the loops of audits now, as while the image of a container is built"
    )
    warm.add_argument("--json", action="store_true", help="print as JSON")
    warm.set_defaults(run=_warm)


def _warm(arguments: argparse.Namespace) -> int:
    from iet.native import cache
    from iet.native.loops import compiling

    with progress("compiling the loops of audits") as move, compiling(lambda: None):
        for name in _audits():
            move(f"compiling the loops of audits: {name}", 0)
    kept = sorted(cache.folders)
    if arguments.json:
        print(json.dumps({"kept": kept, "read": sorted(cache.read)}, indent=1))
        return 0 if kept else 3
    for folder in kept:
        say(f"compiled loops: kept in {folder}")
    if not kept:
        say("no folder can be written: nothing is kept, and every process compiles its loops (iet doctor)")
    return 0 if kept else 3


def _audits() -> Iterator[str]:
    """Audit a text in every way that has loops of its own, and yield a name of each before."""
    import numpy as np

    import iet
    from iet.audit.records import audit_records
    from iet.bulk import templates

    for family in ("fourier", "gumbel"):
        yield f"family {family}"
        registry = _registry(iet.Scheme(family=family), ("planner", "critic"))
        text, ids = _marked(registry, ("planner", "critic", None))
        registry.open_tokenizer().offsets(ids, text)  # as of texts that are longer
        half = len(text) // 2
        for decoder in iet.decoding.DECODERS:
            auditor = iet.Auditor(registry, decoder)
            auditor.audit(text)
            auditor.audit(text, skip=[(0, 40)], boundaries=[half])
            auditor.audit(token_ids=ids)
            iet.Auditor(registry, decoder, known_agents=["planner"]).audit(text)
            list(audit_records(auditor, [text, text[:half]]))
        iet.Auditor(registry, decoys=200).audit(text)
        yield f"family {family}, many keys"
        registry.add_many([f"agent {number}" for number in range(80)])
        for decoder in iet.decoding.DECODERS:
            auditor = iet.Auditor(registry, decoder)
            auditor.audit(text)
            list(audit_records(auditor, [text, text[:half]]))
    yield "marks of others"
    ids.setflags(write=False)  # as Arrow hands them over
    foreign = {name: list(range(first, first + 30)) for name, first in (("planner", 1), ("critic", 50))}
    for keys in (iet.EngineKeys("vllm-gumbel", {"planner": 1}), iet.EngineKeys("synthid", foreign)):
        iet.Auditor(keys).audit(token_ids=ids)
    yield "scores of many agents"
    scores = np.random.default_rng(0).uniform(-1, 1, (400, 80)).astype(np.float32)
    for decoder in iet.decoding.DECODERS:
        iet.decoding.decode(scores, decoder)
    iet.decoding.span_sums(scores, [200])
    yield "several profiles"
    several = _registry(iet.Scheme(), ("planner",))
    several.add("critic", profile=several.add_profile(tokenizer="iet:demo", scheme=iet.Scheme(n_gram=3)))
    auditor = iet.Auditor(several)
    auditor.audit(text)
    list(audit_records(auditor, [text, text[:half]]))
    yield "templates"
    symbols = templates.symbols_of(text, ids=False)
    assert symbols is not None
    found = templates.count(enumerate([symbols, symbols]), least=2, size=len(text), fragment=16)
    list(
        audit_records(
            auditor, [text, text], elsewhere=[np.zeros((0, 2), np.int64), found.elsewhere(1, symbols)]
        )
    )


def _registry(scheme: Any, names: tuple[str, ...]) -> Any:
    import iet

    registry = iet.Registry.create(None, tokenizer="iet:demo", scheme=scheme)
    registry.add_many(names)
    return registry


def _marked(registry: Any, turns: tuple[str | None, ...], tokens: int = 120) -> tuple[str, Any]:
    """Return words of the demo's tokenizer that carry marks, and their ids: text that is worth decoding."""
    import numpy as np
    from tokenizers import Tokenizer

    import iet
    from iet.marks.tokenizer import DEMO_MODEL

    tokenizer, profile = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json")), registry.profile
    vocabulary = tokenizer.get_vocab()
    words = np.sort(
        [token_id for token, token_id in vocabulary.items() if token[0] == "Ġ" and token[1:].isalpha()]
    )
    draw, keys = np.random.default_rng(0), registry.marking_keys()
    ids: list[int] = words[: profile.scheme.n_gram - 1].tolist()
    for name in turns:
        slot = -1 if name is None else registry.slot(name)
        for _ in range(tokens):
            logits = draw.normal(scale=0.5, size=(1, profile.vocab_size)).astype(np.float32)
            iet.embed_(logits, [ids[1 - profile.scheme.n_gram :]], [slot], keys)
            ids.append(int(words[logits[0, words].argmax()]))
    ids += ids[:tokens]  # a passage that comes back
    return tokenizer.decode(ids), np.array(ids)
