"""The node's own state: its inventory, rules, grants and refused pods. Notices changes."""

import os
import selectors
from collections.abc import Mapping

from oci_hook.config import cluster
from oci_hook.config import settings as node_settings
from oci_hook.core.decided import NodeKeys
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import INVENTORY, LEDGER_DIR, UNLISTED
from oci_hook.kube.formats.node_info import NodeInventory
from oci_hook.kube.reporter.digest import Refusals
from oci_hook.kube.reporter.node_key import newest
from oci_hook.kube.reporter.views import SeenPod
from oci_hook.ledger import inventory as node_inventory
from oci_hook.ledger import store
from oci_hook.linux import inotify
from oci_hook.observe.event_log import Follower

FOLDER = inotify.IN_MOVED_TO | inotify.IN_DELETE | inotify.IN_DELETE_SELF


class LedgerView:
    """Call `follow` before the other methods, and again regularly: it wakes `selector` when the ledger changes. Raises GhError."""

    def __init__(self, prefix: str, selector: selectors.BaseSelector) -> None:
        self._prefix = prefix
        self._selector = selector
        self._fd = -1
        self._state_dir = ""
        self._events: Follower | None = None
        self._refusals = Refusals()
        self._read: tuple[object, Inventory] | None = None

    def settings(self) -> node_settings.Settings:
        return node_settings.load(self._prefix)

    def follow(self) -> None:
        """Watches the ledger for new and released grants; watches again if its directory was recreated."""
        state_dir = self.settings().state_dir
        if state_dir != self._state_dir:
            self.close()
            self._state_dir, self._events = state_dir, Follower(state_dir, old=False)
        if self._fd < 0:
            try:
                self._fd = inotify.watch(f"{state_dir}/{LEDGER_DIR}", FOLDER)
            except OSError:
                return  # no grant yet, or too many watches: the next call tries again
            self._selector.register(self._fd, selectors.EVENT_READ, self._changed)

    def inventory(self) -> NodeInventory:
        settings = self.settings()
        known = cluster.keys(self._prefix)
        return NodeInventory(self._inventory(settings), settings.rules, newest(known))

    def keys(self) -> NodeKeys | None:
        return cluster.keys(self._prefix)

    def grants(self) -> tuple[Grant, ...]:
        try:
            return store.peek(self._state_dir)
        except FileNotFoundError:
            return ()

    def refused(self, pods: Mapping[str, SeenPod], now: float) -> dict[str, str]:
        for event in self._events.read() if self._events else ():
            self._refusals.note(event, now)
        return self._refusals.now(pods, now)

    def close(self) -> None:
        if self._fd >= 0:
            self._selector.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _inventory(self, settings: node_settings.Settings) -> Inventory:
        """Checks the inventory fully only if a file of it changed, since that reads the driver's files."""
        listed, missing = (_stamp(f"{settings.state_dir}/{name}") for name in (INVENTORY, UNLISTED))
        stamp = settings.driver_root, listed, missing
        if self._read is None or listed is None or self._read[0] != stamp:
            self._read = (stamp, node_inventory.load(settings))
        return self._read[1]

    def _changed(self) -> None:
        inotify.drain(self._fd)
        if not os.path.isdir(f"{self._state_dir}/{LEDGER_DIR}"):
            self.close()


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Changes with the file; None where there is none."""
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_ino, st.st_mtime_ns, st.st_size
