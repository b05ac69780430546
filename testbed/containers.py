"""Containers by runc, or by an install's gpu-hook-runtime, that a test leaves to be cleared up."""

import contextlib
import glob
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from testbed.installs import Install

_ids = itertools.count()

Bundle = Callable[..., Path]


def remove_cgroup(path: str) -> None:
    """Ends what still runs in it. What was killed takes a moment to leave it."""
    for _ in range(200):
        try:
            return os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                for pid in Path(path, "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)


class Runc:
    """Calls a runtime (gpu-hook-runtime where a prefix is given) with a --root of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runc"
        self.folder = folder
        self.ids: list[str] = []

    def new_id(self) -> str:
        self.ids.append(f"gh-test-{os.getpid()}-{next(_ids)}")
        return self.ids[-1]

    def popen(self, *args: str, program: str = "runc", flags: Sequence[str] = (), **kw: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen([program, "--root", str(self.root), *flags, *args], text=True, **kw)

    def __call__(
        self, *args: str, program: str = "runc", flags: Sequence[str] = (), **kw: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run to the end; stdout and stderr are files, since a container keeps a pipe open."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            p = self.popen(*args, program=program, flags=flags, stdout=out, stderr=err, stdin=subprocess.DEVNULL, **kw)
            status = p.wait(timeout=60)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(p.args, status, out.read(), err.read())

    def create(
        self, bundle: Path, install: Install | None = None, id: str | None = None, flags: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Create through the wrapper of `install`, or by plain runc. The id is the last of `ids`."""
        program = install.program if install else "runc"
        return self("create", "--bundle", str(bundle), id or self.new_id(), program=program, flags=flags)

    def run(self, bundle: Path, install: Install | None = None) -> "subprocess.CompletedProcess[str]":
        """Run in the foreground, to the container's end."""
        program = install.program if install else "runc"
        return self("run", "--bundle", str(bundle), self.new_id(), program=program)

    def exec(self, id: str, *args: str) -> "subprocess.CompletedProcess[str]":
        return self("exec", id, *args)

    def pid(self, id: str) -> int:
        return int(json.loads((self.root / id / "state.json").read_text())["init_process_pid"])

    def living(self) -> set[str]:
        listing = self("list", "--format", "json")
        return {c["id"] for c in json.loads(listing.stdout or "null") or () if c["status"] in ("created", "running")}

    def close(self) -> None:
        for id in self.ids:
            if (self.root / id).exists():
                self("delete", "--force", id)
            # A runc that was killed early has written nothing down that its `delete` could go by.
            for pattern in (f"*/{id}", f"*/*/*/{id}"):  # where runc puts what has no path: below its own
                # glob, not Path.glob: cgroups of tests beside this one vanish while it looks
                for group in glob.glob(f"/sys/fs/cgroup/{pattern}"):
                    remove_cgroup(group)
