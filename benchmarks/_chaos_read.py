"""The API server's objects as the checker of `scripts/bench chaos` wants them: pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks._chaos_check import Gpu, Pod, Share

ALLOC, INVENTORY, LEDGER = "gpu-hook.io/alloc", "gpu-hook.io/inventory", "gpu-hook.io/ledger"
WORDS = ("memory", "compute", "gpus")  # that the churn uses


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
    """Reads the requests that the churn makes: whole MiB, per cent, one GPU."""
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
