"""The OCI hook, `oci-gpu-hook STAGE [CLAIM]`, with the container's state on standard input.

prestart, createRuntime: the container's mounts, namespaces and cgroup are made, its program has not started. Either
gpu-hook-runtime or precreate.py has given it its share, which is then checked, or the share is given here, to the live
container.
poststop: its grant is released. A hook cannot change a container's environment; the shim does without.
CLAIM: the uid of the ResourceClaim that gives the share, from the claim's CDI file. The claim's grant becomes the container's, and
at poststop it waits anew (ledger/resource_claims.py).
Exit status 1 and a coded line on standard error: the container does not start and nothing was granted.
"""

import os
import time

from oci_hook import program
from oci_hook.config import settings as node_settings
from oci_hook.core.layout import BOUNDARY_DIR, MARKER
from oci_hook.errors import GhError, refuse
from oci_hook.giving import Door, check_cgroups
from oci_hook.ledger import events
from oci_hook.oci import annotations, log, nvidia_hooks, request_mounts, spec, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oci_hook.apply.to_cgroup import DeviceCgroup
    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant, Identity, Life
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.request import Request
    from oci_hook.errors import Problem
    from oci_hook.ledger.admit import Admission
    from oci_hook.oci.spec_types import Spec
    from oci_hook.oci.state import State

STAGES = ("prestart", "createRuntime", "poststop")
DEADLINE = 20.0  # seconds; apply/to_spec.py gives the hook 30, so that our own message comes first
POSTSTOP_DEADLINE = 4.0
FORGET_SECONDS = 1.5


