import json
import logging
import re
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from oci_hook.cli import logs
logs.start(sys.argv[1], sys.argv[2])
log = logging.getLogger("oci_hook.kube.part")
log.debug("small")
log.info("pod \\x1b[31m\\nred: %s", 1)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broken")
"""


def lines(level: str, form: str) -> list[str]:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, level, form], capture_output=True, text=True, check=True)
    assert not ran.stdout
    return ran.stderr.splitlines()


def test_text_has_time_level_and_an_escaped_message() -> None:
    info, broken, *trace = lines("info", "text")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO pod .*red: 1", info)
    assert "\x1b" not in info
    assert broken.endswith("ERROR broken") and trace[-1].startswith("ZeroDivisionError")


@pytest.mark.parametrize(("level", "expected"), [("error", 1), ("warning", 1), ("info", 2), ("debug", 3)])
def test_each_level_leaves_out_the_lower_ones(level: str, expected: int) -> None:
    assert len(lines(level, "json")) == expected


def test_json_is_an_object_a_line() -> None:
    info, broken = map(json.loads, lines("info", "json"))
    assert info.keys() == {"time", "level", "logger", "message"}
    assert (info["level"], info["logger"], info["message"]) == ("info", "oci_hook.kube.part", "pod \x1b[31m\nred: 1")
    assert "ZeroDivisionError" in broken["traceback"]


def test_levels_are_those_of_logging() -> None:
    from oci_hook.cli import logs

    assert all(isinstance(logging.getLevelName(level.upper()), int) for level in logs.LEVELS)
