"""The OCI hook, `oci-gpu-hook STAGE`, with the container's state on standard input.

prestart, createRuntime: the container's mounts, namespaces and cgroup are made, its program has not started. Either
gpu-hook-runtime or precreate.py has given it its share, which is then checked, or the share is given here, to the live
container.
poststop: its grant is forgotten. A hook cannot change a container's environment; the shim does without.
Exit status 1 and a coded line on standard error: the container does not start and nothing was granted.
"""

import os
import time

from oci_hook.config import settings as node_settings
from oci_hook.core.layout import MARKER
from oci_hook.core.plan import make_plan
from oci_hook.core.request import parse
from oci_hook.errors import GhError, NoRoomError, refuse
from oci_hook.ledger import events
from oci_hook.linux import limits
from oci_hook.oci import annotations, log, nvidia_hooks, request_mounts, spec, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oci_hook.apply.to_container import Container
    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant, Identity, Life
    from oci_hook.oci.state import State

STAGES = ("prestart", "createRuntime", "poststop")
DEADLINE = 8.0  # seconds; runtime-config gives the hook 10, so that it is us who say what happened
POSTSTOP_DEADLINE = 2.0


def main(prefix: str, args: "Sequence[str]") -> int:
    """The exit status. `args`: the stage."""
    container = state_dir = ""
    stage = args[0] if len(args) == 1 else ""
    try:
        isolate()
        limits.limit(POSTSTOP_DEADLINE if stage == "poststop" else DEADLINE, late)
        if stage not in STAGES:
            raise refuse("GH-406", f"oci-gpu-hook takes one of {', '.join(STAGES)}, not {' '.join(args)!r:.60}")
        with open(0, "rb", closefd=False) as stdin:
            given = state.read(stdin)
        container = given.id
        settings = node_settings.load(prefix)
        state_dir = settings.state_dir
        if stage == "poststop":
            _forget(given, settings)
        else:
            _start(given, settings)
        return 0
    except GhError as e:
        limits.lift()
        if state_dir and not isinstance(e, NoRoomError):  # admit has told of those
            events.refused(state_dir, container, e.problems)
        tell(container, str(e))
    except MemoryError:
        limits.lift()
        tell(container, no_memory())
    except Exception as e:  # a mistake of ours: refused in one line as well, the journal has all of it
        import traceback

        limits.lift()
        log.journal(traceback.format_exc())
        tell(container, str(refuse("GH-405", f"unexpected {type(e).__name__}: {e}; the journal has details")))
    return 0 if stage == "poststop" else 1


def _start(given: "State", settings: "Settings") -> None:
    began = time.monotonic()
    if annotations.is_sandbox(given.annotations):
        return
    config = spec.load(os.path.join(given.bundle, "config.json"))
    name = annotations.container_name(given.annotations)
    own = _unedited(config)
    env, mounts = spec.environment(own), request_mounts.mounts(own)
    request = parse(given.annotations, env, name, settings.rules, mounts, request_mounts.decode)
    if request is None:
        return
    if settings.mode == "standalone":
        nvidia_hooks.check(config)

    # Below: what a container that asks for nothing need not load.
    from oci_hook.apply import to_container
    from oci_hook.apply.skeleton import check_mount_points
    from oci_hook.apply.sources import check_sources
    from oci_hook.ledger.admit import admit, release

    container = to_container.open_container(given.pid, spec.rootfs(config, given.bundle))
    to_container.check_child_of(container, os.getppid())
    held = _held(given, settings)
    if held is None and (held := _adopted(given, config, settings)) is not None:
        events.granted(settings.state_dir, held, time.monotonic() - began)
    if held is not None:
        if settings.mode == "standalone":
            _verify(held, config, container, settings)
        else:
            _beside(held, config, container, settings)
        return
    if settings.mode != "standalone":
        raise refuse(
            "GH-409",
            f"mode is {settings.mode}, and gpu-hook-runtime has not seen this container; make it with that runtime, or "
            "set `mode: standalone` and leave the NVIDIA runtime and its hooks out",
        )
    to_cgroup, devices = _device_cgroup(given.pid)
    admission = admit(request, _who(given), _life(given.pid, devices), settings)
    grant, inventory = admission.grant, admission.inventory
    try:
        plan, steps = _plan(grant, inventory, config, container, settings)
        check_sources(plan, settings)
        check_mount_points(plan, settings)
        to_cgroup.check(devices, tuple(inventory.gpu(share.uuid).minor for share in grant.shares))
        to_container.apply(steps, container, _sources(settings))
        to_container.verify(plan, container)
        to_cgroup.apply(plan, devices)
        events.granted(settings.state_dir, grant, time.monotonic() - began)
    except BaseException:
        limits.no_deadline()
        release(grant.key, settings, force=True)
        raise


