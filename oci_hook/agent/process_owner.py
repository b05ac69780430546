"""Which container a process of the host belongs to: by its cgroups, else by its pid namespace."""

import os

from oci_hook.agent.audit import Process
from oci_hook.core.grant import Grant
from oci_hook.linux.proc import read_file, start_time
from oci_hook.observe import inside


class Members:
    """`update` with the living grants, then `find` pids. What is known of a container's init is remembered."""

    def __init__(self) -> None:
        self._inits: dict[str, tuple[tuple[int, int], tuple[str, ...], int]] = {}
        self._paths: dict[str, str] = {}
        self._spaces: dict[int, str] = {}
        self._known: dict[tuple[int, int], tuple[str, Process]] = {}
        self._own = set(cgroup_lines(os.getpid()))
        self._own_space = pid_namespace(os.getpid())

    def update(self, grants: dict[str, Grant]) -> None:
        inits = {}
        for key, grant in grants.items():
            init = grant.life.init
            if init is None:
                continue
            old = self._inits.get(key)
            inits[key] = old if old and old[0] == init else self._look(grant, init)
        if inits == self._inits:
            return
        self._inits = inits
        claimed: dict[str, list[str]] = {}
        spaces: dict[int, list[str]] = {}
        for key, (_, lines, space) in inits.items():
            for line in lines:
                claimed.setdefault(line, []).append(key)
            spaces.setdefault(space, []).append(key)
        # What two containers share (a pod's pid namespace, a cgroup that is not its alone) tells nothing.
        self._paths = {line: keys[0] for line, keys in claimed.items() if len(keys) == 1}
        self._spaces = {n: keys[0] for n, keys in spaces.items() if len(keys) == 1 and n not in (0, self._own_space)}
        self._known = {}

    def find(self, pids: set[int], all: bool = True) -> dict[int, tuple[str, Process]]:
        """(the grant's key, the process) by pid, for those that are in a container of ours. all: what is remembered of
        others is not needed any more."""
        found, known = {}, {}
        for pid in pids:
            try:
                start = start_time(pid)
                member = self._known.get((pid, start)) or self._find(pid, start)
            except (OSError, ValueError):
                continue
            if member is not None:
                found[pid] = known[pid, start] = member
        self._known = known if all else {**self._known, **known}
        return found

    def _look(self, grant: Grant, init: tuple[int, int]) -> tuple[tuple[int, int], tuple[str, ...], int]:
        try:
            if start_time(init[0]) != init[1]:
                return init, (), 0
            lines, own = [], []
            for line in cgroup_lines(init[0]):
                head, _, path = line.rpartition(":")
                if path == "/" or self._ours(line):
                    continue
                lines.append(line)
                # The cgroup itself: its init may be in one below by now.
                if (path := inside.ancestor(path, grant.life.cgroup)) and not self._ours(f"{head}:{path}"):
                    own.append(f"{head}:{path}")
            return init, tuple(own or lines), pid_namespace(init[0])
        except OSError:
            return init, (), 0

    def _ours(self, line: str) -> bool:
        """Whether we are in this cgroup or below: then it is no container's alone."""
        return any(own == line or own.startswith(line + "/") for own in self._own)

    def _find(self, pid: int, start: int) -> tuple[str, Process] | None:
        if not start:
            return None
        key = ""
        for line in cgroup_lines(pid):
            head, _, path = line.rpartition(":")
            while path and not key:
                key = self._paths.get(f"{head}:{path}", "")
                path = path.rpartition("/")[0]
            if key:
                break
        key = key or self._spaces.get(pid_namespace(pid), "")
        if not key:
            return None
        status = read_file(f"/proc/{pid}/status").decode("utf-8", "replace")
        fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
        inner = int((fields.get("NSpid") or str(pid)).split()[-1])
        name = "".join(c if c.isprintable() else "?" for c in fields.get("Name", "?"))[:32]
        return key, Process(pid, start, name, inner, pid_namespace(pid))


def cgroup_lines(pid: int) -> list[str]:
    """ "controllers:path" of each hierarchy (cgroups(7)); a hierarchy's number says nothing. Raises OSError."""
    text = read_file(f"/proc/{pid}/cgroup", 1 << 18).decode("utf-8", "surrogateescape")
    return [line.split(":", 1)[1] for line in text.splitlines() if line.count(":") >= 2]


def pid_namespace(pid: int) -> int:
    """Its inode number. Raises OSError."""
    return os.stat(f"/proc/{pid}/ns/pid").st_ino
