"""Random sequences of operations on a registry and a bulk run, compared with a model of their state.

`IET_EXAMPLES` is how many sequences each takes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.security import drills
from iet.audit.auditor import Auditor
from iet.bulk.files import audit_files
from iet.errors import InputError, RegistryError
from iet.marks.registry import Registry
from tests.support.teams import team

EXAMPLES = int(os.environ.get("IET_EXAMPLES", "4"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

NAMES = ("planner", "critic", "writer", "\u00e9quipe", "agent 1", "agent 2")
TWINS = {"\u0440lanner": "planner", "e\u0301quipe": "\u00e9quipe", "wr\u0456ter": "writer"}
REFUSED = ("", " planner", "plan\u200bner", "unattributed", "a\nb", "x" * 201)


class RegistryMachine(RuleBasedStateMachine):
    """Several holders of one registry file: only those that saw its last change may change it."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.path = self.folder / "team.json"
        self.agents = dict[str, int]()  # in order: name -> epochs
        self.version = 0
        self.seen = dict[int, int]()
        self.exports = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def add_holder(self, registry: Registry) -> Registry:
        self.seen[id(registry)] = self.version
        return registry

    @initialize(target=holders)
    def create(self) -> Registry:
        return self.add_holder(Registry.create(self.path, vocab_size=1000))

    @rule(target=holders)
    def load(self) -> Registry:
        return self.add_holder(Registry.load(self.path))

    def change(self, registry: Registry, do: Any, agents: dict[str, int] | None) -> None:
        """Run a change whose result is `agents`; with None, every holder's attempt is rejected."""
        current = self.seen[id(registry)] == self.version
        if agents is None or not current:
            with pytest.raises((RegistryError, InputError)):
                do()
            return
        do()
        if agents != self.agents:
            self.agents, self.version = agents, self.version + 1
            self.seen[id(registry)] = self.version

    @rule(
        registry=holders,
        name=st.sampled_from((*NAMES, *TWINS, *REFUSED)),
    )
    def add(self, registry: Registry, name: str) -> None:
        is_taken = TWINS.get(name, name) in self.agents or any(
            TWINS.get(agent) == name for agent in self.agents
        )
        same = {TWINS.get(agent, agent) for agent in self.agents}
        bad = name in REFUSED or is_taken or TWINS.get(name, name) in same
        stored_name = "\u00e9quipe" if name == "e\u0301quipe" else name
        self.change(
            registry,
            lambda: registry.add(name),
            None if bad else {**self.agents, stored_name: 1},
        )

    @rule(registry=holders, names=st.lists(st.sampled_from(NAMES), max_size=4))
    def add_many(self, registry: Registry, names: list[str]) -> None:
        same = {TWINS.get(agent, agent) for agent in self.agents}
        bad = len(set(names)) < len(names) or bool(same & set(names))
        if names:
            wanted = None if bad else {**self.agents, **dict.fromkeys(names, 1)}
            self.change(registry, lambda: registry.add_many(names), wanted)

    @rule(registry=holders, at=st.integers(0, 7))
    def rotate(self, registry: Registry, at: int) -> None:
        names = list(self.agents)
        name = names[at] if at < len(names) else "nobody"
        exists = at < len(names)
        wanted = {**self.agents, name: self.agents[name] + 1} if exists else None
        self.change(registry, lambda: registry.rotate(name), wanted)

    @precondition(lambda self: self.agents)
    @rule(data=st.data(), everything=st.booleans())
    def export_and_merge(self, data: st.DataObject, everything: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(list(self.agents)), min_size=1, unique=True))
        registry, self.exports = Registry.load(self.path), self.exports + 1
        path = self.folder / f"export {self.exports}.json"
        registry.export(path, chosen, all_epochs=everything)
        export = Registry.load(path)
        assert export.names() == tuple(chosen)
        assert all(len(export.keys(name)) == (self.agents[name] if everything else 1) for name in chosen)
        digest = registry.digest
        registry.merge(export)  # which holds nothing new
        assert registry.digest == digest == Registry.load(self.path).digest
        export.merge(registry)
        assert set(export.names()) == set(self.agents)

    @rule(registry=holders)
    def save(self, registry: Registry) -> None:
        self.change(registry, registry.save, self.agents)

    @invariant()
    def the_file_is_as_it_must_be(self) -> None:
        if not self.path.exists():
            return
        read = Registry.load(self.path)
        assert {name: len(read.keys(name)) for name in read} == self.agents
        assert [read.slot(name) for name in self.agents] == list(range(len(self.agents)))
        assert not list(self.folder.glob(".*.tmp"))


