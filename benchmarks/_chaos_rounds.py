"""One fault after the other on a real cluster: pods change, something fails, and within 90 s all must be as it should."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import _chaos_check as check
from benchmarks import _chaos_churn as churn
from benchmarks import _chaos_read as read
from testbed.cluster.api import Api, Refused
from testbed.cluster.controllers import OWN
from testbed.cluster.faults import FAULTS, Fault, Strike, kill
from testbed.cluster.managed import WORK, Managed
from testbed.cluster.managed_objects import behind
from testbed.cluster.node import Gpus
from testbed.cluster.programs import CannotRun

SETTLED = 90.0  # seconds
KUBERNETES = 240.0  # more seconds while only Kubernetes' own faults remain: see check.only_ending
POLL = 0.3
WATCH = 0.3
MIXED = 0.2  # of the faults that mix: the leader is killed meanwhile
CHANGES = 1.0  # seconds over which the pods change
GPUS = [Gpus(2, "16Gi"), Gpus(2, "16Gi")]
CONTROLLER = "gpu_hook_controller_"
AWAY = (Refused, CannotRun, RuntimeError, OSError)  # the program that was asked is away
LOG_LINES = 400


def plan(seed: int, step: int, only: Sequence[str] = (), each: bool = False) -> tuple[Fault, random.Random]:
    """The step's fault and its random generator, so that any step can be run by itself. each: one kind after the other."""
    chance = random.Random(f"{seed}:{step}")
    kinds = [FAULTS[name] for name in only] or list(FAULTS.values())
    if each:
        return kinds[step % len(kinds)], chance
    return chance.choices(kinds, [kind.weight for kind in kinds])[0], chance


