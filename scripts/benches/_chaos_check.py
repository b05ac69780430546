"""What must be so on a cluster after a fault: pure. Its own arithmetic, not the product's, since the product is what is checked.

A snapshot is what everybody says at one moment: the API server's pods, the nodes' ledgers, the nodes' digests, the leader.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ALLOC, INVENTORY, LEDGER = "gpu-hook.io/alloc", "gpu-hook.io/inventory", "gpu-hook.io/ledger"
WORDS = ("memory", "compute", "gpus")  # that the churn uses
FULL = 100  # per cent of a GPU's compute
Share = tuple[str, int, int]  # GPU, MiB (0: the whole GPU), per cent


@dataclass(frozen=True)
class Gpu:
    node: str
    memory: int


@dataclass(frozen=True)
class Pod:
    """asks: of each container (MiB, per cent), both 0 for a whole GPU. decided: of each container; None without a decision."""

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
    """told: (node, pod's UID, container) in the nodes' digests. free: GPU -> MiB, as the leader sees it; None where nobody leads.
    routed: the webhooks' Service leads to whoever is Ready. wanted: OWNER -> pods that it should have. usable: nodes on which the
    scheduler may place."""

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
    """Nothing, once the cluster has settled. Those of `wrong` may never be there, not for a moment."""
    return [*wrong(seen), *unsettled(seen)]


def wrong(seen: Snapshot) -> list[str]:
    found = [f"ledger of {text}" for text in beyond(seen.gpus, (g.shares for g in seen.grants))]
    for pod in seen.pods:
        if pod.phase == "Failed" and not pod.of_job:
            found.append(f"{pod.name} failed for ever: {pod.reason}")
    return found


def unsettled(seen: Snapshot) -> list[str]:
    return [*pods_wrong(seen), *ledgers_differ(seen), *leader_differs(seen), *waiting(seen)]


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
            found.append(f"{pod.name} is still being deleted")
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
    """Pods' decisions, the ledgers and the digests say the same, container for container and GPU for GPU."""
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
    found += [f"{told(key)} has a decision and no grant" for key in decided.keys() - granted.keys()]
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


# ---- from the API server's objects --------------------------------------------------------------------------------------


def pod_of(item: Mapping[str, Any]) -> Pod:
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    notes = meta.get("annotations") or {}
    owner = next(iter(meta.get("ownerReferences") or ()), {})
    states = status.get("containerStatuses") or ()
    waits = [s["state"].get("waiting") or s["state"].get("terminated") or {} for s in states]
    said = " ".join(f"{w.get('reason', '')} {w.get('message', '')}".strip() for w in waits if w)
    last = " ".join(((s.get("lastState") or {}).get("terminated") or {}).get("message") or "" for s in states)
    runs = bool(states) and all("running" in s["state"] for s in states)
    refused = "" if runs else next((w for w in f"{said} {last}".split() if w.startswith("GH-")), "")
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        deleting="deletionTimestamp" in meta,
        runs=runs,
        refused=refused,
        reason=" ".join(filter(None, (status.get("reason"), status.get("message"), said)))[:300],
        of_job=owner.get("kind") == "Job",
        owner=f"{owner['kind']}/{owner['name']}" if owner else "",
        asks=asks_of(notes, [c["name"] for c in spec["containers"]]),
        decided=decided_of(notes.get(ALLOC)),
    )


def asks_of(notes: Mapping[str, str], containers: list[str]) -> tuple[tuple[int, int], ...]:
    """Of the few words that the churn uses: whole MiB, per cent, one GPU."""
    found = []
    for name in containers:
        said = {word: notes.get(f"gpu-hook.io/{word}.{name}", notes.get(f"gpu-hook.io/{word}", "")) for word in WORDS}
        if any(said.values()) and said["gpus"] != "none":
            found.append((int(said["memory"] or 0), int(said["compute"] or 0)))
    return tuple(found)


def decided_of(text: str | None) -> dict[str, tuple[Share, ...]] | None:
    if text is None:
        return None
    said = json.loads(text)["c"]
    return {name: tuple((uuid, mib, compute) for uuid, mib, compute, *_ in shares) for name, shares in said.items()}


def gpus_of(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Gpu]:
    found = {}
    for node in nodes:
        text = (node["metadata"].get("annotations") or {}).get(INVENTORY)
        for uuid, _, _, memory, *_ in json.loads(text)["gpus"] if text else ():
            found[uuid] = Gpu(node["metadata"]["name"], memory)
    return found


def told_of(nodes: Iterable[Mapping[str, Any]]) -> tuple[frozenset[tuple[str, str, str]], int]:
    """(what the digests have, how many grants without a decision)"""
    found, local = set(), 0
    for node in nodes:
        text = (node["metadata"].get("annotations") or {}).get(LEDGER)
        said = json.loads(text) if text else {"pods": {}, "local": []}
        local += len(said["local"])
        found |= {(node["metadata"]["name"], uid, c) for uid, names in said["pods"].items() for c in names}
    return frozenset(found), local


def usable(node: Mapping[str, Any]) -> bool:
    """Ready, and without a taint that keeps pods away."""
    spec = node.get("spec") or {}
    taints = [t for t in spec.get("taints") or () if t["effect"] in ("NoSchedule", "NoExecute")]
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or ())
    return ready and not taints and not spec.get("unschedulable")
