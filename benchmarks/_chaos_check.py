"""Checks the state of a cluster after a fault. Pure; it shares no arithmetic with the product, which it checks.

A snapshot has the API server's pods, the nodes' ledgers, the nodes' digests and the leader's figures of one moment.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FULL = 100  # per cent of a GPU's compute
Share = tuple[str, int, int]  # GPU, MiB (0: the whole GPU), per cent


@dataclass(frozen=True)
class Gpu:
    node: str
    memory: int


@dataclass(frozen=True)
class Pod:
    """asks: (MiB, per cent) for each container, both 0 for a whole GPU. decided: one for each container; None without a decision."""

    uid: str
    name: str
    node: str = ""
    phase: str = "Pending"
    deleting: bool = False
    runs: bool = False
    refused: str = ""
    reason: str = ""
    of_job: bool = False
    owner: str = ""
    asks: tuple[tuple[int, int], ...] = ()
    decided: Mapping[str, tuple[Share, ...]] | None = None

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class Grant:
    node: str
    uid: str
    container: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Snapshot:
    """told: (node, pod's UID, container) in the nodes' digests. free: GPU -> MiB, as the leader sees it; None without a leader.
    routed: the webhooks' Service leads to the replicas that are Ready. wanted: OWNER -> pods that it should have. usable: nodes
    on which the scheduler may place."""

    gpus: Mapping[str, Gpu]
    pods: tuple[Pod, ...] = ()
    grants: tuple[Grant, ...] = ()
    told: frozenset[tuple[str, str, str]] = frozenset()
    local: int = 0
    free: Mapping[str, int] | None = None
    reservations: int = 0
    routed: bool = True
    wanted: Mapping[str, int] = field(default_factory=dict)
    usable: frozenset[str] = frozenset()


def problems(seen: Snapshot) -> list[str]:
    """Faults of the snapshot; empty once the cluster has settled. Those of `wrong` are not allowed for a moment."""
    return [*wrong(seen), *unsettled(seen)]


def wrong(seen: Snapshot) -> list[str]:
    found = [f"ledger of {text}" for text in beyond(seen.gpus, (g.shares for g in seen.grants))]
    for pod in seen.pods:
        # A kubelet since 1.27 makes a deleted pod Failed, too, before its object goes.
        if pod.phase == "Failed" and not pod.of_job and not pod.deleting:
            found.append(f"{pod.name} failed for ever: {pod.reason}")
    return found


def unsettled(seen: Snapshot) -> list[str]:
    return [*pods_wrong(seen), *ledgers_differ(seen), *leader_differs(seen), *waiting(seen)]


ENDING = "is still being deleted"
OWES = re.compile(r"has \d+ of \d+ pods$")


def only_ending(problems: Iterable[str]) -> bool:
    """Nothing but what Kubernetes does at its own pace: pods whose containers have ended and whose objects stay (a kubelet whose
    containerd goes while it ends a container looks at that pod again 60 to 90 s later), and owners that have not made their pods
    yet (a controller that missed an event waits for it for up to 5 minutes)."""
    return all(text.endswith(ENDING) or OWES.search(text) for text in problems)


def beyond(gpus: Mapping[str, Gpu], shares: Iterable[Iterable[Share]]) -> list[str]:
    """GPUs on which more is taken than there is."""
    taken = sums(gpus, shares)
    found = []
    for uuid, (memory, compute, whole, count) in taken.items():
        have = gpus[uuid].memory if uuid in gpus else 0
        if memory > have or compute > FULL or (whole and count > 1):
            found.append(f"{uuid}: {memory} of {have} MiB, {compute} %, {count} containers, {whole} of them alone")
    return found


def sums(gpus: Mapping[str, Gpu], shares: Iterable[Iterable[Share]]) -> dict[str, tuple[int, int, int, int]]:
    """GPU -> (MiB, per cent, whole ones, containers)."""
    found: dict[str, tuple[int, int, int, int]] = defaultdict(lambda: (0, 0, 0, 0))
    for each in shares:
        for uuid, mib, compute in each:
            whole = not mib
            have = gpus[uuid].memory if whole and uuid in gpus else mib
            m, c, w, n = found[uuid]
            found[uuid] = (m + have, c + (FULL if whole else compute), w + whole, n + 1)
    return dict(found)


def pods_wrong(seen: Snapshot) -> list[str]:
    found = []
    counts: dict[str, int] = defaultdict(int)
    for pod in seen.pods:
        if pod.owner and not pod.deleting and not pod.over:
            counts[pod.owner] += 1
        if pod.deleting:
            found.append(f"{pod.name} {ENDING}")
        elif pod.refused:
            found.append(f"{pod.name} was refused by {pod.node}: {pod.refused}")
        elif pod.node and not pod.over and not pod.runs:
            found.append(f"{pod.name} does not run on {pod.node}: {pod.reason}")
        if pod.node and pod.asks and pod.decided is None:
            found.append(f"{pod.name} has node {pod.node} and no decision")
    for owner, count in seen.wanted.items():
        if counts[owner] != count:
            found.append(f"{owner} has {counts[owner]} of {count} pods")
    return found


def ledgers_differ(seen: Snapshot) -> list[str]:
    """Differences between the pods' decisions, the ledgers and the digests, container by container and GPU by GPU. The containers of a
    pod that is being deleted may have ended."""
    decided = {
        (pod.node, pod.uid, container): shares
        for pod in seen.pods
        if pod.node and not pod.over
        for container, shares in (pod.decided or {}).items()
    }
    granted: dict[tuple[str, str, str], tuple[Share, ...]] = {}
    found = []
    for grant in seen.grants:
        key = (grant.node, grant.uid, grant.container)
        if key in granted:
            found.append(f"{key} holds two grants")
        granted[key] = grant.shares
    names = {pod.uid: pod.name for pod in seen.pods}

    def told(key: tuple[str, str, str]) -> str:
        return f"{names.get(key[1], key[1])}/{key[2]} on {key[0]}"

    found += [f"leaked: {told(key)} has a grant and no decision" for key in granted.keys() - decided.keys()]
    ending = {pod.uid for pod in seen.pods if pod.deleting}
    missing = [key for key in decided.keys() - granted.keys() if key[1] not in ending]
    found += [f"{told(key)} has a decision and no grant" for key in missing]
    found += [
        f"{told(key)} was given {list(granted[key])} for {list(decided[key])}"
        for key in granted.keys() & decided.keys()
        if not same(seen.gpus, granted[key], decided[key])
    ]
    found += [f"decisions for {text}" for text in beyond(seen.gpus, decided.values())]
    found += [f"the digest has no {told(key)}" for key in granted.keys() - seen.told]
    found += [f"the digest has {told(key)}, the ledger has not" for key in seen.told - granted.keys()]
    if seen.local:
        found.append(f"{seen.local} grants that no decision explains")
    return found


def same(gpus: Mapping[str, Gpu], granted: tuple[Share, ...], decided: tuple[Share, ...]) -> bool:
    """A ledger names the memory of a whole GPU, a decision says 0."""

    def plain(shares: tuple[Share, ...]) -> list[tuple[str, int, int]]:
        return sorted(
            (uuid, mib or gpus[uuid].memory, compute if mib else FULL) for uuid, mib, compute in shares if uuid in gpus
        )

    whole = all(not mib for _, mib, _ in decided)
    if whole:
        return sorted(s[0] for s in granted) == sorted(s[0] for s in decided)
    return len(granted) == len(decided) and plain(granted) == plain(decided)


def leader_differs(seen: Snapshot) -> list[str]:
    if seen.free is None:
        return ["no controller leads"]
    found = [] if seen.routed else ["the Service does not lead to those who are Ready"]
    if seen.reservations:
        found.append(f"{seen.reservations} reservations are left")
    taken = sums(seen.gpus, (g.shares for g in seen.grants))
    for uuid, gpu in seen.gpus.items():
        free = gpu.memory - taken.get(uuid, (0, 0, 0, 0))[0]
        if gpu.node in seen.usable and seen.free.get(uuid) != free:
            found.append(f"the leader sees {seen.free.get(uuid)} MiB free on {uuid}, the ledger {free}")
    return found


def waiting(seen: Snapshot) -> list[str]:
    """Pods without a node for which there is room."""
    taken = sums(seen.gpus, (g.shares for g in seen.grants))
    return [
        f"{pod.name} waits, though {node} has room"
        for pod in seen.pods
        if not (pod.node or pod.over or pod.deleting)
        for node in sorted(seen.usable)
        if room(seen.gpus, taken, node, pod.asks)
    ]


def room(
    gpus: Mapping[str, Gpu],
    taken: Mapping[str, tuple[int, int, int, int]],
    node: str,
    asks: tuple[tuple[int, int], ...],
) -> bool:
    """Each container on one GPU of the node."""
    free = []
    for uuid, gpu in gpus.items():
        if gpu.node == node:
            memory, compute, whole, count = taken.get(uuid, (0, 0, 0, 0))
            free.append((0 if whole else gpu.memory - memory, 0 if whole else FULL - compute, count))

    def place(left: list[tuple[int, int, int]], rest: tuple[tuple[int, int], ...]) -> bool:
        if not rest:
            return True
        memory, compute = rest[0]
        for i, (m, c, count) in enumerate(left):
            if memory or compute:
                fits, after = m >= memory and c >= compute and m > 0, (m - memory, c - compute, count + 1)
            else:
                fits, after = count == 0, (0, 0, 1)
            if fits and place([*left[:i], after, *left[i + 1 :]], rest[1:]):
                return True
        return False

    return place(free, asks)