class Hook(Door):
    """One call of the hook. At poststop its exit status is always 0: the container has ended already."""

    def __init__(self, prefix: str, args: "Sequence[str]") -> None:
        self.prefix = prefix
        self.args = args
        self.stage = args[0] if len(args) in (1, 2) else ""
        self.claim = args[1] if len(args) == 2 else ""
        self.before: Grant | None = None  # what an earlier stage made of the claim
        if self.stage == "poststop":
            super().__init__("the hook", POSTSTOP_DEADLINE, failed=0)
        else:
            super().__init__("the hook", DEADLINE)

    def work(self) -> None:
        program.isolate()
        if self.stage not in STAGES or self.claim and not _is_uid(self.claim):
            raise refuse(
                "GH-406",
                f"oci-gpu-hook takes one of {', '.join(STAGES)}, and a claim's uid, not {' '.join(self.args)!r:.60}",
            )
        with open(0, "rb", closefd=False) as stdin:
            given = state.read(stdin)
        self.container, self.pod = given.id, events.full_name(_who(given, {}))
        settings = node_settings.load(self.prefix)
        self.state_dir = settings.state_dir
        if self.stage == "poststop" and self.claim:
            give_back(self.claim, settings)
        elif self.stage == "poststop":
            forget(given, settings)
        else:
            self.settings, self.given = settings, _with_bundle(given)
            self.bundle = self.given.bundle
            self.serve()

    def serve(self) -> None:
        """Checks the share that the container was given before, or gives it one. Nothing to do if it asks for none."""
        self.began, given, settings = time.monotonic(), self.given, self.settings
        if annotations.is_sandbox(given.annotations):
            return
        config = self.config = spec.load(os.path.join(given.bundle, "config.json"))
        self.doc, self.asking, self.who = _unedited(config), given.annotations, _who(given, config)
        self.pod_uid = self.who.pod_uid
        request = request_mounts.request(self.doc, given.annotations, settings.rules)
        if self.claim:
            return self.start(request)
        self.say_unclear(config, request is not None, False, self.report)
        if request is None:
            return
        self.open()
        grant = _held(given, config, settings) or self.adopted()
        if grant is not None:
            self.verify(grant)
        elif settings.mode == "standalone":
            self.start(request)
        else:
            raise refuse(
                "GH-409",
                f"mode is {settings.mode}, and gpu-hook-runtime has not seen this container; make it with that runtime, or "
                "set `mode: standalone` and leave the NVIDIA runtime and its hooks out",
            )

    def open(self) -> None:
        """Raises ApplyError GH-404, GH-406, GH-409."""
        if self.settings.mode == "standalone":
            nvidia_hooks.check(self.config)
        from oci_hook.apply import live  # loaded here, since most containers ask for nothing

        self.live = live.open_container(self.given.pid, spec.rootfs(self.config, self.given.bundle))

    def verify(self, grant: "Grant") -> None:
        from oci_hook.apply import live
        from oci_hook.ledger.inventory import load

        check = live.verify if self.settings.mode == "standalone" else live.verify_beside
        check(grant, load(self.settings), self.config, self.live, self.settings)
        _limit(grant, load(self.settings), self.given.pid, self.config, self.settings)

    def book(self, request: "Request | None") -> "Admission | None":
        """With a claim, request is what the container asks for beside it, which is refused."""
        if not self.claim:
            return super().book(request)
        from oci_hook.config.cluster import check_no_request
        from oci_hook.ledger import resource_claims
        from oci_hook.ledger.admit import Admission
        from oci_hook.ledger.inventory import load

        settings = self.settings
        if request is not None:
            check_no_request(request)
        if settings.mode != "standalone":
            raise refuse("GH-409", f"mode is {settings.mode}; a ResourceClaim needs `mode: standalone` on its node")
        self.open()
        life = self.life()
        self.before = _held(self.given, self.config, settings)
        inventory = load(settings)
        return Admission(resource_claims.take(self.claim, self.who, life, inventory, settings), inventory)

    def life(self) -> "Life":
        from oci_hook.apply.to_cgroup import DeviceCgroup

        self.devices = DeviceCgroup(self.given.pid)
        return _life(self.given.pid, self.devices)

    def put(self, grant: "Grant", inventory: "Inventory") -> None:
        from oci_hook.apply import live

        if self.claim:
            check_cgroups(grant.terms, self.config)
        if self.before is not None and self.before.key == grant.key:
            return self.verify(grant)
        live.put(grant, inventory, self.config, self.live, self.devices, self.settings)
        _limit(grant, inventory, self.given.pid, self.config, self.settings)

    def undo(self) -> None:
        if not self.claim or self.grant is None:
            return super().undo()
        from oci_hook.ledger import resource_claims

        resource_claims.put_back(self.grant, self.claim, self.settings)

    def adopted(self) -> "Grant | None":
        """The grant that our precreate stage made for this spec, before anybody knew the container, and whose key it wrote
        into the spec's marker. From now on the grant is this container's and ends with it. None where there is none."""
        if MARKER not in (self.config.get("annotations") or {}):
            return None
        from oci_hook.apply.to_cgroup import DeviceCgroup
        from oci_hook.apply.to_spec import marked
        from oci_hook.ledger.admit import adopt

        devices = None
        try:
            devices = DeviceCgroup(self.given.pid)
        except GhError:  # a cgroup with other processes does not show whether the container lives
            pass
        grant = adopt(marked(self.config), self.who, _life(self.given.pid, devices), self.settings)
        if grant is not None:
            events.granted(self.state_dir, grant, time.monotonic() - self.began)
        return grant

    def report(self, problems: "Sequence[Problem]") -> None:
        log.report_hook(self.container, problems)


def _with_bundle(given: "State") -> "State":
    """The state with the bundle that the runtime was called with, where it tells its own working directory instead: crun
    1.25, 1.26, and later ones until September 2026 (https://github.com/containers/crun/pull/2263). Raises ApplyError
    GH-406 where its command line names no absolute path."""
    if given.bundle != "/":
        return given
    from oci_hook.linux.proc import read_file  # loaded here, since few runtimes need it
    from oci_hook.oci import bundle

    words = os.fsdecode(read_file(f"/proc/{os.getppid()}/cmdline")).split("\0")
    found = bundle.named(words[1:])
    if not found.startswith("/"):
        why = "the state on standard input has the bundle /, as some versions of crun from 1.25 on tell hooks"
        raise refuse("GH-406", f"{why}, and the runtime was not called with --bundle and an absolute path; call it so")
    return given.replace(bundle=found)


