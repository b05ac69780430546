"""Makes room on GPUs for important pods where Kubernetes' own preemption cannot, since it knows the sums of a node only.

For a pod that found no room: the cheapest victims over all nodes where it may go; a dry run of every eviction, so that
disruption budgets say no before anything ends; a hold on the room; the evictions. One pod at a time, and a second set of
victims only when the first ones have ended.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from oci_hook.kube import in_tree
from oci_hook.kube.choose import MOST_WORK, Question
from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.events import About, Events
from oci_hook.kube.controller.evictions import Evictions
from oci_hook.kube.controller.unasked import Unasked
from oci_hook.kube.controller.wanting import AGAIN, Search, Want, Wanting
from oci_hook.kube.controller.wanting import MOST as MOST_WAIT
from oci_hook.kube.disruption import Budgets
from oci_hook.kube.pods import PodWords
from oci_hook.kube.preempt import Kept, Plan, Terms, awaited, ending, plan, yields
from oci_hook.kube.records import MOST_GRACE, Pod, Reservation
from oci_hook.kube.state import ENDS, ClusterState

EVERY = 1.0
SHARE = 0.1  # of the time may be planning
SLICE = 0.3  # seconds of planning for one pod, then others have their turn: 2 s in all
MOST_PLAN = 600  # of choose.MOST_WORK, for one node: 0.08 s
ENOUGH = 32  # nodes with victims, of which the cheapest is taken
LONG = 20.0  # seconds after which a search takes the cheapest that it has found so far
MOST_HELD = ENDS  # seconds for which room is held while victims end
AFTER = 90.0  # seconds for which it is held then: the scheduler of 1.20 looks again after 60 at most
BARRED = 60.0  # seconds for which a pod is left alone that a budget protects
TRIES = 3  # sets of victims for one attempt, and of one eviction
RESTS = 4  # as after so many attempts in vain: 160 s at least between two sets of victims for one pod
RAN = 60.0  # seconds for which a pod must have its node, so that those who ended for it did not end in vain
FORGET = 600.0  # seconds after which a namespace begins anew whose pods went when others had ended for them
WAITING = 5.0  # seconds until we look again at a pod that waits for others to end
PREEMPTS, WOULD, PREEMPTED = "GpuSharePreempts", "GpuShareWouldPreempt", "GpuSharePreempted"
PROTECTED = "GpuShareProtected"
OFF, REPORT, ON = MODES = ("off", "report", "on")


class Preemptor:
    """mode: OFF, REPORT (events only) or ON. counted: called with the outcome of each attempt. enabled: the namespaces whose
    pods get GPUs; for others nobody ends."""

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        budgets: Budgets,
        events: Events,
        leads: Callable[[], bool],
        now: Callable[[], float],
        mode: str,
        terms: Terms,
        counted: Callable[[str], None],
        log: Callable[[str], None],
        enabled: Collection[str],
    ) -> None:
        self.wanting = Wanting()
        self.mode, self.budgets = mode, budgets
        self.terms = terms if mode == ON else terms.replace(add=False)
        self._client, self._state, self._events, self._leads, self._now = client, state, events, leads, now
        self._counted, self._log, self._enabled = counted, log, enabled
        self._evictions = Evictions(client)
        self._unasked = Unasked(client, state, self.wanting, terms, enabled, log)
        self._barred: dict[str, float] = {}  # UID of a protected pod -> until when
        self._nominated: dict[str, PodWords] = {}
        self._may_nominate = True
        self._planned = 0.0  # seconds in this round
        self._vain: dict[
            str, tuple[int, float]
        ] = {}  # namespace -> (victims in vain, until when nobody ends for its pods)
        self._came: dict[
            str, tuple[str, float]
        ] = {}  # UID of a pod for which others ended -> (namespace, since when it has a node)

    def note(self, pod: PodWords, nodes: list[str], more: bool = False) -> None:
        """No node has room for the pod, and on these it is for what others hold."""
        if self.mode != OFF and pod.may_preempt and nodes:
            self.wanting.note(pod, nodes, self._now(), more)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if self.mode == OFF or not self._leads():
                self.wanting.pods.clear()
                continue
            try:
                await self._round()
            except ApiError as e:
                self._log(f"preemption: {e}")

    async def _round(self) -> None:
        now = self._now()
        self._barred = {uid: until for uid, until in self._barred.items() if until > now}
        self._look_for_gone(now)
        await self._look_at_holds()
        await self._unasked.look(now)
        self.wanting.tidy(now)
        self._planned = 0.0
        for want in self.wanting.due(now):
            if self._planned > SHARE * EVERY or not self._leads():
                return
            await self._try(want)

    async def _try(self, want: Want) -> None:
        pod, state = want.pod, self._state
        if state.pending(pod.namespace, pod.name) != pod or pod.namespace not in self._enabled:
            self.wanting.drop(pod.uid)
            return
        if pod.uid in state.reservations:
            want.search = None
            want.at = self._now() + WAITING
            return
        for _ in range(TRIES):
            search = want.search = want.search or Search(want.nodes, self._now())
            if not self._is_patient(want):
                search.free = len(search.nodes)
            elif await self._comes_free(want, search):
                want.search = None
                want.at = self._now() + WAITING
                return
            if search.free == len(search.nodes):
                if (again := self._vain.get(pod.namespace, (0, 0.0))[1]) > self._now():
                    want.at, want.search = again, None
                    return
                if want.acted:  # its room was made, and it is not there: something else keeps it off
                    want.acted, want.search = False, None
                    self.wanting.in_vain(want, self._now())
                    return
                if not self.budgets.known:  # whom they protect is not known
                    want.at, want.search = self._now() + WAITING, None
                    return
                await self._look_for_victims(want, search)
            if self._planned > SLICE and not self._is_done(search):
                return  # the next rounds go on from here
            want.search, best = None, search.best
            if best is None:
                break
            fresh = await self._fresh(want)
            if fresh is None:
                want.at = self._now() + WAITING
                return
            # Who names the nodes may be somebody else than the scheduler (service.py).
            if not await self._accepts(best.node, fresh):
                want.nodes = tuple(name for name in want.nodes if name != best.node)
            elif await self._all_may_end(best):
                await self._act(want, best)
                return
        if best is None and not search.kept:
            self._counted("none")
        else:
            self._counted("protected")
            self._say(
                pod,
                PROTECTED,
                "less important pods hold enough GPUs, but may not end: a PodDisruptionBudget keeps them",
            )
        self.wanting.in_vain(want, self._now())

    def _is_patient(self, want: Want) -> bool:
        """Whether it still waits for others to end. Their owners choose how long that takes, and may tell one after the other
        to end. For as long it waits for nobody then."""
        if want.until is not None and self._now() >= want.until + MOST_HELD:
            want.until = None
        return want.until is None or self._now() < want.until

    async def _comes_free(self, want: Want, search: Search) -> bool:
        """Whether pods that end already are enough. If they are less important, their room is held for this one."""
        state = self._state
        while search.free < len(search.nodes) and self._planned <= SLICE:
            name = search.nodes[search.free]
            search.free += 1
            node = state.nodes.get(name)
            if node is None or not (gone := ending(node)):
                continue
            began = time.perf_counter()
            found = awaited(state, Question(want.pod), name)
            if found is None:
                await self._pause(want, began)
            else:
                if want.until is None:
                    want.until = self._now() + MOST_HELD
                lesser = tuple(uid for uid in gone if yields(node.pods[uid], Question(want.pod), self.terms))
                if lesser and self.mode == ON:
                    state.hold(want.pod, name, found, lesser, want.until)
                return True
        return False

    async def _look_for_victims(self, want: Want, search: Search) -> None:
        """On one node after the other, with a pause after each: other requests are answered then."""
        while not self._is_done(search) and self._planned <= SLICE:
            began = time.perf_counter()
            one = self._plan(want, search.nodes[search.planned])
            search.planned += 1
            if isinstance(one, Kept):
                search.kept += 1
            elif one is not None:
                search.found += 1
                best = search.best
                search.best = one if best is None else min(best, one, key=lambda each: (each.cost, each.node))
            await self._pause(want, began)

    def _is_done(self, search: Search) -> bool:
        late = search.best is not None and self._now() - search.began > LONG
        return search.planned == len(search.nodes) or search.found == ENOUGH or late

    async def _pause(self, want: Want, began: float) -> None:
        """Others are answered for most of the time, however long a pod takes to place."""
        spent = time.perf_counter() - began
        self._planned += spent
        self.wanting.charge(want.pod.namespace, spent, self._now())
        await asyncio.sleep(spent * (1 - SHARE) / SHARE if self._planned > SHARE else 0)

    def _plan(self, want: Want, name: str) -> Plan | Kept | None:
        question = Question(want.pod)
        question.work = MOST_WORK - MOST_PLAN
        patient = self._is_patient(want)
        return plan(self._state, question, name, self.budgets, self.terms, self._barred, patient)

    async def _fresh(self, want: Want) -> Any:
        """The pod's whole object; None where it is not to preempt anybody now."""
        pod = want.pod
        try:
            found = await self._client.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
        except ApiError as e:
            if e.status != 404:
                raise
            return None
        meta, spec = found["metadata"], found.get("spec") or {}
        if meta["uid"] != pod.uid or meta.get("deletionTimestamp") or spec.get("nodeName"):
            return None
        at = self._state.nodes.get((found.get("status") or {}).get("nominatedNodeName") or "")
        if at is not None and self._is_patient(want) and any(each.deleting and each.ends for each in at.pods.values()):
            if want.until is None:
                want.until = self._now() + MOST_HELD
            return None  # the scheduler itself preempts for it: its victims first
        return found

    async def _accepts(self, name: str, pod: Any) -> bool:
        try:
            return in_tree.accepts(await self._client.get(f"/api/v1/nodes/{name}"), pod)
        except ApiError as e:
            if e.status != 404:
                raise
            return False

    async def _all_may_end(self, found: Plan) -> bool:
        """The dry run: nothing ends where one of them may not."""
        for victim in self._pods(found.victims):
            try:
                await self._evictions.evict(victim.namespace, victim.name, victim.uid, dry_run=True)
            except ApiError as e:
                if e.status in (0, 401, 403):
                    raise
                if e.status not in (404, 409):
                    self._barred[victim.uid] = self._now() + BARRED
                return False
        return True

    async def _act(self, want: Want, found: Plan) -> None:
        pod = want.pod
        again = self._plan(want, found.node)
        waits = self._state.pending(pod.namespace, pod.name) == pod and pod.uid not in self._state.reservations
        waits = waits and self.budgets.known
        if not waits or not isinstance(again, Plan) or again.victims != found.victims or not self._leads():
            want.at = self._now() + EVERY  # something changed since the plan was made
            return
        victims = self._pods(found.victims)
        names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in victims)
        if self.mode == REPORT:
            self._say(pod, WOULD, f"would preempt {names} on node {found.node} (--preemption=report)")
            self._counted("reported")
            self.wanting.in_vain(want, self._now())
            return
        until = want.until = self._now() + MOST_HELD
        self._state.hold(pod, found.node, again.fit, found.victims, until)
        want.at, want.acted, want.tries = self._now() + WAITING, True, max(RESTS, want.tries)
        want.has_acted = True
        for count, victim in enumerate(victims):
            here = self._state.pending(pod.namespace, pod.name) == pod
            if not here or not await self._evict(victim, pod, found.node):
                self._state.release(pod.uid)
                want.acted = False
                self._counted("stopped")
                self.wanting.in_vain(want, self._now())
                self._log(f"{count} of {len(victims)} victims were evicted for {pod.namespace}/{pod.name}")
                return
        self._counted("done")
        self._say(pod, PREEMPTS, f"waits for the end of {names} on node {found.node}, whose GPUs are held for it")
        self._log(f"preempted {names} on node {found.node} for {pod.namespace}/{pod.name}")
        await self._nominate(pod, found.node)

    async def _evict(self, victim: Pod, pod: PodWords, node: str) -> bool:
        """False where it does not end: then its place is of no use."""
        for attempt in range(TRIES):
            if not self._leads():
                return False
            try:
                grace = MOST_GRACE if victim.grace > MOST_GRACE else None
                await self._evictions.evict(victim.namespace, victim.name, victim.uid, grace=grace)
            except ApiError as e:
                if e.status in (404, 409):
                    return True  # gone by itself
                self._log(f"{victim.namespace}/{victim.name} is not evicted: {e}")
                if attempt + 1 < TRIES:
                    await asyncio.sleep(EVERY)
                continue
            why = (
                f"preempted on node {node}: its GPUs are for pod {pod.namespace}/{pod.name} of priority {pod.priority}"
            )
            self._events.add(About(victim.namespace, victim.name, victim.uid), PREEMPTED, why)
            return True
        self._barred[victim.uid] = self._now() + BARRED
        return False

    def _pods(self, uids: tuple[str, ...]) -> list[Pod]:
        return [self._state.pods[uid] for uid in uids if uid in self._state.pods]

    def _say(self, pod: PodWords, reason: str, text: str) -> None:
        self._events.add(About(pod.namespace, pod.name, pod.uid), reason, text, warning=False)

    def _look_for_gone(self, now: float) -> None:
        """A namespace whose pods go as soon as others ended for them: each next time, it takes longer until anybody ends for one."""
        for want in [want for want in self.wanting.pods.values() if want.acted]:
            known = self._state.pods.get(want.pod.uid)
            if known is None or known.gone is not None:
                self._was_vain(want.pod.namespace, now)
                self.wanting.drop(want.pod.uid)
            elif known.node:
                self._came[want.pod.uid] = want.pod.namespace, now
                self.wanting.drop(want.pod.uid)
        for uid, (namespace, since) in list(self._came.items()):
            known = self._state.pods.get(uid)
            if known is None or known.told_to_end or known.ended:
                del self._came[uid]
                self._was_vain(namespace, now)
            elif since + RAN <= now:
                del self._came[uid]
                times, until = self._vain.get(namespace, (0, 0.0))
                self._vain[namespace] = max(0, times - 1), until
        self._vain = {name: (n, until) for name, (n, until) in self._vain.items() if n and until + FORGET > now}

    def _was_vain(self, namespace: str, now: float) -> None:
        times = self._vain.get(namespace, (0, 0.0))[0]
        self._vain[namespace] = times + 1, now + min(MOST_WAIT, AGAIN * 2 ** min(times, 8))

    # --- holds

    async def _look_at_holds(self) -> None:
        """Once the victims have ended, the room is held for a short time only."""
        until = self._now() + AFTER
        for one in list(self._state.reservations.values()):
            if one.victims and not self._still_there(one):
                one.deadline = min(one.deadline, until)
        for uid, pod in list(self._nominated.items()):
            if uid not in self._state.reservations:
                del self._nominated[uid]
                if self._state.pending(pod.namespace, pod.name) == pod:
                    await self._nominate(pod, None)

    def _still_there(self, one: Reservation) -> bool:
        node = self._state.nodes[one.node]
        pods = [node.pods[uid] for uid in one.victims if uid in node.pods]
        return any(pod.counts(pod.uid in node.listed) for pod in pods)

    async def _nominate(self, pod: PodWords, node: str | None) -> None:
        """Has the scheduler keep the sums of the node for the pod, and preempt nobody else for it meanwhile."""
        if not self._may_nominate:
            return
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        try:
            await self._client.patch(path, body)
        except ApiError as e:
            if e.status == 403:
                self._may_nominate = False
            if e.status not in (404, 409, 422):
                self._log(f"{pod.namespace}/{pod.name} is not nominated: {e}")
            return
        if node is not None:
            self._nominated[pod.uid] = pod
