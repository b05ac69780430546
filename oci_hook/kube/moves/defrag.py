"""Proposes few moves of pods that give a waiting pod room, or free many GPUs.

The plan is greedy: pods leave one node for places that are free now, or empty one GPU after the other.

A move deletes a pod, and its owner recreates it elsewhere. In the given order, each pod's new share has room beside its old one and all
others. The moves are simulated on the given state; do not use it afterwards.
"""

import itertools
from collections.abc import Callable, Iterable

from oci_hook.core.value import Value
from oci_hook.kube.moves.board import NOWHERE, Board, Moved, Place
from oci_hook.kube.moves.goals import NEVER, Free, Roomy
from oci_hook.kube.moves.movable import Mover
from oci_hook.kube.placing.choose import Chosen, Question, choose
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit
from oci_hook.kube.pod.asked import words
from oci_hook.kube.pod.hosts import Amounts
from oci_hook.kube.pod.node_orders import NODE_ORDERS

MOST_MOVES = 20
MOST_SETS = 2_000  # sets of pods to try moving off one node
NEAR = 8  # candidate nodes to try for a pod, and places on them
TARGETS = 200  # nodes to try making room on, for a waiting pod

Stop = Callable[[], bool]
Step = tuple[str, Place]  # (a pod's UID, its new place)


class Move(Value):
    """One pod's move. node, uuids: its present place; to_node, to_uuids: the new one. instead: a different node that the controller
    would choose by itself; "" if it chooses this place, before and after the old pod has ended."""

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


class MovePlan(Value):
    """reached: the pod has room at the end, or GPUs become free. place: the pod's room after the moves. free: the number of free
    GPUs before and after."""

    moves: tuple[Move, ...]
    reached: bool
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
) -> MovePlan:
    """Moves that give the pod room on one of the allowed nodes. stop: whether the time is up."""
    board = Board(state, movers, free)
    state.refresh()
    now = choose(state, question, allowed)
    gpus = Free(board)
    if isinstance(now, Chosen) and board.spare((), now.node, lambda: needs):
        return MovePlan((), True, Place(now.node, now.fit.rows), (gpus.free, gpus.free))
    goal = Roomy(board, question, allowed, needs)
    steps, name = _leave_one_node(board, goal, most, stop)
    moved = _after(board, steps or ())
    found = board.fit(board.key(moved, name), question) if name else None
    place = Place(name, found.rows) if found is not None else None
    return MovePlan(_moves(board, steps or ()), place is not None, place, (gpus.free, gpus.count(moved)))


def for_free_gpus(
    state: ClusterState, movers: dict[str, Mover], free: dict[str, Amounts], stop: Stop, most: int = MOST_MOVES
) -> MovePlan:
    """At most `most` moves that free many GPUs, one after the other."""
    board = Board(state, movers, free)
    goal = Free(board)
    steps = _empty_gpus(board, goal, most, stop)
    before, after = goal.free, goal.count(_after(board, steps))
    return MovePlan(_moves(board, steps), after > before, None, (before, after))


# --- room for one pod


def _leave_one_node(board: Board, goal: Roomy, most: int, stop: Stop) -> tuple[list[Step] | None, str]:
    """(the fewest moves found of pods off one node to places that are free now, or None; that node)"""
    best: list[Step] | None = None
    node = ""
    for least, name in goal.bounds[:TARGETS]:
        ceiling = len(best) if best is not None else most + 1
        if least >= ceiling or stop():
            break
        tried = 0
        for count in range(int(least), ceiling):
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
            if found is not None:
                best, node = found, name
            if found is not None or tried > MOST_SETS or stop():
                break
    return best, node


def _elsewhere(board: Board, goal: Roomy, name: str, uids: tuple[str, ...], stop: Stop) -> list[Step] | None:
    """Places for all these pods in turn, after which the node has room."""

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
    """Nodes with room for the pod, in binpack's order."""
    question, mover = board.question(uid), board.movers[uid]
    cut, allowed = board.state.cut, mover.allowed
    in_use = cut.in_use(allowed, question.need, question.least_mib)
    walk = in_use if used else cut.walk(NODE_ORDERS["binpack"].shares, allowed, question.need)
    return [name for name, _ in itertools.islice(walk, NEAR)]


# --- free GPUs


def _empty_gpus(board: Board, goal: Free, most: int, stop: Stop) -> list[Step]:
    """Moves the pods of one GPU after the other to GPUs in use; GPUs with the fewest pods first."""
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
        if not here or len(steps) + len(here) > most:
            continue
        then, more = moved, []
        for uid in here:
            place = _on_used_gpus(board, then, uid, uuid)
            if place is None:
                break
            then = board.move(then, uid, place)
            more.append((uid, place))
        if len(more) == len(here) and goal.count(then) > goal.count(moved):
            moved, steps = then, [*steps, *more]
    return steps


def _on_used_gpus(board: Board, moved: Moved, uid: str, leaving: str) -> Place | None:
    """The pod's best place on GPUs in use; GPUs that stay in use are better."""
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


# --- simulating the plan


def _after(board: Board, steps: Iterable[Step]) -> Moved:
    moved: Moved = ()
    for uid, place in steps:
        moved = board.move(moved, uid, place)
    return moved


def _moves(board: Board, steps: Iterable[Step]) -> tuple[Move, ...]:
    """The moves for people, simulated on the state in turn."""
    moved: Moved = ()
    places = []
    for uid, place in steps:
        places.append((uid, board.place(moved, uid), place, _fit(board, moved, uid, place)))
        moved = board.move(moved, uid, place)
    return tuple(itertools.starmap(_played(board), places))


def _fit(board: Board, moved: Moved, uid: str, place: Place) -> Fit:
    key, question = board.key(moved, place.node), board.question(uid)
    for uuids in (_uuids(place), None):
        found = board.fit(key, question, uuids)
        if found is not None and found.rows == place.rows:
            return found
    raise AssertionError(f"the place of {uid} is none")


def _played(board: Board) -> Callable[[str, Place, Place, Fit], Move]:
    """Simulates a move on the state: removes the pod, reserves its successor's room."""
    state = board.state

    def play(uid: str, now: Place, to: Place, found: Fit) -> Move:
        mover = board.movers[uid]
        successor = words(mover.obj).replace(uid=f"{uid} moved {len(state.reservations)}")
        beside = choose(state, Question(successor), mover.allowed)
        state.forget(uid)
        for held in [held for held in state.reservations if held.startswith(f"{uid} moved ")]:
            state.release(held)  # the pod moves a second time
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
