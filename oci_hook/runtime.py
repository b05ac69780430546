"""PROGRAM gpu-hook-runtime, its second half: the launcher starts it for `create` and `run` of containers that ask.

request -> grant -> plan -> edited config.json -> the real runtime, by exec, with the same arguments and environment.
Whatever fails, the container does not start, config.json is as it was, nothing stays booked, and the user gets coded
lines. Until the exec it has DEADLINE seconds, and the memory of linux/limits.py.
"""

import _signal  # type: ignore[import-not-found]  # `signal` itself imports enum
import os
import time

from oci_hook.apply import to_spec
from oci_hook.apply.image import check_destinations, look
from oci_hook.apply.image import warnings as image_warnings
from oci_hook.apply.skeleton import check_mount_points
from oci_hook.apply.sources import check_sources
from oci_hook.config import settings as node_settings
from oci_hook.core.device_rules import reachable_gpus, reachable_nodes
from oci_hook.core.grant import Life
from oci_hook.core.inventory import MIG
from oci_hook.core.plan import make_plan
from oci_hook.core.request import parse
from oci_hook.errors import GhError, NoRoomError, Problem, refuse
from oci_hook.ledger import events
from oci_hook.ledger.admit import Admission, admit, release
from oci_hook.ledger.life import planned_cgroup
from oci_hook.linux import limits
from oci_hook.linux.proc import boot_id, pid_space, process_life
from oci_hook.oci import log, nvidia_hooks, request_mounts, spec
from oci_hook.oci.annotations import container_name, identity, is_sandbox
from oci_hook.oci.bundle import STARTS, Call, default_root, read_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import Step


DEADLINE = 20.0  # seconds; engines wait for minutes, and the locks on the way have deadlines of their own


class Given:
    """What was done for a container so far. admission: None where it gets nothing. original: config.json as it was,
    None where it was not changed."""

    __slots__ = ("admission", "original")

    def __init__(self) -> None:
        self.admission: Admission | None = None
        self.original: bytes | None = None