def main(prefix: str, args: "Sequence[str]") -> int:
    """The exit status. `args`: the stage."""
    return program.run(Hook(prefix, args))


def _is_uid(claim: str) -> bool:
    from oci_hook.ledger.resource_claims import valid_uid

    return valid_uid(claim)


def give_back(claim: str, settings: "Settings") -> None:
    """The container of a ResourceClaim has ended."""
    from oci_hook.ledger import resource_claims

    resource_claims.give_back(claim, settings)
    _clear_ended(settings)


def _limit(grant: "Grant", inventory: "Inventory", pid: int, config: "Spec", settings: "Settings") -> None:
    """Set the driver's memory limits, unless a hook of the spec itself does. Raises ApplyError GH-414."""
    from oci_hook.core.boundary import needs_step

    if not needs_step(grant, inventory):
        _clear_ended(settings)
        return
    from oci_hook.apply.to_spec import has_boundary

    if not has_boundary(config, grant.key):
        from oci_hook.boundary import protocol
        from oci_hook.boundary.start import at_start

        at_start(grant.key, pid, settings, patience=protocol.SECONDS)


def _clear_ended(settings: "Settings") -> None:
    """Clear the driver's limits that belong to no grant any more: they may hold for a new container of the same path."""
    if os.path.isdir(f"{settings.state_dir}/{BOUNDARY_DIR}"):
        from oci_hook.boundary.start import clear_ended

        clear_ended(settings, patience=FORGET_SECONDS, helper=FORGET_SECONDS)


def forget(given: "State", settings: "Settings") -> None:
    """Release the container's grant, and clear the driver's limits that belong to no grant any more. If the container
    still lives, its grant stays, whoever says that it stopped."""
    from oci_hook.ledger.admit import release
    from oci_hook.ledger.store import grant_key

    release(grant_key("bundle:" + given.bundle, given.id), settings)
    _clear_ended(settings)


def _unedited(config: "Spec") -> "Spec":
    """The spec as it was before gpu-hook-runtime or precreate.py edited it; `config` itself if they did not."""
    if MARKER in (config.get("annotations") or {}):
        from oci_hook.apply.to_spec import scrub

        config = scrub(config)
    return config


def _held(given: "State", config: "Spec", settings: "Settings") -> "Grant | None":
    """The grant that gpu-hook-runtime made for this container, or this hook at its earlier stage.

    The grant's key is made from the runtime's root, which a hook does not know. So the grant is found by id and bundle: of
    gpu-hook-runtime by the key in the spec's marker, since a former container may have had the same id and bundle. It is trusted
    only if its page and the shims are found in the container.
    """
    from oci_hook.apply.to_spec import marked
    from oci_hook.ledger.life import BUNDLE_ROOT
    from oci_hook.ledger.store import snapshot

    key = marked(config)
    for grant in snapshot(settings.state_dir):
        ours = grant.key == key or grant.who.root.startswith(BUNDLE_ROOT)
        if ours and grant.who.id == given.id and os.path.realpath(grant.who.bundle) == os.path.realpath(given.bundle):
            return grant
    return None


def _who(given: "State", config: "Spec") -> "Identity":
    path = spec.cgroups_path(config)
    return annotations.identity("bundle:" + given.bundle, given.id, given.bundle, given.annotations, path)


def _life(pid: int, devices: "DeviceCgroup | None") -> "Life":
    """The container's signs of life for the ledger: its init, and its cgroup if that is its own."""
    from oci_hook.core.grant import Life
    from oci_hook.linux.proc import boot_id, pid_space, process_life

    life = Life(boot_id(), init=process_life(pid), space=pid_space())
    return life if devices is None else life.replace(cgroup=devices.path(), cgroup_inode=devices.inode())
