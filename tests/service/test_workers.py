"""The workers of `iet serve`: they fail alone, finish what they have at work, and end with the service."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
from typing import Any

import pytest

from iet.errors import BackendUnavailable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.service import audits
from tests.support.conditions import posix
from tests.support.service import LINES, Running, serving
from tests.support.texts import TEXT
from tests.support.waiting import PATIENCE, wait_until

pytestmark = posix


def test_a_worker_that_is_killed_or_stands_still_fails_its_request_alone(
    tmp_path: pathlib.Path, registry: pathlib.Path
) -> None:
    with serving(tmp_path, registry, "--limit", "seconds=2", workers=1) as service:

        def read() -> None:
            """Ask until two seconds are enough for a text, as they are at once where nothing else runs."""
            service.wait_until(lambda: service.audit(text=TEXT).status == 200)

        (worker,) = service.workers()
        os.kill(worker, signal.SIGSTOP)
        reply = service.audit(text=TEXT)
        assert (reply.status, reply.json["error"]) == (
            503,
            "the text was not read: it took longer than 2 seconds",
        )
        read()  # it waits for the worker that is started
        (second,) = service.workers()
        assert second != worker
        os.kill(second, signal.SIGKILL)
        assert service.audit(text=TEXT).status in (200, 503)  # its death may be seen before or after
        read()
        assert "a worker was lost: it took longer than 2 seconds; another one is started" in service.log_text


def refuses(service: Running) -> bool:
    """Whether new connections are refused."""
    try:
        service.connect().close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("group", [False, True])
def test_sigterm_finishes_what_is_at_work_and_refuses_the_rest(
    tmp_path: pathlib.Path, registry: pathlib.Path, group: bool
) -> None:
    line = json.dumps({"text": TEXT}).encode() + b"\n"
    with serving(tmp_path, registry) as service:
        workers = service.workers()
        with service.connect() as connection:
            head = service.head("/v1/audit/batch", f"Content-Type: {LINES}", "Transfer-Encoding: chunked")
            connection.sendall(head + b"%x\r\n%b\r\n" % (len(line), line))
            said = b""
            while b'"line": 0' not in said:
                said += connection.recv(1 << 12)
            os.kill(workers[0], signal.SIGSTOP)  # so that something is at work when the signal comes
            connection.sendall(b"%x\r\n%b\r\n" % (len(line) * 19, line * 19))
            for _ in range(3):  # answered after what was sent before
                assert service.ask("/healthz").status == 200
            service.process.send_signal(signal.SIGTERM)
            for worker in workers if group else ():  # as a terminal or an init system has it
                os.kill(worker, signal.SIGINT)
                os.kill(worker, signal.SIGTERM)
            service.wait_until(lambda: refuses(service))
            os.kill(workers[0], signal.SIGCONT)
            while part := connection.recv(1 << 16):
                said += part
        assert service.process.wait(PATIENCE) == 0
    assert said.endswith(b"\r\n0\r\n\r\n")
    lines = [
        json.loads(entry) for entry in re.findall(rb'^\{"line".*\}$', said.replace(b"\r", b""), re.MULTILINE)
    ]
    assert [entry["line"] for entry in lines] == list(range(len(lines)))
    assert 2 <= len(lines) <= 3  # the second one is finished, unless the signal was faster
    assert [entry["status"] for entry in lines] == [200] * (len(lines) - 1) + [503]
    assert "the service is stopping" in lines[-1]["error"]
    for worker in workers:
        assert not pathlib.Path(f"/proc/{worker}/cmdline").exists()
    assert "Traceback" not in service.log_text


def test_sigterm_ends_a_batch_of_which_nothing_more_arrives(
    tmp_path: pathlib.Path, registry: pathlib.Path
) -> None:
    line = b'{"text": "w1"}\n'
    with serving(tmp_path, registry) as service, service.connect() as connection:
        head = service.head("/v1/audit/batch", f"Content-Type: {LINES}", "Transfer-Encoding: chunked")
        connection.sendall(head + b"%x\r\n%b\r\n" % (len(line), line))
        said = b""
        while b'"line": 0' not in said:
            said += connection.recv(1 << 12)
        service.process.send_signal(signal.SIGTERM)
        while part := connection.recv(1 << 16):
            said += part
        assert service.process.wait(PATIENCE) == 0
    assert b'{"line": 1, "status": 503, "error": "the service is stopping' in said
    assert said.endswith(b"\r\n0\r\n\r\n")


def test_workers_end_with_a_service_that_is_killed(tmp_path: pathlib.Path, registry: pathlib.Path) -> None:
    with serving(tmp_path, registry, workers=2) as service:
        workers = service.workers()
        assert len(workers) == 2
        service.process.kill()
        service.process.wait()
        wait_until(
            lambda: not any(pathlib.Path(f"/proc/{worker}/cmdline").exists() for worker in workers),
            pause=0.05,
        )


def test_a_tokenizer_that_cannot_be_opened_ends_no_worker(
    registry: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise BackendUnavailable("the Hub: no huggingface_hub")

    monkeypatch.setattr(Registry, "open_tokenizer", missing)
    read = audits.AuditFiles(registry)()
    answer = read(audits.AuditJob(json.dumps({"text": TEXT}).encode()))
    assert (answer.status, "its log says why" in answer.body.decode()) == (500, True)
    assert "BackendUnavailable" in answer.failure


def test_the_operators_model_reads_where_the_decoder_takes_one(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "team.json"
    keys = Registry.create(path, tokenizer="iet:demo", scheme=Scheme(family="gumbel"))
    for name in ("planner", "critic"):
        keys.add(name)
    read = audits.AuditFiles(path, model="iet:demo")()
    for decoder, model in (("posterior", "iet:demo"), ("cusum", None)):
        answer = read(audits.AuditJob(json.dumps({"text": TEXT, "decoder": decoder}).encode()))
        assert answer.status == 200, answer.body
        report = json.loads(answer.body)
        assert (report["model"] or {}).get("name") == model
