"""Which container a process of the host belongs to: by its cgroups, else by its pid namespace."""

import os

from oci_hook.agent.judge.audit_rules import TenantProcess
from oci_hook.core.grant import Grant
from oci_hook.linux.proc import boottime_ahead, cgroups, inner_pid, pid_namespace, read_file, start_at, start_time
from oci_hook.observe import inside

Cgroup = tuple[str, str]  # (controllers, path), as linux.proc.cgroups gives it


class ProcessOwners:
    """`update` with the living grants, then `find` pids. What is known of a container's init is remembered."""

    def __init__(self) -> None:
        self._inits: dict[str, tuple[tuple[int, int], tuple[Cgroup, ...], int]] = {}
        self._by_cgroup: dict[Cgroup, str] = {}
        self._by_namespace: dict[int, str] = {}
        self._known: dict[tuple[int, int], tuple[str, TenantProcess]] = {}
        self._own = set(cgroups(os.getpid()))
        self._own_namespace = pid_namespace(os.getpid())

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
        by_cgroup: dict[Cgroup, list[str]] = {}
        by_namespace: dict[int, list[str]] = {}
        for key, (_, own, namespace) in inits.items():
            for cgroup in own:
                by_cgroup.setdefault(cgroup, []).append(key)
            by_namespace.setdefault(namespace, []).append(key)
        # A pid namespace or cgroup that two containers share does not tell whose a process is.
        self._by_cgroup = {cgroup: keys[0] for cgroup, keys in by_cgroup.items() if len(keys) == 1}
        ours = (0, self._own_namespace)
        self._by_namespace = {n: keys[0] for n, keys in by_namespace.items() if len(keys) == 1 and n not in ours}
        self._known = {}

    def find(self, pids: dict[int, float], all: bool = True) -> dict[int, tuple[str, TenantProcess]]:
        """(the grant's key, the process) by pid, for those that are in a container with a grant. pids: when each was seen, in
        seconds of the monotonic clock; a process that began later is another one. all: these are all pids that matter, so what is
        remembered of others is dropped."""
        found, known = {}, {}
        for pid, at in pids.items():
            try:
                start = start_at(pid, at)
                member = self._known.get((pid, start)) or self._find(pid, start)
            except (OSError, ValueError):
                continue
            if member is not None:
                found[pid] = known[pid, start] = member
        self._known = known if all else {**self._known, **known}
        return found

    def _look(self, grant: Grant, init: tuple[int, int]) -> tuple[tuple[int, int], tuple[Cgroup, ...], int]:
        """(init, the cgroups that are the container's alone, its pid namespace)"""
        try:
            if start_time(init[0]) != init[1]:
                return init, (), 0
            of_init, own = [], []
            for controllers, path in cgroups(init[0]):
                if path == "/" or self._is_ours((controllers, path)):
                    continue
                of_init.append((controllers, path))
                # The container's own cgroup: its init may have moved to one below.
                top = inside.ancestor(path, grant.life.cgroup)
                if top and not self._is_ours((controllers, top)):
                    own.append((controllers, top))
            return init, tuple(own or of_init), pid_namespace(init[0])
        except OSError:
            return init, (), 0

    def _is_ours(self, cgroup: Cgroup) -> bool:
        """True if the agent is in this cgroup or below; such a cgroup belongs to no single container."""
        return any(is_below(own, cgroup) for own in self._own)

    def _find(self, pid: int, start: int) -> tuple[str, TenantProcess] | None:
        if not start:
            return None
        key = ""
        for controllers, path in cgroups(pid):
            while path and not key:
                key = self._by_cgroup.get((controllers, path), "")
                path = path.rpartition("/")[0]
            if key:
                break
        key = key or self._by_namespace.get(pid_namespace(pid), "")
        if not key:
            return None
        name = read_file(f"/proc/{pid}/comm", 64).decode("utf-8", "replace").rstrip("\n")
        name = "".join(c if c.isprintable() else "?" for c in name)[:32]
        return key, TenantProcess(pid, start, name, inner_pid(pid), boottime_ahead(pid))


def is_below(cgroup: Cgroup, top: Cgroup) -> bool:
    """True if `cgroup` is `top` or below it, in the same hierarchy."""
    return cgroup[0] == top[0] and (cgroup[1] + "/").startswith(top[1] + "/")
