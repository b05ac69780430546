"""Moves containers between GPUs and the host's memory: what a crash has cut off of a move is ended, and on a GPU whose memory is
lent, room is made for those who wait (agent/judge/turns.py). Each move is a process of its own (suspend/__main__.py)."""

import math

from oci_hook.agent.act.auditing import Auditing
from oci_hook.agent.act.response import Response
from oci_hook.agent.judge import turns
from oci_hook.agent.judge.audit_rules import Finding
from oci_hook.agent.judge.turns import LentTenant, MemoryMove
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch.accounts import Accounts
from oci_hook.agent.watch.child import Child
from oci_hook.core.grant import Grant
from oci_hook.core.terms import CLASS_NUMBERS
from oci_hook.core.units import MIB
from oci_hook.ledger import events
from oci_hook.observe.account import PageFigures
from oci_hook.observe.stage import paused
from oci_hook.suspend.hold import CANNOT, NO_ROOM, cut_off

PROGRAM = "oci_hook.suspend"
RETRY_SECONDS, RETRY_MAX = 10.0, 300.0
IDLE_SECONDS, BUSY_SECONDS = 0.5, 0.2  # between two looks at a lent GPU, without and with somebody who waits
TRIES_SECONDS = 1.0  # an allocation that waits tries again sooner (LONGEST_WAIT_MS of shim/memory/charge.c)
NOT_NOW = 3.0  # after a move that failed
REFUSALS = 3  # of the driver to move a container, until that is killed for who is within its request
MORE = 64 * MIB  # that a container needs more than its page says, for each time that there was too little room


class Moving:
    """tick: at each of the agent's ticks. look_when_due: soon after `due`."""

    def __init__(self, node: NodeState, accounts: Accounts, auditing: Auditing, response: Response) -> None:
        self.due = math.inf
        self._node = node
        self._auditing = auditing
        self._accounts = accounts
        self._response = response
        self._ends: dict[str, Child] = {}  # one at a time runs, which ends a container's move; by the container's key
        self._tried = ""  # the key of the last one
        self._lent: dict[str, _Lent] = {}

    def tick(self, now: float) -> None:
        for child in self._ends.values():
            status = child.status()
            if status:
                child.failed(now)
            elif status == 0:
                child.worked()
                child.stop()
        cut = [grant for grant in self._node.grants.values() if cut_off(self._node.state_dir, grant)]
        names = ", ".join(events.title(grant.who) for grant in cut)
        self._node.problem("suspend", f"half moved between GPU and host memory: {names}" if cut else "")
        keys = {grant.key for grant in cut}
        moving = {key for key, grant in self._node.grants.items() if grant.moving}
        self._ends = {key: child for key, child in self._ends.items() if child.pid or key in moving}
        for key in keys - set(self._ends):
            self._ends[key] = Child(PROGRAM, RETRY_SECONDS, RETRY_MAX)
        due = sorted(key for key in keys if self._ends[key].due(now))
        if due and not any(child.pid for child in self._ends.values()):
            # They take turns, each after its own waits: one that cannot be ended keeps no other one away.
            self._tried = next((key for key in due if key > self._tried), due[0])
            self._ends[self._tried].start(now, "end", self._node.prefix, self._tried)
        for uuid in self._node.granted_gpus() | set(self._lent):
            if is_lent(self._node, uuid):
                if uuid not in self._lent:
                    self._lent[uuid] = _Lent(
                        uuid, self._node, self._accounts, self._auditing, self._response, self._lent
                    )
            elif uuid in self._lent and not self._lent[uuid].moving:
                self._lent[uuid].end_all_but("")
                del self._lent[uuid]
                for watched in self._node.watched.values():
                    watched.waits.pop(uuid, None)
        for gpu in self._lent.values():
            gpu.cut = keys
            gpu.measure()
        self.due = min(self.due, now) if self._lent else math.inf

    def look_when_due(self, now: float) -> None:
        if now >= self.due:
            busy = [gpu.look(now) for gpu in self._lent.values()]
            self.due = now + (BUSY_SECONDS if any(busy) else IDLE_SECONDS) if busy else math.inf

    def stop(self) -> None:
        """What it has begun ends by itself: the next agent finds it."""
        for child in self._ends.values():
            child.stop()
        for gpu in self._lent.values():
            gpu.stop()


