"""The cgroup that says which devices a live container may open: of version 1's devices controller, or of version 2."""

import os

from oci_hook.apply import to_cgroup_v1
from oci_hook.core.device_rules import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import Step


class DeviceCgroup:
    """The container's own cgroup, held by a descriptor."""

    __slots__ = ("directory", "_version")

    def __init__(self, pid: int) -> None:
        """Open the cgroup of `pid`, the container's init. Raises ApplyError GH-403, GH-404, GH-405, as both versions'
        open_devices do."""
        self._version: Any = to_cgroup_v1
        directory = to_cgroup_v1.open_devices(pid)
        if directory is None:
            from oci_hook.apply import to_cgroup_v2

            self._version = to_cgroup_v2
            directory = to_cgroup_v2.open_devices(pid)
        self.directory = directory

    def path(self) -> str:
        return os.readlink(f"/proc/self/fd/{self.directory}")

    def inode(self) -> int:
        return os.fstat(self.directory).st_ino

    def check(self, grant: "Grant", inventory: "Inventory") -> None:
        """Raises ApplyError GH-403 when the container's own rules reach a GPU that the grant does not give."""
        self._version.check(self.directory, *bounds(grant, inventory))

    def apply(self, plan: "tuple[Step, ...]") -> None:
        """Permit the plan's devices. Raises ApplyError GH-404, GH-405."""
        self._version.apply(plan, self.directory)
