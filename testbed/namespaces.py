"""Namespaces that are kept while a test uses them."""

import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from oci_hook.linux.namespace import CLONE_NEWNS, setns

CLONE_NEWNET = 0x40000000


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

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """The return value of a function there, in a child of this process: no Python has to start for it. Raises AssertionError
        if it raises, EOFError after two minutes."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                signal.alarm(120)
                with open(write, "wb") as pipe:
                    pickle.dump(self._answer(function, args), pipe)
            finally:
                os._exit(0)
        os.close(write)
        try:
            with open(read, "rb") as pipe:
                result, raised = pickle.load(pipe)
        finally:
            os.waitpid(child, 0)
        assert raised is None, raised
        return result

    def _answer(self, function: Callable[..., Any], args: tuple[object, ...]) -> tuple[object, str | None]:
        try:
            here = os.getcwd()
            setns(os.pidfd_open(self.keeper.pid), CLONE_NEWNS | CLONE_NEWNET, "")
            os.chdir(here)
            return function(*args), None
        except BaseException as e:
            return None, repr(e)

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
