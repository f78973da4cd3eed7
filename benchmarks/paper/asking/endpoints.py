"""Where models answer: an OpenAI-compatible endpoint, or Bedrock.

Both turn what can go wrong into three kinds: nothing came back and may later (`NoAnswer`), this question is
refused for good (`Refused`), and no question will be answered (`BackendUnavailable`: key, permission, model
or address). Keys are read from the environment when a connection is made. They are in no repr, log, message
or file; where a server sends one back, it is taken out.
"""

from __future__ import annotations

import dataclasses
import os
import urllib.parse
from collections.abc import Callable
from typing import Protocol

from benchmarks.paper import needed
from iet.errors import BackendUnavailable, IetError, InputError

_SHORTEST_KEY = 8
_LATER = {408, 409, 425, 429}
_NEVER = {401: "the key was refused", 403: "the key has no permission", 404: "no such model or address"}


class NoAnswer(IetError):
    """Nothing came back that could be an answer; it may later."""


class Refused(IetError):
    """The endpoint refuses this very question, such as one that is too long, and would again."""


@dataclasses.dataclass(frozen=True)
class Parameters:
    """How a model answers; the paper's by default."""

    # None leaves one out of the request, for models that refuse any value but their own (the paper's
    # gpt-5-mini takes no temperature; the paper states 0 all the same)
    temperature: float | None = 0.0
    top_p: float | None = 1.0


@dataclasses.dataclass(frozen=True)
class Sampling(Parameters):
    """How a judge answers; as the public programs sample from local models by default."""

    temperature: float | None = 0.6
    top_p: float | None = 0.95
    max_tokens: int = 1024  # of an answer
    seed: int = 0  # of its draws, as far as an endpoint heeds it


Ask = Callable[[str, str, Parameters], str]


def known_as(endpoint: Endpoint) -> str:
    """Return what an endpoint's answers are kept under: a name means another model at another address."""
    return endpoint.model if endpoint.address is None else f"{endpoint.model} at {endpoint.address}"


class Endpoint(Protocol):
    """A model that can be asked."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def address(self) -> str | None:
        """Where it is served, without user, password and query; None for the service's own address."""

    def connect(self) -> Ask:
        """Return what sends a system and a user prompt and returns the answer.

        It raises NoAnswer, Refused or BackendUnavailable.
        """


@dataclasses.dataclass(frozen=True)
class OpenAIEndpoint:
    """An endpoint that speaks OpenAI's chat completions (OpenAI, DeepSeek, Qwen, vLLM, llama.cpp, ...)."""

    model: str  # its name there
    # None for OpenAI's own, or what the environment variable OPENAI_BASE_URL says
    base_url: str | None = dataclasses.field(default=None, repr=False)  # it may hold a password
    # The environment variable that holds the key; any word will do for a local server
    key_variable: str = "OPENAI_API_KEY"
    timeout: float = 120.0  # in seconds, of one request

    @property
    def address(self) -> str | None:
        return _shown(self.base_url or os.environ.get("OPENAI_BASE_URL"))

    def connect(self) -> Ask:
        _ = self.address  # refused before a key is asked for
        openai = needed("openai")
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise BackendUnavailable(
                f"{self.key_variable}: got nothing from the environment, expected the endpoint's key (any"
                " word for a local server)"
            )
        # Attempts are counted by the caller, so the package makes none of its own.
        client = openai.OpenAI(api_key=key, base_url=self.base_url, timeout=self.timeout, max_retries=0)

        def ask(system: str, user: str, parameters: Parameters) -> str:
            options = {k: v for k, v in dataclasses.asdict(parameters).items() if v is not None}
            problem: IetError
            try:
                answer = client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
                    **options,
                )
                text = answer.choices[0].message.content
                if isinstance(text, str):
                    return _without(key, text)
                problem = NoAnswer(f"{self.model}: the response holds no text")
            except openai.APIStatusError as error:
                problem = _problem(self.model, error.status_code, _without(key, str(error)))
            except openai.APITimeoutError:
                problem = NoAnswer(f"{self.model}: no answer within {self.timeout:g} s")
            except openai.APIConnectionError:
                problem = NoAnswer(f"{self.model}: no connection")
            except (openai.OpenAIError, ValueError, AttributeError, TypeError, IndexError):
                # The package reads a response leniently: one that is none shows only when it is used.
                problem = NoAnswer(f"{self.model}: the response is no chat completion")
            raise problem  # outside of `except`: no request, and so no key, hangs on it

        return ask


@dataclasses.dataclass(frozen=True)
class BedrockEndpoint:
    """A model of Amazon Bedrock, asked by its Converse operation; boto3 finds the credentials."""

    model: str  # its id or inference profile
    region: str | None = None  # None for the environment's
    base_url: str | None = dataclasses.field(default=None, repr=False)  # None for Amazon's
    timeout: float = 120.0  # in seconds, of one request

    @property
    def address(self) -> str | None:
        return _shown(self.base_url)

    def connect(self) -> Ask:
        _ = self.address
        names = ("boto3", "botocore.config", "botocore.exceptions", "botocore.parsers")
        boto3, configs, errors, parsers = (needed(name, "bedrock") for name in names)
        config = configs.Config(
            connect_timeout=self.timeout, read_timeout=self.timeout, retries={"total_max_attempts": 1}
        )
        try:
            client = boto3.client(
                "bedrock-runtime", region_name=self.region, endpoint_url=self.base_url, config=config
            )
        except (errors.BotoCoreError, ValueError) as error:
            raise BackendUnavailable(
                f"{self.model}: Bedrock cannot be reached ({type(error).__name__})"
            ) from None

        def ask(system: str, user: str, parameters: Parameters) -> str:
            options = {"temperature": parameters.temperature, "topP": parameters.top_p}
            problem: IetError
            try:
                answer = client.converse(
                    modelId=self.model,
                    system=[{"text": system}],
                    messages=[{"role": "user", "content": [{"text": user}]}],
                    inferenceConfig={k: v for k, v in options.items() if v is not None},
                )
                parts = answer["output"]["message"]["content"]
                text = [part["text"] for part in parts if "text" in part]  # others are a model's reasoning
                if text:
                    return "".join(text)
                problem = NoAnswer(f"{self.model}: the response holds no text")
            except errors.ClientError as error:
                # Messages of Amazon name accounts, so only the code is passed on.
                status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
                problem = _problem(self.model, status, str(error.response.get("Error", {}).get("Code", "")))
            except (errors.NoCredentialsError, errors.PartialCredentialsError):
                problem = BackendUnavailable(f"{self.model}: boto3 finds no credentials for Bedrock")
            except errors.BotoCoreError as error:
                problem = NoAnswer(f"{self.model}: {type(error).__name__}")
            except (parsers.ResponseParserError, KeyError, TypeError, AttributeError, ValueError):
                problem = NoAnswer(f"{self.model}: the response is no answer of Converse")
            raise problem

        return ask


def _without(key: str, text: str) -> str:
    """Return a text without the key; a short one is any word that a local server takes, and no secret."""
    return text.replace(key, "[key]") if len(key) >= _SHORTEST_KEY else text


def _shown(url: str | None) -> str | None:
    if not url:
        return None
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        # What was given is not shown: it may hold a password.
        raise InputError("base_url: got no address, expected one like http://127.0.0.1:8000/v1")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _problem(model: str, status: int, message: str) -> IetError:
    says = f"{model}: HTTP {status}: {message[:300]}"
    if status in _NEVER:
        return BackendUnavailable(f"{says} ({_NEVER[status]})")
    if status in _LATER or not 400 <= status < 500:
        return NoAnswer(says)
    return Refused(says)
