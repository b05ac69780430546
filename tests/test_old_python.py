"""Python 3.9, which RHEL 9 and Amazon Linux 2023 have: each entry says at once in a line which one it needs."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook import cli
from testbed import REPO


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs before the check can be read by Python 3.9, too."""
    files = {name: (REPO / "oci_hook" / name).read_text() for name in ("__init__.py", "__main__.py", "cli/__init__.py")}
    for text in files.values():
        ast.parse(text, feature_version=(3, 9))
    ours = [line for line in files["__main__.py"].splitlines() if "import oci" in line or "from oci" in line]
    assert ours == ["from oci_hook.cli.main import main"]  # and nothing else of ours does
    monkeypatch.setattr(sys, "version_info", (3, 9, 25, "final", 0))
    monkeypatch.setattr(sys, "version", "3.9.25 (main, Jan 1 2026)")
    with pytest.raises(SystemExit) as refused:
        importlib.reload(cli)
    assert refused.value.code == f"gpu-hook needs Python 3.10 or newer, and {sys.executable} is 3.9.25"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs system packages")
def test_setup(tmp_path: Path) -> None:
    """Before it installs anything."""
    programs = {
        "python": ("echo False 3.9.25", "is Python 3.9.25"),
        "bytes": ("printf '\\033\\001\\377\\000x'; printf '\\033\\001' >&2", "is no Python that answers"),
        "many": ("yes True", "is no Python that answers"),
        "true": ("true", "is no Python that answers"),
        "echo": ('echo "$@"', "is no Python that answers"),
        "hangs": ("sleep 1000", "is no Python that answers"),
        "timeout": ('[ "$1 $2 $3" = "-k 1 20" ] && exec /usr/bin/timeout -k 1 1 "$4" "$5" "$6"', ""),
        "apt-get": (f"touch {tmp_path}/called", ""),
    }
    for name, (text, _) in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for name, (_, what) in programs.items():
        if not what:
            continue
        old = str(tmp_path / name)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "GPU_HOOK_PYTHON": old}
        done = subprocess.run([REPO / "scripts/setup"], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (
            1,
            f"setup: Python 3.10 or newer is needed, {old} {what}; name another by GPU_HOOK_PYTHON\n",
        )
        assert not (tmp_path / "called").exists()
