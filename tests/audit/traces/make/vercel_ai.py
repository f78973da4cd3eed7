"""Vercel's AI SDK: spans of its telemetry. Arguments: a version below, and a folder with its packages."""

# requires: opentelemetry-exporter-otlp-json-file==0.66b1
# requires, from npm: @opentelemetry/{api,context-async-hooks,otlp-transformer,sdk-trace-base}, zod@3, and
#   4: ai@4.3.19 @ai-sdk/openai@1
#   5: ai@5.0.277 @ai-sdk/openai@2
#   6_tool: ai@6.0.326 @ai-sdk/openai@3
#   7, 7_legacy: ai@7.0.173 @ai-sdk/openai@4 @ai-sdk/otel@1.0.173

import json
import pathlib
import shutil
import subprocess
import sys

import answers
import otlp

version, folder = sys.argv[1:]
script, result = "vercel_ai.mjs", pathlib.Path(folder, "spans.json")
shutil.copy(pathlib.Path(__file__).with_name(script), folder)
first = [answers.PLANNER, answers.call("critic")] if version == "6_tool" else answers.PLANNER
with answers.server(answers.call("measure"), first, answers.CRITIC, answers.PLANNER_AGAIN) as url:
    subprocess.run(["node", script, version, url, result.name], cwd=folder, check=True)
otlp.save(f"vercel_ai_{version}.json", json.loads(result.read_text()))
