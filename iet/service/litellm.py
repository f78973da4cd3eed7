"""The gateway as a hook of LiteLLM's proxy: a request is marked as the agent of its authenticated key.

    # config.yaml of the proxy
    litellm_settings:
      callbacks: iet.service.litellm.hook
    general_settings:
      custom_auth: iet.service.litellm.authenticate  # or LiteLLM's own keys

Environment variables: `IET_GATEWAY_KEYS` names the file of hashes (see `iet.service.credentials`),
`IET_GATEWAY_ENGINE` the engine ("vllm", the default, or "sglang"), and `IET_GATEWAY_SESSIONS` a file for the
sessions that clients name (see `iet.service.gateway.SessionList`; without it a request that names one is
refused). LiteLLM also keeps its own keys as SHA-256, so that their hashes fit the file.
LiteLLM's releases 1.82.7 and 1.82.8 were malicious.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import UserAPIKeyAuth

from iet.errors import IetError, InputError
from iet.generation.agents import ENGINES, Engine, enforce, fields, session_of
from iet.service.credentials import Credentials
from iet.service.gateway import SessionList, record, with_agent
from iet.service.limits import RequestRefused

KEYS, ENGINE, SESSIONS = "IET_GATEWAY_KEYS", "IET_GATEWAY_ENGINE", "IET_GATEWAY_SESSIONS"

MARKED = frozenset({"completion", "acompletion", "text_completion", "atext_completion"})
"""Calls whose fields LiteLLM passes on to the engine, the agent's included."""

WITHOUT_TEXT = frozenset(
    {"embedding", "embeddings", "aembedding", "moderation", "amoderation", "rerank", "arerank"}
)
"""Calls that generate no text. All others are refused, as their text would have no mark or a client's."""


def _engine() -> Engine:
    name = os.environ.get(ENGINE) or "vllm"
    for engine in ENGINES:
        if engine == name:
            return engine
    raise InputError(f"{ENGINE}: got {name!r:.80}, expected one of {', '.join(ENGINES)}")


def _credentials() -> Credentials:
    path = os.environ.get(KEYS)
    if not path:
        raise InputError(f"{KEYS}: got none, expected a file of the hashes of keys and their agents")
    return Credentials(path)


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    """Raise a refusal of a request as the HTTPException that LiteLLM answers with."""
    try:
        yield
    except RequestRefused as refused:
        raise HTTPException(refused.status, {"error": refused.message}) from None
    except InputError as error:
        raise HTTPException(403, {"error": str(error)}) from None


class Hook(CustomLogger):  # type: ignore[misc, unused-ignore]
    """Names the agent in every request. The proxy does not start if its settings are wrong."""

    def __init__(self) -> None:
        super().__init__()
        path = os.environ.get(SESSIONS)
        self.engine, self.keys = _engine(), _credentials()
        self.sessions = SessionList(path) if path else None
        self._fields = fields(self.engine)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Check a request as soon as LiteLLM has authenticated its key.

        Raises:
            HTTPException: 403, the key has no agent, the request asks for another agent or no mark, or the
                call's text would not be marked.
        """
        with _http_errors():
            agent = self._agent_of(user_api_key_dict, call_type)
            if call_type in MARKED:
                # LiteLLM sends the fields of extra_body on at the top level.
                for claims in (data, data.get("extra_body") or {}):
                    _, session = with_agent(claims, agent, self.engine, self.sessions)
                    await record(self.sessions, session, agent)
        return data

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:
        """Write the agent into the request that LiteLLM is about to send.

        The first hook is not enough: a client can have LiteLLM take another body from `fallbacks`, or drop
        fields by `additional_drop_params`, and LiteLLM's route `/vllm/` calls only this hook.

        Raises:
            HTTPException: as in `async_pre_call_hook`.
        """
        metadata = kwargs.get("metadata") or kwargs.get("litellm_metadata") or {}
        call = str(getattr(call_type, "value", call_type))
        with _http_errors():
            agent = self._agent_of(metadata.get("user_api_key_auth"), call)
            if call not in MARKED:
                return kwargs
            at_top_level = {field: kwargs[field] for field in self._fields if kwargs.get(field)}
            body = {**(kwargs.get("extra_body") or {}), **at_top_level}
            sent = {name: value for name, value in kwargs.items() if name not in self._fields}
            dropped = sent.get("additional_drop_params")
            if isinstance(dropped, list):
                needed = {"extra_body", *self._fields}
                sent["additional_drop_params"] = [name for name in dropped if name not in needed]
            session = None if self.sessions is None else session_of(body, engine=self.engine)
            await record(self.sessions, session, agent)
        return {**sent, "extra_body": enforce(body, agent, engine=self.engine, session=session)}

    def _agent_of(self, identity: Any, call: str) -> str:
        """Return the agent that holds the key of an identity, which LiteLLM has authenticated.

        Raises:
            RequestRefused: The key has no agent, or the call's text would not be marked.
        """
        try:
            agent = self.keys.name_of_hash(str(getattr(identity, "api_key", None) or ""))
        except (IetError, OSError):
            raise RequestRefused(503, "the gateway cannot read its keys") from None
        if agent is None:
            raise RequestRefused(403, "the key is no agent's")
        if call not in MARKED | WITHOUT_TEXT:
            raise RequestRefused(403, f"{call}: expected completions or chat completions, which are marked")
        return agent


hook = Hook()


async def authenticate(request: Any, api_key: str | None) -> UserAPIKeyAuth:
    """Authenticate a key by the file of hashes: LiteLLM's custom authentication, which needs no database.

    Args:
        request: not used.
        api_key: the bearer token, None without one.

    Raises:
        HTTPException: 401, the key is unknown; 503, the file cannot be read.
    """
    key = (api_key or "").encode("utf-8", "surrogatepass")
    try:
        agent = hook.keys.name_of(key)
    except (IetError, OSError):
        raise HTTPException(503, {"error": "the gateway cannot read its keys"}) from None
    if agent is None:
        raise HTTPException(401, {"error": "authorization: expected a key that is an agent's"})
    return UserAPIKeyAuth(api_key=hashlib.sha256(key).hexdigest(), key_alias=agent, user_id=agent)
