"""The grants of a node's ledger, for repeated queries."""

import json
import queue
import subprocess
import threading
from typing import Any

from testbed import REPO
from testbed.cluster.node import Node


class Grants:
    """A node's grants, read by a program that keeps running on the node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.RLock()

    def read(self, timeout: float = 10) -> list[Any]:
        """Raises RuntimeError or CannotRun while the node is off."""
        with self._lock:
            return self._read(timeout)

    def _read(self, timeout: float) -> list[Any]:
        if self._process is None or self._process.poll() is not None:
            line = [str(REPO / ".venv/bin/python3"), "-B", "-m", "testbed.cluster.grants", "/run/gpu-hook"]
            self._process = subprocess.Popen(
                self._node.machine.line(*line), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process, answers = self._process, queue.SimpleQueue[str]()
        assert process.stdin and process.stdout
        try:
            process.stdin.write("\n")
            process.stdin.flush()
        except OSError:
            self.close()
            raise RuntimeError(f"{self._node.name} does not tell its grants") from None
        reader = threading.Thread(target=lambda: answers.put(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        try:
            found: list[Any] = json.loads(answers.get(timeout=timeout))
        except (queue.Empty, ValueError):
            self.close()
            raise RuntimeError(f"{self._node.name} does not tell its grants") from None
        return found

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None