def _device_cgroup(pid: int) -> "tuple[Any, int]":
    """(the module for its version of cgroups, the container's cgroup that says which devices it may open)."""
    from oci_hook.apply import to_cgroup_v1

    directory = to_cgroup_v1.open_devices(pid)
    if directory is not None:
        return to_cgroup_v1, directory
    from oci_hook.apply import to_cgroup_v2

    return to_cgroup_v2, to_cgroup_v2.open_devices(pid)


def _unedited(config: "Any") -> "Any":
    """The spec as it was before gpu-hook-runtime, if it did, wrote into its env what it granted and took out the
    requests by mount."""
    if MARKER in (config.get("annotations") or {}):
        from oci_hook.apply.to_spec import scrub

        config = scrub(config)
    return config


def _plan(grant: "Grant", inventory: "Any", config: "Any", container: "Container", settings: "Settings") -> "Any":
    """(the plan as it is meant, the same with every destination where the image's links lead it)."""
    from oci_hook.apply.image import check_destinations, look, warnings

    mounts = config.get("mounts") or ()
    facts = look(container.path(), mounts, spec.environment(config))
    for warning in warnings(facts):
        log.journal(str(warning))
    plan = make_plan(grant, inventory, facts, settings.prefix, settings.state_dir)
    return plan, check_destinations(container.path(), mounts, plan)


def _sources(settings: "Settings") -> tuple[tuple[str, str], ...]:
    """Where mounts may come from, and the code for what is wrong there."""
    return ((settings.prefix, "GH-305"), (settings.state_dir, "GH-303"), (settings.driver_root, "GH-302"))


def _held(given: "State", settings: "Settings") -> "Grant | None":
    """The grant that gpu-hook-runtime made for this container, or this hook at its earlier stage.

    Its key has the runtime's root in it, which a hook is not told; so it is found by id and bundle, and believed only
    as far as `_verify` finds its page and the shims in the container.
    """
    from oci_hook.ledger.store import snapshot

    for grant in snapshot(settings.state_dir):
        if grant.who.id == given.id and os.path.realpath(grant.who.bundle) == os.path.realpath(given.bundle):
            return grant
    return None


def _adopted(given: "State", config: "Any", settings: "Settings") -> "Grant | None":
    """The grant of our precreate stage, which edited this spec and could not know whose it is going to be. Only the
    spec names its key, once, and from now on it lives as long as this container."""
    if MARKER not in (config.get("annotations") or {}):
        return None
    from oci_hook.apply.to_spec import marked
    from oci_hook.core.grant import Life
    from oci_hook.ledger.admit import adopt
    from oci_hook.linux.proc import boot_id, pid_space, process_life

    try:
        life = _life(given.pid, _device_cgroup(given.pid)[1])
    except GhError:  # a cgroup that is not its alone says nothing about its life
        life = Life(boot_id(), init=process_life(given.pid), space=pid_space())
    return adopt(marked(config), _who(given), life, settings)


def _verify(grant: "Grant", config: "Any", container: "Container", settings: "Settings") -> None:
    from oci_hook.apply import to_container
    from oci_hook.apply.image import look
    from oci_hook.ledger.inventory import load

    facts = look(container.path(), config.get("mounts") or (), spec.environment(config))
    plan = make_plan(grant, load(settings), facts, settings.prefix, settings.state_dir)
    to_container.verify(plan, container)


