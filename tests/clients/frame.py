"""What a client is: real software, and cases that run it twice, on the bare simulated driver and on a share.

A module `tests/clients/NAME.py` names one as `CLIENT`. A case is one program in one image. It prints a JSON object a line,
{"step": NAME, "is": VALUE}; a value that starts with `failed` or `skipped` is an outcome that is not what the step tried.
Both runs must give the same steps with the same values, except a case's `limits`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Steps = dict[str, Any]


@dataclass(frozen=True)
class Limit:
    """What a step must say on either side where it depends on the limit: a value, or a function that judges one."""

    bare: object
    share: object

    def holds(self, bare: object, share: object) -> bool:
        return _is(self.bare, bare) and _is(self.share, share)


def _is(expected: object, value: object) -> bool:
    return bool(expected(value)) if callable(expected) else type(expected) is type(value) and expected == value


def json_steps(text: str) -> Steps:
    """The steps that a program printed, in order; other lines are its own talk."""
    steps: Steps = {}
    for line in text.splitlines():
        if line.startswith('{"step":'):
            step = json.loads(line)
            assert step["step"] not in steps, f"step {step['step']!r} came twice"
            steps[step["step"]] = step["is"]
    return steps


@dataclass(frozen=True)
class Case:
    """One program that runs bare and on a share."""

    name: str
    run: tuple[str, ...]  # the command; `python` stands for this Python, `/programs` is tests/clients/programs
    what: str  # for the page: what it does
    least: int  # so many steps must succeed on both sides; fewer would be no test
    limits: Mapping[str, Limit] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    parse: Callable[[str], Steps] = json_steps
    only_clients: bool = False  # too long for every `scripts/test`; runs with --clients
    gpus: int = 1
    uid: int = 0  # and gid
    seconds: int = 300  # each run is killed then


@dataclass(frozen=True)
class Client:
    name: str
    version: str  # as the page shows it
    cases: tuple[Case, ...]
    pins: tuple[str, ...] = ()  # files of testbed/pins, without `.txt`: wheels, mounted as a site folder
    debs: tuple[str, ...] = ()  # the same for Debian packages: unpacked over the image
    driver: str = "550"  # the simulated driver's version
    heavy: bool = False  # runs only where it is named: scripts/test --clients=NAME
    # Changes the image's folder before the first run, such as to compile a program into it; and the folder of the driver's libraries.
    prepare: Callable[[Any, Any], object] | None = None


@dataclass(frozen=True)
class Known:
    """A difference between bare and share that is not a limit, and why it stays."""

    client: str
    case: str
    step: str
    bare: object
    share: object
    why: str
