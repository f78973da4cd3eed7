"""Check that the text of a running server carries an agent's mark: `iet doctor --server URL --agent A`.

The check asks an OpenAI-compatible server for text with the agent's name and without a name, audits both, and
asks once with an unknown name. It needs only the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import math
import os
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from iet.audit.auditor import Auditor
from iet.errors import BackendUnavailable, InputError, check_number
from iet.generation.agents import ENGINES, Engine, body
from iet.marks.registry import Registry

KEY_VARIABLE = "OPENAI_API_KEY"
"""Holds what the server wants as a bearer token, if anything."""

MAX_TIMEOUT = 86_400
"""Seconds: a day."""

MOST_BYTES, MOST_SAID = 1 << 24, 2000
"""Of an answer that are read, and of an error."""

FIRST_TOKENS = 16
"""Asked for first: the server's speed says whether the others can arrive in time."""

LEVEL = 1e-4
"""p-value that the agent's mark must reach, and that unmarked text must not."""

PROMPTS = (
    "The keeper of the lighthouse had not spoken to anyone for three weeks when",
    "Here is what I remember about the summer in which the river changed its course:",
    "A short history of the market square, told by the people who worked there.",
    "There are several ways to repair an old wooden boat. To begin with,",
)
"""Open beginnings of texts: only a token with likely alternatives carries a mark."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of a server to one kind of request, and the evidence of the agent's mark in its text.

    Attributes:
        status: HTTP status: 200, or the code of a refusal.
        tokens: number of scored tokens; 0 without text.
        log_p: natural log of the p-value of the agent's mark; 0 without text.
        said: the server's message if it refused the request.
    """

    status: int
    tokens: int = 0
    log_p: float = 0.0
    said: str = ""

    @property
    def marked(self) -> bool:
        """Whether the mark is found at `LEVEL`."""
        return self.log_p <= math.log(LEVEL)


@dataclasses.dataclass(frozen=True)
class Arrival:
    """The result of a check.

    Attributes:
        server, model, agent, profile: the server, its model, and the agent and profile that were checked.
        named: text of requests with the agent's name.
        unnamed: text of requests without a name.
        unknown: the answer to an unknown name (no text is read).
        others: if `named` lacks the agent's mark, the agents of the registry whose mark it carries.
    """

    server: str
    model: str
    agent: str
    profile: str
    named: Answer
    unnamed: Answer
    unknown: Answer
    others: tuple[str, ...] = ()

    @property
    def arrives(self) -> bool:
        """Whether the text under the agent's name carries its mark."""
        return self.named.marked

    @property
    def warnings(self) -> tuple[str, ...]:
        """Behaviour that is legal, but not intended for most servers."""
        warnings = []
        if self.unnamed.status == 200 and self.unnamed.marked:
            warnings.append(
                f"requests without a name are marked for {self.agent!r}: right only if it is the server's"
                " default agent"
            )
        if self.unknown.status == 200:
            warnings.append("a request with an unknown name was not refused: a misspelt name loses the mark")
        return tuple(warnings)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **dataclasses.asdict(self),
            "arrives": self.arrives,
            "level": LEVEL,
            "warnings": list(self.warnings),
        }


