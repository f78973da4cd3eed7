"""`iet doctor --server`: servers that mark, do not mark, reject, fail, hang or are down."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import pathlib
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import iet
from iet.cli import main, server_check
from iet.errors import BackendUnavailable, InputError, TokenizerMismatch
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from tests.support.chat_server import serving
from tests.support.waiting import PATIENCE

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from iet.cli.demo import demo_registry  # noqa: E402
from iet.demo.conversation import load_model  # noqa: E402

TOKENS = 240
SECRET = "sk-live-0123456789abcdef"
Reply = Callable[[dict[str, Any], int], Any]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return demo_registry(("planner", "critic"), seed=5, scheme=Scheme(kappa=2.0))


@pytest.fixture(scope="module")
def write(registry: Registry) -> Callable[[dict[str, Any], str | None], str]:
    """Text of the shipped model, marked for the requested agent; each text is generated once."""
    model, tokenizer = load_model()
    texts: dict[tuple[str, int, str | None], str] = {}

    def written(body: dict[str, Any], agent: str | None) -> str:
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        prompt = prompt.removeprefix("Continue this text.\n\n")
        key = prompt, body["max_tokens"], agent
        if key not in texts:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            torch.manual_seed(zlib.crc32(str(key).encode()))
            marking = iet.WatermarkingConfig(registry, agent) if agent else None
            out = model.generate(
                ids,
                max_new_tokens=body["max_tokens"],
                do_sample=True,
                temperature=body["temperature"],
                watermarking_config=marking,
                pad_token_id=0,
            )
            texts[key] = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        return texts[key]

    return written


def form(text: str) -> dict[str, Any]:
    """An answer that is valid for completions and for chats."""
    return {"choices": [{"text": text, "message": {"role": "assistant", "content": text}}]}


def marks(registry: Registry, write: Any, *, default: str | None = None, require: bool = False) -> Reply:
    """Behaviour of a server with the processor."""

    def reply(body: dict[str, Any], attempt: int) -> Any:
        agent = body.get("vllm_xargs", {}).get("iet_agent", default)
        if agent is None and require:
            return 400
        if agent is not None and agent not in registry:
            return 400
        return write(body, agent)

    return reply


@contextlib.contextmanager
def raw_server(sent: bytes, *, hold: bool = False, dribbled: bytes = b"") -> Iterator[str]:
    """A server that answers with these bytes, and then sends the second ones every tenth of a second."""
    done = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with contextlib.suppress(OSError):
                self.wfile.write(sent)
                for byte in dribbled:
                    if done.wait(0.1):
                        break
                    self.wfile.write(bytes([byte]))
                if hold:
                    done.wait()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            done.set()
            server.shutdown()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(server_check.KEY_VARIABLE, SECRET)
    return SECRET


@pytest.fixture
def team(registry: Registry, tmp_path: pathlib.Path) -> pathlib.Path:
    Registry.loads(registry.dumps()).save(tmp_path / "team.json")
    return tmp_path / "team.json"


def test_a_server_that_marks(registry: Registry, write: Any, key: str) -> None:
    with serving(marks(registry, write), form) as server:
        answer = server_check.ask(server.url + "/v1/", "planner", registry, tokens=TOKENS)
    assert answer.arrives
    assert answer.warnings == ()
    assert answer.model == "tiny"
    assert answer.named.tokens > 200
    assert not answer.unnamed.marked
    assert answer.unnamed.tokens > 200
    assert answer.unknown.status == 400
    assert {request["path"] for request in server.requests} == {"/v1/completions"}
    assert {request["key"] for request in server.requests} == {f"Bearer {key}"}
    first, named = (
        server.requests[:3],
        [r["body"] for r in server.requests[3 : 3 + len(server_check.PROMPTS)]],
    )
    assert [request["body"]["max_tokens"] for request in first] == [
        1 + server_check.FIRST_TOKENS,
        1,
        1 + server_check.FIRST_TOKENS,
    ]
    assert {body["vllm_xargs"]["iet_agent"] for body in named} == {"planner"}
    assert sum(body["max_tokens"] for body in named) == TOKENS


def test_a_server_that_drops_the_argument(registry: Registry, write: Any) -> None:
    with serving(lambda body, _: write(body, None), form) as server:
        answer = server_check.ask(server.url, "planner", registry, model="other", tokens=TOKENS)
    assert not answer.arrives
    assert answer.others == ()
    assert answer.model == "other"
    assert "not refused" in answer.warnings[0]


def test_a_server_that_marks_for_somebody_else(registry: Registry, write: Any) -> None:
    with serving(lambda body, _: write(body, "critic"), form) as server:
        answer = server_check.ask(server.url, "planner", registry, tokens=TOKENS)
    assert not answer.arrives
    assert answer.others == ("critic",)


@pytest.mark.parametrize(
    ("settings", "unnamed", "warnings"),
    [({"default": "planner"}, (200, True), ["default agent"]), ({"require": True}, (400, False), [])],
)
def test_a_server_with_a_default_agent_or_without(
    settings: dict[str, Any], unnamed: tuple[int, bool], warnings: list[str], registry: Registry, write: Any
) -> None:
    with serving(marks(registry, write, **settings), form) as server:
        answer = server_check.ask(server.url, "planner", registry, tokens=TOKENS)
    assert answer.arrives
    assert (answer.unnamed.status, answer.unnamed.marked) == unnamed
    for warning, words in zip(answer.warnings, warnings, strict=True):
        assert words in warning


def test_a_server_of_chats_only(registry: Registry, write: Any) -> None:
    answer = marks(registry, write)
    with serving(lambda body, attempt: 404 if "prompt" in body else answer(body, attempt), form) as server:
        assert server_check.ask(server.url, "critic", registry, tokens=TOKENS).arrives
    assert [request["path"] for request in server.requests].count("/v1/completions") == 1  # it is remembered


def test_an_agent_that_the_server_does_not_have(
    registry: Registry, team: pathlib.Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda *_: 400, form) as server:
        assert main(["doctor", "--server", server.url, "--agent", "planner", "-r", str(team)]) == 1
        output = capsys.readouterr()
        answer = server_check.ask(server.url, "planner", registry)
    assert "FAILED: the server refuses planner" in output.out
    assert "HTTP 400 (refused with Bearer <key>)" in output.out  # the server of the tests repeats it
    assert key not in output.out + output.err
    assert answer.named.status == 400
    assert not answer.arrives


def test_sglang_gets_its_own_fields(registry: Registry, write: Any) -> None:
    with serving(lambda body, _: write(body, None), form) as server:
        server_check.ask(server.url, "planner", registry, engine="sglang", tokens=8)
    assert server.requests[0]["body"]["custom_params"] == {"iet_agent": "planner"}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (500, "HTTP 500"),
        (503, "HTTP 503"),
        (401, r"HTTP 401 .*; is \$OPENAI_API_KEY right"),
        (429, "HTTP 429"),
        (None, "no answer within 0.3 s"),
        (b"<html>", "something else than JSON"),
        (b"[" * 100_000, "something else than JSON"),
        (b"{}", "answers without a text"),
        (b'{"choices": []}', "answers without a text"),
    ],
)
def test_a_server_that_fails(registry: Registry, key: str, reply: Any, why: str) -> None:
    with serving(lambda *_: reply, form) as server:
        with pytest.raises(BackendUnavailable, match=why) as refused:
            server_check.ask(server.url, "planner", registry, timeout=0.3 if reply is None else PATIENCE)
        assert server.url in str(refused.value)
    assert key not in str(refused.value)  # the server of the tests repeats it


def test_a_server_that_wants_a_key_is_not_said_to_list_no_model(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(server_check.KEY_VARIABLE, raising=False)
    for status, why in [
        (401, r"HTTP 401 .*it wants a key, in \$OPENAI_API_KEY"),
        (404, r"lists no model \(HTTP 404\); pass --model"),
    ]:
        with (
            serving(lambda *_: "", form, models=status) as server,
            pytest.raises(BackendUnavailable, match=why),
        ):
            server_check.ask(server.url, "planner", registry)


def test_a_gateway_that_forbids_other_names_refuses(registry: Registry, write: Any) -> None:
    def reply(body: dict[str, Any], attempt: int) -> Any:
        return write(body, "planner") if body.get("vllm_xargs") == {"iet_agent": "planner"} else 403

    with serving(reply, form) as server:
        answer = server_check.ask(server.url, "planner", registry, tokens=TOKENS)
    assert answer.arrives
    assert answer.unknown.status == answer.unnamed.status == 403
    assert answer.warnings == ()


def test_a_server_that_writes_nothing(registry: Registry) -> None:
    with serving(lambda *_: "", form) as server:
        answer = server_check.ask(server.url, "planner", registry)
    assert not answer.arrives
    assert answer.named == answer.unnamed == server_check.Answer(200)


def test_a_server_that_is_not_there(registry: Registry) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # the port is taken, and no process listens
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            server_check.ask(url, "planner", registry)


def test_the_key_follows_no_redirection(registry: Registry, write: Any, key: str) -> None:
    with serving(marks(registry, write), form) as elsewhere:

        class Redirecting(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(302)
                self.send_header("Location", elsewhere.url + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(BackendUnavailable, match="redirection"):
                server_check.ask(f"http://127.0.0.1:{server.server_port}", "planner", registry, model="tiny")
        finally:
            server.shutdown()
            server.server_close()
        assert elsewhere.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://host",
        "http://me:secret@host",
        "http://host?token=secret",
        "http://",
        "nourl",
        "http://[::1",
        "http://host/secretü",
        "http://" + "a" * 64,
    ],
)
def test_urls_that_are_refused_are_not_repeated(registry: Registry, url: str) -> None:
    with pytest.raises(InputError, match="server: got") as refused:
        server_check.ask(url, "planner", registry, tokens=TOKENS)
    assert "secret" not in str(refused.value)
    assert "got ://" not in str(refused.value)


@pytest.mark.parametrize("end", ["\r", "\n", "€"])
def test_a_key_that_is_no_valid_header_is_rejected_before_any_request(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv(server_check.KEY_VARIABLE, f"sk-secret{end}")
    with pytest.raises(InputError, match=r"\$OPENAI_API_KEY: got a key that no header takes") as refused:
        server_check.ask("http://127.0.0.1:1", "planner", registry, tokens=TOKENS)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("padded_key", [f" {SECRET} ", "sk-two  words"])
def test_a_key_with_blanks_is_hidden_in_the_servers_answer(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, padded_key: str
) -> None:
    monkeypatch.setenv(server_check.KEY_VARIABLE, padded_key)
    body = json.dumps({"error": {"message": f"bad key:\n{padded_key.strip()}."}}).encode()
    sent = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    why = r"bad key: <key>\."
    with raw_server(sent) as url, pytest.raises(BackendUnavailable, match=why) as refused:
        server_check.ask(url, "planner", registry, model="m", tokens=TOKENS)
    assert padded_key.strip() not in str(refused.value)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\n", r"no answer within 0\.3 s"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2000\r\n\r\n" + b"[" * 2000, r"HTTP 500 \(\[\[\["),
        (b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\n[", "HTTP 500"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"cho', r"broke off \(IncompleteRead\)"),
    ],
    ids=["an error that does not come", "brackets", "half an error", "half an answer"],
)
def test_an_incomplete_answer(registry: Registry, sent: bytes, why: str) -> None:
    waits = "within" in why
    with raw_server(sent, hold=waits) as url, pytest.raises(BackendUnavailable, match=why) as refused:
        server_check.ask(
            url, "planner", registry, model="m", tokens=TOKENS, timeout=0.3 if waits else PATIENCE
        )
    assert url in str(refused.value)


def test_a_slow_answer_times_out(registry: Registry) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with raw_server(head, dribbled=b" " * 1000) as url:
        started = time.monotonic()
        with pytest.raises(BackendUnavailable, match=r"no answer within 0\.5 s"):
            server_check.ask(url, "planner", registry, model="m", tokens=TOKENS, timeout=0.5)
        assert time.monotonic() - started < 50  # all of it takes 100 s


def test_a_slow_server_is_asked_for_a_few_tokens_only(registry: Registry) -> None:
    def reply(body: dict[str, Any], attempt: int) -> str:
        time.sleep(0.02 * body["max_tokens"])
        return "so"

    with serving(reply, form) as server:
        slow = r"writes \d+ tokens a second; 800 are needed, in answers of \d+ s each: pass --timeout"
        with pytest.raises(BackendUnavailable, match=slow):
            server_check.ask(server.url, "planner", registry, timeout=1.0)
    assert len([request for request in server.requests if "body" in request]) == 3


def test_a_server_that_is_slow_to_begin_is_asked_for_all(registry: Registry) -> None:
    def reply(body: dict[str, Any], attempt: int) -> str:
        time.sleep(0.05)  # 200 tokens at the speed of 17 take 0.6 s
        return "so"

    with serving(reply, form) as server:
        assert server_check.ask(server.url, "planner", registry, timeout=0.5).named.status == 200


def test_a_text_that_is_null_is_none(registry: Registry) -> None:
    with serving(lambda *_: "", lambda text: {"choices": [{"text": None}]}) as server:
        assert server_check.ask(server.url, "planner", registry, tokens=TOKENS).named == server_check.Answer(
            200
        )


@pytest.mark.parametrize("timeout", [0, -1, 1e10, math.nan, math.inf])
def test_an_invalid_timeout_is_rejected(registry: Registry, timeout: float) -> None:
    with pytest.raises(InputError, match=r"timeout: got .*, expected a number from 0.05"):
        server_check.ask("http://127.0.0.1:1", "planner", registry, tokens=TOKENS, timeout=timeout)


def test_missing_packages_are_reported_before_any_request(write: Any) -> None:
    registry = Registry.create(None, vocab_size=100)
    registry.add("planner")
    with serving(lambda body, _: write(body, None), form) as server:
        with pytest.raises(TokenizerMismatch):
            server_check.ask(server.url, "planner", registry)
        assert server.requests == []
    with pytest.raises(InputError, match="engine"):
        server_check.ask("http://host", "planner", registry, engine="other")
    with pytest.raises(InputError, match="tokens"):
        server_check.ask("http://host", "planner", registry, tokens=0)
    with pytest.raises(InputError, match="timeout"):
        server_check.ask("http://host", "planner", registry, timeout=float("nan"))


def test_the_command(
    registry: Registry, write: Any, team: pathlib.Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(marks(registry, write), form) as server:
        arguments = ["doctor", "--server", server.url, "--agent", "planner", "-r", str(team)]
        arguments += ["--tokens", str(TOKENS)]
        assert main(arguments) == 0
        output = capsys.readouterr()
        assert "the mark of planner arrives" in output.out
        assert "an unknown name: refused with HTTP 400" in output.out
        assert main([*arguments, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["arrives"] is True
        assert data["named"]["log_p"] < -9 < data["unnamed"]["log_p"]
        assert data["unknown"]["status"] == 400
    with serving(lambda body, _: write(body, None), form) as server:
        assert main([*arguments[:2], server.url, *arguments[3:]]) == 1
        failed = capsys.readouterr()
        assert "FAILED: no mark of planner" in failed.out
        assert "warning: " in failed.out
    with serving(lambda body, _: write(body, "critic"), form) as server:
        assert main([*arguments[:2], server.url, *arguments[3:]]) == 1
        assert "FAILED: the mark there is that of critic" in capsys.readouterr().out
    with serving(lambda *_: time.sleep(2) or "so", form) as server:
        assert main([*arguments[:2], server.url, *arguments[3:], "--timeout", "0.5"]) == 3
        assert "no answer within 0.5 s" in capsys.readouterr().err
    with serving(lambda *_: 500, form) as server:
        assert main([*arguments[:2], server.url, *arguments[3:]]) == 3
        broken = capsys.readouterr()
        assert "HTTP 500" in broken.err
    for stream in (*output, *failed, *broken):
        assert key not in stream
        assert all(secret.secret.hex() not in stream for secret in registry.keys("planner"))


@pytest.mark.parametrize(
    "arguments",
    [["--server", "http://host"], ["--agent", "planner"], ["--tokens", "9"], ["--timeout", "9"]],
)
def test_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["doctor", *arguments])
    assert error.value.code == 2
