"""The one order in which a container is given its share: request, decision, grant, plan, container; and what undoes it.

Its doors are the programs gpu-hook-runtime (runtime.py), podman's precreate stage (precreate.py) and the hook (hook.py), there also
for a ResourceClaim. A door says what it is given, and where its result goes.
"""

import time

from oci_hook.config.settings import OFF, Settings
from oci_hook.core.layout import MARKER
from oci_hook.core.terms import DRIVER, Terms
from oci_hook.errors import GhError
from oci_hook.ledger import events
from oci_hook.linux import limits
from oci_hook.oci import request_mounts
from oci_hook.program import Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oci_hook.core.grant import Grant, Identity, Life
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.request import Request
    from oci_hook.errors import Problem
    from oci_hook.ledger.admit import Admission
    from oci_hook.oci.spec_types import Spec


class Door(Program):
    """A program that gives shares. doc: the container's spec as the engine wrote it. asking: its annotations. instead_of: the key of the
    grant that an earlier door made for it. tell: record in the node's events that there was no room. patience: seconds to wait for
    the inventory soon after the machine's boot. grant: None before there is one."""

    settings: Settings
    doc: "Spec"
    asking: dict[str, str]
    who: "Identity"
    began: float
    instead_of = ""
    tell = True
    patience = 4.0
    grant: "Grant | None" = None

    def start(self, request: "Request | None") -> None:
        """Gives the container what it asks for, or raises GhError; then nothing stays of it."""
        try:
            admission = self.book(request)
            if admission is not None:
                self.grant = admission.grant
                self.put(admission.grant, admission.inventory)
            else:
                self.nothing()
            self.finish()
        except BaseException:
            limits.lift()
            try:
                self.undo()
            except GhError:
                pass  # the first error is the cause; the grant ends with this process or its container, and a sweep takes it
            raise

    def book(self, request: "Request | None") -> "Admission | None":
        """None where the container asks for nothing."""
        if request is None:
            return None
        from oci_hook.ledger.admit import admit  # loaded here, since most containers that the hook sees ask for nothing

        check_cgroups(request.terms, self.doc)
        self.check()
        decided = None
        if self.settings.cluster != OFF:
            from oci_hook.config import cluster

            request, decided = cluster.obeyed(request, self.doc, self.asking, self.settings)
        life = self.life()
        return admit(request, self.who, life, self.settings, self.instead_of, self.tell, decided, self.patience)

    def check(self) -> None:
        """Refuses what this door cannot serve, before anything is booked."""

    def life(self) -> "Life":
        """The container's signs of life for the ledger."""
        raise NotImplementedError

    def nothing(self) -> None:
        """The container asks for nothing."""

    def put(self, grant: "Grant", inventory: "Inventory") -> None:
        """Plans the grant, and changes the container or its spec accordingly."""
        raise NotImplementedError

    def finish(self) -> None:
        """The door's output."""
        if self.grant is not None:
            events.granted(self.state_dir, self.grant, time.monotonic() - self.began)

    def undo(self) -> None:
        if self.grant is not None:
            from oci_hook.ledger.admit import release

            release(self.grant.key, self.settings, force=True)

    def say_unclear(self, doc: "Spec", asks: bool, named: bool, say: "Callable[[Sequence[Problem]], None]") -> None:
        """Words that seem to ask for a GPU and are not understood: a warning and an event. named: the container's user chose gpu-hook
        by name. Raises RequestError where they are to be refused. Those of an edited spec were said at an earlier door."""
        rules = self.settings.rules
        if MARKER in (doc.get("annotations") or {}) or not request_mounts.unclear(doc, self.asking, rules, asks):
            return
        from oci_hook.oci import unclear  # loaded here, since few containers need it

        found = unclear.misses(doc, self.asking, rules, asks, self.container if named else "")
        if found:
            from oci_hook.config import strictness

            warnings = unclear.judge(found, strictness.refuses(self.settings, named))
            say(warnings)
            events.unclear(self.state_dir, self.container, warnings)


def check_cgroups(terms: Terms, config: "Spec") -> None:
    """Raises ApplyError GH-414 for a container that could leave the driver's limit and insists on it."""
    if terms.boundary == DRIVER:
        from oci_hook.oci import cgroup_mounts

        cgroup_mounts.check(config)
