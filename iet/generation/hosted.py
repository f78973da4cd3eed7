"""Mark the text of models that an OpenAI-compatible API serves without their logits.

    model = HostedModel("http://127.0.0.1:8000/v1", "smollm2", registry, provider="vllm")
    answer = model.write("planner", {"messages": [{"role": "user", "content": "Plan a garden."}]})

`select` asks for several candidates of each chunk and keeps the one of `iet.select`. `walk` asks for a draft
with the log-probabilities of the likeliest tokens and lets the key choose among them, token by token. Neither
changes the distribution of text. The extra `hosted` installs the client.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import logging
import math
import re
import secrets
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import openai

from iet.errors import IetError, InputError, check_number, shown
from iet.generation.free import FreeTokens, request_key, warn_of_limit
from iet.generation.providers import Mark, Provider, checked, named
from iet.generation.selection import MAX_CANDIDATES, TextChooser
from iet.marks.keys import Secret
from iet.marks.registry import Registry

MAX_TOKENS = 4096
"""Tokens of an answer whose request names no maximum."""

TOP_TOKENS = 20
"""Number of log-probabilities that `walk` asks for; APIs return at most 20."""


_LOG = logging.getLogger(__name__)

_END = re.compile(r"<[|｜].*[|｜]>|</s>|<eos>|<end_of_turn>")


@dataclasses.dataclass
class Usage:
    """The cost of an answer.

    Attributes:
        requests: to the provider.
        prompt_tokens, completion_tokens: sums over them, as the provider counts.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclasses.dataclass
class Answer:
    """A marked answer.

    Attributes:
        text: so far; complete if `finish_reason` is set.
        finish_reason: as in OpenAI's API: "stop", "length" or what the provider gave.
        usage: what it cost.
    """

    text: str = ""
    finish_reason: str | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)


@dataclasses.dataclass(frozen=True)
class _Token:
    """A position of a draft: the drawn token, and the likeliest ones with their log-probabilities.

    A text is empty if it is unknown or part of a character.
    """

    text: str
    top: tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True)
class _Draft:
    """A draft; `reason` is None if it can be continued."""

    text: str
    reason: str | None
    tokens: tuple[_Token, ...] = ()


