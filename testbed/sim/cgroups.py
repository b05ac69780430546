"""Real cgroups of version 2 for tests: made in the host's hierarchy; programs see it at /sys/fs/cgroup."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

from oci_hook.linux.mount import mountinfo
from testbed.sim.gpus import CLIENT, Sim

# A mount namespace of its own, in which version 2 is where driver 615 wants it.
SEE = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && "
names = itertools.count()
# Each line of its input is run in a child of its own, as in a new process, but without the time in which one starts.
ASK = """
import os, traceback
print("ready", flush=True)
for line in sys.stdin:
    if not os.fork():
        try:
            nvml.nvmlInit(); exec(line)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(); os._exit(0)
    os.wait()
"""


def top() -> Path | None:
    """The place where the whole hierarchy is mounted on this machine."""
    for mount in mountinfo():
        if mount.fstype == "cgroup2" and mount.root == "/":
            return Path(mount.point)
    return None


class Groups:
    """Cgroups of one test, below one of its own; removed with all that is in them at the end."""

    def __init__(self, sim: Sim, top: Path) -> None:
        self.sim = sim
        self.top = top
        self.name = f"/gh-sim-{os.getpid()}-{next(names)}"
        (top / self.name[1:]).mkdir()
        self._asked: subprocess.Popen[str] | None = None

    def host(self, name: str = "") -> Path:
        """Its directory on this machine."""
        return self.top / self.name[1:] / name

    def path(self, name: str = "") -> str:
        """Its directory as programs under test see it."""
        return f"/sys/fs/cgroup{self.name}/{name}".rstrip("/")

    def make(self, name: str) -> str:
        self.host(name).mkdir(parents=True)
        return self.path(name)

    def remove(self, name: str) -> None:
        self.host(name).rmdir()

    def command(self, name: str | None, *command: str) -> tuple[str, ...]:
        """The command that runs this one in the cgroup (None: in ours), with version 2 at /sys/fs/cgroup."""
        enter = f"echo $$ > /sys/fs/cgroup{self.name}/{name}/cgroup.procs && " if name is not None else ""
        return ("unshare", "-m", "--propagation", "private", "sh", "-c", f'{SEE}{enter}exec "$@"', "sh", *command)

    def program(self, code: str) -> tuple[str, ...]:
        return sys.executable, "-c", f"import sys; sys.path.insert(0, {str(CLIENT)!r})\nfrom client import *\n{code}"

    def run(self, name: str | None, *command: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return self.sim.run(*self.command(name, *command), **env)

    def python(self, name: str | None, code: str, **env: str) -> str:
        """Run Python as Sim.python does, in the cgroup; its output."""
        r = self.run(name, *self.program(code), **env)
        assert r.returncode == 0, r.stdout + r.stderr
        return r.stdout

    def start(self, name: str | None, code: str) -> "subprocess.Popen[str]":
        """The same in the background; returns when the program has printed "ready"."""
        child = self.sim.start(*self.command(name, *self.program(code)))
        line = self.sim.line(child)
        assert line == "ready\n", line
        return child

    def set(self, name: str, hard_mib: int | None, soft_mib: int = 0, gpu: int = 0) -> None:
        """None: no limit."""
        hard = "nvml.NVML_DEVICE_MEMORY_LIMIT_MAX" if hard_mib is None else f"{hard_mib} * MIB"
        said = self._ask(f"set_limit({self.path(name)!r}, {hard}, {soft_mib} * MIB, {gpu}); print('set')")
        assert said == "set\n", said

    def get(self, name: str, gpu: int = 0) -> list[int | None]:
        """Soft limit, hard limit and use in MiB; no hard limit is None."""
        out = self._ask(f"print(*get_limit({self.path(name)!r}, {gpu}))")
        soft, hard, used = map(int, out.split())
        return [soft >> 20, None if hard == (1 << 64) - 1 else hard >> 20, used >> 20]

    def _ask(self, code: str) -> str:
        if self._asked is None:
            self._asked = self.start(None, ASK)
        self.sim.tell(self._asked, code + "\n")
        return self.sim.line(self._asked)

    def close(self) -> None:
        deepest = sorted(self.host().rglob("*"), key=lambda path: -len(path.parts))
        for folder in (*(path for path in deepest if path.is_dir()), self.host()):
            kill = folder / "cgroup.kill"  # Linux 5.14
            if kill.exists():
                kill.write_text("1")
            for _ in range(500):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    subprocess.run(["sleep", "0.02"], check=True)
