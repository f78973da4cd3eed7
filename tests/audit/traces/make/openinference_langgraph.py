"""OpenInference's spans of LangGraph: nodes that hand over, and LangChain's agents as nodes."""

# requires: openinference-instrumentation-langchain==0.1.80
# requires: langgraph==1.2.24
# requires: langchain==1.5.2
# requires: langchain-openai==1.7.4
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import langgraph_team
import otlp
from openinference.instrumentation.langchain import LangChainInstrumentor

LangChainInstrumentor().instrument(tracer_provider=otlp.TRACER_PROVIDER)
langgraph_team.run_nodes()
otlp.save("openinference_langgraph_nodes.json")
langgraph_team.run_agents()
otlp.save("openinference_langgraph_agents.json")
