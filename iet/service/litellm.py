"""The gateway as a hook of LiteLLM's proxy: the authenticated key decides which agent a request is marked as.

    # config.yaml of the proxy
    litellm_settings:
      callbacks: iet.service.litellm.hook
    general_settings:
      custom_auth: iet.service.litellm.authenticate  # or LiteLLM's own keys

`IET_GATEWAY_KEYS` names the file of hashes (see `iet.service.credentials`), `IET_GATEWAY_ENGINE` the engine
(vllm, the default, or sglang), and `IET_GATEWAY_SESSIONS` a file for the sessions that clients name (see
`iet.service.sessions`; without it a request that names one is refused). LiteLLM keeps its own keys as
SHA-256, too, so that their hashes fit the file.
LiteLLM's releases 1.82.7 and 1.82.8 were malicious.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import UserAPIKeyAuth

from iet.errors import IetError, InputError
from iet.generation.agents import ENGINES, Engine, enforce, fields, session_of
from iet.service.credentials import Credentials
from iet.service.gateway import Forbidden, keep, marked
from iet.service.sessions import SessionList

KEYS, ENGINE, SESSIONS = "IET_GATEWAY_KEYS", "IET_GATEWAY_ENGINE", "IET_GATEWAY_SESSIONS"

MARKED = frozenset({"completion", "acompletion", "text_completion", "atext_completion"})
"""Calls whose fields LiteLLM passes on to the engine, so that the agent arrives."""

WITHOUT_TEXT = frozenset(
    {"embedding", "embeddings", "aembedding", "moderation", "amoderation", "rerank", "arerank"}
)
"""Calls that make no text. All others are refused: what they make would carry no mark, or a client's."""


def _engine() -> Engine:
    named = os.environ.get(ENGINE) or "vllm"
    for engine in ENGINES:
        if engine == named:
            return engine
    raise InputError(f"{ENGINE}: got {named!r:.80}, expected one of {', '.join(ENGINES)}")


def _credentials() -> Credentials:
    path = os.environ.get(KEYS)
    if not path:
        raise InputError(f"{KEYS}: got none, expected a file of the hashes of keys and their agents")
    return Credentials(path)


def _sessions() -> SessionList | None:
    path = os.environ.get(SESSIONS)
    return SessionList(path) if path else None


class Hook(CustomLogger):  # type: ignore[misc, unused-ignore]
    """Names the agent in every request. The proxy does not start where its settings are wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.engine, self.keys, self.sessions = _engine(), _credentials(), _sessions()
        self._fields = fields(self.engine)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Refuse a request that lies, as soon as LiteLLM knows whose it is.

        Raises:
            HTTPException: the key is no agent's, or the request asks for another agent or no mark (403), or
                is for a call whose text would not be marked.
        """
        try:
            agent = self._agent_of(user_api_key_dict, call_type)
            # What stands in extra_body LiteLLM sends on as if it stood beside it.
            for claims in (data, data.get("extra_body") or {}):
                if call_type in MARKED:
                    await marked(claims, agent, self.engine, self.sessions)
        except Forbidden as refused:
            raise HTTPException(refused.status, {"error": refused.said}) from None
        return data

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:
        """Name the agent in what LiteLLM is about to send: the last word.

        A request can ask LiteLLM itself for another body on the way, by its `fallbacks`, or for one without
        some fields, by `additional_drop_params`; and its route `/vllm/` calls no hook but this.

        Raises:
            HTTPException: as in `async_pre_call_hook`.
        """
        kept = kwargs.get("metadata") or kwargs.get("litellm_metadata") or {}
        call = str(getattr(call_type, "value", call_type))
        try:
            agent = self._agent_of(kept.get("user_api_key_auth"), call)
        except Forbidden as refused:
            raise HTTPException(refused.status, {"error": refused.said}) from None
        if call not in MARKED:
            return kwargs
        asked = {**(kwargs.get("extra_body") or {}), **{f: kwargs[f] for f in self._fields if kwargs.get(f)}}
        sent = {name: value for name, value in kwargs.items() if name not in self._fields}
        dropped = sent.get("additional_drop_params")
        if isinstance(dropped, list):
            sent["additional_drop_params"] = [x for x in dropped if x not in {"extra_body", *self._fields}]
        try:
            session = None if self.sessions is None else session_of(asked, engine=self.engine)
            if self.sessions is not None and session is not None:
                await keep(self.sessions, session, agent)
        except InputError as error:
            raise HTTPException(403, {"error": str(error)}) from None
        except Forbidden as refused:
            raise HTTPException(refused.status, {"error": refused.said}) from None
        return {**sent, "extra_body": enforce(asked, agent, engine=self.engine, session=session)}

    def _agent_of(self, identity: Any, call: str) -> str:
        """Return the agent of an identity that LiteLLM has authenticated, by the SHA-256 of its key.

        Raises:
            Forbidden: it is no agent's, or the call makes text that would not be marked.
        """
        try:
            agent = self.keys.name_of_hash(str(getattr(identity, "api_key", None) or ""))
        except (IetError, OSError):
            raise Forbidden(503, "the gateway cannot read its keys") from None
        if agent is None:
            raise Forbidden(403, "the key is no agent's")
        if call not in MARKED | WITHOUT_TEXT:
            raise Forbidden(403, f"{call}: expected completions or chat completions, which are marked")
        return agent


hook = Hook()


async def authenticate(request: Any, api_key: str | None) -> UserAPIKeyAuth:
    """Let in whoever holds a key of the file: LiteLLM's custom authentication, which needs no database.

    Args:
        request: not read.
        api_key: the bearer token, None without one.

    Raises:
        HTTPException: 401.
    """
    key = (api_key or "").encode("utf-8", "surrogatepass")
    try:
        agent = hook.keys.name_of(key)
    except (IetError, OSError):
        raise HTTPException(503, {"error": "the gateway cannot read its keys"}) from None
    if agent is None:
        raise HTTPException(401, {"error": "authorization: expected a key that is an agent's"})
    return UserAPIKeyAuth(api_key=hashlib.sha256(key).hexdigest(), key_alias=agent, user_id=agent)
