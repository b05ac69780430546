"""DeviceRule -> the devices controller of a live container's cgroup, version 1 (cgroup-v1/devices.rst of the kernel).

Rules added here are unknown to the runtime and to systemd: `runc update` keeps them, a `systemctl daemon-reload` with
systemd's cgroup driver may not. The wrapper, which writes them into config.json, has no such gap.
"""

from errno import EPERM

from oci_hook.core.device_rules import reachable_gpus, reachable_nodes
from oci_hook.core.plan import DeviceRule, Step
from oci_hook.errors import refuse
from oci_hook.linux import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

USE_RUNTIME = "start the container through gpu-hook-runtime instead"


def open_devices(pid: int) -> int | None:
    """A descriptor of the container's cgroup of the devices controller; None where no such controller is mounted, since
    the node has cgroup v2. Raises ApplyError GH-403, GH-405.

    The cgroup must hold the container's init alone: a rule added here opens the GPU to every process in the cgroup.
    """
    try:
        directory = cgroup.open_v1(pid, "devices")
        if directory is None:
            return None
        others = set(cgroup.read(directory, "cgroup.procs").split()) - {str(pid)}
    except OSError as e:
        raise refuse("GH-405", f"devices cgroup of process {pid}: {e}; {USE_RUNTIME}") from None
    if others:
        raise refuse(
            "GH-403", f"the container's devices cgroup also holds process {min(others)}; give it a cgroup of its own"
        )
    return directory


def check(directory: int, granted: "Iterable[int]", others: "Iterable[tuple[int, int]]") -> None:
    """Raises ApplyError GH-403 when the container could open a GPU other than the granted ones already.

    granted, others: core/device_rules.py: bounds.
    """
    rules = [
        {"allow": True, "type": kind, "access": access}
        | {key: int(n) for key, n in (("major", major), ("minor", minor)) if n != "*"}
        for kind, major, minor, access in _rules(directory)
    ]
    found = reachable_gpus(rules, granted) + reachable_nodes(rules, others)
    if found:
        raise refuse(
            "GH-403",
            f"the container's own device rules let it open {found[0]}, which it is not granted;"
            " drop privileged mode or that rule",
        )


def apply(plan: tuple[Step, ...], directory: int) -> None:
    """Allow the plan's devices, and check that the kernel has taken the rules. Raises ApplyError GH-405."""
    rules = _rules(directory)
    wanted = [
        step
        for step in plan
        if isinstance(step, DeviceRule) and not _covered(rules, step.major, step.minor, step.access)
    ]
    try:
        for step in wanted:
            cgroup.write(directory, "devices.allow", f"c {step.major}:{step.minor} {step.access}")
    except OSError as e:
        denied = e.errno == EPERM
        advice = "a cgroup above the container's forbids this device: allow it there" if denied else USE_RUNTIME
        raise refuse("GH-405", f"{e}; {advice}") from None
    rules = _rules(directory) if wanted else rules
    for step in wanted:
        if not _covered(rules, step.major, step.minor, step.access):
            raise refuse(
                "GH-405",
                f"the devices cgroup did not take the rule c {step.major}:{step.minor} {step.access}; {USE_RUNTIME}",
            )


def _rules(directory: int) -> list[tuple[str, str, str, str]]:
    """(type, major, minor, access) of each rule in devices.list; "*" stands for any number, type "a" for any device."""
    rules = []
    try:
        for line in cgroup.read(directory, "devices.list").splitlines():
            kind, numbers, access = line.split(" ")
            major, minor = numbers.split(":")
            rules.append((kind, major, minor, access))
    except (OSError, ValueError) as e:
        raise refuse("GH-405", f"devices.list of the container's cgroup: {e}; {USE_RUNTIME}") from None
    return rules


def _covered(rules: list[tuple[str, str, str, str]], major: int, minor: int, access: str) -> bool:
    """Whether the rules permit all of `access` for a character device. The kernel lists only what is allowed."""
    for kind, its_major, its_minor, its_access in rules:
        if (
            kind in ("a", "c")
            and its_major in ("*", str(major))
            and its_minor in ("*", str(minor))
            and all(letter in its_access for letter in access)
        ):
            return True
    return False