class HostedModel:
    """A hosted model whose answers are marked for agents of a registry.

    Args:
        base_url: of the API, such as "https://api.deepseek.com/beta".
        model: its name there.
        registry: of the agents. For `walk`, take a profile with the model's own tokenizer if it is public:
            any other works and marks more weakly.
        provider: a name in `iet.generation.providers.PROVIDERS`, or a `Provider`.
        mark: "select" or "walk".
        candidates: m, number of drafts that `select` chooses from, 2 to 128.
        chunk_tokens: L, tokens of a draft, 1 to 4096; None: 16 for `select`, 8 for `walk`.
        api_key: of the provider.
        free: tokens that `walk` leaves as they were drawn, so that equal prompts get different answers.
        retries: of a request that fails; the client waits longer each time.
        timeout: seconds without an answer to one request.

    Raises:
        InputError: an argument is out of range, or the provider cannot do what `mark` needs.

    One object serves any number of concurrent answers.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        registry: Registry,
        *,
        provider: str | Provider,
        mark: Mark = "select",
        candidates: int = 8,
        chunk_tokens: int | None = None,
        api_key: str | None = None,
        free: FreeTokens | None = None,
        retries: int = 3,
        timeout: float = 120.0,
    ) -> None:
        for name, value in (("base_url", base_url), ("model", model)):
            if not isinstance(value, str) or not value:
                raise InputError(f"{name}: got {shown(value)}, expected a text that is not empty")
        if not isinstance(registry, Registry):
            raise InputError(f"registry: got {type(registry).__name__}, expected iet.Registry")
        if mark not in get_args(Mark):
            raise InputError(f"mark: got {shown(mark)}, expected one of {', '.join(get_args(Mark))}")
        check_number("candidates", candidates, 2, MAX_CANDIDATES)
        self.chunk_tokens = (16 if mark == "select" else 8) if chunk_tokens is None else chunk_tokens
        check_number("chunk_tokens", self.chunk_tokens, 1, MAX_TOKENS)
        check_number("retries", retries, 0, 100)
        check_number("timeout", timeout, 0.01, 86400, integer=False)
        self.name, self.provider = named(provider)
        can_continue = self.provider.completions or self.provider.continued is not None
        if mark == "walk" and not (self.provider.log_probs and can_continue):
            raise InputError(
                f"mark: got 'walk', expected 'select' with {self.name}, which offers {self.provider.summary}"
            )
        self.model, self.registry, self.mark, self.candidates = model, registry, mark, candidates
        self.free = FreeTokens() if free is None else free
        self._api_key = Secret((api_key or "").encode())
        self._client_options: dict[str, Any] = {
            "base_url": base_url,
            "max_retries": retries,
            "timeout": timeout,
        }
        self._clients: weakref.WeakKeyDictionary[Any, openai.AsyncOpenAI] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"HostedModel({self.model!r}, provider={self.name!r}, mark={self.mark!r})"

    def without_key(self, message: str) -> str:
        """Return a message of the provider without the API key, which it may repeat."""
        key = self._api_key.decode()
        return message.replace(key, "***") if key else message

    def write(self, agent: str, request: Mapping[str, Any], session: str | None = None) -> Answer:
        """Return the whole answer to a request, with what it cost; arguments and errors as `stream`.

        For programs without an event loop.
        """
        return asyncio.run(self._write(agent, request, session))

    async def _write(self, agent: str, request: Mapping[str, Any], session: str | None) -> Answer:
        try:
            return [answer async for answer in self.stream(agent, request, session)][-1]
        finally:
            client = self._clients.pop(asyncio.get_running_loop(), None)
            if client is not None:
                await client.close()

    async def stream(
        self, agent: str, request: Mapping[str, Any], session: str | None = None
    ) -> AsyncIterator[Answer]:
        """Yield the answer to a request each time that it has grown, always the same object.

        Args:
            agent: whose key marks the text.
            request: body of a chat completion (`messages`) or a completion (`prompt`). Further fields go to
                the provider. The maximum of tokens is `max_tokens` or `max_completion_tokens`, else 4096. If
                chats or prompts cannot be continued, `select` chooses among whole answers.
            session: as in `iet.select`.

        Raises:
            InputError: a field cannot be kept with this mark, such as `tools`, `n` above 1, a temperature
                below 0.1 or, for `walk`, `top_p`. Fields that are not known are refused, too.
            RegistryError: the agent is unknown.
            openai.APIError: the provider refuses or does not answer, after the retries.
            IetError: the provider's answer is not what it should be.

        The stream ends with an answer that has a `finish_reason`. Text that could be the beginning of a stop
        string is held back. A character that the end of a draft splits is drawn again, so such characters are
        rarer there than the model writes them. With `select`, m·T tokens are generated for T tokens of an
        answer; with `walk` about L/(1 + R)·T, if the key agrees with R tokens of a draft on average.
        """
        call = _Call(self, agent, request, session)
        while call.answer.finish_reason is None:
            await (call.select() if self.mark == "select" else call.walk())
            yield call.answer

    def _client(self) -> openai.AsyncOpenAI:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = openai.AsyncOpenAI(
                api_key=self._api_key.decode() or "none", **self._client_options
            )
        return self._clients[loop]


class _Call:
    """One request and its answer as it grows."""

    def __init__(self, model: HostedModel, agent: str, request: object, session: str | None) -> None:
        self._model, self._body = model, checked(request, model.mark)
        self._is_chat = "messages" in self._body
        provider = model.provider
        self._continues = provider.continued is not None if self._is_chat else provider.completions
        if not self._continues and (model.mark == "walk" or not self._is_chat):
            got, expected = ("messages", "a prompt") if self._is_chat else ("a prompt", "messages")
            raise InputError(
                f"request: got {got}, expected {expected}: {model.name} offers {provider.summary}"
            )
        stop = self._body.get("stop", ())
        self._stops = (stop,) if isinstance(stop, str) else tuple(stop)
        limits = [self._body.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
        self._limit = next((limit for limit in limits if limit is not None), MAX_TOKENS)
        self._count = 0  # tokens so far
        self._seed = self._body.pop("seed", None)
        self._key = request_key(secrets.token_hex(8) if self._seed is None else self._seed)
        self._chooser = TextChooser(model.registry, agent, session)
        self._text = ""  # with the end that is held back
        self._ends = set(provider.ends)  # and tokens that have ended a draft
        if model.mark == "walk" and self._limit <= model.free.first:
            warn_of_limit(_LOG, "max_tokens", self._limit, model.free.first)
        self.answer = Answer()

    async def select(self) -> None:
        """Add the chosen one of several chunks to the answer."""
        tokens = min(self._model.chunk_tokens, self._limit - self._count) if self._continues else self._limit
        drafts = await self._drafts(self._model.candidates, tokens)
        texts = [self._cut(draft.text) for draft in drafts]
        ends = ["stop" if is_cut else draft.reason for draft, (_, is_cut) in zip(drafts, texts, strict=True)]
        options = [text[len(self._text) :] for text, _ in texts]
        chosen = await self._choose("", options, [1.0] * len(options), [end is not None for end in ends])
        self._extend(texts[chosen][0], tokens, ends[chosen])

    async def walk(self) -> None:
        """Add the tokens of a draft that the key agrees with, and the first that it puts in place."""
        (draft,) = await self._drafts(1, min(self._model.chunk_tokens, self._limit - self._count))
        if draft.text and not draft.tokens and not self._count:  # later, a split character may have none
            raise IetError(f"{self._model.name}: got an answer without log-probabilities")
        *spelled, last = [token.text for token in draft.tokens] or [""]
        is_beyond = last and draft.reason == "stop" and "".join(spelled) == draft.text
        if is_beyond and not self._cut(draft.text + last)[1]:  # no part of the text or of a stop string
            self._ends.add(last)
        accepted = ""
        for count, token in enumerate(draft.tokens, 1):
            chosen = token.text
            weights = self._weights(token)
            if not chosen:  # part of a character: the rest of the draft stays as it was drawn
                break
            # A token that is not among the known ones stays: it was drawn from the rest of the distribution.
            if chosen in weights and not self._is_free(count - 1):
                ends = [self._is_end(text) for text in weights]
                texts = ["" if end else text for text, end in zip(weights, ends, strict=True)]
                chosen = list(weights)[await self._choose(accepted, texts, list(weights.values()), ends)]
            if self._is_end(chosen):
                return self._extend(self._text + accepted, count, "stop")
            accepted += chosen
            full_text, is_cut = self._cut(accepted)
            if is_cut or chosen != token.text:
                return self._extend(full_text, count, "stop" if is_cut else None)
        full_text, is_cut = self._cut(draft.text)
        if not (is_cut or draft.text.startswith(accepted)):
            raise IetError(f"{self._model.name}: the tokens of an answer do not spell its text")
        return self._extend(full_text, max(1, len(draft.tokens)), "stop" if is_cut else draft.reason)

    def _weights(self, token: _Token) -> dict[str, float]:
        """Return the weights of the tokens that the key may choose among, whatever token was drawn.

        APIs return the drawn token in addition to the likeliest ones, or instead of the last of them. So only
        the first `TOP_TOKENS` - 1 are known in any case.
        """
        likeliest = sorted(token.top, key=lambda item: -item[1])[: TOP_TOKENS - 1]
        temperature = 1.0 if self._model.provider.tempered else self._body.get("temperature", 1.0)
        weights = collections.defaultdict[str, float](float)
        for text, value in likeliest:
            weights[text] += math.exp((value - likeliest[0][1]) / temperature)
        return {text: weight for text, weight in weights.items() if text and weight > 0}

    def _is_free(self, count: int) -> bool:
        position = np.array([self._count + count])
        return bool(self._model.free.are_free(np.array([self._key]), position)[0])

    def _is_end(self, token: str) -> bool:
        return token in self._ends or token in self._chooser.special_tokens or bool(_END.fullmatch(token))

    async def _choose(
        self, accepted: str, options: Sequence[str], weights: Sequence[float], ended: Sequence[bool]
    ) -> int:
        """Return the index of the chosen continuation of the text so far and of `accepted`."""
        text = self._text + accepted
        return (await asyncio.to_thread(self._chooser.choose, text, options, weights, ended)).index

    def _cut(self, text: str) -> tuple[str, bool]:
        """Return the text so far with its continuation up to a stop string, and whether there is one.

        A stop string may begin in the text so far, in the end that is held back.
        """
        full_text, begin = self._text + text, max(0, len(self._text) - max(map(len, self._stops), default=0))
        positions = [position for stop in self._stops if (position := full_text.find(stop, begin)) >= 0]
        return full_text[: min(positions, default=len(full_text))], bool(positions)

    def _extend(self, full_text: str, tokens: int, reason: str | None) -> None:
        """Set the text so far, and show it but for an end that may be the beginning of a stop string."""
        self._text = full_text
        self._count += tokens
        self.answer.finish_reason = "length" if reason is None and self._count >= self._limit else reason
        prefix_lengths = [
            n for stop in self._stops for n in range(1, len(stop)) if full_text.endswith(stop[:n])
        ]
        num_held = 0 if self.answer.finish_reason else max(prefix_lengths, default=0)
        self.answer.text = full_text[: len(full_text) - num_held]

    async def _drafts(self, count: int, tokens: int) -> list[_Draft]:
        """Return drafts of what follows, and add what they cost.

        If `n` is not supported, they are requests of their own, which run at once.
        """
        model = self._model
        body = {**self._body, "model": model.model, model.provider.limit: tokens}
        if self._text and self._is_chat:
            message = {"role": "assistant", "content": self._text, **model.provider.prefix}
            body |= {"messages": [*self._body["messages"], message], **(model.provider.continued or {})}
        elif self._text:
            body["prompt"] = self._body["prompt"] + self._text
        if model.mark == "walk":
            body |= {**model.provider.unfiltered, "temperature": body.get("temperature", 1.0)}
            body |= (
                {"logprobs": True, "top_logprobs": TOP_TOKENS} if self._is_chat else {"logprobs": TOP_TOKENS}
            )
        together = count if model.provider.many and self._seed is None else 1
        requests = [
            asyncio.ensure_future(self._request({**body, "n": together})) for _ in range(count // together)
        ]
        try:
            return [draft for drafts in await asyncio.gather(*requests) for draft in drafts]
        finally:
            for request in requests:  # if one has failed, the others need not cost anything
                request.cancel()

    async def _request(self, body: dict[str, Any]) -> list[_Draft]:
        usage = self.answer.usage
        if self._seed is not None:
            body["seed"] = (self._seed + usage.requests) % 2**31  # another one for each request
        if body["n"] == 1:
            del body["n"]
        usage.requests += 1
        path = "/chat/completions" if self._is_chat else "/completions"
        try:
            response = await self._model._client().post(path, body=body, cast_to=str)
        except openai.APIStatusError as error:
            error.message = self._model.without_key(error.message)
            error.args = (error.message,)
            raise
        try:
            content: Any = json.loads(response)
            counted = content.get("usage") or {}
            usage.prompt_tokens += int(counted.get("prompt_tokens") or 0)
            usage.completion_tokens += int(counted.get("completion_tokens") or 0)
            drafts = [self._draft(choice) for choice in content["choices"]]
        except (AttributeError, KeyError, LookupError, TypeError, ValueError):
            raise IetError(
                f"{self._model.name}: got an answer that is no completion of OpenAI's form"
            ) from None
        if len(drafts) != body.get("n", 1):
            raise IetError(f"{self._model.name}: got {len(drafts)} candidates, expected {body.get('n', 1)}")
        return drafts

    def _draft(self, choice: Mapping[str, Any]) -> _Draft:
        if self._is_chat:
            message = choice["message"]
            text = message.get("content") or ""
            if not text and (message.get("reasoning_content") or message.get("reasoning")):
                raise IetError(f"{self._model.name}: the model reasons before it answers; turn that off")
            if self._model.provider.echoes:
                text = text.removeprefix(self._text)
        else:
            text = choice["text"]
        if not isinstance(text, str):
            raise TypeError(text)
        reason = choice.get("finish_reason") or "stop"
        is_whole = reason != "length" or not self._continues
        text = text if is_whole else text.rstrip("\ufffd")  # part of a character
        return _Draft(text, reason if is_whole else None, _tokens(choice.get("logprobs")))


def _tokens(log_probs: Any) -> tuple[_Token, ...]:
    """Return the positions of a draft from either form of log-probabilities."""
    if not log_probs:
        return ()
    if "content" in log_probs:
        return tuple(
            _Token(_text(token), tuple((_text(top), float(top["logprob"])) for top in token["top_logprobs"]))
            for token in log_probs["content"] or ()
        )
    return tuple(
        _Token(_known(text), tuple((_known(token), float(value)) for token, value in top.items()))
        for text, top in zip(log_probs["tokens"], log_probs["top_logprobs"], strict=True)
    )


def _text(token: Mapping[str, Any]) -> str:
    """Return the text of a token, empty if it is unknown or part of a character."""
    if token.get("bytes"):
        try:
            return bytes(token["bytes"]).decode()
        except UnicodeDecodeError:
            return ""
    return _known(str(token["token"]))


def _known(text: str) -> str:
    return "" if "\ufffd" in text else text