class Rounds:
    """folder: for logs, and for the snapshots of failed steps."""

    def __init__(self, folder: Path, site: Managed) -> None:
        self.folder, self.site = folder, site
        self.refused: dict[str, str] = {}  # uid -> what its node said
        self._api, self._changer, self._striker = (site.connect() for _ in range(3))
        self._pool = ThreadPoolExecutor(len(site.nodes))

    def begin(self) -> None:
        for operation in churn.beginning():
            self._api(operation.method, operation.path, operation.body)
        self._settle(time.monotonic() + SETTLED)

    def close(self) -> None:
        for api in (self._api, self._changer, self._striker):
            api.close()
        self._pool.shutdown()

    def step(self, seed: int, step: int, fault: Fault, chance: random.Random) -> dict[str, Any]:
        """The record of one fault."""
        seen = self._look()
        jobs = [item["metadata"]["name"] for item in self._api.get(churn.JOBS)["items"]]
        operations = churn.draw(chance, seen.pods, jobs, bind=fault.bind)
        strike = Strike(self.site, random.Random(chance.random()), self._striker)
        also = chance.uniform(0, 2 * CHANGES) if fault.mixes and chance.random() < MIXED else None
        pauses = [chance.uniform(0, CHANGES / len(operations)) for _ in operations]
        moment = 0.0 if fault.bind else chance.uniform(0, CHANGES)
        known, failed = len(self.refused), Counter[str]()
        if fault.prepare:
            fault.prepare(strike)
        changes = threading.Thread(target=self._change, args=(operations, pauses, failed), daemon=True)
        began = time.monotonic()
        changes.start()
        ended = threading.Event()
        beyond: list[str] = []
        watch = threading.Thread(target=self._watch_ledgers, args=(seen.gpus, ended, beyond), daemon=True)
        watch.start()
        other = threading.Timer(also or 0, self._kill_a_controller, (strike,))
        if also is not None:
            other.start()
        time.sleep(moment)
        try:
            fault.does(strike)
            trouble = []
        except AWAY as e:
            trouble = [f"the fault itself: {e}"]
        if also is not None:
            other.join()
        changes.join()
        ended.set()
        watch.join()
        over = time.monotonic()
        found = trouble + beyond + self._settle(over + SETTLED)
        record = {
            **{"step": step, "seed": seed, "fault": fault.name, "ok": not found},
            **{"fault_s": round(over - began, 2), "settle_s": round(self.ours - over, 2)},
            **{"all_s": round(time.monotonic() - over, 2)},
            **{"operations": [str(one) for one in operations], "not_done": dict(failed)},
            **{"refused": list(self.refused.values())[known:], "said": strike.said, "problems": found},
            **{"revived": self.revived, "lastly": self.lastly},
            **{"pods": len(self.last.pods), "waiting": sum(not p.node for p in self.last.pods)},
        }
        if found:
            record["dump"] = str(self._dump(seed, step, record))
        return record

    def clear(self) -> None:
        """After a failure: removes all pods, so that the next step starts on a clean cluster."""
        for path, most in churn.SCALED.items():
            self._api.merge(f"{churn.APPS}/{path}", {"spec": {"replicas": min(most, 0)}})
        self._api("DELETE", f"{churn.JOBS}?propagationPolicy=Background")
        self._api("DELETE", f"{churn.PODS}?gracePeriodSeconds=0")
        if left := self._settle(time.monotonic() + 2 * SETTLED):
            raise SystemExit(f"the cluster does not recover: {left}")

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _change(self, operations: Sequence[churn.Operation], pauses: Sequence[float], failed: Counter[str]) -> None:
        for operation, pause in zip(operations, pauses, strict=True):
            time.sleep(pause)
            kind = "application/merge-patch+json" if operation.method == "PATCH" else "application/json"
            try:
                self._changer(operation.method, operation.path, operation.body, kind)
            except Refused as e:  # as for any user at this moment
                failed[f"{operation}: {e.status} {e.message[:120]}"] += 1

    def _kill_a_controller(self, strike: Strike) -> None:
        """The one that leads, if one does."""
        running = [c for c in self.site.controllers if c.process is not None]
        if running:
            kill(next((c for c in running if c.leads()), running[0]))
            strike.said["also"] = "leader-kill"

    def _watch_ledgers(self, gpus: Mapping[str, check.Gpu], stop: threading.Event, found: list[str]) -> None:
        """During the fault, no ledger may exceed its GPU. Two consecutive looks must agree, since files are read one at a time."""
        before: dict[str, set[str]] = {}
        while not stop.wait(WATCH):
            for node in self.site.nodes:
                try:
                    grants = self._grants(node.name)
                except AWAY:
                    continue
                now = {text.partition(":")[0] for text in check.beyond(gpus, (g.shares for g in grants))}
                found += [f"ledger of {uuid} during the fault" for uuid in now & before.get(node.name, set())]
                before[node.name] = now

    def _settle(self, end: float) -> list[str]:
        """Faults that remain at the end. Returns at once on a fault that is never allowed."""
        self.revived: list[str] = []
        self.ours = time.monotonic()  # last time at which faults other than Kubernetes' own remained
        self.lastly: list[str] = []  # Kubernetes' own faults, when no other remained
        while True:
            try:
                self.revived += self.site.revive()
                seen = self._look()
                if bad := check.wrong(seen):
                    seen = self._look()  # a ledger's files are read one after the other, while it changes
                    if bad := check.wrong(seen):
                        return bad
                left = check.unsettled(seen)
            except AWAY as e:
                left = [f"somebody does not answer: {type(e).__name__} {e}"]
            if not left or time.monotonic() > end + (KUBERNETES if check.only_ending(left) else 0):
                return left
            self.lastly = left
            if not check.only_ending(left):
                self.ours = time.monotonic()
            time.sleep(POLL)

    def _look(self) -> check.Snapshot:
        """Reads the ledgers last; grants made meanwhile are seen at the next look."""
        api = self._api
        pods = tuple(read.pod_of(item) for item in api.get(churn.PODS)["items"])
        nodes = api.get("/api/v1/nodes")["items"]
        wanted = dict(self._wanted(api))
        told, local = read.told_of(nodes)
        figures = self._leader()
        free = {
            name.partition('UUID="')[2].rstrip('"}'): int(value) >> 20
            for name, value in figures.items()
            if name.startswith(f"{CONTROLLER}gpu_free_bytes{{")
        }
        self.refused |= {pod.uid: f"{pod.name}: {pod.refused}" for pod in pods if pod.refused}
        grants = list(self._pool.map(self._grants, [node.name for node in self.site.nodes]))
        self.last = check.Snapshot(
            gpus=read.gpus_of(nodes),
            pods=pods,
            grants=tuple(one for some in grants for one in some),
            told=told,
            local=local,
            free=free if figures else None,
            routed=self._routed(),
            reservations=int(figures.get(f'{CONTROLLER}objects{{kind="reservations"}}', 0)),
            wanted=wanted,
            usable=frozenset(node["metadata"]["name"] for node in nodes if read.usable(node)),
        )
        return self.last

    def _wanted(self, api: Api) -> Iterator[tuple[str, int]]:
        """The number of pods that each owner should have."""
        for kind, path in (("ReplicaSet", "replicasets"), ("StatefulSet", "statefulsets")):
            for item in api.get(f"{churn.APPS}/{path}")["items"]:
                yield f"{kind}/{item['metadata']['name']}", item["spec"]["replicas"]

    def _leader(self) -> dict[str, float]:
        """The leader's figures; none unless exactly one replica leads."""
        found = []
        for controller in self.site.controllers:
            try:
                figures = controller.figures(2.0) if controller.process is not None else {}
            except AssertionError:
                continue
            found += [figures] if figures.get(f"{CONTROLLER}leads") == 1 else []
        return found[0] if len(found) == 1 else {}

    def _routed(self) -> bool:
        """Does the Service lead to those that are Ready, and only there?"""
        ready = [c.port for c in self.site.controllers if c.process is not None and c.ready(2.0)]
        return bool(ready) and behind(self._api) == ready

    def _grants(self, node: str) -> list[check.Grant]:
        rows = self.site.grants[node].read()
        return [check.Grant(node, uid, c, tuple(map(tuple, shares))) for uid, c, shares in rows]

    def _dump(self, seed: int, step: int, record: dict[str, Any]) -> Path:
        """All that helps to find out why."""
        place = self.folder / f"failed-{seed}-{step}"
        place.mkdir(exist_ok=True)
        (place / "record.json").write_text(json.dumps(record, indent=1))
        (place / "snapshot.txt").write_text(repr(self.last).replace("Pod(", "\n Pod(").replace("Grant(", "\n Grant("))
        for name, path in {
            "pods": churn.PODS,
            "nodes": "/api/v1/nodes",
            "events": f"/api/v1/namespaces/{WORK}/events",
            "endpoints": f"/api/v1/namespaces/{OWN}/endpoints",
            "slices": f"/apis/discovery.k8s.io/v1/namespaces/{OWN}/endpointslices",
        }.items():
            try:
                (place / f"{name}.json").write_text(json.dumps(self._api.get(path), indent=1))
            except Refused as e:
                (place / f"{name}.json").write_text(str(e))
        logs = [c.log for c in self.site.controllers]
        logs += self.site.control.machine.folder.glob("*.log")
        for node in self.site.nodes:
            logs += node.machine.folder.glob("*.log")
        for log in logs:
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            (place / f"{log.parent.name}-{log.name}").write_text("\n".join(lines))
        return place


def run(
    folder: Path,
    seed: int,
    steps: Sequence[int],
    only: Sequence[str],
    seconds: float,
    told: Callable[[dict[str, Any]], None],
    each: bool = False,
    patience: int = 10,
) -> list[dict[str, Any]]:
    """The records of the steps, each handed to `told` as soon as it is there; fewer where the time is over, or where `patience`
    of them failed."""
    site = Managed(folder)
    end = time.monotonic() + seconds
    records: list[dict[str, Any]] = []
    try:
        site.up(GPUS)
        rounds = Rounds(folder, site)
        rounds.begin()
        for step in steps:
            if time.monotonic() > end:
                break
            record = rounds.step(seed, step, *plan(seed, step, only, each))
            records.append(record)
            told(record)
            if not record["ok"]:
                if sum(not one["ok"] for one in records) >= patience:
                    break
                rounds.clear()
        rounds.close()
    finally:
        site.down()
    return records
