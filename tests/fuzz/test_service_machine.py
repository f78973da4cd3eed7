"""Random sequences of actions by clients and an operator, and the answers that `iet serve` must give.

`IET_EXAMPLES` is the number of sequences.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import iet
from tests.support.conditions import posix
from tests.support.teams import secret
from tests.support.texts import TEXT

pytest.importorskip("fastapi", reason="the extra service is not installed")

from iet.service.credentials import add_token
from tests.support.service import LINES, Client, registry_file, serving

pytestmark = posix

NAMES = ("writer", "reader", "late", "later")
TEXTS = (TEXT, "w1 w2 w3", "", "\u202e\u0301" * 1000)
BAD = (
    b"",
    b"{",
    b"[" * 100_000,
    b'{"text": "\xff"}',
    b'{"text": "\\ud800"}',
    b'{"text": 1}',
    b'{"text": "a", "level": 1e999}',
    b'{"token_ids": [9223372036854775808]}',
    b'{"text": "a", "unknown": 1}',
)


class ServiceMachine(RuleBasedStateMachine):
    """A service whose registry and tokens change, whose workers die and whose clients lie or leave."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.left = contextlib.ExitStack()
        self.left.callback(shutil.rmtree, self.folder)
        self.path = registry_file(self.folder, "planner", "critic")
        self.registry = iet.Registry.load(self.path)
        self.whole: bytes | None = None  # what the registry's file held before it was damaged
        self.versions = list[iet.Registry]()  # before the current one
        self.before = dict[str, iet.Registry]()  # versions that a worker may still use, by digest
        self.unsure = False  # whether a worker may have died unseen

    @initialize()
    def start(self) -> None:
        self.service = self.left.enter_context(serving(self.folder, self.path, workers=2))

    def teardown(self) -> None:
        self.left.close()

    def lost(self) -> tuple[int, ...]:
        """Statuses that are also accepted, because a worker may have died with the request."""
        return (503,) if self.unsure else ()

    def answer(self, text: str) -> dict[str, object]:
        """The answer to a text, by the registry that is in use."""
        answers = list[dict[str, object]]()

        def read() -> bool:
            reply = self.service.audit(text=text, include_text=False)
            if reply.status not in self.lost():
                assert reply.status == 200, (reply, self.service.log_text[-2000:])
                answers.append(reply.json)
            return bool(answers)

        self.service.wait_until(read)
        return answers[0]

    @rule(at=st.integers(0, len(TEXTS) - 1))
    def audit(self, at: int) -> None:
        answer = self.answer(TEXTS[at])
        registry = self.before.get(str(answer["registry_digest"]), self.registry)
        assert answer["registry_digest"] == registry.digest
        assert answer["agents"] == list(registry.names())
        if not self.unsure:
            assert answer["evidence"] == iet.Auditor(registry).audit(TEXTS[at]).evidence

    @rule(at=st.integers(0, len(BAD) - 1))
    def ask_for_nonsense(self, at: int) -> None:
        reply = self.service.ask("/v1/audit", BAD[at])
        assert reply.status in (400, 422, *self.lost()), (BAD[at][:80], reply)
        assert reply.json["error"]

    @precondition(lambda self: not self.unsure)
    @rule(which=st.lists(st.booleans(), min_size=1, max_size=6))
    def ask_for_many(self, which: list[bool]) -> None:
        good = json.dumps({"text": "w1 w2 w3"}).encode()
        body = b"".join((good if is_good else b'{"text": 1}') + b"\n" for is_good in which)
        reply = self.service.ask("/v1/audit/batch", body, Content_Type=LINES)
        assert reply.status == 200
        assert ["error" not in line for line in sorted(reply.lines, key=lambda line: line["line"])] == which

    @rule(cut=st.integers(1, 200), seed=st.integers(0, 9))
    def leave_in_the_middle(self, cut: int, seed: int) -> None:
        body = json.dumps({"text": TEXT}).encode()
        head = self.service.head(
            "/v1/audit", "Content-Type: application/json", f"Content-Length: {len(body)}"
        )
        sent = head + body
        with self.service.connect() as connection:
            connection.sendall(sent[: len(sent) * cut // 200] if seed else random.Random(cut).randbytes(cut))

    @precondition(lambda self: self.whole is None)
    @rule(at=st.integers(0, len(NAMES) - 1))
    def add_an_agent(self, at: int) -> None:
        if NAMES[at] not in self.registry:
            self.versions.append(iet.Registry.load(self.path))
            self.registry.add(NAMES[at], secret=secret(NAMES[at]))

    @precondition(lambda self: self.whole is None and not self.unsure)
    @rule(part=st.integers(0, 90))
    def damage_the_registry(self, part: int) -> None:
        # A worker that had no job since the last change has not seen it, and goes on with what it has.
        self.before = {registry.digest: registry for registry in self.versions}
        self.whole = self.path.read_bytes()
        self.path.write_bytes(self.whole[: len(self.whole) * part // 100])

    @precondition(lambda self: self.whole is not None)
    @rule()
    def mend_the_registry(self) -> None:
        assert self.whole is not None
        self.path.write_bytes(self.whole)
        self.whole, self.before = None, {}

    @rule()
    def withdraw_a_token(self) -> None:
        tokens = self.folder / "tokens"
        content = tokens.read_text()
        token = add_token(tokens, "bob")
        assert Client(self.service.port, token).ask("/v1/audit", b"{").status in (400, *self.lost())
        tokens.write_text(content)
        assert Client(self.service.port, token).ask("/v1/audit", b"{").status == 401

    @precondition(lambda self: self.whole is None)
    @rule(at=st.integers(0, 1))
    def kill_a_worker(self, at: int) -> None:
        workers = self.service.workers()
        if len(workers) == 2:
            os.kill(workers[at], signal.SIGKILL)
            self.unsure = True

    @precondition(lambda self: self.unsure)
    @rule()
    def wait_for_workers(self) -> None:
        # That an idle worker died is seen when there is a job for it.
        self.service.wait_until(lambda: self.answer("w1") and len(self.service.workers()) == 2)
        self.service.wait_until(lambda: self.service.ready(2))
        self.unsure = False

    @invariant()
    def it_is_there(self) -> None:
        if hasattr(self, "service"):
            reply = self.service.ask("/healthz")  # of two workers both may have been killed
            assert reply.status == 200 or (self.unsure and reply.json == {"status": "starting"})
            assert self.service.process.poll() is None
            assert "Traceback" not in self.service.log_text


TestService = ServiceMachine.TestCase
TestService.settings = settings(
    max_examples=int(os.environ.get("IET_EXAMPLES", "1")),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
