"""The JSON of a benchmark of speed."""

SPREAD = {
    "type": "object",
    "properties": {key: {"type": "number"} for key in ("low", "median", "high")},
    "required": ["low", "median", "high"],
    "additionalProperties": False,
}
RESULT = {
    "type": "object",
    "properties": {
        "what": {"type": "string"},
        "kind": {"enum": ["ours", "floor", "peer"]},
        "value": SPREAD,
        "over": {"type": "object", "additionalProperties": SPREAD, "minProperties": 1},
        "note": {"type": "string"},
    },
    "required": ["what", "kind", "value", "over", "note"],
}
SUITE = {
    "type": "object",
    "properties": {
        "suite": {"type": "string"},
        "unit": {"type": "string"},
        "rounds": {"type": "integer", "minimum": 1},
        "noise": {"type": "number", "minimum": 0},
        "skipped": {"type": "object", "additionalProperties": {"type": "string"}},
        "results": {"type": "array", "items": RESULT, "minItems": 2},
        "details": {"type": "object"},
    },
    "required": ["suite", "unit", "rounds", "noise", "skipped", "results", "details", "floors"],
}
RECORD = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "pattern": r"^python -m benchmarks\.speed\.bench_\w+ -o "},
        "quick": {"type": "boolean"},
        "environment": {
            "type": "object",
            "required": ["processor", "machine", "cores", "isa", "threads", "load", "python", "numpy", "iet"],
        },
        "suites": {"type": "array", "items": SUITE, "minItems": 1},
    },
    "required": ["command", "quick", "environment", "suites"],
}
