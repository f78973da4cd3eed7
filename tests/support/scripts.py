"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )
