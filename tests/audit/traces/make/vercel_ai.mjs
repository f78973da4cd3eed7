// The conversation in Vercel's AI SDK; vercel_ai.py runs this file. Arguments: version, URL of the server, name of the output.
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { JsonTraceSerializer } from "@opentelemetry/otlp-transformer";
import { context, trace } from "@opentelemetry/api";
import { createOpenAI } from "@ai-sdk/openai";
import { writeFileSync } from "node:fs";
import { z } from "zod";
import * as ai from "ai";

const [version, url, file] = process.argv.slice(2);
const exporter = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
trace.setGlobalTracerProvider(provider);
if (version.startsWith("7")) {
  const otel = await import("@ai-sdk/otel");
  const kind = version === "7_legacy" ? otel.LegacyOpenTelemetry : otel.OpenTelemetry;
  ai.registerTelemetry(new kind({ tracer: provider.getTracer("gen_ai") }));
}

const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "-" });
const schema = z.object({});
const noArguments = version === "4" ? { parameters: schema } : { inputSchema: schema };
const measure = { description: "Measure the garden.", execute: async () => "3 beds, 2 pumps.", ...noArguments };

async function ask(name, messages, tools) {
  const telemetry = { isEnabled: true, functionId: name };
  const system = `You are the ${name} of a small team.`;
  const result = await ai.generateText({
    model: openai.chat("gpt-5"),
    ...(version.startsWith("7") ? { instructions: system, telemetry } : { system, experimental_telemetry: telemetry }),
    ...(version === "4" ? { maxSteps: 3 } : { stopWhen: ai.stepCountIs(3) }),
    messages,
    tools,
  });
  return result.text;
}

const messages = [{ role: "user", content: "Plan the school garden." }];
if (version === "6_tool") {
  const answer = async () => ask("critic", messages);
  const critic = { description: "Ask the critic.", execute: answer, ...noArguments };
  await ask("planner", messages, { measure, critic });
} else {
  for (const name of ["planner", "critic", "planner"]) {
    const tools = messages.length === 1 ? { measure } : undefined;
    messages.push({ role: "assistant", content: await ask(name, messages, tools) });
  }
}
writeFileSync(file, JsonTraceSerializer.serializeRequest(exporter.getFinishedSpans()));
