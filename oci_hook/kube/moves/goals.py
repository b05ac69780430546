"""The goals of moves: room for one pod, or free GPUs."""

import math

from oci_hook.core.allocate import places, share_of
from oci_hook.core.boundary import obstacle
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import OFFLINE, GpuRequest
from oci_hook.kube.moves.board import Board, Moved, Stack
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.pod.hosts import Amounts

NEVER = math.inf


class Roomy:
    """Room for the pod on one of these nodes. needs: its requests besides GPUs."""

    def __init__(self, board: Board, question: Question, allowed: frozenset[str], needs: Amounts) -> None:
        self.board, self.question, self._needs = board, question, needs
        self.names = [name for name in board.names if name in allowed and not board.barred(question, name)]
        self.bounds = sorted((self.least_on((), name), name) for name in self.names)

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
    """A lower bound on the pods that must leave the GPU to make room; a pod on several GPUs counts as a fraction on each."""
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
    offline = request.terms.priority_class == OFFLINE
    missing = (
        need.memory_mib - use.free_mib,
        0 if offline else need.compute - use.free_compute,
        need.compute - use.free_offline if offline else 0,
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
    """Free GPUs of the cluster, without MIG devices."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.free = 0
        self._of: dict[str, list[float]] = {}
        for name in board.names:
            self._of[name] = costs = emptying(board.stacks(board.key((), name)))
            self.free += costs.count(0)

    def count(self, moved: Moved) -> int:
        free = self.free
        for name in {place.node for _, place in moved} | {self.board.movers[uid].node for uid, _ in moved}:
            free += emptying(self.board.stacks(self.board.key(moved, name))).count(0) - self._of[name].count(0)
        return free


def emptying(stacks: tuple[Stack, ...]) -> list[float]:
    """For each GPU, the number of pods that must leave it; NEVER if some cannot."""
    return [NEVER if stack.fixed or stack.use.gpu.parent else sum(part for *_, part in stack.loads) for stack in stacks]
