"""OpenLLMetry's spans, with the messages in gen_ai.input.messages and gen_ai.output.messages."""

# requires: traceloop-sdk==0.62.4
# requires: openai==3.57.0 openai-agents==0.24.0
# requires: langgraph==1.2.24 langchain-openai==1.7.4
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import otlp
import traceloop_frameworks
import traceloop_team
from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor

traceloop_team.run(otlp.SPANS)
otlp.save("traceloop_spans.json")
OpenAIInstrumentor().uninstrument()
LangchainInstrumentor().instrument(tracer_provider=otlp.TRACER_PROVIDER)
traceloop_frameworks.run_graph()
otlp.save("traceloop_langgraph_spans.json")
LangchainInstrumentor().uninstrument()
OpenAIAgentsInstrumentor(replace_existing_processors=True).instrument(tracer_provider=otlp.TRACER_PROVIDER)
traceloop_frameworks.run_agents()
otlp.save("traceloop_agents_spans.json")
