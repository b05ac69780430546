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
from oci_hook.core.terms import DRIVER
from oci_hook.errors import GhError, Problem, refuse
from oci_hook.ledger import events, exec_env, inventory
from oci_hook.ledger.admit import Admission, admit, release
from oci_hook.ledger.life import is_top, occupied, planned_cgroup
from oci_hook.linux import limits
from oci_hook.linux.proc import boot_id, pid_space, process_life
from oci_hook.oci import log, request_mounts, spec
from oci_hook.oci.annotations import identity
from oci_hook.oci.bundle import STARTS, Call, default_root, read_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from oci_hook.config.settings import Settings
    from oci_hook.core.request import Request
    from oci_hook.oci.spec_types import Spec


DEADLINE = 20.0  # seconds; engines wait for minutes, and the locks on the way have deadlines of their own
BOOT_PATIENCE = 12.0  # of these, to wait for the inventory after power-on


class Runtime(program.Program):
    """One call of the runtime."""

    __slots__ = ("prefix", "args", "call")

    def __init__(self, prefix: str, args: "Sequence[str]") -> None:
        self.prefix = prefix
        self.args = args
        self.call = read_call(args)
        super().__init__("gpu-hook", DEADLINE, container=self.call.id, bundle=self.call.bundle)

    def work(self) -> None:
        """Does not return when all is well."""
        began = time.monotonic()
        settings = node_settings.load(self.prefix)
        self.state_dir = settings.state_dir
        done = Done()
        try:
            if self.call.command in STARTS and self.call.id:  # without an id, the real runtime says what is missing
                give(self.call, settings, done, self)
                if done.admission is not None:
                    events.granted(settings.state_dir, done.admission.grant, time.monotonic() - began)
            run_real(settings, self.args)
        except BaseException:
            limits.lift()
            undo(done, self.call, settings)
            raise

    def report(self, problems: "Sequence[Problem]") -> None:
        log.report(problems, self.call.log, self.call.log_format)


class Done:
    """The work done for a container so far. admission: None where it gets nothing. original: config.json as it was,
    None where it was not changed."""

    __slots__ = ("admission", "original")

    def __init__(self) -> None:
        self.admission: Admission | None = None
        self.original: bytes | None = None


def main(prefix: str, args: "Sequence[str]") -> int:
    """Does not return when all is well: the process is the real runtime then. `args`: without the program's name."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(
            _signal.SIGINT, _signal.SIG_DFL
        )  # Ctrl-C ends us as it would end the runtime; the next sweep releases the grant
    return program.run(Runtime(prefix, args))


def give(call: Call, settings: "Settings", done: Done, teller: program.Program) -> None:
    """Edit the bundle so that the container gets its share, if it asks for one. `done` knows each change at once, and
    `teller` the container's name."""
    elsewhere = call.assumed or call.config != os.path.join(call.bundle, "config.json")
    if not elsewhere and not os.path.lexists(call.config):
        return  # the real runtime reports that it is missing
    data = spec.read(call.config)
    found = spec.parse(data, call.config)
    doc = bundle_plan.unedited(found, settings)
    annotations = doc.get("annotations") or {}
    cgroups_path = spec.cgroups_path(doc)
    who = identity(call.root or default_root(settings.runtime), call.id, call.bundle, annotations, cgroups_path)
    teller.pod, teller.pod_uid = events.full_name(who), who.pod_uid
    request = request_mounts.request(doc, annotations, settings.rules)
    if call.command == "restore" and (request is not None or to_spec.marked(found)):
        raise refuse(
            "GH-413",
            "a container with a share of a GPU cannot be restored: what it had on the GPU is in no checkpoint, and "
            "its grant is gone; make it anew with create or run",
        )
    warn_of_unclear(call, doc, annotations, settings, request)
    if request is None:
        doc = bundle_plan.for_no_request(doc, settings, inventory.load)
        if doc is not found:  # an earlier edit is undone, or the NVIDIA runtime is kept from serving it
            done.original = data
            spec.save(call.config, doc)
        return
    if request.terms.boundary == DRIVER:
        from oci_hook.oci import cgroup_mounts

        cgroup_mounts.check(doc)
    cgroup = planned_cgroup(cgroups_path, call.id, "crun" in os.path.basename(settings.runtime))
    if is_top(cgroup):
        raise _not_alone(cgroup)
    life = Life(boot_id(), creator=process_life(os.getpid()), cgroup=cgroup, space=pid_space())
    decided = None
    if settings.cluster != node_settings.OFF:
        from oci_hook.config import cluster

        request, decided = cluster.obeyed(request, doc, annotations, settings)
    instead_of = to_spec.marked(found)
    admission = done.admission = admit(
        request, who, life, settings, instead_of, decided=decided, patience=BOOT_PATIENCE
    )
    if occupied(life):  # asked this late, since a living container of this very id has a clearer refusal (GH-407)
        raise _not_alone(cgroup)
    plan = bundle_plan.plan_for(doc, call.bundle, admission.grant, admission.inventory, settings)
    check_sources(plan.steps, settings)
    check_mount_points(plan.steps, settings)
    if plan.warnings:
        log.report(plan.warnings, call.log, call.log_format, "warning")
    exec_env.write(settings.state_dir, admission.grant.key, plan.steps)
    edited = to_spec.apply(plan.spec, plan.steps, admission.grant, settings.mode != "standalone")
    if needs_step(admission.grant, admission.inventory):
        edited = to_spec.with_boundary(edited, settings.prefix, settings.state_dir, admission.grant.key)
    elif os.path.isdir(f"{settings.state_dir}/{BOUNDARY_DIR}"):  # a limit of an exited container may hold for this one
        from oci_hook.boundary.start import clear_ended

        clear_ended(settings)
    done.original = data
    spec.save(call.config, edited)


def _not_alone(cgroup: str) -> GhError:
    return refuse(
        "GH-403", f"the container's cgroup {cgroup[:150]} also holds other processes; give it a cgroup of its own"
    )


def warn_of_unclear(
    call: Call, doc: "Spec", annotations: dict[str, str], settings: "Settings", request: "Request | None"
) -> None:
    """Words that seem to ask for a GPU and are not understood: a warning and an event. Raises RequestError where they are
    to be refused."""
    if not request_mounts.unclear(doc, annotations, settings.rules, request is not None):
        return
    from oci_hook.oci import unclear  # loaded here, since few containers need it

    found = unclear.misses(doc, annotations, settings.rules, request is not None, call.id)
    if found:
        from oci_hook.config import strictness

        warnings = unclear.judge(found, strictness.refuses(settings, named=True))
        log.report(warnings, call.log, call.log_format, "warning")
        events.unclear(settings.state_dir, call.id, warnings)


def undo(done: Done, call: Call, settings: "Settings") -> None:
    """Put config.json back and release the grant. An error in here is not reported, since the first error is the
    cause: a grant that cannot be released ends with this process, and the next sweep takes it."""
    try:
        if done.original is not None and spec.read(call.config) != done.original:
            spec.replace(call.config, done.original)
    except GhError:
        pass
    try:
        if done.admission is not None:
            release(done.admission.grant.key, settings, force=True)
    except GhError:
        pass


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
