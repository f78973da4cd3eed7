"""Weave's calls: of functions with @weave.op around OpenAI's client, stored in a local database."""

# requires: weave==0.52.30
# requires: openai==2.8.0 numpy litellm==1.83.0

import base64
import os
import tempfile
from typing import Any

os.environ["WEAVE_CLIENT_PARALLELISM"] = "0"  # SQLite takes one writer at a time

import answers
import weave
from openai import OpenAI
from weave.integrations.openai.openai_sdk import get_openai_patcher
from weave.trace.context.weave_client_context import set_weave_client_global
from weave.trace.weave_client import WeaveClient
from weave.trace_server.external_to_internal_trace_server_adapter import ExternalTraceServer, IdConverter
from weave.trace_server.sqlite_trace_server import SqliteTraceServer
from weave.trace_server.trace_server_interface import CallsQueryReq

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}


class Names(IdConverter):
    """Names of projects, runs and users as the client knows them; the database holds them in base64."""

    def ext_to_int_project_id(self, project_id: str) -> str:
        return base64.b64encode(project_id.encode()).decode()

    def int_to_ext_project_id(self, project_id: str) -> str:
        return base64.b64decode(project_id).decode()

    ext_to_int_run_id = ext_to_int_user_id = ext_to_int_project_id
    int_to_ext_run_id = int_to_ext_user_id = int_to_ext_project_id


database = SqliteTraceServer(f"{tempfile.mkdtemp()}/calls.db")
database.setup_tables()
server = ExternalTraceServer(database, Names())
client = WeaveClient("school", "garden", server, ensure_project_exists=False)
set_weave_client_global(client)
get_openai_patcher().attempt_patch()


@weave.op(kind="tool")
def measure() -> str:
    return answers.TOOL_RESULT


@weave.op(name="planner", kind="agent")
def plan(log: list[dict[str, str]]) -> str:
    if len(log) == 1:
        measure()
    return complete("planner", log)


@weave.op(name="critic", kind="agent")
def criticize(log: list[dict[str, str]]) -> str:
    return complete("critic", log)


@weave.op
def garden(task: str) -> str:
    log = [{"role": "user", "content": task}]
    for member in (plan, criticize, plan):
        log.append({"role": "assistant", "content": member(log)})
    return log[-1]["content"]


with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
    model = OpenAI(base_url=f"{url}/v1", api_key="-")

    def complete(name: str, log: list[dict[str, str]]) -> str:
        messages = [{"role": "system", "content": SYSTEM[name]}, *log]
        return str(model.chat.completions.create(model="gpt-5", messages=messages).choices[0].message.content)

    garden(answers.USER)
client.flush()


def neutral(values: list[Any]) -> list[Any]:
    """Replace the facts about this machine."""
    for value in values:
        value["attributes"]["weave"].update(sys_version="3.11", os_version="", os_release="")
        value["inputs"].pop("self", None)
    return values


request = CallsQueryReq(project_id="school/garden")
answers.write("weave_calls.json", neutral([call.to_dict() for call in client.get_calls()]))
rows = [call.model_dump(mode="json") for call in server.calls_query_stream(request)]
answers.write("weave_calls_stream.jsonl", neutral(rows))
