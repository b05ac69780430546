"""What moves are for: room for one pod, or free GPUs. Each goal has a lower bound of the moves that are still missing."""

import math
from bisect import insort

from oci_hook.core.allocate import places, share_of
from oci_hook.core.boundary import obstacle
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest
from oci_hook.kube.board import Board, Moved, Place, Stack
from oci_hook.kube.choose import Question
from oci_hook.kube.hosts import Amounts

NEVER = math.inf


class Roomy:
    """The pod has room on one of these nodes. needs: what it requests besides GPUs."""

    def __init__(self, board: Board, question: Question, allowed: frozenset[str], needs: Amounts) -> None:
        self.board, self.question, self._needs = board, question, needs
        self.names = [name for name in board.names if name in allowed and not board.barred(question, name)]
        self.bounds = sorted((self.least_on((), name), name) for name in self.names)
        self._usable = {name for least, name in self.bounds if least < NEVER}

    def least(self, moved: Moved) -> float:
        """So many moves at least are missing."""
        touched = {place.node for _, place in moved} | {self.board.movers[uid].node for uid, _ in moved}
        untouched = next((least for least, name in self.bounds if name not in touched), NEVER)
        return min([untouched, *(self.least_on(moved, name) for name in touched if name in self._usable)])

    def reached(self, moved: Moved) -> bool:
        return self.place(moved) is not None

    def place(self, moved: Moved) -> Place | None:
        """Where the pod has room now."""
        touched = {place.node for _, place in moved} | {self.board.movers[uid].node for uid, _ in moved}
        near = [name for least, name in self.bounds if not least and name not in touched]
        for name in (*sorted(touched & self._usable), *near):
            if not self.least_on(moved, name) and self.fits_on(moved, name):
                found = self.board.fit(self.board.key(moved, name), self.question)
                return Place(name, found.rows if found else ())
        return None

    def fits_on(self, moved: Moved, name: str) -> bool:
        enough = self.board.spare(moved, name, lambda: self._needs)
        return enough and self.board.fit(self.board.key(moved, name), self.question) is not None

    def least_on(self, moved: Moved, name: str) -> float:
        rules = self.board.state.nodes[name].rules
        stacks = self.board.stacks(self.board.key(moved, name))
        worst = 0.0
        for _, _, request in self.question.asked(rules):
            if not request.gpus or request.narrow_to == ():
                continue
            wishes = tuple(dict.fromkeys(request.gpus))
            costs = sorted(min(to_clear(s, wish, request, rules) for wish in wishes) for s in stacks)
            wanted = len(costs) if request.every_gpu and request.narrow_to is None else len(request.gpus)
            if wanted > len(costs):
                return NEVER
            worst = max(worst, sum(costs[:wanted]))
        return worst if worst == NEVER else math.ceil(worst - 1e-6)


def to_clear(stack: Stack, wish: GpuRequest, request: Request, rules: Rules) -> float:
    """How many pods at least have to leave the GPU before it has room; a pod on several GPUs counts a part on each."""
    use, loads = stack.use, stack.loads
    need = share_of(use.gpu, wish, request, rules)
    if obstacle(use.gpu, need.whole, request.terms.boundary) or use.alone:
        return NEVER
    if need.whole:
        shared = not request.exclusive and rules.whole_gpus == "shared"
        if shared and use.whole:
            return 0 if use.containers < places(use.gpu, rules) else NEVER
        return NEVER if stack.fixed else sum(part for *_, part in loads)
    if use.whole or need.memory_mib < use.gpu.context_mib:
        return NEVER
    missing = (
        need.memory_mib - use.free_mib,
        need.compute - use.free_compute,
        use.containers + 1 - places(use.gpu, rules),
    )
    count = 0
    for which, short in enumerate(missing):
        if short > 0:
            taken = 0
            for n, amount in enumerate(sorted((int(load[which]) for load in loads), reverse=True), 1):
                taken += amount
                if taken >= short:
                    count = max(count, n)
                    break
            else:
                return NEVER
    return count * min((part for *_, part in loads), default=1.0)


class Free:
    """So many GPUs of the cluster have no container. MIG devices do not count."""

    def __init__(self, board: Board, target: int = 0) -> None:
        self.board, self.target = board, target
        self._costs: list[tuple[float, str]] = []
        self.free = 0
        self._of: dict[str, list[float]] = {}
        for name in board.names:
            self._of[name] = costs = emptying(board.stacks(board.key((), name)))
            self.free += costs.count(0)
            self._costs += [(cost, name) for cost in costs if cost]
        self._costs.sort()

    def aimed(self, target: int) -> "Free":
        """The same with another number of GPUs."""
        self.target = target
        return self

    def count(self, moved: Moved) -> int:
        free = self.free
        for name in self._touched(moved):
            free += emptying(self.board.stacks(self.board.key(moved, name))).count(0) - self._of[name].count(0)
        return free

    def reached(self, moved: Moved) -> bool:
        return self.count(moved) >= self.target

    def least(self, moved: Moved) -> float:
        touched = self._touched(moved)
        changed = {name: emptying(self.board.stacks(self.board.key(moved, name))) for name in touched}
        free = self.free + sum(costs.count(0) - self._of[name].count(0) for name, costs in changed.items())
        missing = self.target - free
        if missing <= 0:
            return 0
        found: list[float] = []
        for cost, name in self._costs:
            if name not in touched:
                found.append(cost)
                if len(found) == missing:
                    break
        for costs in changed.values():
            for cost in costs:
                if cost:
                    insort(found, cost)
        return NEVER if len(found) < missing else _rounded(sum(found[:missing]))

    def most(self, moves: int) -> int:
        """No so many moves leave more GPUs free: by the pods on each GPU, and by the memory that they need elsewhere."""
        total, free = 0.0, self.free
        for cost, _ in self._costs:
            total += cost
            if _rounded(total) > moves:
                break
            free += 1
        return min(free, self._by_memory())

    def _by_memory(self) -> int:
        demand, rooms, gpus = 0, [], 0
        for name in self.board.names:
            for stack in self.board.stacks(self.board.key((), name)):
                own = sum(load[0] for load in stack.loads)
                demand += own
                if stack.fixed or stack.use.gpu.parent:
                    demand -= stack.use.free_mib + own
                else:
                    gpus += 1
                    rooms.append(stack.use.free_mib + own)
        for room in sorted(rooms, reverse=True):
            if demand <= 0:
                break
            demand -= room
            gpus -= 1
        return gpus

    def _touched(self, moved: Moved) -> set[str]:
        names = {place.node for _, place in moved} | {self.board.movers[uid].node for uid, _ in moved}
        return names - {""}


def emptying(stacks: tuple[Stack, ...]) -> list[float]:
    """For each GPU, how many pods have to leave it; NEVER where some cannot."""
    return [NEVER if stack.fixed or stack.use.gpu.parent else sum(part for *_, part in stack.loads) for stack in stacks]


def _rounded(total: float) -> float:
    return total if total == NEVER else math.ceil(total - 1e-6)
