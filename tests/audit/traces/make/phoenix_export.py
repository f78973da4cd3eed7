"""OpenInference's spans from Phoenix: from its REST API, and as its client's data frame.

The script starts a server of Phoenix on this machine, with a database in memory.
"""

# requires: arize-phoenix==20.26.1
# requires: openinference-instrumentation-openai-agents==2.6.0
# requires: openai-agents==0.24.0
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import json
import os
import subprocess
import sys
import time
import urllib.request

import answers
import otlp
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_trace_processors
from openai import AsyncOpenAI
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from phoenix.client import Client

URL = "http://127.0.0.1:6006"
settings = {"PHOENIX_SQL_DATABASE_URL": "sqlite:///:memory:", "PHOENIX_TELEMETRY_ENABLED": "false"}
settings |= {"PHOENIX_HOST": "127.0.0.1", "PHOENIX_GRPC_PORT": "6007"}
server = subprocess.Popen([sys.executable, "-m", "phoenix.server.main", "serve"], env=os.environ | settings)
try:
    for _ in range(120):
        time.sleep(1)
        try:
            urllib.request.urlopen(f"{URL}/healthz")
            break
        except OSError:
            pass
    provider = TracerProvider(resource=Resource({"openinference.project.name": "garden"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{URL}/v1/traces")))
    set_trace_processors([])
    OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
    script = [answers.PLANNER, answers.call("transfer_to_critic")], answers.CRITIC, answers.PLANNER_AGAIN
    with answers.server(*script) as model_url:
        model = OpenAIChatCompletionsModel("gpt-5", AsyncOpenAI(base_url=f"{model_url}/v1", api_key="-"))
        critic = Agent("critic", instructions=answers.CRITIC_SYSTEM, model=model)
        planner = Agent("planner", instructions=answers.PLANNER_SYSTEM, model=model, handoffs=[critic])
        result = Runner.run_sync(planner, answers.USER)
        Runner.run_sync(planner, result.to_input_list())
    provider.shutdown()
    time.sleep(10)
    response = urllib.request.urlopen(f"{URL}/v1/projects/garden/spans?limit=100")
    otlp.save("phoenix_spans.json", json.load(response))
    response = urllib.request.urlopen(f"{URL}/v1/projects/garden/spans/otlpv1?limit=100")
    otlp.save("phoenix_spans_otlp.json", json.load(response))
    frame = Client(base_url=URL).spans.get_spans_dataframe(project_identifier="garden")
    otlp.save(
        "phoenix_dataframe.jsonl", *map(json.loads, frame.to_json(orient="records", lines=True).splitlines())
    )
finally:
    server.terminate()