def ask(
    server: str,
    agent: str,
    registry: Registry,
    *,
    model: str | None = None,
    engine: Engine = "vllm",
    tokenizer: Any = None,
    tokens: int = 800,
    timeout: float = 120.0,
    progress: Callable[[str], object] = lambda line: None,
) -> Arrival:
    """Ask a server for text with and without an agent, and audit it.

    Args:
        server: URL of an OpenAI-compatible server, with or without /v1. A key is read from the environment
            variable `OPENAI_API_KEY`.
        agent: the agent whose mark is checked.
        registry: the registry with its key.
        model: the server's name of the model. None: the first model that the server lists.
        engine: "vllm" or "sglang", which name agents in different fields of a request.
        tokenizer: tokenizer of the agent's profile; None: the one that the registry names.
        tokens: number of tokens to ask for with the agent, and again without it.
        timeout: seconds to wait for an answer.
        progress: called with a line before each request.

    Returns:
        The result of the check.

    Raises:
        InputError: an argument is out of range.
        RegistryError: the agent is unknown.
        TokenizerMismatch: the tokenizer is missing, or another one.
        BackendUnavailable: the server is unreachable, too slow, or failed.

    The text is sampled at temperature 1 and by the server's own draw, so figures differ from run to run.
    """
    if engine not in ENGINES:
        raise InputError(f"engine: got {engine!r}, expected one of {list(ENGINES)}")
    check_number("tokens", tokens, len(PROMPTS))
    check_number("timeout", timeout, 0.05, MAX_TIMEOUT, integer=False)
    profile = registry.profile_of(agent)
    auditor = Auditor(registry, profile=profile.id, tokenizer=tokenizer, known_agents=[agent], level=LEVEL)
    registry.open_tokenizer(profile.id, tokenizer)  # a missing tokenizer is an error before the server writes
    client = _Server(server, timeout)
    chosen = client.first_model() if model is None else model

    def ask_for_text(fields: dict[str, Any]) -> tuple[list[str], Answer]:
        try:
            texts = client.write(chosen, tokens, fields)
        except _Refused as refused:
            return [], refused.answer
        report = _report(auditor, texts)
        return texts, Answer(200, report.scored, report.evidence[agent])

    progress(f"asking {client.url} for a few tokens")
    with contextlib.suppress(_Refused):  # the next request says so
        client.check_speed(chosen, tokens, body(agent, engine=engine))
    progress(f"asking for text of {agent}")
    texts, named = ask_for_text(body(agent, engine=engine))
    progress("asking for text without an agent")
    _, unnamed = ask_for_text({})
    progress("asking with an unknown name")
    unknown = Answer(200)
    try:
        client.write(chosen, 1, body(f"unknown-{secrets.token_hex(4)}", engine=engine))
    except _Refused as refused:
        unknown = refused.answer
    others: tuple[str, ...] = ()
    if texts and not named.marked and len(registry.names(profile.id)) > 1:
        everyone = Auditor(registry, profile=profile.id, tokenizer=tokenizer, level=LEVEL)
        others = _report(everyone, texts).found
    return Arrival(client.url, chosen, agent, profile.id, named, unnamed, unknown, others)


def _report(auditor: Auditor, texts: list[str]) -> Any:
    """Audit texts as one, without the text between them."""
    joiner, spans, start = "\n\n", [], 0
    for text in texts:
        spans.append((start, start + len(text)))
        start += len(text) + len(joiner)
    return auditor.audit(joiner.join(texts), spans=spans)


