"""PROGRAM gpu-hook agent: keeps the ledger equal to the living, looks at the GPUs, tells what it sees.

One thread waits for everything at once: exits of processes (pidfd), changes of the ledger (inotify), the NVML process,
HTTP clients, signals, the clock. Nothing here is needed by a container: it may die and start again at any time.
"""

import errno
import fcntl
import os
import resource
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from oci_hook import __version__
from oci_hook.agent import (
    device_nodes,
    enforce,
    facts,
    guard,
    journal,
    keep,
    leases,
    meter,
    options,
    sampler,
    textfile,
    web,
)
from oci_hook.agent.audit import Auditor, Finding, Process, Verdict
from oci_hook.agent.http import Server
from oci_hook.agent.metrics import Counters, exposition
from oci_hook.agent.notify import Notifier
from oci_hook.agent.process_owner import ProcessOwners
from oci_hook.agent.view import Watched, view
from oci_hook.config import settings as node_settings
from oci_hook.core.gpu_page import guaranteed
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import AGENT_LOCK, LEDGER_DIR
from oci_hook.core.pages import CLASS_NUMBERS
from oci_hook.discovery.discover import discover
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import events, store
from oci_hook.ledger import inventory as cache
from oci_hook.ledger.slot_files import read_gate
from oci_hook.linux import inotify
from oci_hook.linux.lock import own_dir
from oci_hook.linux.proc import read_file, start_time
from oci_hook.observe import account, inside

SETTLE = 0.02  # seconds from a sign that something ended to the look at what: others end with it
BUSY_GAP = 0.2  # and at least this between two looks, when containers come and go by the thousand
LINGER = (0.05, 0.1, 0.2, 0.4, 0.8)  # looks again at a container whose init ended and whose cgroup is not empty yet
SWEEP_SECONDS = 60.0  # a sweep under the lock even if nothing seems to have changed
KEEP_SECONDS = 30.0  # between two looks at which files containers mount
LOCKS_REST = 200  # times what a look at /proc/locks took, until the next one
ROOM, ROOM_FILES = 128 << 10, 16  # in the state directory; a grant needs a tenth of it
DISCOVER_SECONDS = 30.0  # doubled with each failure, up to
DISCOVER_MAX = 600.0


