"""The reporter's one loop: reads the node and the watchers' changes, and writes differences.

The order matters: the guard directory exists before sums are published, and the pods are read again before a sum is lowered. A
failure appears in the agent's status, and is retried with growing pauses.
"""

import os
import random
from typing import Any

from oci_hook.core.backoff import Backoff
from oci_hook.errors import GhError
from oci_hook.kube.formats import sums as kube_sums
from oci_hook.kube.formats.names import CA_CONFIG_MAP, INVENTORY, LEDGER
from oci_hook.kube.formats.node_info import NodeInventory, digest_text, inventory_text
from oci_hook.kube.link.api import FAILURES, JSON_PATCH, MERGE_PATCH, Api, ApiError
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.loop import Loop
from oci_hook.kube.link.node_settings import NodeSettings
from oci_hook.kube.link.status import Status
from oci_hook.kube.link.watcher import FIRST, MOST, Watcher, words
from oci_hook.kube.reporter import cluster_settings, node_patches, rules_file, views
from oci_hook.kube.reporter.digest import digest
from oci_hook.kube.reporter.key_keeper import KeyKeeper
from oci_hook.kube.reporter.ledger import LedgerView
from oci_hook.kube.reporter.seen import CA, CONFIG, NODE, PODS, SeenObjects

GUARD = "gpu-hook.io"  # a directory in the kubelet's device-plugins folder; if that is empty, the kubelet sets all sums to 0
LOOK = 5.0  # seconds between two steps without an event
GAP = 1.0  # seconds between two writes
RULES_GAP = 30.0  # seconds until rules are checked again


