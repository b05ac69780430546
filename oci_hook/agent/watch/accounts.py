"""Keeps the account pages of all containers open, and reads them."""

import errno
import time
from collections.abc import Iterable

from oci_hook.agent.judge.audit_rules import Kept
from oci_hook.agent.node_state import NodeState
from oci_hook.core.grant import Grant
from oci_hook.ledger import events
from oci_hook.observe.account import REST, Account, DamagedPage


class Accounts:
    """`read` the pages of grants, `forget` those of grants that ended, `close` all."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._open: dict[str, tuple[tuple[int, int], Account]] = {}  # by key: the init, the page
        self._damaged: dict[str, tuple[tuple[int, int], float, str]] = {}  # by key: the init, until when, why

    def read(self, grants: dict[str, Grant], by_process: Iterable[str] = ()) -> tuple[dict[str, Kept], frozenset[str]]:
        """(what each page says, by key; the keys of pages that could not be read). by_process: UUIDs of GPUs for which
        each process's part is wanted as well."""
        found: dict[str, Kept] = {}
        unread = {}
        for key, grant in grants.items():
            try:
                found[key] = self._read(grant, any(share.uuid in by_process for share in grant.shares))
            except OSError as e:
                found[key], unread[key] = None, e
        if grants is self._node.grants:
            why = next((f"of {events.title(grants[key].who)}: {e}" for key, e in unread.items()), "")
            self._node.problem("accounts", why and f"{len(unread)} account pages cannot be read, {why}")
        return found, frozenset(unread)

    def _read(self, grant: Grant, by_process: bool) -> Kept:
        """Raises OSError where we cannot look."""
        try:
            page = self._page(grant)
            return None if page is None else page.read(len(grant.shares), by_process)
        except DamagedPage as e:
            return str(e)
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESRCH):
                return None  # the container is ending, or has no such directory (a whole GPU alone)
            raise

    def waiting(self, grants: dict[str, Grant], uuid: str) -> dict[str, tuple[int, int]]:
        """Account.waiting of this GPU, by key, of those of these grants whose page can be read."""
        found = {}
        for key, grant in grants.items():
            i = grant.place(uuid)
            try:
                page = self._page(grant)
                words = page.waiting(len(grant.shares)) if page is not None else ()
            except (OSError, DamagedPage):
                continue
            if i < len(words):
                found[key] = words[i]
        return found

    def _page(self, grant: Grant) -> Account | None:
        """Raises OSError, DamagedPage."""
        if grant.life.init is None or not grant.shares:
            return None
        known = self._open.get(grant.key)
        if known is None or known[0] != grant.life.init:
            if known:
                known[1].close()
                del self._open[grant.key]
            known = (grant.life.init, self._account(grant, grant.life.init))
            self._open[grant.key] = known
        return known[1]

    def _account(self, grant: Grant, init: tuple[int, int]) -> Account:
        """Raises OSError, DamagedPage: again without a look for REST times what that took, as the container can have made
        mounts that cost the kernel a second to list."""
        damaged, until, why = self._damaged.get(grant.key, (init, 0.0, ""))
        if damaged == init and time.monotonic() < until:
            raise DamagedPage(why)
        began = time.thread_time()
        try:
            return Account(*init, grant.life.cgroup)
        except DamagedPage as e:
            self._damaged[grant.key] = init, time.monotonic() + REST * (time.thread_time() - began), str(e)
            raise

    def write_surcharge(self, key: str, gpu: int, amount: int) -> None:
        """Write a surcharge into the container's account page. gpu: index of the grant's share. amount: bytes."""
        try:
            self._open[key][1].surcharge(gpu, amount)
        except (KeyError, OSError, DamagedPage):
            pass  # the next look finds what is wrong with the page

    def files(self) -> dict[tuple[int, int], str]:
        """(device, inode) of each open account page -> the key of its grant."""
        return {page.file: key for key, (_, page) in self._open.items()}

    def forget(self, keys: set[str]) -> None:
        self._damaged = {key: damaged for key, damaged in self._damaged.items() if key not in keys}
        for key in keys & set(self._open):
            self._open.pop(key)[1].close()

    def close(self) -> None:
        self.forget(set(self._open))