class _Refused(Exception):
    """The server refuses a request because of its content (HTTP 4xx)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(status, said=message)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the key would be sent to the server that the answer names."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


class _Server:
    """A client of one server. Its messages are shown without the key, which some servers repeat."""

    def __init__(self, url: str, timeout: float) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:  # a bracket that is not closed
            raise InputError("server: got no URL, expected one such as http://localhost:8000") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            got = f"{parts.scheme}://..." if parts.scheme else "no http://"  # it may hold a password
            raise InputError(f"server: got {got}, expected a URL such as http://localhost:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise InputError(
                "server: got a URL with a user, a password or a query, expected none; a key is read from"
                f" ${KEY_VARIABLE}"
            )
        if not url.isascii() or any(len(label) > 63 for label in parts.hostname.split(".")):
            raise InputError(
                "server: got a URL with letters that HTTP does not take, or more than 63 between dots,"
                " expected one such as http://localhost:8000"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._key = os.environ.get(KEY_VARIABLE, "").strip(" ")  # blanks at its ends are no part of a header
        if self._key and not (self._key.isascii() and self._key.isprintable()):
            raise InputError(f"${KEY_VARIABLE}: got a key that no header takes, expected ASCII in one line")
        self._chat = False
        self._opener = urllib.request.build_opener(_NoRedirects())

    def first_model(self) -> str:
        try:
            status, answer = 200, self._ask("/v1/models", None)
            return str(answer["data"][0]["id"])
        except _Refused as refused:
            status = refused.answer.status
        except (KeyError, IndexError, TypeError):
            pass
        raise BackendUnavailable(f"{self.url}/v1/models: lists no model (HTTP {status}); pass --model")

    def write(self, model: str, tokens: int, extra: dict[str, Any]) -> list[str]:
        """Return texts of at most `tokens` tokens together."""
        prompts = PROMPTS[: min(tokens, len(PROMPTS))]
        body = {"model": model, "max_tokens": tokens // len(prompts), "temperature": 1.0, **extra}
        return [self._complete(body, prompt) for prompt in prompts]

    def check_speed(self, model: str, tokens: int, extra: dict[str, Any]) -> None:
        """Raise an error if the texts that `write` asks for will not arrive in time."""
        body = {"model": model, "temperature": 1.0, **extra}
        seconds_of = dict[int, float]()
        for asked in (1 + FIRST_TOKENS, 1, 1 + FIRST_TOKENS):  # a server may compile first
            start = time.monotonic()
            self._complete({**body, "max_tokens": asked}, PROMPTS[0])
            seconds_of[asked] = time.monotonic() - start
        speed = FIRST_TOKENS / max(seconds_of[1 + FIRST_TOKENS] - seconds_of[1], 1e-9)
        seconds = tokens / min(tokens, len(PROMPTS)) / speed
        if seconds > self._timeout:
            raise BackendUnavailable(
                f"{self.url}: writes {speed:.2g} tokens a second; {tokens} are needed, in answers of"
                f" {seconds:.0f} s each: pass --timeout {2 * seconds:.0f}, or serve faster"
            )

    def _complete(self, body: dict[str, Any], prompt: str) -> str:
        if not self._chat:
            try:
                return self._text("/v1/completions", {**body, "prompt": prompt})
            except _Refused as refused:
                if refused.answer.status not in (404, 405):
                    raise
                self._chat = True  # a gateway that speaks chat only
        messages = [{"role": "user", "content": "Continue this text.\n\n" + prompt}]
        return self._text("/v1/chat/completions", {**body, "messages": messages})

    def _text(self, path: str, body: dict[str, Any]) -> str:
        try:
            choice = self._ask(path, body)["choices"][0]
            return str((choice["message"]["content"] if self._chat else choice["text"]) or "")
        except (KeyError, IndexError, TypeError):
            raise BackendUnavailable(
                f"{self.url}: answers without a text, as no OpenAI-compatible server does"
            ) from None

    def _ask(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(
            self.url + path, None if body is None else json.dumps(body).encode(), headers
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return json.loads(self._body(answer))
        except urllib.error.HTTPError as error:
            try:
                content = self._body(error, MOST_SAID)
            except TimeoutError:
                raise self._too_slow() from None
            except (OSError, http.client.HTTPException):
                content = b""
            text = self._shown(content)
            if 400 <= error.code < 500 and error.code not in (401, 408, 429):
                raise _Refused(error.code, text) from None
            why = f"HTTP {error.code} ({text})"
            if error.code == 401:
                why += (
                    f"; is ${KEY_VARIABLE} right?" if self._key else f"; it wants a key, in ${KEY_VARIABLE}"
                )
            elif error.code < 400:
                why = f"HTTP {error.code}, a redirection, is not followed"
            raise BackendUnavailable(f"{self.url}: {why}") from None
        except TimeoutError:
            raise self._too_slow() from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._too_slow() from None
            raise BackendUnavailable(f"{self.url}: cannot be reached ({error.reason})") from None
        except (OSError, http.client.HTTPException) as error:
            raise BackendUnavailable(f"{self.url}: broke off ({type(error).__name__})") from None
        except (ValueError, RecursionError):
            raise BackendUnavailable(f"{self.url}{path}: answers with something else than JSON") from None

    def _body(self, answer: Any, limit: int = MOST_BYTES) -> bytes:
        """Return the first `limit` bytes of an answer. The timeout is for all of them together."""
        until, parts = time.monotonic() + self._timeout, list[bytes]()
        while limit > 0 and (part := answer.read1(min(limit, 65536))):
            if time.monotonic() > until:
                raise TimeoutError
            parts.append(part)
            limit -= len(part)
        if limit > 0 and answer.length:
            raise http.client.IncompleteRead(b"".join(parts), answer.length)
        return b"".join(parts)

    def _too_slow(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"{self.url}: no answer within {self._timeout:g} s; --timeout waits for longer"
        )

    def _shown(self, data: bytes) -> str:
        """Return what an error says, in one short line."""
        text = data.decode(errors="replace")
        try:
            content = json.loads(text)
            error = content.get("error", content)
            text = str(error.get("message", text) if isinstance(error, dict) else error)
        except (ValueError, AttributeError, RecursionError):
            pass
        for key in {self._key, " ".join(self._key.split())} - {""}:
            text = text.replace(key, "<key>")
        return " ".join(text.split())[:300] or "no reason given"
