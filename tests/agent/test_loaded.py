"""Modules that the agent must not load."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_agent_loads_neither_openssl_nor_archives() -> None:
    """They take 4 MB of its memory (scripts/bench agent: rss_mb)."""
    program = "import sys, oci_hook.cli.agent, oci_hook.agent.agent; print({'_hashlib', 'lzma'} & {*sys.modules})"
    repo = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([repo, *(p for p in sys.path if p.endswith("site-packages"))])
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
