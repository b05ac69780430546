"""Prepares and unprepares claims: the record and the grant in the ledger, and the CDI file. Every step may be the last of this process;
`repair` then finishes it, or removes what is left."""

import json
import os
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.errors import GhError, refuse
from oci_hook.install.files import write
from oci_hook.kube.dra import allocation, cdi
from oci_hook.kube.dra.kubelet_messages import ClaimName, Prepared
from oci_hook.kube.link.api import FAILURES, Api, ApiError
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.watcher import words
from oci_hook.ledger import resource_claims, store
from oci_hook.ledger.inventory import load_at_boot
from oci_hook.ledger.resource_claims import PreparedClaim

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
BOOT_PATIENCE = 12.0  # seconds to wait for the inventory after power-on, of the kubelet's 45
NOT_FOUND, FORBIDDEN = 404, 403
HIDDEN = 300.0  # seconds of refusals to show a claim before it counts as deleted: a server that starts refuses all
LOOKS = 3  # at least so many refusals
MAX_NAME = 253


class ClaimPreparer:
    """folder: of CDI files. Each method may be called by any thread; one works at a time, as the ledger has one lock."""

    def __init__(self, prefix: str, node: str, known: Credential, folder: str) -> None:
        self._prefix, self._node, self._folder = prefix, node, folder
        self._known = known
        self._lock = threading.Lock()
        self._idle: list[Api] = []  # connections to the API server
        self._hidden: dict[str, tuple[float, int]] = {}  # uid of a claim that it refuses to show -> (since when, looks)

    @property
    def is_hidden(self) -> bool:
        """Whether the API server refused to show a claim at the last look."""
        return bool(self._hidden)

    def prepare(self, names: list[ClaimName]) -> dict[str, Prepared]:
        """An answer for each claim."""
        return {name.uid: self._prepare(name) for name in names}

    def unprepare(self, names: list[ClaimName]) -> dict[str, str]:
        """The error of each claim, "" where nothing of it is left."""
        return {name.uid: self._tried(lambda name=name: self._unprepare(name.uid)) for name in names}  # type: ignore[misc]

    def repair(self) -> str:
        """What a process that was killed has left undone, and the grants of claims whose containers were killed. Returns the
        problem, "" for none."""
        with self._lock:
            settings = node_settings.load(self._prefix)
            resource_claims.drop_half_written(settings)
            there = resource_claims.uids(settings)
            problems = []
            held = {grant.key for grant in store.snapshot(settings.state_dir)} if there else set()
            files = self._files()
            for uid in there:
                if resource_claims.grant_key(uid) not in held or cdi.file_name(uid) not in files:
                    problems.append(self._tried(lambda uid=uid: self._repaired(uid, settings)))  # type: ignore[misc]
            for uid in resource_claims.waiting(settings):
                if uid not in there:
                    problems.append(self._tried(lambda uid=uid: resource_claims.release(uid, settings)))  # type: ignore[misc]
            for file in files:
                if cdi.uid_of(file) not in there:
                    self._unlink(file)
        return "; ".join(filter(None, problems))

    def forget_deleted(self, now: float) -> str:
        """Unprepare the claims that the API server lost: a kubelet forgot them, or somebody took away the finalizer that keeps a
        claim as long as its pod. Kubernetes' node authorizer hides a claim that no pod of the node uses, deleted or not: such a one
        counts as deleted after HIDDEN and LOOKS, unless a container has it.
        now: seconds of any steady clock. Returns the problem, "" for none."""
        settings = node_settings.load(self._prefix)
        problems = []
        waiting = resource_claims.waiting(settings)
        self._hidden = {uid: seen for uid, seen in self._hidden.items() if uid in waiting}
        for uid in resource_claims.uids(settings):
            try:
                claim = resource_claims.load(uid, settings)
                current = claim is None or self._is_current(claim)
                since, looks = self._hidden.pop(uid, (now, 0))
                if current is None and uid in waiting:
                    if since + HIDDEN <= now and looks + 1 >= LOOKS:
                        current = False
                    else:
                        self._hidden[uid] = since, looks + 1
                if current is not False:
                    continue
            except GhError as e:
                problems.append(allocation.in_one_line(e))
                continue
            except (ApiError, *FAILURES) as e:
                self._hidden = {}  # it may be one that starts, when it answers again
                return f"ResourceClaims cannot be read: {words(e)}"
            problems.append(self._tried(lambda uid=uid: self._unprepare(uid)))  # type: ignore[misc]
        return "; ".join(filter(None, problems))

    def withdraw(self) -> None:
        """Remove all that waits, and the CDI files, when the driver leaves the node. Raises GhError."""
        with self._lock:
            settings = node_settings.load(self._prefix)
            resource_claims.drop_half_written(settings)
            for uid in resource_claims.uids(settings):
                resource_claims.forget(uid, settings)
            for uid in resource_claims.waiting(settings):
                resource_claims.release(uid, settings)
            for file in self._files():
                self._unlink(file)

    def _prepare(self, name: ClaimName) -> Prepared:
        made: list[PreparedClaim] = []

        def work() -> None:
            claim = self._read(name)
            with self._lock:
                settings = node_settings.load(self._prefix)
                inventory = load_at_boot(settings, BOOT_PATIENCE)
                made.append(
                    self._hold(
                        allocation.asked(claim, name, self._node, inventory, settings.rules), inventory, settings
                    )
                )

        if why := self._tried(work):
            return Prepared(error=why)
        devices = ((device, (cdi.device_id(name.uid, i),)) for i, device in enumerate(made[0].devices))
        return Prepared(tuple(devices))

    def _hold(self, claim: PreparedClaim, inventory: Inventory, settings: Settings) -> PreparedClaim:
        try:
            before = resource_claims.load(claim.uid, settings)
        except GhError:
            before = None
        if before is not None and before.request != claim.request:  # it was allocated anew, and nobody unprepared it
            self._remove(claim.uid, settings)
            before = None
        resource_claims.save(claim, settings)
        try:
            self._write(claim, resource_claims.hold(claim, settings), inventory)
        except BaseException:
            if before is None:
                self._remove(claim.uid, settings)
            raise
        return claim

    def _repaired(self, uid: str, settings: Settings) -> None:
        claim = resource_claims.load(uid, settings)
        if claim is None:
            return
        grant = resource_claims.hold(claim, settings, tell=False)
        if not os.path.exists(f"{self._folder}/{cdi.file_name(uid)}"):
            self._write(claim, grant, load_at_boot(settings, 0.0))

    def _write(self, claim: PreparedClaim, grant: Grant, inventory: Inventory) -> None:
        os.makedirs(self._folder, 0o755, exist_ok=True)
        text = json.dumps(cdi.content(claim, grant, inventory, self._prefix), indent=1)
        path = f"{self._folder}/{cdi.file_name(claim.uid)}"
        try:
            with open(path) as f:
                if f.read() == text:
                    return
        except (OSError, ValueError):
            pass
        write(path, text)

    def _unprepare(self, uid: str) -> None:
        with self._lock:
            if resource_claims.valid_uid(uid):
                self._remove(uid, node_settings.load(self._prefix))

    def _remove(self, uid: str, settings: Settings) -> None:
        """In this order, so that no new container finds the claim while its grant ends."""
        self._unlink(cdi.file_name(uid))
        resource_claims.forget(uid, settings)
        resource_claims.release(uid, settings)

    def _is_current(self, claim: PreparedClaim) -> bool | None:
        """None if the API server does not show it."""
        try:
            found = self._get(claim.namespace, claim.name)
        except ApiError as e:
            if e.status == FORBIDDEN:
                return None
            if e.status == NOT_FOUND:
                return False
            raise
        return allocation.is_current(found, claim.uid, self._node)

    def _read(self, name: ClaimName) -> Any:
        """Raises ClusterError GH-608, GH-610."""
        for text in (name.namespace, name.name):
            if not text or len(text) > MAX_NAME or text in (".", ".."):
                raise refuse("GH-610", "the kubelet asks for a ResourceClaim without namespace or name; report it")
        if not resource_claims.valid_uid(name.uid):
            raise refuse("GH-610", "the kubelet asks for a ResourceClaim whose uid is not valid; report it")
        what = f"ResourceClaim {name.namespace[:60]}/{name.name[:60]}"
        try:
            return self._get(name.namespace, name.name)
        except (ApiError, *FAILURES) as e:
            code = "GH-610" if isinstance(e, ApiError) and e.status == NOT_FOUND else "GH-608"
            raise refuse(code, f"{what} cannot be read: {words(e)}; the kubelet tries again") from None

    def _get(self, namespace: str, name: str) -> Any:
        """The API server's object. Raises ApiError, api.FAILURES."""
        api = self._idle.pop() if self._idle else Api(self._known)  # one thread's at a time
        try:
            return api.get(CLAIMS.format(namespace=quote(namespace, ""), name=quote(name, "")))
        finally:
            self._idle.append(api)

    def _files(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if cdi.uid_of(name) or cdi.half_written(name)]
        except OSError:
            return []

    def _unlink(self, file: str) -> None:
        try:
            os.unlink(f"{self._folder}/{file}")
        except FileNotFoundError:
            pass

    @staticmethod
    def _tried(work: Callable[[], None]) -> str:
        """The error in one line, "" for none."""
        try:
            work()
            return ""
        except GhError as e:
            return allocation.in_one_line(e)
        except OSError as e:
            return f"{e.strerror or e}{f' ({e.filename})' if e.filename else ''}"