class Reporter(Loop):
    def __init__(self, prefix: str, node: str, options: NodeSettings, known: Credential, status: Status) -> None:
        super().__init__(status)
        self._prefix, self._name, self._options = prefix, node, options
        self._path = f"/api/v1/nodes/{node}"
        self._credential = known
        self._api = Api(known)
        self._seen = SeenObjects()
        self._ledger = LedgerView(prefix, self._selector)
        self._keys = KeyKeeper(prefix, node, options)
        self._inventory: NodeInventory | None = None
        self._unknown: set[str] = set()  # uids of grants that were looked for, such as a static pod's, which no pod has
        self._next_write = 0.0
        self._backoff = Backoff(FIRST, MOST, random.random)
        self._said: tuple[Any, float] = (None, 0.0)  # the last rules, and the time of the next check

    def step(self, now: float) -> float:
        for change in self._told():
            self._seen.take(change)
        problems = {what: f"{what} cannot be watched: {why}" for what, why in self._seen.failures.items()}
        refused: dict[str, str] = {}
        try:
            self._ledger.follow()
            refused = self._ledger.refused(self._seen.pods or {}, now)
            problems["rules"] = self._rules(now)
        except GhError as e:
            problems["node"] = str(e)
        self._keys.look(self._api, self._seen.ca, self._seen.ca_changed, refused, now)
        problems["keys"] = self._keys.problem
        wait = min(LOOK, self._keys.until(now) or GAP)
        if now < self._next_write:
            wait = min(wait, self._next_write - now)
            problems["write"] = self._status.problems.get("write", "")
        else:
            wait = self._report(refused, problems, now, wait)
        self._status.problems = {what: why for what, why in problems.items() if why}
        return wait

    def _report(self, refused: dict[str, str], problems: dict[str, str], now: float, wait: float) -> float:
        try:
            wrote = self._write(refused, problems)
        except GhError as e:
            problems["node"] = str(e)
            return wait
        except (ApiError, *FAILURES, LookupError, TypeError, AttributeError) as e:
            problems["write"] = f"the node's report failed: {words(e)}"
            self._status.failures += 1
            self._next_write = now + self._backoff.failed()
            return self._next_write - now
        self._backoff.worked()
        if wrote:
            self._next_write = now + GAP
            return min(wait, GAP)
        return wait

    def _write(self, refused: dict[str, str], problems: dict[str, str]) -> bool:
        """Returns whether it wrote anything."""
        seen = self._seen
        if seen.node is None or seen.pods is None:
            return False
        try:
            self._inventory = self._ledger.inventory()
        except GhError as e:  # keep the published inventory: the driver may be starting
            problems["inventory"] = str(e)
        if self._inventory is None:
            return False
        grants = self._ledger.grants()
        unknown = {grant.who.pod_uid for grant in grants if grant.who.pod_uid} - seen.pods.keys()
        if unknown - self._unknown:
            self._look_at_pods()  # the watch may lag; do not report a decided grant as a local one
        self._unknown = unknown - seen.pods.keys()
        said = digest(grants, seen.pods, refused, self._ledger.keys())
        wanted = {INVENTORY: inventory_text(self._inventory), LEDGER: digest_text(said, self._inventory.inventory)}
        changed = node_patches.annotations(seen.node, wanted)
        if changed:
            self._patch(self._path, changed, MERGE_PATCH)
        return self._publish_sums(self._inventory, problems) or bool(changed)

    def _publish_sums(self, inventory: NodeInventory, problems: dict[str, str]) -> bool:
        seen = self._seen
        assert seen.node is not None and seen.pods is not None
        capacity = kube_sums.of_node(inventory.inventory, inventory.rules)
        sums = node_patches.sums(capacity, seen.pods.values())
        if not node_patches.status(seen.node, sums):
            return False
        problems["guard"] = guard(self._options.device_plugins)
        if problems["guard"]:
            return False
        if node_patches.lowers(seen.node, sums):
            self._look_at_pods()
            sums = node_patches.sums(capacity, seen.pods.values())
        patch = node_patches.status(seen.node, sums)
        if patch:
            self._patch(f"{self._path}/status", patch, JSON_PATCH)
        return bool(patch)

    def _patch(self, path: str, patch: Any, kind: str) -> None:
        """Patches the node. The answer is its new state, which the watch brings later."""
        self._seen.node = views.node(self._api.call("PATCH", path, patch, kind))
        self._status.wrote()

    def _look_at_pods(self) -> None:
        pages = self._api.pages("/api/v1/pods", {"fieldSelector": f"spec.nodeName={self._name}"})
        found = [views.pod(item) for page in pages for item in page.get("items") or ()]
        self._seen.pods = {pod.uid: pod for pod in found}

    def _rules(self, now: float) -> str:
        """Applies the cluster's settings for this node; returns their problems. Raises GhError."""
        seen = self._seen
        if seen.node is None or seen.config is None:
            return ""
        found = lines, problems = cluster_settings.wanted(self._name, seen.node.labels, seen.config)
        if found != self._said[0] or now >= self._said[1]:
            why = rules_file.keep(self._prefix, lines)
            self._said = (found, now + RULES_GAP)
            self._rules_problem = "; ".join([*problems, *([why] if why else [])])
        return self._rules_problem

    _rules_problem = ""

    def _watchers(self) -> list[Watcher]:
        maps = f"/api/v1/namespaces/{self._options.namespace}/configmaps"
        wanted = (
            (NODE, "/api/v1/nodes", f"metadata.name={self._name}", views.node),
            (PODS, "/api/v1/pods", f"spec.nodeName={self._name}", views.pod),
            (CONFIG, maps, f"metadata.name={cluster_settings.CONFIG}", views.config),
            (CA, maps, f"metadata.name={CA_CONFIG_MAP}", views.config),
        )
        return [Watcher(self._credential, what, path, of, read, self._tell) for what, path, of, read in wanted]


def guard(folder: str) -> str:
    """Makes a directory in the kubelet's folder. If that folder is empty, a restarted kubelet sets all extended resources to 0
    (Kubernetes 1.20 to 1.33, devicemanager). Returns the problem, "" for none."""
    try:
        os.mkdir(f"{folder}/{GUARD}", 0o755)
    except FileExistsError:
        if not os.path.isdir(f"{folder}/{GUARD}"):
            return f"{folder}/{GUARD} is no directory: no sums are published; remove it"
    except OSError as e:
        return f"{folder}: {e.strerror or e}: no sums are published; set agent.device_plugins to the kubelet's folder"
    return ""
