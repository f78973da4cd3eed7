"""How many tokens an agent must have written to be found, by simulation: `iet calibrate --power`.

    python -m benchmarks.accuracy.power -o benchmarks/results/power.json

The same in real text is the experiment `power` of `benchmarks.paper`.
"""

from __future__ import annotations

import dataclasses
import sys

from benchmarks.recording import exit_code, finish, parser
from iet import calibrate

LEVEL, SHARE = 0.01, 0.9


def main() -> None:
    line = parser("benchmarks.accuracy.power", __doc__)
    options = line.parse_args()
    rows = calibrate.power(level=LEVEL, share=SHARE, progress=print)
    content = {"simulated": [dataclasses.asdict(row) for row in rows]}
    finish(line, options, content, calibrate.power_table(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
