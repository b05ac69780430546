"""Finds the exact optimum of placing pods: the most whole GPUs stay free. For small cases (some 20 pods on some 16
GPUs): branch and bound over the pods, largest first. tests/kube/placing/test_fragmentation.py checks it against trying everything."""

from typing import NamedTuple

GPU = tuple[int, int]  # free MiB, free per cent of compute
STEPS = 200_000  # nodes of the search tree; beyond that the best result so far is returned, unproven


class Item(NamedTuple):
    """A pod of one container. gpus: so many different GPUs of one node, each with so much. whole: no other pod may use them."""

    mib: int
    compute: int = 0
    gpus: int = 1
    whole: bool = False


class Best(NamedTuple):
    """free: unused GPUs; -1 if some pod has no room. proven: no placement is better."""

    free: int
    proven: bool


def best(nodes: tuple[tuple[int, ...], ...], items: tuple[Item, ...]) -> Best:
    """nodes: MiB of each GPU."""
    search = _Search(items)
    start = tuple(tuple((mib, 100, True) for mib in gpus) for gpus in nodes)
    search.place(0, start)
    return Best(search.found, search.steps < STEPS)


State = tuple[tuple[tuple[int, int, bool], ...], ...]  # node -> GPU -> free MiB, free compute, unused


class _Search:
    def __init__(self, items: tuple[Item, ...]) -> None:
        self.items = sorted(items, key=lambda i: (i.whole, i.gpus, i.mib, i.compute), reverse=True)
        self.left = [sum(i.mib * i.gpus for i in self.items[n:] if not i.whole) for n in range(len(items) + 1)]
        self.alone = [sum(i.gpus for i in self.items[n:] if i.whole) for n in range(len(items) + 1)]
        self.found = -1
        self.steps = 0
        self.seen: set[tuple[int, State]] = set()

    def place(self, number: int, state: State) -> None:
        state = tuple(sorted(tuple(sorted(node)) for node in state))  # nodes, and GPUs of a node, are alike
        if self.steps >= STEPS or self.bound(number, state) <= self.found or (number, state) in self.seen:
            return
        self.seen.add((number, state))
        self.steps += 1
        if number == len(self.items):
            self.found = sum(gpu[2] for node in state for gpu in node)
            return
        item = self.items[number]
        after: list[tuple[tuple[int, int], State]] = []
        for n, node in enumerate(state):
            if n and node == state[n - 1]:
                continue
            for new, order in _ways(node, item):
                after.append((order, (*state[:n], new, *state[n + 1 :])))
        for _, new in sorted(after, key=lambda one: one[0]):  # GPUs in use first, the tightest first
            self.place(number + 1, new)

    def bound(self, number: int, state: State) -> int:
        """Upper bound on the GPUs that can stay free."""
        free = sorted((gpu[0] for node in state for gpu in node if gpu[2]), reverse=True)
        inside = sum(gpu[0] for node in state for gpu in node if not gpu[2])
        needed, still = self.alone[number], self.left[number] - inside
        for mib in free[needed:]:
            if still <= 0:
                break
            still -= mib
            needed += 1
        return len(free) - needed if still <= 0 and needed <= len(free) else -2


def _ways(
    node: tuple[tuple[int, int, bool], ...], item: Item
) -> list[tuple[tuple[tuple[int, int, bool], ...], tuple[int, int]]]:
    """The node after each different way to place the item on it, in the order to try."""
    found = []

    def choose(first: int, chosen: tuple[int, ...]) -> None:
        if len(chosen) == item.gpus:
            new = tuple(_less(gpu, item) if g in chosen else gpu for g, gpu in enumerate(node))
            found.append((new, (sum(node[g][2] for g in chosen), sum(node[g][0] for g in chosen))))
            return
        tried = set()
        for g in range(first, len(node)):
            if node[g] not in tried and _fits(node[g], item):
                tried.add(node[g])
                choose(g + 1, (*chosen, g))

    choose(0, ())
    return found


def _fits(gpu: tuple[int, int, bool], item: Item) -> bool:
    return gpu[2] if item.whole else gpu[0] >= item.mib and gpu[1] >= item.compute


def _less(gpu: tuple[int, int, bool], item: Item) -> tuple[int, int, bool]:
    return (0, 0, False) if item.whole else (gpu[0] - item.mib, gpu[1] - item.compute, False)