def is_lent(node: NodeState, uuid: str) -> bool:
    """True if the containers on this GPU may together have more memory than it has, or one of them is away for another."""
    gpu, limits = node.gpu(uuid), 0
    if gpu is None:
        return False
    for grant in node.sharing(uuid).values():
        limits += sum(share.memory_mib for share in grant.shares if share.uuid == uuid and not share.whole)
        if grant.lent_to:
            return True
    return limits > gpu.memory_mib - node.settings.rules.reserve(gpu.memory_mib)


class _Known:
    """One container as it was seen on a lent GPU; times in seconds."""

    def __init__(self, now: float) -> None:
        # An allocation that waits: its bytes and tries by the container's page, when it tried last, since when it waits.
        self.size, self.tries, self.tried, self.since = 0, -1, -math.inf, now
        self.away: bool | None = None
        self.here = self.back = 0.0  # since when it is away, or has its turn here, and when it came back last
        self.room_at = -math.inf  # when it could come back to this GPU last
        self.wanted = self.had = 0  # bytes that it waited for, and had, when it was moved
        self.not_before = 0.0
        # Times that the container itself kept the driver from moving it, since it was moved last, and why.
        self.refused, self.why = 0, ""
        self.resumed = 0  # Watched.resumed at the last look

    def waits(self, now: float) -> bool:
        return self.size > 0 and now - self.tried < TRIES_SECONDS


