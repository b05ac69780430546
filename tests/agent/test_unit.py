"""The systemd unit: valid, and closed as far as the agent's work allows. Its capabilities hold in all other
tests of the agent; tests/engines/test_agent_unit.py has it run by systemd."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oci_hook.cli.main import COMMANDS
from testbed.agent import UNIT

pytestmark = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")


@pytest.mark.parametrize("path", [UNIT, UNIT.with_name("gpu-hook-inventory.service")], ids=lambda path: path.stem)
def test_the_unit(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    program, command = re.findall(r"^ExecStart=(\S+) (\S+)", text, re.MULTILINE)[0]
    assert program == "/usr/bin/gpu-hook" and command in COMMANDS
    # These close the GPUs' devices (ProtectClock before systemd 253), or openat2.
    assert not re.search(
        r"^(ProtectClock|PrivateDevices|DevicePolicy|DeviceAllow|RestrictSUIDSGID)=", text, re.MULTILINE
    )
    unit = tmp_path / path.name
    unit.write_text(text.replace(f"{program} {command}", "/bin/true").replace("Documentation=", "#"))
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert said.returncode == 0 and not said.stderr, said.stderr
    # 42 of 100, since the driver takes memory limits only from CAP_SYS_ADMIN (NVML: "requires root/admin permissions").
    graded = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=45", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
    )
    if "unrecognized option" in graded.stderr:  # systemd before 250
        pytest.skip("systemd-analyze knows no --offline")
    assert graded.returncode == 0, graded.stdout[-300:]
