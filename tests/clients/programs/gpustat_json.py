"""gpustat beside a process that holds 300 MiB: its table and its JSON."""

import json
import re
import subprocess
import sys

from held import hold
from steps import said


def gpustat(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "gpustat", *words], capture_output=True, text=True, timeout=60)
    said(" ".join(["gpustat", *words, "ended"]), done.returncode or "ok")
    if done.stderr:
        said(" ".join(["gpustat", *words, "said"]), f"failed: {done.stderr.splitlines()[-1]}")
    return done.stdout


def steps_of(name: str, value: object) -> None:
    """A step for each leaf."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("query_time", "cpu_percent", "cpu_memory_usage", "hostname"):  # they change by themselves
                steps_of(f"{name}.{key}", inner)
    elif isinstance(value, list):
        said(f"{name}: how many", len(value))
        for i, inner in enumerate(value):
            steps_of(f"{name}[{i}]", inner)
    else:
        said(name, value)


hold()
for words in ((), ("--show-all", "--no-header"), ("--show-pid", "--show-cmd", "--no-header")):
    lines = gpustat("--no-color", *words).splitlines()
    for line in lines[not words :]:  # the header has host and time
        said(f"gpustat {' '.join(words)}".strip(), re.sub(r"\(-?\d+%,", "(#%,", line))
steps_of("--json", json.loads(gpustat("--json")))
