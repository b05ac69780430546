"""The agent's helper processes, each a Python module with pipes for its standard input and output."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[2])


def start(module: str, *arguments: str, environment: "dict[str, str] | None" = None) -> "subprocess.Popen[bytes]":
    """Run `python -m module` from this install; reading its standard output does not block. It does not get systemd's
    variables, which are for the agent alone. Raises OSError."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**inherited, "PYTHONPATH": PACKAGE, "PYTHONSAFEPATH": "1", **(environment or {})},
        cwd="/",
        bufsize=0,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill it and close its pipes. One that hangs inside the driver ends only when the driver returns."""
    process.send_signal(signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        pass  # subprocess reaps it when it starts the next process
