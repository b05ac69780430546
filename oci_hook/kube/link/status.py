"""The reporter's status for the agent: a JSON line on standard output after each change."""

import json
import sys
import time


class Status:
    """problems: text, by kind. writes, failures: numbers of writes to the API server since the start. last: Unix time of the last
    write, None for none."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.writes = 0
        self.failures = 0
        self.last: float | None = None
        self._told = ""

    def wrote(self) -> None:
        self.writes += 1
        self.last = round(time.time(), 1)

    def tell(self) -> None:
        line = json.dumps(
            {
                "problem": "; ".join(self.problems.values())[:300],
                "writes": self.writes,
                "failures": self.failures,
                "last": self.last,
            }
        )
        if line != self._told:
            self._told = line
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
