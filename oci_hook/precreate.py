"""podman's stage before a container is made, `oci-gpu-hook precreate`: config.json on standard input, edited on output.

The one kind of hook that can change the environment. Nobody says here whose container it will be, nor who makes it:
the grant gets a random key, which the marker annotation carries, and counts for WAIT seconds. In that time the
createRuntime hook finds it there and makes it the container's; gpu-hook-runtime, if it is the runtime, gives its own
instead. A spec that asks for nothing goes out as it came in. Exit status 1, a coded line on standard error and in the
journal, and nothing on standard output: podman makes no container. podman keeps that line to itself; so where our
createRuntime hook is in the spec, a refusal is left to it, and said by it.
"""

import os
import time

from oci_hook.apply import to_spec
from oci_hook.apply.skeleton import check_mount_points
from oci_hook.apply.sources import check_sources
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Life
from oci_hook.core.request import parse
from oci_hook.errors import GhError, NoRoomError, refuse
from oci_hook.hook import DEADLINE, isolate, late, no_memory, tell
from oci_hook.ledger import events
from oci_hook.ledger.admit import admit, release
from oci_hook.ledger.life import BUNDLE_ROOT
from oci_hook.linux import limits
from oci_hook.linux.proc import boot_id, pid_space
from oci_hook.oci import annotations, fastjson, log, request_mounts, spec
from oci_hook.runtime import beside_nothing, plan_for, unedited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oci_hook.config.settings import Settings

WAIT = 60  # seconds; podman calls the runtime next
STDIN = "config.json on standard input"


def main(prefix: str, args: "Sequence[str]") -> int:
    """The exit status. `args`: the stage, which is precreate."""
    state_dir = ""
    try:
        isolate()
        limits.limit(DEADLINE, late)
        with open(0, "rb", closefd=False) as stdin:
            data = stdin.read(spec.MAX_SIZE + 1)
        found = spec.parse(data, STDIN)
        settings = node_settings.load(prefix)
        state_dir = settings.state_dir
        try:
            out, key = _edited(found, data, settings)
        except GhError:
            if not _checked(found, settings):
                raise
            out, key = data, ""
        try:
            _write(out)
        except BaseException:
            _take_back(key, settings)
            raise
        return 0
    except GhError as e:
        limits.lift()
        if state_dir and not isinstance(e, NoRoomError):  # admit has told of those
            events.refused(state_dir, "", e.problems)
        tell("of podman", str(e))
    except MemoryError:
        limits.lift()
        tell("of podman", no_memory())
    except Exception as e:  # a mistake of ours: refused in one line as well, the journal has all of it
        import traceback

        limits.lift()
        log.journal(traceback.format_exc())
        tell("of podman", str(refuse("GH-405", f"unexpected {type(e).__name__}: {e}; the journal has details")))
    return 1


def _edited(found: "dict[str, Any]", data: bytes, settings: "Settings") -> tuple[bytes, str]:
    """(the spec with the share in it, the grant's key), or (the spec as it is, "") where it asks for none."""
    doc = unedited(found, settings)
    asking = doc.get("annotations") or {}
    name = annotations.container_name(asking)
    request = parse(
        asking, spec.environment(doc), name, settings.rules, request_mounts.mounts(doc), request_mounts.decode
    )
    if annotations.is_sandbox(asking) or request is None:
        if settings.mode != "standalone":
            doc = beside_nothing(doc)
        return data if doc is found else fastjson.dumps(doc).encode(), ""
    if not spec.rootfs(doc, "").startswith("/"):
        raise refuse("GH-401", f"{STDIN} has no absolute root.path; only podman calls this program")
    who = annotations.identity(BUNDLE_ROOT, os.urandom(16).hex(), "", asking)
    life = Life(boot_id(), deadline=int(time.monotonic()) + WAIT, space=pid_space())
    mute = _checked(found, settings)  # then the hook is refused the same, and tells
    admission = admit(request, who, life, settings, instead_of=to_spec.marked(found), tell=not mute)
    try:
        doc, plan, warnings = plan_for(doc, "", admission.grant, admission.inventory, settings)
        for warning in warnings:
            log.journal(str(warning))
        check_sources(plan, settings)
        check_mount_points(plan, settings)
        edited = to_spec.apply(doc, plan, admission.grant, settings.mode != "standalone")
        if not _checked(doc, settings):
            edited = to_spec.with_hook(edited, settings.prefix)  # else nobody would adopt the grant
        return fastjson.dumps(edited).encode(), admission.grant.key
    except BaseException:
        _take_back(admission.grant.key, settings)
        raise


def _take_back(key: str, settings: "Settings") -> None:
    if key:
        limits.no_deadline()
        release(key, settings, force=True)


def _hooks(doc: "dict[str, Any]") -> "dict[str, Any]":
    hooks = doc.get("hooks") or {}
    if not isinstance(hooks, dict) or not all(isinstance(entries or [], list) for entries in hooks.values()):
        raise refuse("GH-401", f"{STDIN} has hooks that are not an object of lists")
    return hooks


def _checked(doc: "dict[str, Any]", settings: "Settings") -> bool:
    """Whether our hook will see the container, and refuse what is to be refused."""
    entries = [e for stage in ("prestart", "createRuntime") for e in _hooks(doc).get(stage) or ()]
    return any(isinstance(e, dict) and e.get("path") == to_spec.own_hook(settings.prefix) for e in entries)


def _write(data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError as e:
        raise refuse("GH-401", f"the edited config.json cannot be written: {e.strerror}") from None