class Agent:
    """`run` until SIGTERM. Clocks are monotonic; the wall clock is only shown."""

    def __init__(self, prefix: str, given: options.Options) -> None:
        self.prefix = prefix
        self.options = given
        self.token = options.token(given)
        self.settings = node_settings.load(prefix)
        self.selector = selectors.DefaultSelector()
        self.notifier = Notifier(dict(os.environ))
        self.inventory: Inventory | None = None
        self.grants: dict[str, Grant] = {}
        self.watched: dict[str, Watched] = {}
        self.gpus: dict[str, sampler.GpuSample] = {}
        self.verdict = Verdict((), (), (), {}, {}, {})
        self.problems: dict[
            str, str
        ] = {}  # by what is wrong: settings, disk, ledger, inventory, nvml, GPUs, devices, books, locks, textfile
        self.counters = Counters()
        self._auditor = Auditor(given.tolerance, given.compute_tolerance)
        self.guard = guard.Guard(given.tolerance)
        self._harmful: set[tuple[str, str]] = set()  # (key, GPU's UUID) that were told, where they are not killed
        # By key, why it was to be killed, and processes that were to go with it; until it is gone.
        self._killed: dict[str, tuple[Finding, tuple[tuple[int, int], ...]]] = {}
        self._keeper = keep.Keeper()
        self._slots = keep.Keeper(os.O_RDWR)
        self._kept: tuple[float, Inventory | None] = (-KEEP_SECONDS, None)
        self._locks_at = 0.0
        self._leases: dict[tuple[str, str, str, int, int], Finding] = {}
        self._members = ProcessOwners()
        self._sampler = sampler.Sampler()
        self._sampler_fd = -1
        self._accounts: dict[str, tuple[tuple[int, int], account.Account]] = {}
        self._pidfds: dict[str, tuple[tuple[int, int], int]] = {}
        self._ledger_fd = -1
        self._lingering: dict[str, int] = {}
        self._reconcile_at = 0.0
        self._reconciled_at = -BUSY_GAP
        self._swept_at = -SWEEP_SECONDS
        self._lock = -1
        self._stop = False
        self._server: Server | None = None
        self._discovery: threading.Thread | None = None
        self._discovered: Inventory | GhError | None = None
        self._discover_at = 0.0
        self._discover_soon = False
        self._changed: frozenset[str] = frozenset()  # GPUs that NVML sees, and we do not know, or the other way round
        self._discover_gap = DISCOVER_SECONDS
        self._view: dict[str, Any] = {}
        self._ledger_read: float | None = None
        self._nvml_read: float | None = None
        self._measured_at: float | None = None
        self._page: tuple[float, bytes] = (0.0, b"")
        self.started = time.time()

    # --- its life

    def run(self) -> int:
        """Raises NodeError GH-320, GH-321, GH-303."""
        self.open()
        try:
            journal.write(f"started for {self.settings.state_dir}, policy {self.options.policy}, {self._where()}")
            self.notifier.say("READY=1", f"STATUS={self._where()}")
            next_tick = 0.0
            while not self._stop:
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + self.options.interval
                    self.tick(now)
                if self._reconcile_at and now >= self._reconcile_at:
                    self.reconcile(now)
                if self._server:
                    self._server.check(now)
                for uuid in [uuid for uuid, due in self.guard.due.items() if now >= due]:
                    del self.guard.due[uuid]
                    self._sampler.look(uuid)
                self._sampler.check(now)
                self._watch_sampler()
                self.wait(min(next_tick, self.notifier.alive(now)))
            journal.write("stopped; containers run on")
            return 0
        finally:
            self.close()

    def _where(self) -> str:
        if self._server is None:
            return "no web page"
        host, _ = options.split(self.options.address)
        return f"web page http://{f'[{host}]' if ':' in host else host}:{self._server.port}/"

    def open(self) -> None:
        own_dir(self.settings.state_dir)
        self._lock = only_one(f"{self.settings.state_dir}/{AGENT_LOCK}")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a few descriptors per container
        read, write = socket.socketpair()
        for end in (read, write):
            end.setblocking(False)
        self._wakeup = (read, write)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._register(read.fileno(), lambda now: _drain(read))
        if self.options.address != "none":
            host, port = options.split(self.options.address)
            try:
                self._server = Server(self.selector, host, port, self.token, web.pages(self))
            except OSError as e:
                raise refuse(
                    "GH-321", f"agent.address {self.options.address}: {e.strerror}; choose another, or none"
                ) from None

    def close(self) -> None:
        self.notifier.say("STOPPING=1")
        self._sampler.stop("the agent ends")
        if self._server:
            self._server.close()
        self._keeper.close()
        self._slots.close()
        for _, known in self._accounts.values():
            known.close()
        for fd in [fd for _, fd in self._pidfds.values()] + [self._ledger_fd, self._lock]:
            if fd >= 0:
                os.close(fd)
        self.selector.close()
        if hasattr(self, "_wakeup"):
            signal.set_wakeup_fd(-1)
            for end in self._wakeup:
                end.close()

    def _on_signal(self, *_: object) -> None:
        self._stop = True

    def _register(self, fd: int, callback: Callable[[float], None], write: bool = False) -> None:
        self.selector.register(fd, selectors.EVENT_WRITE if write else selectors.EVENT_READ, callback)

    def wait(self, latest: float) -> None:
        """Sleep until something happens."""
        until = [latest]
        if self._reconcile_at:
            until.append(self._reconcile_at)
        until += self.guard.due.values()
        if self._server and (deadline := self._server.next_deadline()) is not None:
            until.append(deadline)
        for key, _ in self.selector.select(max(0.0, min(until) - time.monotonic())):
            key.data(time.monotonic())

    # --- every few seconds

    def tick(self, now: float) -> None:
        try:
            self.settings = node_settings.load(self.prefix)
        except GhError as e:
            self.problem("settings", str(e))
        else:
            self.problem("settings", "")
        self.problem("disk", full(self.settings.state_dir))
        self._watch_ledger()
        self.reconcile(now, sweep=now - self._swept_at >= SWEEP_SECONDS)
        self._kill_again()
        self._look_at_inventory(now)
        self._repair_devices()
        self._keep_open(now)
        self._look_at_leases()
        self.guard.follow(self.settings.state_dir)
        if self.inventory is not None:
            self._sampler.use(self.inventory)
            if not self._sampler.ask(now):
                self.gpus = {}  # what they were is not what they are
                self.audit({})  # books can be read without the driver
        self._watch_sampler()
        sick = self._sampler.state in ("slow", "down") and self.inventory is not None
        self.problem("nvml", self._sampler.error or "NVML is slow" if sick else "")
        self.counters.follow(self.settings.state_dir)
        self.write_textfile()
        state = "; ".join(self.problems.values())[:200]
        self.notifier.say(f"STATUS={self._where()}; {len(self.grants)} containers{'; ' + state if state else ''}")

    def problem(self, name: str, what: str) -> None:
        """Note, or forget, what is wrong; the journal is told of changes alone."""
        if what == self.problems.get(name, ""):
            return
        if what:
            self.problems[name] = what[:300]
            journal.write(f"{name}: {what}", journal.WARNING)
        else:
            del self.problems[name]
            journal.write(f"{name}: well again", journal.NOTICE)

    # --- the ledger

    def reconcile(self, now: float, sweep: bool = False) -> None:
        """Take the ledger's state; under its lock, and sweeping, only where something in it has died or moved on."""
        if now - self._reconciled_at < BUSY_GAP and self._reconcile_at:
            self._reconcile_at = self._reconciled_at + BUSY_GAP
            if now < self._reconcile_at:
                return
        due, self._reconcile_at = bool(self._reconcile_at), 0.0
        self._reconciled_at = now
        try:
            living = None
            if not (sweep or due):
                living = self._peek()
            if living is None:
                with store.open_ledger(self.settings.state_dir, wait=False) as ledger:
                    living = ledger.grants
                self._swept_at = now
                self._watch_ledger()
        except BlockingIOError:  # whoever holds it sweeps as well; a container's start is never kept waiting for us
            self._reconcile_at = now + SETTLE
            return
        except GhError as e:
            self.problem("ledger", str(e))
            return
        self.problem("ledger", "")
        self._ledger_read = time.time()
        self._take(living, now)

    def _peek(self) -> tuple[Grant, ...] | None:
        """The grants without the lock; None where some of them are dead, which only a sweep removes."""
        try:
            living = store.peek(self.settings.state_dir)
            files = [n for n in os.listdir(f"{self.settings.state_dir}/{LEDGER_DIR}") if n.endswith(".json")]
        except FileNotFoundError:
            return None
        return living if len(files) == len(living) else None

    def _take(self, living: tuple[Grant, ...], now: float) -> None:
        new = {grant.key: grant for grant in living}
        gone = set(self.grants) - set(new)
        for key in gone:
            self._forget(self.grants[key])
        self.guard.forget(gone)
        self._harmful = {at for at in self._harmful if at[0] not in gone}
        for key in set(new) - set(self.grants):
            self.watched[key] = Watched()
        self.grants, self._view = new, {}
        self._members.update(new)
        self.guard.there(set(new))
        self._slots.keep(keep.slots(self.settings.state_dir, living))
        for grant in living:
            self._follow(grant, now)

    def _follow(self, grant: Grant, now: float) -> None:
        """Be told when what the grant lives by ends."""
        process = grant.life.init or grant.life.creator
        known = self._pidfds.get(grant.key)
        if known and known[0] == process and known[1] >= 0:
            return
        self._unfollow(grant.key)
        if process is None:
            return
        try:
            fd = os.pidfd_open(process[0])
            if start_time(process[0]) != process[1]:
                os.close(fd)
                raise ProcessLookupError
        except OSError:
            # It ended, and a process of its cgroup has not yet; or there are no descriptors left.
            if grant.key not in self._lingering:
                self._lingering[grant.key] = 0
            self._again(grant.key, now)
            return
        self._lingering.pop(grant.key, None)
        self._pidfds[grant.key] = (process, fd)
        self._register(fd, lambda now, key=grant.key: self._ended(key, now))  # type: ignore[misc]

    def _again(self, key: str, now: float) -> None:
        n = self._lingering[key]
        if n < len(LINGER):
            self._lingering[key] = n + 1
            self._soon(now + LINGER[n])

    def _ended(self, key: str, now: float) -> None:
        self._unfollow(key)
        self._lingering[key] = 0
        self._soon(now + SETTLE)

    def _soon(self, when: float) -> None:
        self._reconcile_at = min(self._reconcile_at or when, when)

    def _unfollow(self, key: str) -> None:
        known = self._pidfds.pop(key, None)
        if known:
            self.selector.unregister(known[1])
            os.close(known[1])

    def _forget(self, grant: Grant) -> None:
        self._unfollow(grant.key)
        self._lingering.pop(grant.key, None)
        if grant.key in self._accounts:
            self._accounts.pop(grant.key)[1].close()
        watched = self.watched.pop(grant.key, Watched())
        self.counters.ended += 1
        events.record(
            self.settings.state_dir,
            "ended",
            id=grant.who.id[:256],
            name=events.full_name(grant.who),
            key=grant.key,
            peak_mib=max(watched.peaks.values(), default=None),
        )
        journal.write(f"container {grant.who.id[:100]} ended; its share is free", container=grant.who.id)

    def _watch_ledger(self) -> None:
        """Be told of new grants. Again when the directory was made anew."""
        if self._ledger_fd >= 0:
            return
        folder = f"{self.settings.state_dir}/{LEDGER_DIR}"
        try:
            self._ledger_fd = inotify.watch(folder, inotify.IN_MOVED_TO | inotify.IN_DELETE | inotify.IN_DELETE_SELF)
        except OSError:  # not there yet, or too many watches on this node: the tick finds what changes
            return
        self._register(self._ledger_fd, self._ledger_changed)

    def _ledger_changed(self, now: float) -> None:
        inotify.drain(self._ledger_fd)
        if not os.path.isdir(f"{self.settings.state_dir}/{LEDGER_DIR}"):
            self.selector.unregister(self._ledger_fd)
            os.close(self._ledger_fd)
            self._ledger_fd = -1
        if now - self._reconciled_at > SETTLE:  # not our own sweep
            self._soon(now + SETTLE)

    # --- the node

    def _look_at_inventory(self, now: float) -> None:
        """The cache, or a new one when the driver changed (in a thread: a driver may take a minute, or for ever)."""
        if self._discovery is not None and not self._discovery.is_alive():
            self._discovery = None
            found, self._discovered = self._discovered, None
            try:
                if isinstance(found, GhError):
                    raise found
                if found is not None:
                    save_inventory(self.settings, found)
                    self._discover_gap = DISCOVER_SECONDS
                    journal.write(f"GPUs found: {len(found.gpus)}, driver {found.driver_version}", journal.NOTICE)
            except GhError as e:
                self.problem("inventory", str(e))
                self._discover_at = now + self._discover_gap
                self._discover_gap = min(2 * self._discover_gap, DISCOVER_MAX)
        try:
            self.inventory = cache.load(self.settings)
            self.problem("inventory", "")
        except GhError as e:
            if "inventory" not in self.problems:
                self.problem("inventory", str(e))
            self._sampler.stop(str(e))
            self.inventory, self.gpus = None, {}
            self._discover_soon = now >= self._discover_at
        if self._discover_soon and self._discovery is None:
            self._discover_soon = False
            self._discovery = threading.Thread(target=self._discover, daemon=True)
            self._discovery.start()

    def _discover(self) -> None:
        try:
            self._discovered = discover(self.settings.driver_root)
        except GhError as e:
            self._discovered = e
        except Exception as e:  # told, and tried again later
            self._discovered = refuse("GH-302", f"looking for GPUs: {type(e).__name__}: {e}")

    def _repair_devices(self) -> None:
        if self.inventory is None:
            return
        made, wrong = device_nodes.repair(self.inventory)
        for path in made:
            journal.write(f"{path} was missing and is made", journal.NOTICE)
            events.record(self.settings.state_dir, "repaired", path=path)
        self.problem("devices", "; ".join(wrong))

    # --- the GPUs

    def _watch_sampler(self) -> None:
        if self._sampler.fd == self._sampler_fd:
            return
        if self._sampler_fd >= 0:
            try:
                self.selector.unregister(self._sampler_fd)
            except (KeyError, ValueError):
                pass
        self._sampler_fd = self._sampler.fd
        if self._sampler_fd >= 0:
            self._register(self._sampler_fd, self._sampled)

    def _sampled(self, now: float) -> None:
        sample = self._sampler.receive(now)
        for uuid, gpu in self._sampler.looks.items():
            self._guard(uuid, gpu)
        if sample is None:
            self._watch_sampler()
            self._sampler.watch(self.guard.alarms)
            return
        self.problem("nvml", self._sampler.error)
        if self._sampler.state == "ok":
            self._nvml_read = time.time()
            self._who_is_there(sample)
        for uuid, gpu in sample.items():
            before = self.gpus.get(uuid)
            if gpu.error and (before is None or not before.error):
                gone = " (the GPU has fallen off the bus: look for Xid in dmesg)" if sampler.lost(gpu.error) else ""
                journal.write(f"GPU {uuid}: NVML: {gpu.error}{gone}", journal.ERROR)
                events.record(self.settings.state_dir, "gpu", uuid=uuid, error=gpu.error)
        self.gpus = sample
        self.audit({uuid: gpu for uuid, gpu in sample.items() if not gpu.error})
        self._sampler.watch(self.guard.alarms)

    def _who_is_there(self, sample: dict[str, sampler.GpuSample]) -> None:
        """GPUs that fell off the bus, and come back. What NVML finds twice in a row is made the inventory."""
        known = {gpu.uuid for gpu in self.inventory.gpus} if self.inventory else set()
        whole = {gpu.parent or gpu.uuid for gpu in self.inventory.gpus} if self.inventory else set()
        for uuid in whole - set(sample):  # a lost GPU may have no handle any more
            sample[uuid] = sampler.GpuSample(0, 0, -1, (), "NVML does not find it: GPU is lost")
        lost = {uuid for uuid, gpu in sample.items() if sampler.lost(gpu.error)}
        new = {uuid for uuid, gpu in sample.items() if not gpu.error} - whole
        changed = frozenset((lost & whole) | new)
        if changed and changed == self._changed and self._discovery is None:
            self._discover_soon = True
        self._changed = changed
        holders: dict[str, int] = {}
        for grant in self.grants.values():
            for share in grant.shares:
                holders[share.uuid] = holders.get(share.uuid, 0) + 1
        gone = sorted((lost & whole) | (set(holders) - known))
        told = [f"{uuid} is lost (containers on it: {holders.get(uuid, 0)})" for uuid in gone[:4]]
        advice = "; look for Xid in the kernel's log; its containers cannot go on" if gone else ""
        self.problem("gpus", ", ".join(told) + advice)

    def audit(self, gpus: dict[str, sampler.GpuSample]) -> None:
        books, unread = self._all_books(self.grants)
        why = next((f"of {self.grants[key].who.id[:40]}: {e}" for key, e in unread.items()), "")
        self.problem("books", why and f"{len(unread)} account pages cannot be read, {why}")
        members = self._members.find({pid for gpu in gpus.values() for pid, _, _ in gpu.processes})
        for uuid in {share.uuid for grant in self.grants.values() for share in grant.shares}:
            self._guard(uuid, gpus.get(uuid), (members, books, unread))
        grants = {key: g for key, g in self.grants.items() if not self.watched[key].stopped}
        members = {pid: m for pid, m in members.items() if m[0] in grants}
        for key, grant in self.grants.items():
            for share in grant.shares:
                self.watched[key].told(share.uuid, read_gate(self.settings.state_dir, share))
        gated = frozenset((key, uuid) for key, watched in self.watched.items() for uuid in watched.gates)
        halted = frozenset(self.grants) - frozenset(grants)
        self.verdict = verdict = self._auditor.judge(grants, gpus, members, books, frozenset(unread), gated, halted)
        for (key, i), amount in verdict.surcharges.items():
            kept = books[key]
            if isinstance(kept, account.Books) and kept.surcharges[i] != -(-amount // account.UNIT) * account.UNIT:
                self._surcharge(key, i, amount)
        self._measure()
        for key, watched in self.watched.items():
            watched.books = books.get(key)
            for i, share in enumerate(self.grants[key].shares):
                use = verdict.uses.get((key, share.uuid))
                watched.uses = {**watched.uses, share.uuid: use} if use else _without(watched.uses, share.uuid)
                kept = watched.books
                booked = kept.totals[i] if isinstance(kept, account.Books) and i < len(kept.totals) else 0
                used = -(-max(booked, use.used if use else 0) // account.MIB)
                busy = watched.meter(share.uuid).share or (use.busy if use else 0)
                watched.peaks[share.uuid] = max(used, watched.peaks.get(share.uuid, 0))
                watched.note(share.uuid, used, round(busy))
        for finding in verdict.news:
            self.answer(finding)
        for finding in verdict.over:
            if finding.key in self.grants:
                self._tell(finding, "is over", journal.NOTICE, "cleared")
        self._view = {}

    def _all_books(
        self, grants: dict[str, Grant]
    ) -> "tuple[dict[str, account.Books | str | None], dict[str, OSError]]":
        """(by key, the keys where we ourselves cannot look, and why)"""
        books: dict[str, account.Books | str | None] = {}
        unread = {}
        for key, grant in grants.items():
            try:
                books[key] = self._books(grant)
            except OSError as e:
                books[key], unread[key] = None, e
        return books, unread

    def _guard(self, uuid: str, sample: sampler.GpuSample | None, seen: Any = None) -> None:
        """Judge a look at a GPU for those who share it. seen: members, books and what could not be read, where that
        was looked at with it."""
        sharing = {k: g for k, g in self.grants.items() if any(share.uuid == uuid for share in g.shares)}
        gpu = next((c for c in self.inventory.gpus if c.uuid == uuid), None) if self.inventory else None
        if len(sharing) < 2 or gpu is None or sample is None or sample.error:
            self.guard.alone(uuid)
            return
        if seen is None:
            members = self._members.find({pid for pid, _, _ in sample.processes}, all=False)
            books, unread = self._all_books(sharing)
        else:
            members, books, unread = seen
        stopped = {key for key in sharing if self.watched[key].stopped == "killed"}
        before = self.guard.unlisted.get(uuid, 0)
        now = time.monotonic()
        found = self.guard.judge(gpu, sample, sharing, stopped, members, books, frozenset(unread), now)
        if found.again is not None and any(grant.life.init is None for grant in sharing.values()):
            self._soon(now)  # who they are is not known yet
        if bool(found.unlisted) != bool(before):
            self._tell_unlisted(uuid, found.unlisted)
        if found.kill is None or (found.kill.key, uuid) in self._harmful:
            return
        if not self._as_known(uuid, sharing):
            self.guard.spare(uuid)
            self._sampler.look(uuid)
            return
        at = found.kill.key, uuid
        self._harmful.add(at)
        what = guard.evidence(found.kill, self.options.tolerance)
        others = tuple((p.pid, p.start) for p in found.kill.processes)
        self.answer(Finding("over-limit", *at, 0, 0, what), harm=True, others=others)

    def _as_known(self, uuid: str, sharing: dict[str, Grant]) -> bool:
        """Whether the ledger has these containers with these shares of the GPU now; else we take its state."""
        try:
            living = store.peek(self.settings.state_dir)
        except (OSError, GhError):
            return False
        now = {g.key: (g.life.init, g.shares) for g in living if any(share.uuid == uuid for share in g.shares)}
        if now == {key: (g.life.init, g.shares) for key, g in sharing.items()}:
            return True
        self._take(living, time.monotonic())
        return False

    def _tell_unlisted(self, uuid: str, size: int) -> None:
        mib = -(-size // account.MIB)
        what = (
            f"{mib} MiB belong to no process that NVML lists"
            if size
            else "all memory belongs to listed processes again"
        )
        journal.write(f"GPU {uuid}: {what}", journal.NOTICE, gpu=uuid)
        events.record(self.settings.state_dir, "unlisted", uuid=uuid, mib=mib)

    def _measure(self) -> None:
        """What was had of each GPU since the look before."""
        parties: dict[str, list[meter.Party]] = {}
        for key, grant in self.grants.items():
            watched, rank = self.watched[key], CLASS_NUMBERS[grant.priority_class]
            for share in grant.shares:
                gate = watched.gates.get(share.uuid)
                use = self.verdict.uses.get((key, share.uuid))
                promise, stopped = guaranteed(grant, share), bool(grant.frozen or watched.stopped)
                party = meter.Party(watched.meter(share.uuid), gate, use.busy if use else None, promise, rank, stopped)
                parties.setdefault(share.uuid, []).append(party)
        now = time.monotonic()
        took, self._measured_at = now - (self._measured_at or now), now
        for key, watched in self.watched.items():
            if self.grants[key].frozen or watched.stopped == "frozen":
                watched.frozen_seconds += took
        for gpu in parties.values():
            meter.look(now, gpu)

    def _books(self, grant: Grant) -> "account.Books | str | None":
        """None: not begun; a text: what is wrong with the page. Raises OSError where we cannot look."""
        if grant.life.init is None or not grant.shares:
            return None
        try:
            known = self._accounts.get(grant.key)
            if known is None or known[0] != grant.life.init:
                if known:
                    known[1].close()
                    del self._accounts[grant.key]
                known = (grant.life.init, account.Account(*grant.life.init, grant.life.cgroup))
                self._accounts[grant.key] = known
            # Whose memory is whose matters where some belongs to no listed process.
            return known[1].read(len(grant.shares), any(self.guard.unlisted.get(s.uuid) for s in grant.shares))
        except account.DamagedPage as e:
            return str(e)
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESRCH):
                return None  # its container ends, or has no such directory (a whole GPU alone)
            raise

    def _surcharge(self, key: str, gpu: int, amount: int) -> None:
        try:
            self._accounts[key][1].surcharge(gpu, amount)
        except (KeyError, OSError, account.DamagedPage):
            pass  # the next look says what is wrong with it

    def answer(self, finding: Finding, harm: bool = False, others: tuple[tuple[int, int], ...] = ()) -> None:
        """Do what the policy says, and say what was done. harm: it takes what others were promised. others: processes
        of it that are to go with it."""
        grant = self.grants[finding.key]
        self.counters.finding(finding.kind)
        what, failed = "reported", ""
        if self.options.policy == "freeze":
            what, failed = "frozen", enforce.freeze(grant)
        elif self.options.policy == "kill" or (self.options.policy == "protect" and harm):
            others = (*(((finding.pid, finding.start),) if finding.pid else ()), *others)
            what, failed = "killed", enforce.kill(grant, others)
            self._killed[finding.key] = finding, others
        if what != "reported" and not failed:
            self.watched[finding.key].stopped = what
            self._view = {}
        # Only then who it was, as far as that is still there: the process has a hand in what that costs.
        culprit = finding.pid or (others[0][0] if others else 0)
        try:
            who = facts.describe(culprit) if culprit else ""
        except Exception as e:
            who = f"not described: {type(e).__name__}"
        if who:
            finding = finding.replace(evidence=f"{finding.evidence} ({who})")
        self._tell(finding, f"{what} failed: {failed}" if failed else what, journal.WARNING, "finding")

    def _kill_again(self) -> None:
        """Those that were to be killed and are still there."""
        for key, (finding, others) in list(self._killed.items()):
            if key not in self.grants:
                del self._killed[key]
                continue
            failed, watched = enforce.kill(self.grants[key], others), self.watched[key]
            before, watched.stopped = watched.stopped, "" if failed else "killed"
            if before != watched.stopped:
                self._view = {}
                self._tell(finding, f"killed failed: {failed}" if failed else "killed", journal.WARNING, "finding")

    # --- files that containers have mounted

    def _keep_open(self, now: float) -> None:
        when, inventory = self._kept
        if now - when >= KEEP_SECONDS or inventory is not self.inventory or self._keeper.missed:
            self._kept = now, self.inventory
            self._keeper.keep(keep.wanted(self.inventory, self.prefix))

    def _look_at_leases(self) -> None:
        if time.monotonic() < self._locks_at:
            return
        began = time.thread_time()
        try:
            held, whole = leases.now()
        except OSError:
            held, whole = [], True
        # A tenant can have locks by the hundred thousand: then they are looked at less often.
        self._locks_at = time.monotonic() + LOCKS_REST * (time.thread_time() - began)
        self.problem("locks", "" if whole else "/proc/locks is too long: leases further down are not seen; see lslocks")
        found: dict[tuple[str, str, str, int, int], Finding] = {}
        harmful = set()
        files = self._needed() if held else {}
        for lease in held:
            file = files.get(lease.file)
            key, process = self._lessee(lease) if file else ("", None)
            if file is None or process is None:
                continue
            kind = "write" if lease.write else "read"
            what = f"process {process.pid} ({process.name}) holds a {kind} lease on {file.what}"
            finding = Finding("holds-lease", key, "", process.pid, process.start, what)
            found[finding.what] = finding
            if file.owner != key:
                harmful.add(finding.what)
        for at, finding in found.items():
            if at not in self._leases:
                self.answer(finding, harm=at in harmful)
        for at, finding in self._leases.items():
            if at in found or finding.key not in self.grants:
                continue
            if self.watched[finding.key].stopped:  # it gave nothing back: that stands until it ends
                found[at] = finding
            else:
                self._tell(finding, "is over", journal.NOTICE, "cleared")
        self._leases = found

    def _needed(self) -> dict[tuple[int, int], leases.File]:
        """By device and inode."""
        found = {at: leases.File(path) for at, path in self._keeper.files.items()}
        found.update(leases.of_state(self.settings.state_dir, self.grants))
        for key, (_, known) in self._accounts.items():
            found[known.file] = leases.File("its account page", key)
        return found

    def _lessee(self, lease: leases.Lease) -> "tuple[str, Process | None]":
        """(the grant's key, the process) that holds it; the one that took it may have left it to a child."""
        pids = [lease.pid]
        if not leases.holds(lease.pid, lease.file):
            inits = [(g.life.init[0], g.life.cgroup) for g in self.grants.values() if g.life.init]
            pids = [pid for init in inits for pid in inside.pids(*init) or () if leases.holds(pid, lease.file)]
        return next(iter(self._members.find(set(pids), all=False).values()), ("", None))

    def _tell(self, finding: Finding, what: str, priority: int, event: str) -> None:
        who = self.grants[finding.key].who
        on = f" on GPU {finding.uuid}" if finding.uuid else ""
        journal.write(
            f"container {who.id[:100]}: {finding.kind}{on}: {finding.evidence}; {what}",
            priority,
            container=who.id,
            finding=finding.kind,
            gpu=finding.uuid,
        )
        events.record(
            self.settings.state_dir,
            event,
            id=who.id[:256],
            name=events.full_name(who),
            kind=finding.kind,
            uuid=finding.uuid,
            pid=finding.pid,
            evidence=finding.evidence[:500],
            action=what[:200],
        )

    # --- what is shown

    def status(self) -> dict[str, Any]:
        return {
            "state": "degraded" if self.problems else "ok",
            "problems": dict(self.problems),
            "version": __version__,
            "nvml": self._sampler.state,
            "state_dir": self.settings.state_dir,
            "policy": self.options.policy,
            "interval": self.options.interval,
            "started": round(self.started, 1),
            "findings": self.counters.findings_total(),
            "ledger_read": self._ledger_read,
            "nvml_read": self._nvml_read,
            "processes": usage({"agent": os.getpid(), "nvml": self._sampler.pid}),
        }

    def view(self) -> dict[str, Any]:
        if not self._view:
            self._view = view(
                self.inventory,
                self.grants,
                self.gpus,
                self.watched,
                (*self.verdict.findings, *self._leases.values()),
                self.verdict.strangers,
                self.status(),
                self.guard.unlisted,
            )
        return {**self._view, "agent": self.status()}

    def metrics(self) -> bytes:
        self.counters.follow(self.settings.state_dir)
        return exposition(self.view(), self.counters)

    def write_textfile(self) -> None:
        if self.options.textfile != "none":
            self.problem("textfile", textfile.write(self.options.textfile, self.metrics()))


def usage(processes: dict[str, int]) -> dict[str, dict[str, float]]:
    """What these processes have used: processor seconds, bytes resident. By name, as far as they live."""
    found = {}
    for name, pid in processes.items():
        try:
            fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        except OSError:
            continue
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
        found[name] = {"cpu_seconds": ticks / os.sysconf("SC_CLK_TCK"), "memory": pages * resource.getpagesize()}
    return found


def _without(uses: dict[str, Any], uuid: str) -> dict[str, Any]:
    return {k: v for k, v in uses.items() if k != uuid}


def _drain(s: socket.socket) -> None:
    try:
        s.recv(4096)
    except BlockingIOError:
        pass


def only_one(path: str) -> int:
    """The descriptor whose flock says that we are the node's agent. Raises NodeError GH-320, GH-303."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise store.unusable(os.path.dirname(path), e) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "?"
        os.close(fd)
        raise refuse("GH-320", f"process {holder} is the agent of {os.path.dirname(path)}; stop it first") from None
    os.ftruncate(fd, 0)
    try:
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)  # for GH-320 alone
    except OSError:  # a full disk
        pass
    return fd


def full(path: str) -> str:
    """What is to be said of a file system without room for a grant; "" where there is room."""
    try:
        st = os.statvfs(path)
    except OSError as e:
        return f"{path}: {e.strerror}"
    if st.f_bavail * st.f_frsize >= ROOM and (not st.f_files or st.f_favail >= ROOM_FILES):
        return ""
    return f"{path} is full: containers are refused their share (GH-303) and events are lost; look what fills it"