def main(prefix: str, args: "Sequence[str]") -> int:
    """Does not return when all is well: the process is the real runtime then. `args`: without the program's name."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C ends us as it would end the runtime; the sweep tidies
    began = time.monotonic()
    call = read_call(args)
    state_dir = ""
    try:
        limits.limit(DEADLINE, _late)
        settings = node_settings.load(prefix)
        state_dir = settings.state_dir
        given = Given()
        try:
            if call.command in STARTS:
                give(call, settings, given)
                if given.admission is not None:
                    events.granted(state_dir, given.admission.grant, time.monotonic() - began)
            run_real(settings, args)
        except BaseException:
            limits.lift()
            take_back(call, given, settings)
            raise
    except GhError as e:
        limits.lift()
        if state_dir and not isinstance(e, NoRoomError):  # admit has told of those
            events.refused(state_dir, call.id, e.problems)
        log.report(e.problems, call.log, call.log_format)
        return e.exit_status
    except MemoryError:
        limits.lift()
        log.report([no_memory()], call.log, call.log_format)
        return 1
    except Exception as e:  # a mistake of ours: the user gets one line, the journal all of it
        import traceback

        limits.lift()
        log.journal(traceback.format_exc())
        unexpected = Problem("GH-405", f"unexpected {type(e).__name__}: {e}; the journal has details; please report it")
        log.report([unexpected], call.log, call.log_format)
        return 1


def _late(*_: object) -> None:
    raise refuse(
        "GH-405", f"gpu-hook was not done after {DEADLINE:.0f} s; is the node or its ledger's disk overloaded?"
    )


def no_memory() -> Problem:
    text = f"the container's config.json or image takes more than the {limits.MEMORY >> 20} MiB of memory that gpu-hook"
    return Problem("GH-412", text + " may use; make config.json smaller, or use another image")


def give(call: Call, settings: "Settings", given: Given) -> None:
    """Edit the bundle so that the container gets its share, if it asks for one. What is done is in `given` at once."""
    if not os.path.lexists(call.config):
        return  # the runtime says what is wrong with it
    data = spec.read(call.config)
    found = spec.parse(data, call.config)
    doc = unedited(found, settings)
    annotations = doc.get("annotations") or {}
    request = None
    if not is_sandbox(annotations):
        name = container_name(annotations)
        request = parse(
            annotations, spec.environment(doc), name, settings.rules, request_mounts.mounts(doc), request_mounts.decode
        )
    if call.command == "restore" and (request is not None or to_spec.marked(found)):
        raise refuse(
            "GH-413",
            "a container with a share of a GPU cannot be restored: what it had on the GPU is in no checkpoint, and "
            "its grant is gone; make it anew with create or run",
        )
    if request is None:
        if settings.mode != "standalone":
            doc = beside_nothing(doc)
        if doc is not found:  # it asked when it was edited and may not now, or the NVIDIA runtime would serve it
            given.original = data
            spec.save(call.config, doc)
        return
    who = identity(call.root or default_root(settings.runtime), call.id, call.bundle, annotations)
    cgroup = planned_cgroup(str((doc.get("linux") or {}).get("cgroupsPath") or ""), call.id)
    life = Life(boot_id(), creator=process_life(os.getpid()), cgroup=cgroup, space=pid_space())
    admission = given.admission = admit(request, who, life, settings, instead_of=to_spec.marked(found))
    doc, plan, warnings = plan_for(doc, call.bundle, admission.grant, admission.inventory, settings)
    check_sources(plan, settings)
    check_mount_points(plan, settings)
    if warnings:
        log.report(warnings, call.log, call.log_format, "warning")
    edited = to_spec.apply(doc, plan, admission.grant, settings.mode != "standalone")
    given.original = data
    spec.save(call.config, edited)


def unedited(found: "dict[str, Any]", settings: "Settings") -> "dict[str, Any]":
    """The spec as it was before gpu-hook, and with it the NVIDIA runtime, edited it, if they did."""
    doc = to_spec.scrub(found)
    if doc is not found and settings.mode != "standalone":
        from oci_hook.oci import nvidia

        doc = nvidia.without_hooks(doc)
    return doc


def plan_for(
    doc: "dict[str, Any]", bundle: str, grant: "Grant", inventory: "Inventory", settings: "Settings"
) -> "tuple[dict[str, Any], tuple[Step, ...], list[Problem]]":
    """What will be done to this bundle, beginning with its spec less what another program put there; and warnings.
    Nothing is changed yet. `explain` asks the same.

    Raises ApplyError GH-402, GH-403, GH-409, NodeError GH-302.
    """
    if settings.mode != "standalone":
        return _plan_beside(doc, bundle, grant, inventory, settings)
    nvidia_hooks.check(doc)
    _check_rules(doc, grant, inventory)
    rootfs, mounts = spec.rootfs(doc, bundle), doc.get("mounts") or ()
    facts = look(rootfs, mounts, spec.environment(doc))
    plan = make_plan(grant, inventory, facts, settings.prefix, settings.state_dir)
    return doc, check_destinations(rootfs, mounts, plan), image_warnings(facts)


def _check_rules(doc: "dict[str, Any]", grant: "Grant", inventory: "Inventory") -> None:
    resources = (doc.get("linux") or {}).get("resources") or {}
    rules = resources.get("devices") or ()
    granted = {share.uuid: inventory.gpu(share.uuid).minor for share in grant.shares}
    others = {(n.major, n.minor) for n in inventory.nodes if n.capability == MIG and n.uuid not in granted}
    others -= {(n.major, n.minor) for n in inventory.nodes if n.uuid in granted}  # of two in one GPU instance
    if reachable := reachable_gpus(rules, granted.values()) + (reachable_nodes(rules, others) if others else []):
        raise refuse(
            "GH-403",
            f"the container's device rules reach {', '.join(reachable)} beside its share; "
            "run it without --privileged and without --device of GPUs",
        )


def beside_nothing(doc: "dict[str, Any]") -> "dict[str, Any]":
    """The spec of a container that asks for nothing, in a mode in which the NVIDIA runtime would give it GPUs."""
    from oci_hook.oci import nvidia

    return nvidia.decline(doc)


def _plan_beside(
    doc: "dict[str, Any]", bundle: str, grant: "Grant", inventory: "Inventory", settings: "Settings"
) -> "tuple[dict[str, Any], tuple[Step, ...], list[Problem]]":
    """`plan_for` where the NVIDIA runtime is before us (mode below) or comes after us (on-top)."""
    from oci_hook.core.nvidia_runtime_mode import own_steps
    from oci_hook.oci import nvidia

    on_top = settings.mode == "on-top"
    if on_top and (what := nvidia.injected(doc)):
        raise refuse(
            "GH-409",
            f"mode is on-top, and {what} is in the container already: another program put the driver there before us; "
            "leave out CDI devices, or set `mode: below`",
        )
    rootfs, env = spec.rootfs(doc, bundle), spec.environment(doc)
    share = not grant.shares or not all(share.whole for share in grant.shares)
    facts = look(rootfs, doc.get("mounts") or (), env)
    nodes = make_plan(grant, inventory, facts, settings.prefix, settings.state_dir)
    found = nvidia.narrow(doc, grant, inventory, nodes, _same)
    doc = nvidia.ask(found.spec, "", share)
    _check_rules(doc, grant, inventory)
    mounts = doc.get("mounts") or ()
    facts = look(rootfs, mounts, env)
    facts = facts.replace(
        cover_cuda=tuple(dict.fromkeys([*facts.cover_cuda, *_names("libcuda", found.cuda)])),
        cover_nvml=tuple(dict.fromkeys([*facts.cover_nvml, *_names("libnvidia-ml", found.nvml)])),
    )
    plan = make_plan(grant, inventory, facts, settings.prefix, settings.state_dir)
    late = on_top or found.late
    if late or found.files:
        plan = own_steps(plan, inventory, facts, settings.prefix, late)
    if late:
        doc = to_spec.with_hook(doc, settings.prefix)
    return doc, check_destinations(rootfs, mounts, plan), image_warnings(facts)


def _names(library: str, places: "tuple[str, ...]") -> list[str]:
    """Where a program would find the library that the NVIDIA runtime mounts at these places."""
    folders = dict.fromkeys(place.rpartition("/")[0] for place in places)
    return [*places, *(f"{folder}/{library}.so{end}" for folder in folders for end in ("", ".1"))]


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def take_back(call: Call, given: Given, settings: "Settings") -> None:
    """Undo what was done. The first error is the one to tell, so that others are passed over here: a grant that cannot
    be released ends with this process, and the next sweep takes it."""
    try:
        if given.original is not None and spec.read(call.config) != given.original:
            spec.replace(call.config, given.original)
    except GhError:
        pass
    try:
        if given.admission is not None:
            release(given.admission.grant.key, settings, force=True)
    except GhError:
        pass


def run_real(settings: "Settings", args: "Sequence[str]") -> "NoReturn":
    """Become the real runtime. Raises SettingsError GH-503."""
    path = settings.runtime
    try:
        st, own = os.stat(path), os.stat(f"{settings.prefix}/bin/gpu-hook-runtime")
        if (st.st_dev, st.st_ino) == (own.st_dev, own.st_ino):
            raise refuse("GH-503", f"runtime {path} is gpu-hook-runtime itself; set `runtime` in settings.yaml")
        limits.lift()
        # Python at its start ignores these signals and may add LC_CTYPE; the runtime must get what the engine gave.
        _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
        _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
        os.execve(path, [path, *args], original_environment())
    except OSError as e:
        raise refuse("GH-503", f"runtime {path}: {e.strerror}; set `runtime` in settings.yaml") from None


def original_environment() -> dict[bytes, bytes]:
    with open("/proc/self/environ", "rb", 0) as f:
        entries = f.readall().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry[1:])
