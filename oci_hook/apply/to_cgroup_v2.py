"""DeviceRule -> the device programs of a live container's version 2 cgroup.

A runtime attaches one eBPF program that permits what the spec lists. We read that program back, put our rules before
its instructions, and replace it in one step (BPF_F_REPLACE), so that the container is never without a filter. Rules
added here are unknown to the runtime and to systemd: `runc update` keeps them, a `systemctl daemon-reload` with
systemd's cgroup driver may not. The wrapper, which writes them into config.json, has no such gap.

crun (1.28) with systemd's cgroups puts the container into a cgroup `container` of its own below its scope, and has
the program on the scope: then the scope's is extended, too.
"""

import os
from errno import EINVAL, ENOENT, ENOSYS, EPERM

from oci_hook.core import device_program
from oci_hook.core.device_program import CHAR, Unreadable, access_bits
from oci_hook.core.plan import DeviceRule, Step
from oci_hook.errors import GhError, refuse
from oci_hook.linux import bpf, cgroup
from oci_hook.linux.mount import CGROUP2_SUPER_MAGIC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

Rule = tuple[int, int, str]  # major, minor, access
TRIES = 8  # the runtime or systemd may replace the program after we read it
USE_RUNTIME = "start the container through gpu-hook-runtime instead"


def open_devices(pid: int) -> int:
    """A descriptor of the container's cgroup. Raises ApplyError GH-403, GH-404, GH-405.

    The cgroup must hold the container's init alone: a rule added here opens the GPU to every process in the cgroup.
    """
    try:
        directory = cgroup.open_v2(pid)
        if directory is None:
            raise refuse("GH-404", f"neither the devices controller nor cgroup v2 is mounted here; {USE_RUNTIME}")
        others = set(cgroup.read(directory, "cgroup.procs").split()) - {str(pid)}
    except OSError as e:
        raise refuse("GH-405", f"cgroup of process {pid}: {e}; {USE_RUNTIME}") from None
    if others:
        raise refuse("GH-403", f"the container's cgroup also holds process {min(others)}; give it a cgroup of its own")
    return directory


def check(directory: int, granted: "Iterable[int]", others: "Iterable[tuple[int, int]]") -> None:
    """Raises ApplyError GH-403 when the container could open a GPU other than the granted ones already.

    granted, others: core/device_rules.py: bounds.
    """
    programs = _effective(directory)
    found = device_program.reachable_gpus(programs, granted) + device_program.reachable_nodes(programs, others)
    if found:
        raise refuse(
            "GH-403",
            f"the container's own device rules let it open {found[0]}, which it is not granted;"
            " drop privileged mode or that rule",
        )


def apply(plan: tuple[Step, ...], directory: int) -> None:
    """Permit the plan's devices, and check that no program of a cgroup above denies them.

    Raises ApplyError GH-404, GH-405.
    """
    wanted = [(step.major, step.minor, step.access) for step in plan if isinstance(step, DeviceRule)]
    _extend_all(directory, wanted)
    scope = _scope(directory)
    if scope is not None:
        try:
            _extend_all(scope, wanted)
        finally:
            os.close(scope)
    for program in _effective(directory):
        for major, minor, access in _missing(program, wanted, unreadable=True):
            raise refuse(
                "GH-405",
                f"a cgroup above the container's forbids c {major}:{minor} {access}; allow it there (systemd: "
                "DeviceAllow= of the slice)",
            )


def _scope(directory: int) -> int | None:
    """A descriptor of the cgroup above if that is the container's, too: a systemd scope with nothing else in it. None where
    it is not. Raises ApplyError GH-405."""
    own = os.readlink(f"/proc/self/fd/{directory}")
    above = os.path.dirname(own)
    if not above.endswith(".scope") or not cgroup.only_holds(above, own):
        return None
    try:
        return cgroup.open_path(above, CGROUP2_SUPER_MAGIC)
    except OSError as e:
        raise refuse("GH-405", f"cgroup {above}: {e}; {USE_RUNTIME}") from None


def _extend_all(directory: int, wanted: list[Rule]) -> None:
    """`_extend` until no program is replaced meanwhile. Raises ApplyError GH-404, GH-405."""
    for left in reversed(range(TRIES)):
        try:
            return _extend(directory, wanted)
        except OSError as e:
            if e.errno != ENOENT or not left:
                raise _refused(e) from None


def _extend(directory: int, wanted: list[Rule]) -> None:
    """Make each program of the cgroup itself permit what is wanted. Raises OSError; ENOENT when a program was replaced
    meanwhile, and then the caller tries again."""
    ids, flags = bpf.attached(directory)
    for id in ids:
        old = bpf.open_program(id)
        try:
            program = bpf.instructions(old)
            try:
                missing = _missing(program, wanted)
            except Unreadable as e:
                raise refuse("GH-404", f"device program {id} of the container's cgroup: {e}; {USE_RUNTIME}") from None
            if not missing:
                continue
            new = bpf.load((*device_program.permit(missing), *program))
            try:
                bpf.replace(directory, old, new, flags)
            finally:
                os.close(new)
        finally:
            os.close(old)


def _missing(program: tuple[int, ...], wanted: list[Rule], unreadable: bool = False) -> list[Rule]:
    """Which of the wanted rules the program denies. A program that cannot be interpreted raises Unreadable, or with
    `unreadable` counts as one that permits everything."""
    missing = []
    for major, minor, access in wanted:
        try:
            if not device_program.permits(program, CHAR, access_bits(access), major, minor):
                missing.append((major, minor, access))
        except Unreadable:
            if not unreadable:
                raise
    return missing


def _effective(directory: int) -> list[tuple[int, ...]]:
    """The device programs that decide for a process of the cgroup: the cgroup's own and those of cgroups above."""
    programs = []
    try:
        for id in bpf.attached(directory, effective=True)[0]:
            fd = bpf.open_program(id)
            try:
                programs.append(bpf.instructions(fd))
            finally:
                os.close(fd)
    except OSError as e:
        raise _refused(e) from None
    return programs


def _refused(e: OSError) -> GhError:
    what = f"device program of the container's cgroup: {e}"
    if e.errno in (EPERM, ENOSYS, EINVAL):
        return refuse("GH-404", f"{what}; the hook needs CAP_SYS_ADMIN and CONFIG_CGROUP_BPF, or {USE_RUNTIME}")
    return refuse("GH-405", f"{what}; try again")
