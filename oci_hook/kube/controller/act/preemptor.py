"""Preempts pods if no other way makes room on a GPU. Kubernetes' own preemption cannot, since it knows only a node's sums.

For a pod without room: choose the cheapest victims over all its nodes; dry-run every eviction, so that a budget's refusal comes
before any eviction; reserve the room; evict. One pod at a time; a second set of victims only after the first ones have ended.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from oci_hook.kube.controller.act.unasked import Unasked
from oci_hook.kube.controller.act.wanting import AGAIN, Search, Want, Wanting
from oci_hook.kube.controller.act.wanting import MOST as MOST_WAIT
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.api.evictions import Evictions
from oci_hook.kube.controller.api.pod_events import About, Events
from oci_hook.kube.controller.context import Context
from oci_hook.kube.placing.choose import MOST_WORK, Chosen, Question, choose
from oci_hook.kube.placing.cluster_state import ENDS
from oci_hook.kube.placing.records import MOST_GRACE, PodRecord, Reservation
from oci_hook.kube.pod import hosts
from oci_hook.kube.pod.asked import PodWords, is_tried
from oci_hook.kube.preemption.disruption import Budgets
from oci_hook.kube.preemption.preempt import EvictionPlan, Kept, PreemptionTerms, awaited, ending, plan, yields

LOG = logging.getLogger(__name__)

EVERY = 1.0
SHARE = 0.1  # of the time for planning, at most
SLICE = 0.3  # seconds of planning for one pod in a round, which then takes 2 s
MOST_PLAN = 600  # of choose.MOST_WORK, for one node: 0.08 s
ENOUGH = 32  # nodes with victims, after which the search takes the cheapest
LONG = 20.0  # seconds after which the search takes the cheapest so far
MOST_HELD = ENDS  # seconds to hold the room while victims terminate
AFTER = 90.0  # seconds to hold it afterwards: the scheduler of 1.20 tries again after at most 60
LOOKS = 16  # nodes with room, of which each may keep the pod off
ROOM = 60.0  # seconds for the scheduler to find a node that has room; it tries again after at most that
BARRED = 60.0  # seconds without another attempt to evict a protected pod
NOT_NOMINATED = 300.0  # seconds without another nomination in a namespace where one was forbidden
TRIES = 3  # sets of victims in one attempt, and calls for one eviction
RESTS = 4  # attempts in vain that a preemption counts as: at least 160 s between two sets of victims for one pod
RAN = 60.0  # seconds that a pod must stay bound for its preemption to count as useful
FORGET = 600.0  # seconds after which a namespace's useless preemptions are forgotten
WAITING = 5.0  # seconds between two looks at a pod that waits for others to terminate
NO_ANSWERS = 0, 401  # statuses that say nothing about one pod: the whole round ends
BUSY, BROKEN = 429, 500  # the server's own errors begin with the latter: the round ends as well
PREEMPTS, WOULD, PREEMPTED = "GpuSharePreempts", "GpuShareWouldPreempt", "GpuSharePreempted"
PROTECTED = "GpuShareProtected"
OFF, REPORT, ON = MODES = ("off", "report", "on")


class Preemptor:
    """mode: OFF, REPORT (events only) or ON. counted: called with the outcome of each attempt."""

    def __init__(
        self,
        context: Context,
        budgets: Budgets,
        events: Events,
        mode: str,
        terms: PreemptionTerms,
        counted: Callable[[str], None],
    ) -> None:
        self.wanting = Wanting()
        self.mode, self.budgets = mode, budgets
        self.terms = terms if mode == ON else terms.replace(add=False)
        self._client, self._state, self._enabled = context.client, context.state, context.enabled
        self._leads, self._now = context.leads, context.now
        self._events, self._counted = events, counted
        self._evictions = Evictions(context.client)
        self._unasked = Unasked(context, self.wanting, terms)
        self._barred: dict[str, float] = {}  # UID of a protected pod -> time of the next attempt
        self._nominated: dict[str, PodWords] = {}
        self._no_nomination: dict[str, float] = {}  # namespace in which that is forbidden -> time of the next attempt
        self._planned = 0.0  # seconds in this round
        # Namespace -> (useless preemptions, time before which nothing is preempted for it).
        self._vain: dict[str, tuple[int, float]] = {}
        # UID of a pod bound after a preemption -> (namespace, time of its binding).
        self._came: dict[str, tuple[str, float]] = {}

    def note(self, pod: PodWords, nodes: list[str], more: bool = False) -> None:
        """Records a pod without room. nodes: those that would have room without other pods."""
        if self.mode != OFF and pod.may_preempt and nodes:
            self.wanting.note(pod, nodes, self._now(), more)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if self.mode == OFF or not self._leads():
                self.wanting.pods.clear()
                continue
            try:
                await self._round()
            except ApiError as e:
                LOG.warning(f"preemption: {e}")

    async def _round(self) -> None:
        now = self._now()
        self._barred = {uid: until for uid, until in self._barred.items() if until > now}
        self._no_nomination = {name: until for name, until in self._no_nomination.items() if until > now}
        self._look_for_gone(now)
        await self._look_at_holds()
        await self._unasked.look(now)
        self.wanting.tidy(now)
        self._planned = 0.0
        for want in self.wanting.due(now):
            if self._planned > SHARE * EVERY or not self._leads():
                return
            try:
                await self._try(want)
            except ApiError as e:
                if e.status in NO_ANSWERS:
                    raise
                want.at, want.search = now + AGAIN, None
                LOG.warning(f"preemption for {want.pod.namespace}/{want.pod.name}: {e}")
                if e.status == BUSY or e.status >= BROKEN:
                    return  # the fault may lie in this pod alone: the next round begins with others

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
                if want.acted:  # its victims ended, yet it is not bound: something else prevents it
                    want.acted, want.search = False, None
                    self.wanting.in_vain(want, self._now())
                    return
                if not self.budgets.known:  # any pod might be protected
                    want.at, want.search = self._now() + WAITING, None
                    return
                await self._look_for_victims(want, search)
            if self._planned > SLICE and not self._is_done(search):
                return  # the next round continues here
            want.search, best = None, search.best
            if best is None:
                break
            fresh = await self._fresh(want)
            if fresh is None or await self._has_room(want, fresh):
                want.at = self._now() + WAITING
                return
            # The nodes may come from a caller other than the scheduler (service.py), so check them.
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
                "pods that it could preempt hold enough GPUs, but PodDisruptionBudgets or admission rules protect them",
            )
        self.wanting.in_vain(want, self._now())

    def _is_patient(self, want: Want) -> bool:
        """Returns whether the pod still waits for terminating pods. Their owners could prolong the wait by deleting one pod after
        another, so a wait of MOST_HELD is followed by an equal time without waiting."""
        if want.until is not None and self._now() >= want.until + MOST_HELD:
            want.until = None
        return want.until is None or self._now() < want.until

    async def _comes_free(self, want: Want, search: Search) -> bool:
        """Returns whether terminating pods leave enough room. Reserves it for this pod if it could preempt one of them."""
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
        """Plans on one node after another. Pauses after each, so that requests are answered."""
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
        """Rests in proportion to the planning time, so that requests get most of the processor."""
        spent = time.perf_counter() - began
        self._planned += spent
        self.wanting.charge(want.pod.namespace, spent, self._now())
        await asyncio.sleep(spent * (1 - SHARE) / SHARE if self._planned > SHARE else 0)

    def _plan(self, want: Want, name: str) -> EvictionPlan | Kept | None:
        patient = self._is_patient(want)
        return plan(self._state, self._question(want), name, self.budgets, self.terms, self._barred, patient)

    def _question(self, want: Want) -> Question:
        question = Question(want.pod)
        question.work = MOST_WORK - MOST_PLAN
        return question

    async def _fresh(self, want: Want) -> dict[str, Any] | None:
        """Returns the pod's whole object; None if it must not preempt now."""
        pod = want.pod
        try:
            found = await self._client.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
        except ApiError as e:
            if e.status != 404:
                raise
            return None
        if found["metadata"]["uid"] != pod.uid or (found.get("spec") or {}).get("nodeName") or not is_tried(found):
            return None
        at = self._state.nodes.get((found.get("status") or {}).get("nominatedNodeName") or "")
        if at is not None and self._is_patient(want) and any(each.deleting and each.ends for each in at.pods.values()):
            if want.until is None:
                want.until = self._now() + MOST_HELD
            return None  # the scheduler itself preempts for it: wait for those victims
        return found

    async def _has_room(self, want: Want, pod: dict[str, Any]) -> bool:
        """Returns whether a node has room for the pod as it is, which the scheduler will find out. Something that is not known here
        may keep the pod off that node, so this is believed for ROOM seconds."""
        among = set(self._state.nodes)
        for _ in range(LOOKS):
            began = time.perf_counter()
            found = choose(self._state, self._question(want), among)
            await self._pause(want, began)
            if not isinstance(found, Chosen):
                break
            if await self._accepts(found.node, pod):
                want.room = self._now() if want.room is None else want.room
                return self._now() < want.room + ROOM
            among.discard(found.node)
        want.room = None
        return False

    async def _accepts(self, name: str, pod: dict[str, Any]) -> bool:
        try:
            node = await self._client.get(f"/api/v1/nodes/{name}")
        except ApiError as e:
            if e.status != 404:
                raise
            return False
        return hosts.lets_in(node, pod) and not hosts.unlisted(node, pod)  # what a DeviceClass may give is unknown here

    async def _all_may_end(self, found: EvictionPlan) -> bool:
        """Dry-runs the eviction of each victim."""
        for victim in self._pods(found.victims):
            try:
                await self._evictions.evict(victim.namespace, victim.name, victim.uid, dry_run=True)
            except ApiError as e:
                if e.status in NO_ANSWERS:
                    raise
                if e.status not in (404, 409):
                    self._barred[victim.uid] = self._now() + BARRED
                if e.status == 403:  # of this pod alone, or we have no right to evict: then each attempt says so
                    LOG.warning(f"{victim.namespace}/{victim.name} may not be evicted: {e}")
                return False
        return True

    async def _act(self, want: Want, found: EvictionPlan) -> None:
        pod = want.pod
        again = self._plan(want, found.node)
        waits = self._state.pending(pod.namespace, pod.name) == pod and pod.uid not in self._state.reservations
        waits = waits and self.budgets.known
        if not waits or not isinstance(again, EvictionPlan) or again.victims != found.victims or not self._leads():
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
                LOG.info(f"{count} of {len(victims)} victims were evicted for {pod.namespace}/{pod.name}")
                return
        self._counted("done")
        self._say(pod, PREEMPTS, f"preempts {names} on node {found.node}; their GPUs are reserved for this pod")
        LOG.info(f"preempted {names} on node {found.node} for {pod.namespace}/{pod.name}")
        await self._nominate(pod, found.node)

    async def _evict(self, victim: PodRecord, pod: PodWords, node: str) -> bool:
        """Returns False if the API server refuses the eviction: the whole set is then useless."""
        for attempt in range(TRIES):
            if not self._leads():
                return False
            try:
                grace = MOST_GRACE if victim.grace > MOST_GRACE else None
                await self._evictions.evict(victim.namespace, victim.name, victim.uid, grace=grace)
            except ApiError as e:
                if e.status in (404, 409):
                    return True  # gone already
                LOG.warning(f"{victim.namespace}/{victim.name} is not evicted: {e}")
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

    def _pods(self, uids: tuple[str, ...]) -> list[PodRecord]:
        return [self._state.pods[uid] for uid in uids if uid in self._state.pods]

    def _say(self, pod: PodWords, reason: str, text: str) -> None:
        self._events.add(About(pod.namespace, pod.name, pod.uid), reason, text, warning=False)

    def _look_for_gone(self, now: float) -> None:
        """Finds pods that disappeared after a preemption for them. Each one lengthens its namespace's back-off."""
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
        """Shortens a hold once its victims have ended."""
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
        """Sets nominatedNodeName: the scheduler keeps the node's sums for the pod and preempts nothing else for it."""
        if self._no_nomination.get(pod.namespace, 0.0) > self._now():
            return
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        try:
            await self._client.patch(path, body)
        except ApiError as e:
            if e.status == 403:
                self._no_nomination[pod.namespace] = self._now() + NOT_NOMINATED
            if e.status not in (404, 409, 422):
                LOG.warning(f"{pod.namespace}/{pod.name} is not nominated: {e}")
            return
        if node is not None:
            self._nominated[pod.uid] = pod