class Stopped(Exception):
    """Interrupts a run."""


@functools.cache
def reader() -> Auditor:
    return Auditor(team(path=pathlib.Path(tempfile.mkdtemp()) / "team.json"), "cusum")


class BulkMachine(RuleBasedStateMachine):
    """A bulk run that is stopped, damaged and resumed while its inputs change."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.out = self.folder / "out"
        self.inputs = {self.folder / name: list[str]() for name in ("a.jsonl", "b.jsonl")}
        self.begun: dict[pathlib.Path, list[str]] | None = None
        for path, words in zip(self.inputs, ("w1 w2", "w3 w4"), strict=True):
            self.inputs[path] = [f"{words} w{i}" for i in range(5)]
            self.write(path)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def write(self, path: pathlib.Path) -> None:
        path.write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in self.inputs[path]) + "{broken\n"
        )

    def now(self) -> dict[pathlib.Path, list[str]]:
        return {path: list(texts) for path, texts in self.inputs.items()}

    def run(self, reread: bool, progress: Any = None) -> None:
        audit_files(
            reader(), list(self.inputs), self.out, chunk_rows=2, resume=True, reread=reread, progress=progress
        )

    @rule(at=st.integers(0, 1), text=st.sampled_from(("w5 w6 w7", "", "w8")), position=st.integers(0, 5))
    def change_an_input(self, at: int, text: str, position: int) -> None:
        path = list(self.inputs)[at]
        self.inputs[path][position : position + 1] = [text]
        self.write(path)

    @rule(at=st.integers(0, 1))
    def shorten_an_input(self, at: int) -> None:
        path = list(self.inputs)[at]
        del self.inputs[path][3:]
        self.write(path)

    @rule(chunks=st.integers(1, 6), reread=st.booleans())
    def stop_in_the_middle(self, chunks: int, reread: bool) -> None:
        chunks_left = [chunks]

        def progress(state: object) -> None:
            chunks_left[0] -= 1
            if not chunks_left[0]:
                raise Stopped

        if not reread and self.begun not in (None, self.now()):
            with pytest.raises(InputError, match="was begun in another way"):
                self.run(False)
            return
        self.begun = self.now()
        with contextlib.suppress(Stopped):
            self.run(reread, progress)

    @rule(reread=st.booleans(), fresh=st.booleans())
    def go_on(self, reread: bool, fresh: bool) -> None:
        if not reread and self.begun not in (None, self.now()):
            with pytest.raises(InputError, match="was begun in another way"):
                self.run(False)
            return
        self.run(reread)
        self.begun = self.now()
        everything = self.folder / "whole"
        audit_files(reader(), list(self.inputs), everything, chunk_rows=2)
        assert rows(self.out) == rows(everything)
        assert not list(self.out.glob(".*.tmp"))
        shutil.rmtree(everything)
        if fresh:
            shutil.rmtree(self.out)
            self.begun = None

    @precondition(lambda self: self.begun is not None)
    @rule(at=st.integers(0, 99), position=st.integers(0, 9999), bit=st.integers(0, 7))
    def damage(self, at: int, position: int, bit: int) -> None:
        files = sorted(self.out.glob("[dsq]*-0*-0*.*"))
        if files:
            path = files[at % len(files)]
            data = bytearray(path.read_bytes())
            data[position % len(data)] ^= 1 << bit
            path.write_bytes(data)

    @precondition(lambda self: self.begun is not None)
    @rule(at=st.integers(0, 99))
    def lose(self, at: int) -> None:
        files = sorted(self.out.glob("[dsq]*-0*-0*.*"))
        if files:
            files[at % len(files)].unlink()

    @precondition(lambda self: self.begun is not None)
    @rule()
    def leave_something_half_written(self) -> None:
        (self.out / ".documents-000000-000001.parquet.0123456789abcdef.tmp").write_bytes(b"PAR1")
        (self.out / ".shard-1-of-1.json.0123456789abcdef.tmp").write_bytes(b"{")


def rows(out: pathlib.Path) -> Any:
    """Return a run's rows, independent of how chunks were cut."""
    (documents, quarantine) = drills.content(out)
    tables: dict[str, list[Any]] = {"documents": [], "segments": []}
    for name, table in documents.items():
        tables[name.partition("-")[0]] += table
    return tables, b"".join(quarantine)


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = SETTINGS
TestBulk = BulkMachine.TestCase
TestBulk.settings = SETTINGS