class _Lent:
    """One GPU whose memory is lent."""

    def __init__(
        self,
        uuid: str,
        node: NodeState,
        accounts: Accounts,
        auditing: Auditing,
        response: Response,
        lent: "dict[str, _Lent]",
    ) -> None:
        self.uuid = uuid
        self._lent = lent  # all of them
        self.moving: MemoryMove | None = None
        # The keys of those that a crash has left half moved: nobody else keeps room for them.
        self.cut: set[str] = set()
        self._node, self._accounts, self._auditing, self._response = node, accounts, auditing, response
        self._child = Child(PROGRAM, NOT_NOW, NOT_NOW)
        self._began = self._moved = self._sampled = 0.0
        self._known: dict[str, _Known] = {}  # those of the last look, by key
        self._pace = turns.Pace()
        self._doubt = turns.Doubt()
        self._others = self._excess = 0  # bytes in use that no container's page has: at two looks, at the last one

    def stop(self) -> None:
        self._child.stop()

    def measure(self) -> None:
        """Take what NVML sees in use beyond the pages: the driver's own, and programs outside of containers."""
        sample = self._node.gpus.get(self.uuid)
        if sample is None or sample.error or self.moving or sample.at <= max(self._sampled, self._moved):
            return
        self._sampled = sample.at
        sharing = self._node.sharing(self.uuid)
        pages = {key: self._node.watched[key].account for key in sharing}
        here = sum(self._used(sharing[key], page) for key, page in pages.items() if not sharing[key].off_gpu)
        # What was allocated between the look at the pages and NVML's is nobody's for one look.
        excess = max(0, sample.used - here)
        self._others, self._excess = min(excess, self._excess), excess

    def look(self, now: float) -> bool:
        """Make the next move that is due. True: somebody waits, or is away."""
        sharing = self._node.sharing(self.uuid)
        self._follow(sharing, now)
        if self.moving is not None and not self._ended(sharing, now):
            return True
        if not any(g.lent_to or key in self.cut or self._known[key].waits(now) for key, g in sharing.items()):
            self.end_all_but("")
            return False
        gpu, tenants = self._node.gpu(self.uuid), self._tenants(sharing, now)
        if gpu is None:
            return False
        free = gpu.memory_mib * MIB - self._others - sum(tenant.used for tenant in tenants if not tenant.away)
        turn = float(self._node.settings.rules.memory_turn)
        tenants = self._doubt.believed(tenants, free, now, turn)  # nobody is moved or killed for the others
        move = self._decide(tenants, free, now, turn)
        if move is not None and self._child.due(now):
            self.moving, self._began = move, now
            words = ["resume", self._node.prefix, move.key]
            if move.lent_to:
                words = ["suspend", *words[1:], sharing[move.lent_to].who.id[:64]]
            if self._child.start(now, *words):
                self.moving = None
            elif move.lent_to:
                mover = next(tenant for tenant in tenants if tenant.key == move.key)
                known = self._known[move.key]
                known.wanted, known.had = min(mover.waits, self._most(mover.key, mover.used)), mover.used
        elif move is None:
            self._answer_stuck(tenants, free)
        return True

    def _decide(self, tenants: tuple[LentTenant, ...], free: int, now: float, turn: float) -> MemoryMove | None:
        """A container with several such GPUs comes back once there is room for it on each."""
        while True:
            move = turns.decide(tenants, free, now, turn, self._pace)
            if move is None or move.lent_to:
                return move
            self._known[move.key].room_at = now
            if all(now - other._room_at(move.key) < TRIES_SECONDS for other in self._beside(move.key)):
                return move
            tenants = tuple(t.replace(fixed=True) if t.key == move.key else t for t in tenants)

    def _most(self, key: str, used: int) -> int:
        """Bytes beside those that this container can have here at most: its limit, and what others do not keep of the GPU."""
        grant, gpu = self._node.grants[key], self._node.gpu(self.uuid)
        limit = grant.shares[grant.place(self.uuid)].memory_mib * MIB
        return max(0, (min(limit, gpu.memory_mib * MIB - self._others) if gpu else limit) - used)

    def _room_at(self, key: str) -> float:
        return self._known[key].room_at if key in self._known else -math.inf

    def _beside(self, key: str) -> "list[_Lent]":
        """The other GPUs of this container whose memory is lent."""
        uuids = {share.uuid for share in self._node.grants[key].shares} - {self.uuid}
        return [self._lent[uuid] for uuid in uuids & set(self._lent)]

    def _follow(self, sharing: dict[str, Grant], now: float) -> None:
        """See which containers are here, and which of them wait."""
        self._known = {key: self._known.get(key) or _Known(now) for key in sharing}
        for key, (size, tries) in self._accounts.waiting(sharing, self.uuid).items():
            known = self._known[key]
            if known.tries == -1:  # the first look: it may have stood there for long
                known.size, known.tries, known.since = size, tries, now
            elif tries != known.tries:
                if not known.waits(now):
                    known.since = now
                known.size, known.tries, known.tried = size, tries, now
        for key, grant in sharing.items():
            known, watched = self._known[key], self._node.watched[key]
            watched.waits[self.uuid] = known.size if known.waits(now) else 0
            if known.resumed != watched.resumed:
                known.resumed, known.refused = watched.resumed, 0
            if known.away != grant.off_gpu:
                known.here, known.back = now, now if known.away else known.back
                known.away = grant.off_gpu

    def _tenants(self, sharing: dict[str, Grant], now: float) -> tuple[LentTenant, ...]:
        pages, unread = self._accounts.read(sharing)
        found = []
        for key, grant in sharing.items():
            share = grant.shares[grant.place(self.uuid)]
            if share.whole or grant.life.init is None:
                continue
            if grant.off_gpu and not grant.lent_to and not (grant.moving and key in self.cut):
                continue  # a person takes it away and brings it back
            known, used = self._known[key], self._used(grant, pages.get(key))
            found.append(
                LentTenant(
                    key,
                    CLASS_NUMBERS[grant.terms.priority_class],
                    used,
                    share.booked_mib * MIB,
                    known.wanted if grant.off_gpu else self._node.watched[key].waits[self.uuid],
                    known.since if known.tries >= 0 else now,
                    known.here,
                    known.back,
                    grant.off_gpu,
                    now < known.not_before
                    or key in unread
                    or (grant.off_gpu and paused(grant))  # nobody leaves for it
                    or any(other.moving is not None and other.moving.key == key for other in self._beside(key)),
                    self._elsewhere(grant, used),
                )
            )
        return tuple(found)

    def _elsewhere(self, grant: Grant, used: int) -> int:
        """Bytes on its other GPUs, by NVML; of one that is away, what it brings beside those for this GPU."""
        if grant.off_gpu:
            return max(0, grant.host_mib * MIB - used)
        return sum(seen.used for uuid, seen in self._node.watched[grant.key].uses.items() if uuid != self.uuid)

    def _used(self, grant: Grant, page: "PageFigures | str | None") -> int:
        """Bytes on this GPU, or that it comes back with: by the container's page, and what the last look of NVML saw beyond that,
        whatever the container writes, but no more than its limit, or what NVML saw where that is more; without a page that makes
        sense, by NVML alone."""
        i, watched = grant.place(self.uuid), self._node.watched[grant.key]
        known = self._known.get(grant.key)
        had = known.had if known and grant.off_gpu else 0
        seen = watched.uses[self.uuid].used if self.uuid in watched.uses and not grant.off_gpu else 0
        if not isinstance(page, PageFigures) or i >= len(page.totals):
            return max(seen, had)
        then = watched.account
        excess = seen - then.totals[i] if isinstance(then, PageFigures) and i < len(then.totals) else 0
        more = max(page.surcharges[i], self._auditing.verdict.surcharges.get((grant.key, i), 0), excess)
        return max(min(page.totals[i] + more, max(grant.shares[i].memory_mib * MIB, seen)), had)

    def _ended(self, sharing: dict[str, Grant], now: float) -> bool:
        """True once the move has ended and the ledger that is known here says so."""
        status, move = self._child.status(), self.moving
        if status is None or move is None:
            return False
        grant, known = sharing.get(move.key), self._known.get(move.key)
        if status == 0 and grant is not None and now - self._began < 60:
            # What a person has suspended meanwhile stays away.
            away = grant.suspended and (move.lent_to or grant.lent_to)
            if bool(away) != bool(move.lent_to):
                return False
        why = self._child.read(4096) if status == CANNOT else b""
        self._child.stop()
        self.moving, self._moved = None, now
        if grant is None or known is None:
            return True
        if status == 0:
            if move.lent_to and grant.lent_to and grant.host_mib:  # else it was a person who moved it
                self._pace.measured(grant.host_mib * MIB, now - self._began)
            other = self._known.get(move.lent_to)
            if other and not other.away:  # its turn begins, however long it was there without room
                other.here = now
            known.refused = 0
            if not move.lent_to:
                known.wanted = 0
        else:
            known.not_before = now + NOT_NOW
            if not move.lent_to and status != NO_ROOM:  # all others waited, and some may have left for it
                spent = max(now - self._began, 2 * self._pace.seconds(known.had))
                known.not_before = now + min(RETRY_MAX, max(NOT_NOW, turns.MOVES * spent))
            if status == NO_ROOM:
                known.wanted = min(known.wanted + MORE, self._most(move.key, known.had))
            elif status == CANNOT:
                known.refused += 1
                known.why = (why or b"").decode("utf-8", "replace").strip()
        return True

    def _answer_stuck(self, tenants: tuple[LentTenant, ...], free: int) -> None:
        """What the container itself keeps from being moved is memory that was only lent to it: it ends for who is within its
        request. A node without host memory is no such reason."""
        found = turns.stuck(tenants, free)
        self.end_all_but(found[1] if found else "")
        if found is None or self._known[found[1]].refused < REFUSALS:
            return
        waiting, over = (next(t for t in tenants if t.key == key) for key in found)
        self._known[over.key].refused = -(1 << 30)  # once
        name = events.title(self._node.grants[waiting.key].who)
        what = (
            f"{over.used // MIB} MiB in use, request {over.request // MIB} MiB; {name} waits for {waiting.need // MIB} MiB within its"
            f" request, and this container's memory cannot be moved: {self._known[over.key].why}"
        )
        self._response.answer(Finding("keeps-lent-memory", over.key, self.uuid, 0, 0, what), harm=True)

    def end_all_but(self, key: str) -> None:
        """Leave containers that kept others waiting, no longer do, and could not be frozen."""
        for other, known in self._known.items():
            if other != key and self._response.over(Finding("keeps-lent-memory", other, self.uuid, 0, 0, "")):
                known.refused = 0
