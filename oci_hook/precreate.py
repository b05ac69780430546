"""podman's stage before a container is made, `oci-gpu-hook precreate`: config.json on standard input, edited on output.

The one kind of hook that can change the environment. At this stage nobody says for sure whose container it will be, nor who
makes it: the grant has the id by which the spec's cgroup goes, for people, and a random key, which the marker annotation
carries, and counts for WAIT seconds, or until podman ends. In that time the createRuntime hook finds the key there and
makes the grant the container's; gpu-hook-runtime, if it is the runtime, gives its own instead. A spec that asks for
nothing goes out as it came in. Exit status 1, a coded line on standard error and in the journal, and nothing on standard
output: podman makes no container. podman does not show that line; so if our createRuntime hook is in the spec, the
refusal is left to it, whose lines podman shows.
"""

import os
import time

from oci_hook import program
from oci_hook.apply import bundle_plan, to_spec
from oci_hook.apply.sources import check_mount_points, check_sources
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Life
from oci_hook.errors import GhError, refuse
from oci_hook.giving import Door
from oci_hook.hook import DEADLINE
from oci_hook.ledger import events, inventory
from oci_hook.ledger.life import BUNDLE_ROOT
from oci_hook.linux.proc import boot_id, pid_space, process_life, read_file
from oci_hook.oci import annotations, fastjson, log, request_mounts, spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.request import Request
    from oci_hook.errors import Problem
    from oci_hook.ledger.admit import Admission
    from oci_hook.oci.spec_types import Spec

WAIT = 60  # seconds; podman calls the runtime next
STDIN = "config.json on standard input"


class Precreate(Door):
    """One call of the stage: the spec that podman gave, and edited gives back."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.written = prefix, False
        self.out: Spec | None = None  # what goes out instead of what came in
        super().__init__("the hook", DEADLINE)

    def work(self) -> None:
        program.isolate()
        with open(0, "rb", closefd=False) as stdin:
            data = stdin.read(spec.MAX_SIZE + 1)
        self.data, self.found = data, spec.parse(data, STDIN)
        settings = self.settings = node_settings.load(self.prefix)
        self.container, self.state_dir = _id(self.found), settings.state_dir
        try:
            self.doc = bundle_plan.unedited(self.found, settings)
            self.asking, self.instead_of = self.doc.get("annotations") or {}, to_spec.marked(self.found)
            self.start(request_mounts.request(self.doc, self.asking, settings.rules))
        except GhError:
            if self.written or not _is_hooked(self.found, settings):
                raise
            _write(data)

    def book(self, request: "Request | None") -> "Admission | None":
        """None also where the image is not seen from here: our hook gives the share."""
        root = spec.rootfs(self.doc, "")
        if request is None:
            doc = bundle_plan.for_no_request(self.doc, self.settings, inventory.load)
            self.out = None if doc is self.found else doc
            return None
        if not root.startswith("/"):
            raise refuse("GH-401", f"{STDIN} has no absolute root.path; only podman calls this program")
        if not _is_seen(root):
            self.out = self.hooked(self.doc)
            return None
        return super().book(request)

    def life(self) -> Life:
        random = os.urandom(16).hex()  # so that nobody else knows the key
        path = spec.cgroups_path(self.doc)
        self.who = annotations.identity(BUNDLE_ROOT + random, _id(self.doc) or random, "", self.asking, path)
        self.tell = not _is_hooked(self.found, self.settings)  # its hook refuses it again, and records that
        return Life(boot_id(), _podman(), deadline=int(time.monotonic()) + WAIT, space=pid_space())

    def put(self, grant: "Grant", inventory: "Inventory") -> None:
        plan = bundle_plan.plan_for(self.doc, "", grant, inventory, self.settings)
        for warning in plan.warnings:
            log.journal(str(warning))
        check_sources(plan.steps, self.settings)
        check_mount_points(plan.steps, self.settings)
        out = to_spec.apply(plan.spec, plan.steps, grant, self.settings.mode != "standalone")
        self.out = self.hooked(out)  # without a hook, nobody would adopt the grant

    def hooked(self, doc: "Spec") -> "Spec":
        return doc if _is_hooked(doc, self.settings) else to_spec.with_hook(doc, self.settings.prefix)

    def finish(self) -> None:
        data = self.data if self.out is None else fastjson.dumps(self.out).encode()
        self.written = True
        _write(data)

    def report(self, problems: "Sequence[Problem]") -> None:
        log.report_hook("of podman", problems)


def main(prefix: str, args: "Sequence[str]") -> int:
    """The exit status. `args`: the stage, which is precreate."""
    return program.run(Precreate(prefix))


def _id(doc: "Spec") -> str:
    """The container's id, with which its linux.cgroupsPath ends (podman 4 and 5: libpod-ID, SLICE:libpod:ID); "" where it does
    not."""
    id = spec.cgroups_path(doc)[-64:]
    return id if events.short(id) != id else ""


def _is_seen(root: str) -> bool:
    """False where the image is in podman's own mount namespace alone, as of podman 5.8 for a container in a user namespace
    (/var/tmp/intermediate-mountpoint-0.0). Our hook, which sees the container, then gives the share, but no variables."""
    try:
        return bool(os.listdir(root))
    except OSError:
        return True  # what is wrong is said by those who look into it


def _podman() -> tuple[int, int] | None:
    """The podman that runs this stage, and then the runtime: if it ends, there will be no container. None where our
    parent is another program, which may end before."""
    try:
        parent = os.getppid()
        return process_life(parent) if read_file(f"/proc/{parent}/comm") == b"podman\n" else None
    except OSError:
        return None


def _is_hooked(doc: "Spec", settings: "Settings") -> bool:
    """True if our hook will see the container, and refuse it if need be. Raises ApplyError GH-401."""
    hooks = doc.get("hooks") or {}
    if not isinstance(hooks, dict) or not all(isinstance(entries or [], list) for entries in hooks.values()):
        raise refuse("GH-401", f"{STDIN} has hooks that are not an object of lists")
    entries = [e for stage in ("prestart", "createRuntime") for e in hooks.get(stage) or ()]
    return any(isinstance(e, dict) and e.get("path") == to_spec.own_hook(settings.prefix) for e in entries)


def _write(data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError as e:
        raise refuse("GH-401", f"the edited config.json cannot be written: {e.strerror}") from None
