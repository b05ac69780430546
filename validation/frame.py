"""Phases with deadlines, and the JSON file that is rewritten after each."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
TOTAL_SECONDS = 520.0
ALWAYS = ("environment", "inventory", "runc", "container", "calibrate", "alone", "alone after", "verdict", "agent")


class Run:
    """The phases' results, flushed after each; a phase that fails or is late does not stop the next."""

    def __init__(
        self, out: Path, name: str, simulated: bool, seconds: float = TOTAL_SECONDS, only: tuple[str, ...] = ()
    ) -> None:
        """only: phases whose name contains one of these, and those of ALWAYS; none: all."""
        self.out, self.seconds, self.only = out, seconds, only
        self.begin = time.monotonic()
        self.results: dict[str, Any] = {"run": name, "simulated": simulated, "phases": {}}

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.begin)

    def wants(self, name: str) -> bool:
        return not self.only or any(text in name for text in self.only)

    def phase(self, name: str, seconds: float, work: Callable[[], Json]) -> Json:
        if name not in ALWAYS and not self.wants(name):
            return {"ok": False, "skipped": "not asked for"}
        left = self.left()
        result: Json
        if left < 5:
            result = {"ok": False, "skipped": "no time left"}
        else:
            started = time.monotonic()
            signal.signal(signal.SIGALRM, late)
            signal.alarm(int(min(seconds, left)))
            try:
                result = {"ok": True, **work()}
            except Exception as e:  # the next phase may still work
                result = {"ok": False, "error": f"{type(e).__name__}: {e}"[:2000]}
            finally:
                signal.alarm(0)
            result["seconds"] = round(time.monotonic() - started, 2)
        self.results["phases"][name] = result
        self.flush()
        print(f"{'ok  ' if result['ok'] else 'FAIL'} {name}: {json.dumps(result)[:400]}", flush=True)
        return result

    def flush(self) -> None:
        temporary = self.out.with_suffix(".new")
        temporary.write_text(json.dumps(self.results, indent=1) + "\n")
        temporary.rename(self.out)


def late(*_: object) -> None:
    raise TimeoutError("the phase's time is up")


def run(argv: list[str], seconds: float = 60, **more: Any) -> str:
    r = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, **more)
    if r.returncode:
        raise RuntimeError(f"{argv[0]} ended with {r.returncode}: {(r.stdout + r.stderr)[-1500:]}")
    return r.stdout
