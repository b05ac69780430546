"""The fewest moves of pods after which a waiting pod has room, or the most GPUs are free. Proposes only.

A move is a pod that is deleted and that its owner makes anew elsewhere. After each move, in the order given, everything has room,
the next pod's new share beside its old one. The moves are played on the state that is given, which is of no other use then.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable

from oci_hook.core.value import Value
from oci_hook.kube.board import NOWHERE, Board, Moved, Place
from oci_hook.kube.choose import Chosen, Question, choose
from oci_hook.kube.cut import BINPACK
from oci_hook.kube.fit import Fit
from oci_hook.kube.goals import NEVER, Free, Roomy
from oci_hook.kube.hosts import Amounts
from oci_hook.kube.movable import Mover
from oci_hook.kube.pods import words
from oci_hook.kube.state import ClusterState

MOST_MOVES = 20
MOST_SETS = 2_000  # sets of pods that are tried to leave one node
FEW = 600  # pods that may be moved times GPUs: up to so many, every place is looked at
NEAR = 8  # nodes beyond that, with room for the pods of a node that should make room
TARGETS = 200  # nodes beyond that, on which a waiting pod could get room

Stop = Callable[[], bool]
Step = tuple[str, Place]  # a pod's UID, where it goes
Goal = Roomy | Free


class Move(Value):
    """One pod. node, uuids: where it is; to_node, to_uuids: where it goes. instead: the node that the controller would choose
    without help, "" where it chooses this place, whether the old pod has ended by then or not."""

    uid: str
    namespace: str
    pod: str
    owner: str
    node: str
    uuids: tuple[str, ...]
    to_node: str
    to_uuids: tuple[str, ...]
    memory_mib: int
    compute: int
    instead: str


class Plan(Value):
    """reached: the pod has room at the end; or GPUs were freed. proven: fewer moves do not reach as much. place: where the pod
    has room then. free: the GPUs without a container before and after."""

    moves: tuple[Move, ...]
    reached: bool
    proven: bool
    place: Place | None
    free: tuple[int, int]


def for_pod(
    state: ClusterState,
    movers: dict[str, Mover],
    free: dict[str, Amounts],
    question: Question,
    allowed: frozenset[str],
    needs: Amounts,
    stop: Stop,
    most: int = MOST_MOVES,
) -> Plan:
    """The fewest moves after which the pod has room on one of the allowed nodes. stop: whether the time is up."""
    board = Board(state, movers, free)
    state.refresh()
    now = choose(state, question, allowed)
    if isinstance(now, Chosen) and board.spare((), now.node, lambda: needs):
        gpus = Free(board).free
        return Plan((), True, True, Place(now.node, now.fit.rows), (gpus, gpus))
    goal = Roomy(board, question, allowed, needs)
    least = goal.least(())
    steps, proven = None, least == NEVER or least > most
    if not proven:
        steps = [] if goal.reached(()) else _direct(board, goal, most, stop)
        proven = steps is not None and len(steps) == least
    if not proven:
        ceiling = len(steps) if steps is not None else most + 1
        near = _all(board) or [name for _, name in goal.bounds[: NEAR // 2]] + _near(board, goal)
        better, proven = search(board, goal, near, ceiling, stop)
        steps = better if better is not None else steps
    return _plan(board, steps, proven, goal)


def for_free_gpus(
    state: ClusterState, movers: dict[str, Mover], free: dict[str, Amounts], stop: Stop, most: int = MOST_MOVES
) -> Plan:
    """The most free GPUs by so many moves at most, and the fewest moves for these."""
    board = Board(state, movers, free)
    goal = Free(board)
    steps = _greedy(board, goal, most, stop)
    reached = goal.count(_after(board, steps))
    proven = True
    for target in range(goal.most(most), reached, -1):
        better, sure = search(board, goal.aimed(target), _all(board), most + 1, stop) if _all(board) else (None, False)
        proven &= sure
        if better is not None:
            steps, reached = better, target
            break
    if len(steps) > goal.aimed(reached).least(()):
        better, sure = search(board, goal, _all(board), len(steps), stop) if _all(board) else (None, False)
        proven &= sure
        steps = better if better is not None else steps
    return _plan(board, steps, proven, goal)


def search(board: Board, goal: Goal, names: Iterable[str], ceiling: int, stop: Stop) -> tuple[list[Step] | None, bool]:
    """A*: the fewest moves among these nodes, if they are fewer than the ceiling; and whether that is proven."""
    names = tuple(names)
    sure = set(names) == set(board.names)
    first = goal.least(())
    waiting: list[tuple[float, int, int, Moved]] = [(first, 0, 0, ())] if first < ceiling else []
    ways: dict[Moved, tuple[int, Moved, Step | None]] = {(): (0, (), None)}
    number = 0
    while waiting:
        if stop():
            return None, False
        _, gone, _, moved = heapq.heappop(waiting)
        gone = -gone
        if ways[moved][0] < gone:
            continue
        if goal.reached(moved):
            return _way(ways, moved), sure and not board.cut_short
        for uid in board.on(moved, names):
            if gone + 1 + goal.least(board.move(moved, uid, NOWHERE)) >= ceiling:
                continue  # no place is good enough
            for place in board.options(moved, uid, names):
                then = board.move(moved, uid, place)
                cost = gone + 1 + goal.least(then)
                if cost < ceiling and (then not in ways or ways[then][0] > gone + 1):
                    ways[then] = gone + 1, moved, (uid, place)
                    number += 1
                    heapq.heappush(waiting, (cost, -gone - 1, number, then))
            if stop():
                return None, False
    return None, sure and not board.cut_short


def _way(ways: dict[Moved, tuple[int, Moved, Step | None]], at: Moved) -> list[Step]:
    steps: list[Step] = []
    while True:
        _, before, step = ways[at]
        if step is None:
            return steps[::-1]
        steps.append(step)
        at = before


# --- where the cluster is too large for every way


def _all(board: Board) -> list[str]:
    """Every node, where that is not too much."""
    gpus = sum(len(room.spots) for room in board.state.cut.rooms.values())
    return list(board.names) if gpus * len(board.movers) <= FEW else []


def _direct(board: Board, goal: Roomy, most: int, stop: Stop) -> list[Step] | None:
    """Pods leave one node for places that are free now."""
    best: list[Step] | None = None
    for least, name in goal.bounds[:TARGETS]:
        ceiling = len(best) if best is not None else most + 1
        if least >= ceiling or stop():
            break
        tried = 0
        for count in range(max(1, int(least)), ceiling):
            found = None
            for uids in itertools.combinations(board.on((), [name]), count):
                tried += 1
                if tried > MOST_SETS or stop():
                    break
                lifted: Moved = tuple((uid, NOWHERE) for uid in uids)
                if not goal.least_on(lifted, name) and goal.fits_on(lifted, name):
                    found = _elsewhere(board, goal, name, uids, stop)
                    if found is not None:
                        break
            if found is not None or tried > MOST_SETS or stop():
                best = found or best
                break
    return best


def _elsewhere(board: Board, goal: Roomy, name: str, uids: tuple[str, ...], stop: Stop) -> list[Step] | None:
    """Places for all these pods, one after the other, so that the node then has room."""

    def rest(moved: Moved, steps: list[Step]) -> list[Step] | None:
        if len(steps) == len(uids):
            return steps if goal.fits_on(moved, name) else None
        uid = uids[len(steps)]
        for place in itertools.islice(board.options(moved, uid, [*_roomy(board, uid), name]), NEAR):
            if stop():
                return None
            found = rest(board.move(moved, uid, place), [*steps, (uid, place)])
            if found is not None:
                return found
        return None

    return rest((), [])


def _roomy(board: Board, uid: str, used: bool = False) -> list[str]:
    """Nodes with room for the pod, those first that packing takes first."""
    question, mover = board.question(uid), board.movers[uid]
    cut, allowed = board.state.cut, mover.allowed
    in_use = cut.in_use(allowed, question.need, question.least_mib)
    walk = in_use if used else cut.walk(BINPACK, allowed, question.need)
    return [name for name, _ in itertools.islice(walk, NEAR)]


def _near(board: Board, goal: Roomy) -> list[str]:
    """Nodes to which pods could go that stand in the way."""
    targets = [name for _, name in goal.bounds[: NEAR // 2]]
    found: dict[str, None] = {}
    for uid in board.on((), targets):
        found.update(dict.fromkeys(_roomy(board, uid)[:2]))
    return [name for name in list(found)[: 2 * NEAR] if name not in targets]


def _greedy(board: Board, goal: Free, most: int, stop: Stop) -> list[Step]:
    """Empties one GPU after the other, the one with the fewest pods first, onto GPUs in use."""
    steps: list[Step] = []
    moved: Moved = ()
    todo = []
    for name in board.names:
        for stack in board.stacks(board.key((), name)):
            if stack.loads and not stack.fixed and not stack.use.gpu.parent and len(stack.loads) <= most:
                mib = sum(load[0] for load in stack.loads)
                todo.append((len(stack.loads), mib, name, stack.use.gpu.uuid))
    for _, _, name, uuid in sorted(todo):
        if stop() or len(steps) == most:
            break
        here = [uid for uid in board.on(moved, [name]) if uuid in {r.uuid for r in board.place(moved, uid).rows}]
        before = goal.count(moved)
        if not here or len(steps) + len(here) > most:
            continue
        then, more = moved, []
        for uid in here:
            place = _on_used_gpus(board, then, uid, uuid)
            if place is None:
                break
            then = board.move(then, uid, place)
            more.append((uid, place))
        if len(more) == len(here) and goal.count(then) > before:
            moved, steps = then, [*steps, *more]
    return steps


def _on_used_gpus(board: Board, moved: Moved, uid: str, leaving: str) -> Place | None:
    """Onto GPUs in use, those that stay in use before others."""
    best: tuple[float, Place] | None = None
    own = board.place(moved, uid).node
    names = list(board.names) if len(board.names) <= NEAR else [*_roomy(board, uid, used=True), own]
    for place in board.options(moved, uid, dict.fromkeys(names)):
        stacks = {stack.use.gpu.uuid: stack for stack in board.stacks(board.key(moved, place.node))}
        there = [stacks[row.uuid] for row in place.rows]
        if any(not stack.use.containers or stack.use.gpu.uuid == leaving for stack in there):
            continue
        rank = -sum(NEVER if stack.fixed else len(stack.loads) for stack in there)
        if best is None or rank < best[0]:
            best = rank, place
    return best[1] if best else None


# --- the plan, played through


def _after(board: Board, steps: Iterable[Step]) -> Moved:
    moved: Moved = ()
    for uid, place in steps:
        moved = board.move(moved, uid, place)
    return moved


def _plan(board: Board, steps: list[Step] | None, proven: bool, goal: Goal) -> Plan:
    moved: Moved = ()
    begin = Free(board) if isinstance(goal, Roomy) else goal
    places: list[tuple[str, Place, Place, Fit]] = []
    for uid, place in steps or ():
        places.append((uid, board.place(moved, uid), place, _fit(board, moved, uid, place)))
        moved = board.move(moved, uid, place)
    free = begin.free, begin.count(moved)
    at = goal.place(moved) if isinstance(goal, Roomy) and steps is not None else None
    reached = at is not None if isinstance(goal, Roomy) else free[1] > free[0]
    return Plan(tuple(itertools.starmap(_played(board), places)), reached, proven, at, free)


def _fit(board: Board, moved: Moved, uid: str, place: Place) -> Fit:
    key, question = board.key(moved, place.node), board.question(uid)
    for uuids in (_uuids(place), None):
        found = board.fit(key, question, uuids)
        if found is not None and found.rows == place.rows:
            return found
    raise AssertionError(f"the place of {uid} is none")


def _played(board: Board) -> Callable[[str, Place, Place, Fit], Move]:
    """Plays moves on the state: a pod leaves, its successor's room is reserved."""
    state = board.state

    def play(uid: str, now: Place, to: Place, found: Fit) -> Move:
        mover = board.movers[uid]
        successor = words(mover.obj).replace(uid=f"{uid} moved {len(state.reservations)}")
        beside = choose(state, Question(successor), mover.allowed)
        state.forget(uid)
        for held in [held for held in state.reservations if held.startswith(f"{uid} moved ")]:
            state.release(held)  # it is moved twice
        after = choose(state, Question(successor), mover.allowed)
        instead = ""
        for one in (beside, after):
            if isinstance(one, Chosen) and (one.node, {r.uuid for r in one.fit.rows}) != (to.node, {*_uuids(to)}):
                instead = one.node
        state.reserve(successor, to.node, found, 0.0)
        size = sum(r.memory_mib for r in to.rows), sum(r.compute for r in to.rows)
        names = mover.namespace, mover.name, mover.owner
        return Move(uid, *names, now.node, _uuids(now), to.node, _uuids(to), *size, instead)

    return play


def _uuids(place: Place) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.uuid for row in place.rows))