def _beside(grant: "Grant", config: "Any", container: "Container", settings: "Settings") -> None:
    """The NVIDIA runtime has brought its files, by the spec or by the hook before this one: the shims go on top."""
    from oci_hook.apply import nvidia_runtime_mode, to_container
    from oci_hook.apply.image import look
    from oci_hook.apply.sources import check_sources
    from oci_hook.core.nvidia_runtime_mode import own_steps
    from oci_hook.ledger.inventory import load
    from oci_hook.oci import nvidia

    inventory = load(settings)
    facts = look(container.path(), (), spec.environment(config))  # as a program would see it: with all mounts
    plan = make_plan(grant, inventory, facts, settings.prefix, settings.state_dir)
    late = settings.mode == "on-top" or nvidia.has_legacy_hook(config)
    plan = own_steps(plan, inventory, facts, settings.prefix, late)
    if late:
        nvidia.check_hooks(config)
        share = not grant.shares or not all(share.whole for share in grant.shares)
        past = nvidia.past_the_share(config, inventory) if share else []
        covers = nvidia_runtime_mode.covers(container, facts, inventory, past, settings.prefix)
        if not any(step.source != nvidia_runtime_mode.nothing(settings.prefix) for step in covers):
            raise refuse(
                "GH-409",
                f"mode is {settings.mode}, and {settings.runtime[:80]} has put no driver into the container; set "
                "`runtime` to the NVIDIA runtime, or `mode: standalone`",
            )
        check_sources(covers, settings)
        to_container.apply(covers, container, _sources(settings), over=True)
        to_container.verify(covers, container)
        nvidia_runtime_mode.check_covered(container, inventory)
    to_container.verify(tuple(step for step in plan if not _elsewhere(step, settings)), container)
    to_cgroup, devices = _device_cgroup(container.pid)
    to_cgroup.check(devices, tuple(inventory.gpu(share.uuid).minor for share in grant.shares))


def _elsewhere(step: "Any", settings: "Settings") -> bool:
    """What the spec edit resolved by the image alone, where now the NVIDIA runtime's mounts may be."""
    return getattr(step, "source", "").startswith(settings.prefix + "/lib/shim/")


def _who(given: "State") -> "Identity":
    return annotations.identity("bundle:" + given.bundle, given.id, given.bundle, given.annotations)


def _life(pid: int, devices: int) -> "Life":
    from oci_hook.core.grant import Life
    from oci_hook.linux.proc import boot_id, pid_space, process_life

    cgroup, inode = os.readlink(f"/proc/self/fd/{devices}"), os.fstat(devices).st_ino
    return Life(boot_id(), init=process_life(pid), cgroup=cgroup, cgroup_inode=inode, space=pid_space())


def _forget(given: "State", settings: "Settings") -> None:
    """Sweep, which forgets what is dead. A grant whose container lives stays, whoever says that it has stopped."""
    from oci_hook.ledger.admit import release
    from oci_hook.ledger.store import grant_key

    release(grant_key("bundle:" + given.bundle, given.id), settings)


def isolate() -> None:
    """Keep nothing of the runtime's: directory, file mode mask, descriptors beside the three standard ones."""
    os.chdir("/")
    os.umask(0o022)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that listdir itself had open


def late(*_: object) -> None:
    """Raises ApplyError GH-405."""
    raise refuse(
        "GH-405", f"the hook was not done after {DEADLINE:.0f} s; is the node or its ledger's disk overloaded?"
    )


def no_memory() -> str:
    text = f"the container's config.json or image takes more than the {limits.MEMORY >> 20} MiB that the hook may use"
    return str(refuse("GH-412", f"{text}; make config.json smaller, or use another image"))


def tell(container: str, lines: str) -> None:
    log.journal(f"container {container!r:.100}: {lines}")
    try:
        os.write(2, (lines + "\n").encode("utf-8", "replace"))
    except OSError:
        pass
