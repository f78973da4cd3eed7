"""Run all speed benchmarks, each in a process of its own.

    python -m benchmarks.speed -o benchmarks/results

Every benchmark writes NAME.json and NAME.md into the folder, as `python -m benchmarks.speed.bench_NAME -o`
does alone. One that fails does not keep the others from running; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import subprocess
import sys

NAMES = ("embed", "score", "audit", "bulk", "generate")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES)
    )
    parser.add_argument("--quick", action="store_true", help="tiny: whether they run, not how fast")
    arguments = parser.parse_args()
    failed = []
    for name in arguments.only:
        module = f"benchmarks.speed.bench_{name}"
        if importlib.util.find_spec(module) is None:
            print(f"{module}: not there, left out", file=sys.stderr)
            continue
        if name == "audit" and arguments.quick:
            print(f"{module}: has no tiny size, left out", file=sys.stderr)
            continue
        print(f"{module} ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", module, "-o", str(arguments.output / f"{name}.json")]
        if subprocess.run(command + ["--quick"] * arguments.quick).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
