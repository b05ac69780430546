"""The README's commands, one by one as a newcomer types them, in a mount namespace whose /opt, /run and /tmp are
empty and whose /etc is a copy."""

import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
# A network of its own, too: an agent of the machine would answer for one here, since both have the usual paths.
ENTER = ["unshare", "-m", "-n", "--propagation", "private", "bash", "-c"]
NAMESPACE = f"set -eu; ip link set lo up; mount --bind '{REPO}' /mnt; for d in /opt /run /tmp; do mount -t tmpfs tmpfs $d; done; "
NAMESPACE += f"mkdir -p /run/lock '{REPO}'; mountpoint -q '{REPO}' || mount --bind /mnt '{REPO}'; "
# `install` tells the engines of the machine: of a copy of /etc.
NAMESPACE += "mkdir -p /run/e/up /run/e/work; "
NAMESPACE += "mount -t overlay -o lowerdir=/etc,upperdir=/run/e/up,workdir=/run/e/work overlay /etc; "


def commands() -> list[str]:
    """Lines of the fenced sh blocks, continuation lines joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (REPO / "README.md").read_text(), re.M | re.S)
    text = "".join(blocks)
    joined, depth = [], ""
    for line in text.splitlines():
        depth = depth + "\n" + line if depth else line
        complete = not depth.endswith("\\") and depth.count("(") == depth.count(")")
        if complete:
            joined.append(depth)
            depth = ""
    assert not depth
    return joined


@pytest.mark.root
def test_readme_commands_do_what_it_says() -> None:
    script = NAMESPACE + "cd " + f"'{REPO}'\n"
    for i, command in enumerate(commands()):
        script += f"echo '@@ {i}'\n{command}\n"
    r = subprocess.run([*ENTER, script], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stdout + r.stderr
    steps = re.split(r"^@@ \d+\n", r.stdout, flags=re.M)[1:]
    said = {command: output for command, output in zip(commands(), steps, strict=True)}

    def of(start: str, nth: int = 0) -> str:
        return [output for command, output in said.items() if command.startswith(start)][nth]

    assert of("gpu-hook gpus").count("GPU-") == 2
    assert "simulated" in of("gpu-hook gpus")
    assert "4096" in of("gpu-hook explain")
    assert [o for c, o in zip(commands(), steps, strict=True) if c.startswith("gpu-hook ps")][0].count("box") >= 1
    assert "box" not in [o for c, o in zip(commands(), steps, strict=True) if c.startswith("gpu-hook ps")][1]
