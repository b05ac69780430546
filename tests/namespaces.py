"""Namespaces that are kept while a test uses them."""

import os
import signal
import subprocess


class Namespaces:
    """Mount and network namespaces of their own, made ready by a script and kept by a process that sleeps."""

    def __init__(self, script: str) -> None:
        script = f"set -e\n{script}\necho ready\nexec sleep 100000"
        unshare = ["unshare", "-m", "-n", "--propagation", "private", "sh", "-c", script]
        self.keeper = subprocess.Popen(unshare, stdout=subprocess.PIPE, text=True)
        assert self.keeper.stdout is not None
        ready = self.keeper.stdout.readline()
        self.keeper.stdout.close()
        if ready != "ready\n":
            self.keeper.wait()
            raise AssertionError("no namespaces")

    def enter(self, *command: str) -> list[str]:
        """The command line by which `command` runs there."""
        return ["nsenter", f"--target={self.keeper.pid}", "--mount", "--net", "--", *command]

    def close(self) -> None:
        """Whoever still uses these namespaces ends."""
        for name in ("mnt", "net"):
            own = os.readlink(f"/proc/{self.keeper.pid}/ns/{name}")
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if int(pid) != self.keeper.pid and os.readlink(f"/proc/{pid}/ns/{name}") == own:
                        os.kill(int(pid), signal.SIGKILL)
                except OSError:
                    pass
        self.keeper.kill()
        self.keeper.wait()
