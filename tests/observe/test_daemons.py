"""The engines' daemons, found by their names and command lines."""

import shutil
import subprocess
from pathlib import Path

from oci_hook.observe import daemons
from testbed.until import until


def test_a_daemon_is_found_whatever_bytes_its_command_line_has(tmp_path: Path) -> None:
    program = tmp_path / "gh-test-daemon"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([b"gh\xff", b"60"], executable=program) as process:
        try:
            (found,) = until(lambda: list(daemons.running(program.name)))
            assert found == (process.pid, ["gh\ufffd", "60", ""])
        finally:
            process.kill()
