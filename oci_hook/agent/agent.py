"""`gpu-hook agent`: watches one node. It releases the shares of containers that end, audits the GPUs, and publishes
what it sees.

One thread waits for everything at once: ends of processes (pidfd), changes of the ledger (inotify), the NVML process,
HTTP clients, signals, the clock. No container needs the agent: it may be killed and started again at any time. This
file is the loop and puts the parts together; agent/node_state.py lists them.
"""

import contextlib
import fcntl
import os
import resource
import selectors
import signal
import socket
import time

from oci_hook.agent import journal, options
from oci_hook.agent.act.auditing import Auditing
from oci_hook.agent.act.driver_changes import RELEASED, DriverChanges
from oci_hook.agent.act.driver_limits import DriverLimits
from oci_hook.agent.act.moving import Moving
from oci_hook.agent.act.no_leases import NoLeases
from oci_hook.agent.act.protection import Protection
from oci_hook.agent.act.response import Response
from oci_hook.agent.act.sampling import Sampling
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.serve import web, whereabouts
from oci_hook.agent.serve.listeners import Listeners
from oci_hook.agent.serve.notify import Notifier
from oci_hook.agent.serve.publish import Publisher
from oci_hook.agent.watch.accounts import Accounts
from oci_hook.agent.watch.boundary_server import BoundaryServer
from oci_hook.agent.watch.cluster_process import ClusterProcess
from oci_hook.agent.watch.ledger_watch import LedgerWatch
from oci_hook.agent.watch.process_owner import ProcessOwners
from oci_hook.agent.watch.sampler import Sampler
from oci_hook.core.layout import AGENT_LOCK
from oci_hook.errors import refuse
from oci_hook.install import state_owner
from oci_hook.linux.lock import own_dir

RELEASE, TAKE = signal.SIGUSR1, signal.SIGUSR2  # keep off the driver; use it again (cli/agent.py)
ROOM, ROOM_FILES = 128 << 10, 16  # bytes and files to be free in the state directory; a grant needs a tenth of it


