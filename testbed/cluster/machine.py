"""A "machine" of the cluster: namespaces of its own, kept by init.py, with a disk that survives power-off."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from testbed import REPO
from testbed.cluster import programs
from testbed.cluster.programs import CannotRun

CGROUPS = Path("/sys/fs/cgroup")
INIT = Path(__file__).with_name("init.py")
PYTHON = "/usr/bin/python3"
# Runs in the machine: joins its cgroups first, since a cgroup namespace does not move a process.
ENTER = """cgroups=$1 pid=$2 path=$3; shift 3
for c in /sys/fs/cgroup/*/"$cgroups"; do [ ! -d "$c" ] || echo $$ >"$c/cgroup.procs"; done
exec nsenter -t "$pid" -m -n -p -u -i -C -- env -i PATH="$path" HOME=/root LC_ALL=C.UTF-8 "$@"
"""


class Machine:
    """One machine by its name; `folder` holds its disk, its logs, and while it runs the process id of its init."""

    def __init__(self, state: Path, cluster: str, name: str) -> None:
        self.state, self.name = state, name
        self.folder = state / "machines" / name
        self.cgroup = f"gpu-hook-cluster-{cluster}-{name}"

    # ---- power ------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The machine's init as this computer numbers it; 0 when it is off."""
        try:
            pid = int((self.folder / "pid").read_text())
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return 0
        return pid if self.cgroup.encode() in line else 0

    def start(self) -> None:
        if self.pid:
            return
        for part in ("lib", "opt", "log", "etc", "etc.work", "libexec"):
            (self.folder / "disk" / part).mkdir(parents=True, exist_ok=True)
        for hierarchy in hierarchies():
            make_cgroup(hierarchy, self.cgroup)
        for file in ("pid", "ready"):
            (self.folder / file).unlink(missing_ok=True)
        asked = {
            "name": self.name,
            "folder": str(self.folder),
            "keep": [str(p) for p in (self.state, REPO, programs.home())],
            "hierarchies": [h.name for h in hierarchies()],
            "links": {p.name: os.readlink(p) for p in CGROUPS.iterdir() if p.is_symlink()},
        }
        script = f'for c in /sys/fs/cgroup/*/{self.cgroup}; do echo $$ >"$c/cgroup.procs"; done; exec "$@"'
        spaces = ["unshare", "-m", "-n", "-p", "-u", "-i", "-C", "--fork", "--kill-child", "--propagation", "private"]
        init = [PYTHON, "-I", str(INIT), self.cgroup, json.dumps(asked)]
        with open(self.folder / "init.log", "a") as log:
            background(["sh", "-ec", script, "sh", *spaces, *init], log)
        wait(30, f"machine {self.name} is up ({self.folder}/init.log)", (self.folder / "ready").exists)

    def power_off(self) -> None:
        """Cuts its power: everything on it ends at once; its disk stays."""
        pid = self.pid
        if pid:
            os.kill(pid, signal.SIGKILL)
            wait(30, f"machine {self.name} is off", lambda: not os.path.exists(f"/proc/{pid}"))
        (self.folder / "pid").unlink(missing_ok=True)
        for hierarchy in hierarchies():
            remove_cgroup(hierarchy / self.cgroup)

    # ---- commands ---------------------------------------------------------------------------------------------------

    def line(self, *command: str) -> list[str]:
        """The command line by which `command` runs on this machine."""
        pid = self.pid
        if not pid:
            raise CannotRun(f"machine {self.name} is off")
        path = f"{programs.home()}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return ["sh", "-c", ENTER, "sh", self.cgroup, str(pid), path, *command]

    def run(
        self, *command: str, check: bool = True, timeout: float = 120, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.line(*command),
            capture_output=True,
            text=True,
            timeout=timeout,
            **({"input": input} if input is not None else {"stdin": subprocess.DEVNULL}),  # type: ignore[arg-type]
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise RuntimeError(f"{self.name}: {' '.join(command)}: exit status {done.returncode}: {said}")
        return done

    def write(self, path: str, text: str) -> None:
        self.run("sh", "-ec", 'mkdir -p "${1%/*}"; cat >"$1"', "sh", path, input=text)

    # ---- services ---------------------------------------------------------------------------------------------------

    def log(self, service: str) -> Path:
        return self.folder / f"{service}.log"

    def serve(self, service: str, *command: str) -> None:
        """Start a command in the background; its output goes to SERVICE.log in this machine's folder. Its process id is
        known when this returns, so it is never taken for a service that does not run."""
        if self.serving(service):
            return
        number = Path(f"/proc/{self.pid}/root/run/{service}.pid")
        number.unlink(missing_ok=True)
        note = f'echo $$ >/run/{service}.pid; exec "$@"'
        with open(self.log(service), "a") as log:
            background(self.line("sh", "-c", note, "sh", *command), log)
        wait(30, f"{service} starts on {self.name}", number.exists, every=0.02)

    def serving(self, service: str) -> bool:
        alive = f'p=$(cat /run/{service}.pid 2>/dev/null) && kill -0 "$p"'
        return bool(self.pid) and self.run("sh", "-c", alive, check=False).returncode == 0

    def stop(self, service: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a service and wait until it has ended."""
        if not self.serving(service):
            return
        end = f'p=$(cat /run/{service}.pid) && kill -{int(number)} "$p" && while kill -0 "$p"; do sleep 0.1; done'
        self.run("sh", "-c", f"{{ {end}; }} 2>/dev/null", check=False)
        self.run("rm", "-f", f"/run/{service}.pid")


def background(command: list[str], log: IO[str]) -> None:
    """It outlives this process, and is no child of it."""
    subprocess.run(["setsid", "--fork", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)


def hierarchies() -> list[Path]:
    """The mounted hierarchies of cgroup v1, and v2's beside them."""
    return sorted(p for p in CGROUPS.iterdir() if p.is_dir() and not p.is_symlink())


def make_cgroup(hierarchy: Path, name: str) -> None:
    made = hierarchy / name
    made.mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cpuset of v1, where no process may then be
        if hierarchy.name != "unified" and (made / file).exists() and not (made / file).read_text().strip():
            (made / file).write_text((hierarchy / file).read_text())


def remove_cgroup(top: Path) -> None:
    """This cgroup with all below it. Processes that were killed may take a moment to leave it."""

    def gone() -> bool:
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                return False
        return not top.exists()

    if top.exists():
        wait(30, f"cgroup {top} is empty", gone)


def wait(seconds: float, what: str, done: Callable[[], object], every: float = 0.2) -> None:
    """Waits until done() is true. An exception counts as false, and is reported when the time is over."""
    end = time.monotonic() + seconds
    while True:
        why = ""
        try:
            if done():
                return
        except (RuntimeError, OSError, subprocess.SubprocessError, CannotRun) as e:
            why = f": {e}"
        if time.monotonic() > end:
            raise CannotRun(f"not within {seconds:.0f} s: {what}{why}")
        time.sleep(every)
