"""OpenInference's spans of OpenAI's client, inside agent spans that the application opens itself."""

# requires: openinference-instrumentation-openai==0.1.66
# requires: openai==3.57.0
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import answers
import otlp
from openai import OpenAI
from openinference.instrumentation import OITracer, TraceConfig
from openinference.instrumentation.openai import OpenAIInstrumentor

OpenAIInstrumentor().instrument(tracer_provider=otlp.TRACER_PROVIDER)
tracer = OITracer(otlp.TRACER_PROVIDER.get_tracer("garden"), config=TraceConfig())
system = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}


@tracer.agent(name="planner")
def planner(task: str) -> str:
    return complete("planner", task)


@tracer.agent(name="critic")
def critic(task: str) -> str:
    return complete("critic", task)


with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
    client = OpenAI(base_url=f"{url}/v1", api_key="-")

    def complete(name: str, task: str) -> str:
        messages = [{"role": "system", "content": system[name]}, {"role": "user", "content": task}]
        response = client.chat.completions.create(model="gpt-5", messages=messages)
        return str(response.choices[0].message.content)

    with tracer.start_as_current_span("garden", openinference_span_kind="chain"):
        planner(critic(planner(answers.USER)))
otlp.save("openinference_openai.json")