class Agent:
    """`run` until SIGTERM. Clocks are monotonic; the wall clock is only shown."""

    def __init__(self, prefix: str, given: options.AgentOptions) -> None:
        self._node = node = NodeState(prefix, given)
        self._selector = selectors.DefaultSelector()
        self._notifier = Notifier(dict(os.environ))
        self._sampler = Sampler(selector=self._selector, hear=lambda now: self._gpus.answered(now))
        self._owners = ProcessOwners()
        self._accounts = Accounts(node)
        self._response = Response(node)
        self._ledger = LedgerWatch(node, self._selector, self._grants_changed)
        self._driver = DriverChanges(node)
        self._leases = NoLeases(node, self._owners, self._accounts, self._response)
        self._protection = Protection(node, self._ledger, self._sampler, self._owners, self._accounts, self._response)
        self._auditing = Auditing(node, self._owners, self._accounts, self._protection, self._response)
        self._gpus = Sampling(node, self._sampler, self._driver, self._auditing, self._protection)
        self._boundary_server = BoundaryServer(self._selector)
        self._boundary = DriverLimits(node, self._boundary_server)
        self._moves = Moving(node, self._accounts, self._auditing, self._response)
        self._reporter = ClusterProcess(node, self._selector)
        self._publisher = Publisher(
            node,
            self._ledger,
            self._sampler,
            self._gpus,
            self._auditing,
            self._protection,
            self._leases,
            self._boundary,
            self._boundary_server,
            self._reporter,
        )
        pages = web.pages(self._publisher)
        self._listeners = Listeners(node, self._selector, options.token(given), pages, self._publisher.healthy)
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._lock, self._locked = -1, ""  # of which state directory
        self._off: bool | None = (
            None  # told to commands, by the lock's file: whether no process of ours uses the driver
        )
        self._stop = False
        self._told_by = 0  # a signal that is not followed yet: RELEASE or TAKE

    def run(self) -> int:
        """Raises NodeError GH-320, GH-303."""
        self._open()
        try:
            policy = self._node.options.policy
            journal.write(f"started for {self._node.state_dir}, policy {policy}, {self._where()}")
            self._notifier.say("READY=1", f"STATUS={self._where()}")
            next_tick = 0.0
            while not self._stop:
                now = time.monotonic()
                if self._told_by:
                    self._follow_signal()
                    next_tick = 0.0
                if now >= next_tick:
                    next_tick = now + self._node.options.interval
                    self._tick(now)
                if self._ledger.due and now >= self._ledger.due:
                    self._ledger.read(now)
                self._listeners.check(now)
                self._protection.look_when_due(now)
                self._sampler.check(now)
                self._boundary_server.check(now)
                self._moves.look_when_due(now)
                self._wait(min(next_tick, self._moves.due, self._notifier.alive(now)))
            journal.write("stopped; containers run on")
            return 0
        finally:
            self._close()

    def _tick(self, now: float) -> None:
        """The regular work, every few seconds."""
        node = self._node
        node.load_settings()
        if node.state_dir != self._locked:
            self._hold()
            self._off = None
            self._tell()
        self._listeners.open()
        node.problem("disk", full(node.state_dir))
        self._ledger.tick(now)
        self._response.tick()
        if why := self._driver.look(now):
            self._sampler.stop(why)
        self._boundary.tick(now)
        if not self._driver.released:
            self._moves.tick(now)
        self._reporter.tick(now)
        self._sampler.charge(self._boundary.cgroups())
        self._driver.repair_devices()
        self._leases.tick(now)
        self._protection.guard.follow(node.state_dir, node.grants)
        self._gpus.tick(now)
        node.counters.follow(node.state_dir)
        self._tell()
        self._publisher.write_textfile()
        state = "; ".join(node.problems.values())[:200]
        self._notifier.say(f"STATUS={self._where()}; {len(node.grants)} containers{'; ' + state if state else ''}")

    def _grants_changed(self, ended: set[str]) -> None:
        """Take over the grants that were read anew. ended: keys of the containers that have ended."""
        self._accounts.forget(ended)
        self._response.forget(ended)
        self._protection.grants_changed(ended)
        self._owners.update(self._node.grants)
        self._leases.grants_changed()
        self._boundary.grants_changed(ended, time.monotonic())

    def _wait(self, latest: float) -> None:
        """Sleep until something happens, but not longer than until `latest`."""
        until = [latest, *self._protection.guard.due.values()]
        if self._ledger.due:
            until.append(self._ledger.due)
        if (deadline := self._listeners.next_deadline()) is not None:
            until.append(deadline)
        for key, _ in self._selector.select(max(0.0, min(until) - time.monotonic())):
            key.data(time.monotonic())

    def _open(self) -> None:
        self._hold()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a few descriptors per container
        read, write = self._wakeup = socket.socketpair()
        for end in (read, write):
            end.setblocking(False)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, RELEASE, TAKE):
            signal.signal(number, self._on_signal)
        self._selector.register(read.fileno(), selectors.EVENT_READ, lambda now: _drain(read))
        self._listeners.open()
        self._tell()

    def _hold(self) -> None:
        """Be the one agent of the state directory that the settings name now. Raises NodeError GH-320, GH-303."""
        if self._lock >= 0:  # first, since both may be one directory
            with contextlib.suppress(OSError):
                os.unlink(f"{self._locked}/{AGENT_LOCK}")
                os.rmdir(self._locked)
            os.close(self._lock)
            self._lock = -1
        self._lock, self._locked = only_one(self._node.state_dir), self._node.state_dir

    def _close(self) -> None:
        self._notifier.say("STOPPING=1")
        self._sampler.stop("the agent ends")
        self._boundary_server.stop("the agent ends")
        self._moves.stop()
        self._reporter.stop()
        self._listeners.close()
        self._leases.close()
        self._accounts.close()
        self._ledger.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._selector.close()
        if self._wakeup:
            signal.set_wakeup_fd(-1)
            for end in self._wakeup:
                end.close()

    def _on_signal(self, number: int, _: object) -> None:
        if number in (RELEASE, TAKE):
            self._told_by = number
        else:
            self._stop = True

    def _follow_signal(self) -> None:
        number, self._told_by = self._told_by, 0
        if number == TAKE:
            self._driver.take()
            return
        self._driver.release()
        self._sampler.stop(RELEASED)
        self._moves.stop()  # moves under way are ended when the driver is there again

    def _tell(self) -> None:
        """Write for commands whether we keep off the driver."""
        uses = self._sampler.exists or self._boundary_server.exists or self._driver.asks
        off = self._driver.released and not uses
        if off != self._off:
            self._off = off
            whereabouts.tell(self._lock, off)

    def _where(self) -> str:
        return f"web page http://{self._node.page}/" if self._node.page else "no web page"


def _drain(s: socket.socket) -> None:
    try:
        s.recv(4096)
    except BlockingIOError:
        pass


def only_one(state_dir: str) -> int:
    """A descriptor whose flock makes this process the node's only agent. Raises NodeError GH-320, GH-303."""
    try:
        own_dir(state_dir)
        fd = os.open(f"{state_dir}/{AGENT_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise state_owner.unusable(state_dir, e) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").partition("\n")[0] or "?"
        os.close(fd)
        raise refuse("GH-320", f"process {holder} is the agent of {state_dir}; stop it first") from None
    whereabouts.tell(fd)
    return fd


def full(path: str) -> str:
    """The problem of a file system without room for a grant; "" where there is room."""
    try:
        st = os.statvfs(path)
    except OSError as e:
        return f"{path}: {e.strerror}"
    if st.f_bavail * st.f_frsize >= ROOM and (not st.f_files or st.f_favail >= ROOM_FILES):
        return ""
    return f"{path} is full: containers are refused their share (GH-303) and events are lost; look what fills it"
