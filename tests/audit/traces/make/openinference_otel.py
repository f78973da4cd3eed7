"""OpenInference's spans of the OpenAI Agents SDK: the planner hands over to the critic."""

# requires: openinference-instrumentation-openai-agents==2.6.0
# requires: openai-agents==0.24.0
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import answers
import otlp
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_trace_processors,
)
from openai import AsyncOpenAI
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

SCRIPT = (
    answers.call("measure"),
    [answers.PLANNER, answers.call("transfer_to_critic")],
    answers.CRITIC,
    answers.PLANNER_AGAIN,
)


@function_tool
def measure() -> str:
    """Measure the garden."""
    return answers.TOOL_RESULT


def run(kind: type) -> None:
    with answers.server(*SCRIPT) as url:
        model = kind("gpt-5", AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
        critic = Agent("critic", instructions=answers.CRITIC_SYSTEM, model=model)
        planner = Agent(
            "planner", instructions=answers.PLANNER_SYSTEM, model=model, handoffs=[critic], tools=[measure]
        )
        config = RunConfig(workflow_name="Plan the garden")
        result = Runner.run_sync(planner, answers.USER, run_config=config)
        Runner.run_sync(planner, result.to_input_list(), run_config=config)


set_trace_processors([])
OpenAIAgentsInstrumentor().instrument(tracer_provider=otlp.TRACER_PROVIDER)
run(OpenAIChatCompletionsModel)
otlp.save("openinference_agents_chat.json")
run(OpenAIResponsesModel)
otlp.save("openinference_agents_responses.json")
