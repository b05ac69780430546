"""gpu-hook-runtime, the part in Python: the launcher starts it for `create` and `run` of containers that ask.

request -> grant -> plan -> edited config.json -> the real runtime, by exec, with the same arguments and environment.
If anything fails, the container does not start, config.json is as it was, nothing stays booked, and the user gets coded
lines. Until the exec it has DEADLINE seconds, and the memory of linux/limits.py.
"""

import _signal  # type: ignore[import-not-found]  # `signal` itself imports enum
import os
import time

from oci_hook import program
from oci_hook.apply import bundle_plan, to_spec
from oci_hook.apply.sources import check_mount_points, check_sources
from oci_hook.config import settings as node_settings
from oci_hook.core.boundary import needs_step
from oci_hook.core.grant import Life
from oci_hook.core.layout import BOUNDARY_DIR
from oci_hook.errors import GhError, refuse
from oci_hook.giving import Door
from oci_hook.ledger import events, exec_env, inventory
from oci_hook.ledger.life import is_top, occupied, planned_cgroup
from oci_hook.linux import limits
from oci_hook.linux.proc import boot_id, pid_space, process_life
from oci_hook.oci import log, request_mounts, spec
from oci_hook.oci.annotations import identity
from oci_hook.oci.bundle import STARTS, default_root, read_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.errors import Problem
    from oci_hook.oci.spec_types import Spec


DEADLINE = 20.0  # seconds; engines wait for minutes, and the locks on the way have deadlines of their own
BOOT_PATIENCE = 12.0  # of these, to wait for the inventory after power-on


class Runtime(Door):
    """One call of the runtime. config.json is edited in its place, and then read by the real runtime."""

    patience = BOOT_PATIENCE

    def __init__(self, prefix: str, args: "Sequence[str]") -> None:
        self.prefix = prefix
        self.args = args
        self.call = read_call(args)
        self.original: bytes | None = None  # config.json as it was, if it was changed
        super().__init__("gpu-hook", DEADLINE, container=self.call.id, bundle=self.call.bundle)

    def work(self) -> None:
        """Does not return when all is well."""
        self.began, self.settings = time.monotonic(), node_settings.load(self.prefix)
        self.state_dir, call = self.settings.state_dir, self.call
        elsewhere = call.assumed or call.config != os.path.join(call.bundle, "config.json")
        if call.command not in STARTS or not call.id or not (elsewhere or os.path.lexists(call.config)):
            run_real(self.settings, self.args)  # which says what is missing
        self.data = spec.read(call.config)
        self.found = spec.parse(self.data, call.config)
        doc = self.doc = bundle_plan.unedited(self.found, self.settings)
        self.asking, self.instead_of = doc.get("annotations") or {}, to_spec.marked(self.found)
        self.path = spec.cgroups_path(doc)
        root = call.root or default_root(self.settings.runtime)
        self.who = identity(root, call.id, call.bundle, self.asking, self.path)
        self.pod, self.pod_uid = events.full_name(self.who), self.who.pod_uid
        request = request_mounts.request(doc, self.asking, self.settings.rules)
        if call.command == "restore" and (request is not None or self.instead_of):
            raise refuse(
                "GH-413",
                "a container with a share of a GPU cannot be restored: what it had on the GPU is in no checkpoint, and "
                "its grant is gone; make it anew with create or run",
            )
        self.say_unclear(doc, request is not None, True, self.warn)
        self.start(request)

    def check(self) -> None:
        self.cgroup = planned_cgroup(self.path, self.call.id, "crun" in os.path.basename(self.settings.runtime))
        if is_top(self.cgroup):
            raise self.not_alone()

    def not_alone(self) -> GhError:
        return refuse(
            "GH-403",
            f"the container's cgroup {self.cgroup[:150]} also holds other processes; give it a cgroup of its own",
        )

    def life(self) -> Life:
        return Life(boot_id(), creator=process_life(os.getpid()), cgroup=self.cgroup, space=pid_space())

    def nothing(self) -> None:
        doc = bundle_plan.for_no_request(self.doc, self.settings, inventory.load)
        if doc is not self.found:  # an earlier edit is undone, or the NVIDIA runtime is kept from serving it
            self.save(doc)

    def put(self, grant: "Grant", inventory: "Inventory") -> None:
        if occupied(
            grant.life
        ):  # asked this late, since a living container of this very id has a clearer refusal (GH-407)
            raise self.not_alone()
        settings = self.settings
        plan = bundle_plan.plan_for(self.doc, self.call.bundle, grant, inventory, settings)
        check_sources(plan.steps, settings)
        check_mount_points(plan.steps, settings)
        if plan.warnings:
            self.warn(plan.warnings)
        exec_env.write(settings.state_dir, grant.key, plan.steps)
        edited = to_spec.apply(plan.spec, plan.steps, grant, settings.mode != "standalone")
        if needs_step(grant, inventory):
            edited = to_spec.with_boundary(edited, settings.prefix, settings.state_dir, grant.key)
        elif os.path.isdir(
            f"{settings.state_dir}/{BOUNDARY_DIR}"
        ):  # a limit of an exited container may hold for this one
            from oci_hook.boundary.start import clear_ended

            clear_ended(settings)
        self.save(edited)

    def save(self, doc: "Spec") -> None:
        self.original = self.data
        spec.save(self.call.config, doc)

    def finish(self) -> None:
        super().finish()
        run_real(self.settings, self.args)

    def undo(self) -> None:
        try:
            if self.original is not None and spec.read(self.call.config) != self.original:
                spec.replace(self.call.config, self.original)
        finally:
            super().undo()

    def warn(self, problems: "Sequence[Problem]") -> None:
        log.report(problems, self.call.log, self.call.log_format, "warning")

    def report(self, problems: "Sequence[Problem]") -> None:
        log.report(problems, self.call.log, self.call.log_format)


def main(prefix: str, args: "Sequence[str]") -> int:
    """Does not return when all is well: the process is the real runtime then. `args`: without the program's name."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(
            _signal.SIGINT, _signal.SIG_DFL
        )  # Ctrl-C ends us as it would end the runtime; the next sweep releases the grant
    return program.run(Runtime(prefix, args))


def run_real(settings: "Settings", args: "Sequence[str]") -> "NoReturn":
    """Become the real runtime. Raises SettingsError GH-503."""
    path = settings.runtime
    try:
        st, own = os.stat(path), os.stat(f"{settings.prefix}/bin/gpu-hook-runtime")
        if (st.st_dev, st.st_ino) == (own.st_dev, own.st_ino):
            raise refuse("GH-503", f"runtime {path} is gpu-hook-runtime itself; set `runtime` in settings.yaml")
        if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
            raise refuse("GH-503", f"runtime {path} can be changed by others than root; set `runtime` in settings.yaml")
        limits.lift()
        # Python at its start may add LC_CTYPE, and ignores these signals, whatever the engine gave; that is not known any
        # more. A program in a container expects the default.
        _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
        _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
        os.execve(path, [path, *args], original_environment())
    except OSError as e:
        raise refuse("GH-503", f"runtime {path}: {e.strerror}; set `runtime` in settings.yaml") from None


def original_environment() -> dict[bytes, bytes]:
    with open("/proc/self/environ", "rb", 0) as f:
        entries = f.readall().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry[1:])
