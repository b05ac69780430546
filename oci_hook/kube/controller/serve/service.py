"""Answers requests by the pure parts, and adds the API server, the Lease and the counters. No decision has an `await` inside, so
none sees another half done."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

from oci_hook.errors import ClusterError, GhError, Problem
from oci_hook.kube.answers import admission, extender, gang
from oci_hook.kube.answers.overview import Waiting
from oci_hook.kube.controller.act.preemptor import Preemptor
from oci_hook.kube.controller.act.wanting import MOST_NODES
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.api.objects import PODS, slim
from oci_hook.kube.controller.api.shallow import decode
from oci_hook.kube.controller.context import Context
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.controller.serve.metrics import Metrics, node_lines
from oci_hook.kube.controller.trust import certificates, own_secret
from oci_hook.kube.controller.trust.node_identity import node_of
from oci_hook.kube.controller.trust.own_secret import Own
from oci_hook.kube.formats import names, review
from oci_hook.kube.formats.signing import Signer
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.pod import mutate
from oci_hook.kube.pod.asked import PodWords, words

LOG = logging.getLogger(__name__)

PREEMPTABLE = ("GH-201", "GH-204", "GH-609")  # refusals that preemption may cure
BIND, CREATE, FILTER, PREEMPT, DRY_RUN = "bind", "create", "filter", "preempt", "dry-run"
DRY_RUN_SECONDS = 0.25  # of one answer, during which no other request is answered

READINGS = 4  # GETs of a pod, each again if a list of all pods overlaps it
OF_PODS = ("GH-601", "GH-602", "GH-603")  # reasons to deny a Binding on any node


class NotNow(Exception):
    """We do not lead, or have not read the whole cluster yet."""


class Service:
    """measure: sets the metrics that only the controller knows."""

    def __init__(
        self,
        context: Context,
        options: ControllerOptions,
        copy: Copy,
        preemptor: Preemptor,
        metrics: Metrics,
        mutation: mutate.WebhookOptions,
        measure: Callable[[], None],
    ) -> None:
        self._measure, self._preemptor = measure, preemptor
        self.denied: Callable[[PodWords, str], None] = lambda pod, node: (
            None
        )  # called if a Binding is denied because of its node
        self.signer = Signer({})
        self.bound_at = float("-inf")  # time of the last Binding that we allowed, by `now`
        self._own = Own()
        self._options, self._copy, self._metrics, self._mutation = options, copy, metrics, mutation
        self._client, self._leads = context.client, context.leads
        self._synced, self._now = context.synced, context.now

    def own(self) -> Own:
        return self._own

    def use(self, own: Own) -> None:
        self._own = own
        self.signer = Signer(dict(own.secrets.generations))

    def check(self, leads: bool = True) -> None:
        """Raises NotNow. Called before each decision and again before its answer is sent, since the process may be paused between.
        leads: only a leader may answer."""
        if leads and not self._leads():
            raise NotNow("not the leader")
        if not self._synced():
            raise NotNow("the cluster has not been read yet")
        if not self._own.secrets.generations:
            raise NotNow("no secret yet")

    # --- webhooks

    async def review_pod(self, asked: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        answer = self._pod(asked["request"])
        return self._answered(CREATE, answer, began, leads=False)

    def _pod(self, request: dict[str, Any]) -> dict[str, Any]:
        pod = request.get("object") or {}
        try:
            if request.get("operation") == "UPDATE":
                check_update(request.get("oldObject") or {}, pod)
                return review.allowed(request)
            done = mutate.mutate(pod, self._mutating())
        except GhError as e:
            return review.denied(request, e.problems)
        return review.allowed(request, done.patch, [str(problem) for problem in done.warnings])

    def _mutating(self) -> mutate.WebhookOptions:
        return self._mutation.replace(modes=frozenset(self._copy.modes.values()))

    async def review_binding(self, asked: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        state, request = self._copy.state, asked["request"]
        if (why := self._not_enabled(request.get("namespace") or "")) is not None:
            return self._answered(BIND, review.denied(request, [why], admission.CONFLICT), began)
        answer = admission.bind(asked, state, self._now(), self.signer.sign)
        if isinstance(answer, admission.UnknownPod):
            await self._fetch(answer.namespace, answer.name)
            self.check()
            answer = admission.bind(asked, state, self._now(), self.signer.sign, last=True)
            assert not isinstance(answer, admission.UnknownPod)
        self._note(request, answer)
        return self._answered(BIND, answer, began)

    def _not_enabled(self, namespace: str) -> Problem | None:
        """The refusal of pods in a namespace without the label; None with it. The webhook's configuration has the same selector, but
        callers other than the API server may know our URL with its token, since error messages show it."""
        if namespace in self._copy.enabled:
            return None
        label = f"{names.NAMESPACE_LABEL}={names.ENABLED}"
        return Problem("GH-601", f"the namespace {namespace[:63]} does not have the label {label}")

    async def _fetch(self, namespace: str, name: str) -> None:
        """Reads a pod that the watch has not reported yet."""
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
        for _ in range(READINGS):
            try:
                with self._copy.beside.reading() as reading:
                    text = await self._client.request("GET", path, timeout=1.0)
            except ApiError as e:
                if e.status == 404:
                    return
                raise ClusterError(Problem("GH-608", f"pod {namespace}/{name} cannot be read: {e}")) from None
            if not reading.crossed():
                pod = slim(decode(text, PODS.objects))
                if reading.counts(pod["metadata"]["uid"]):
                    self._copy.pod(pod)
                return
            await asyncio.sleep(0.1)
        raise ClusterError(Problem("GH-608", f"pod {namespace}/{name} cannot be read while all pods are listed again"))

    def _note(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        if answer["response"]["allowed"] or request.get("dryRun"):
            return
        pod = self._copy.state.pending(request.get("namespace") or "", request.get("name") or "")
        if pod is not None:
            self._copy.waiting[pod.uid] = why = _why(answer["response"]["status"]["message"])
            if why.code not in OF_PODS:
                target = str(((request.get("object") or {}).get("target") or {}).get("name") or "")
                self.denied(pod, target)
                if why.code in PREEMPTABLE:  # the scheduler took this node without asking our extender
                    self._preemptor.note(pod, [target], more=True)

    # --- extender

    async def filter_as_a_hint(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Filters while nobody leads, so that the scheduler goes on. The next leader's webhook for Bindings checks the choice."""
        return await self.filter(asked, leads=False)

    async def filter(self, asked: dict[str, Any], leads: bool = True) -> dict[str, Any]:
        began = time.perf_counter()
        self.check(leads)
        pod = await self._real(asked, leads)
        if isinstance(pod, Problem):
            answer = extender.nowhere(asked, pod)
        else:
            answer = extender.filter(asked, self._copy.state, self._now(), pod=pod)
        self.check(leads)
        failed = answer.get("FailedNodes") or {}
        refused = not (answer.get("NodeNames") or (answer.get("Nodes") or {}).get("items"))
        if refused and (uid := _uid(asked)) in self._copy.state.pods:
            self._copy.waiting[uid] = next(map(_why, failed.values()), Waiting("GH-607", ""))
            if not isinstance(pod, Problem):
                final = answer["FailedAndUnresolvableNodes"]
                self._preemptor.note(pod, [name for name in islice(failed, MOST_NODES) if name not in final])
        self._count(FILTER, "refused" if refused else "ok", began)
        return answer

    async def preempt(self, asked: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        pod = await self._real(asked)
        refused = isinstance(pod, Problem)
        answer = extender.NO_VICTIMS if isinstance(pod, Problem) else self._victims(asked, pod)
        self.check()
        self._count(PREEMPT, "refused" if refused else "ok", began)
        return answer

    async def dry_run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Returns whether pods have room together. asked: the object of gang.roles_of, and optionally `nodes`. Reserves nothing."""
        began = time.perf_counter()
        nodes = asked.get("nodes")
        if nodes is not None and not (isinstance(nodes, list) and all(isinstance(name, str) for name in nodes)):
            raise ValueError("nodes is not a list of names")

        def enough() -> bool:
            return time.perf_counter() > began + DRY_RUN_SECONDS

        roles = gang.roles_of(asked, self._mutating(), enough)
        found = gang.dry_run(self._copy.state, roles, None if nodes is None else frozenset(nodes), enough)
        self.check()
        self._count(DRY_RUN, "ok", began)
        return gang.as_data(found)

    def _victims(self, asked: dict[str, Any], pod: PodWords) -> dict[str, Any]:
        if Question(pod).asks:
            self._preemptor.note(pod, extender.to_hurry(asked, self._copy.state), more=True)
        return extender.preempt(asked, self._copy.state, pod, self._preemptor.budgets, self._preemptor.terms)

    async def _real(self, asked: Mapping[str, Any], leads: bool = True) -> PodWords | Problem:
        """Returns the pod as the API server has it. The caller's version is not trusted: a reservation for a pod that does not exist
        would take room from others."""
        said = words(asked["Pod"])
        if (why := self._not_enabled(said.namespace)) is not None:
            return why if Question(said).asks else said
        pod = self._waits(said)
        if pod is None:  # the scheduler's watch may be ahead of ours
            await self._fetch(said.namespace, said.name)
            self.check(leads)
            pod = self._waits(said)
        if pod is None:
            return Problem("GH-603", f"there is no unbound pod {said.namespace[:63]}/{said.name[:253]} with this UID")
        return pod

    def _waits(self, said: PodWords) -> PodWords | None:
        pod = self._copy.state.pending(said.namespace, said.name)
        return pod if pod is not None and pod.uid == said.uid else None

    # --- nodes' keys

    async def node_key(self, token: str) -> dict[str, Any] | None:
        try:
            node = await node_of(self._client, self._options, token)
        except ApiError as e:
            raise ClusterError(Problem("GH-608", f"the token cannot be reviewed: {e.status} {e.reason}")) from None
        self.check()
        self._metrics.count("answers", "node-key", "ok" if node else "refused")
        return None if node is None else {"node": node, "keys": self._own.secrets.node_keys(node)}

    # --- metrics

    def may_read_metrics(self, authorization: str) -> bool:
        wanted = self._options.metrics_token
        return not wanted or own_secret.same(f"Bearer {wanted}", authorization)

    async def metrics_text(self) -> bytes:
        state, metrics = self._copy.state, self._metrics
        self._measure()
        metrics.set("leads", int(self._leads()))
        metrics.set("objects", len(state.nodes), "nodes")
        metrics.set("objects", len(state.pods), "pods")
        metrics.set("objects", len(state.reservations), "reservations")
        metrics.set("holds", sum(bool(one.victims) for one in state.reservations.values()))
        metrics.set("certificate_end_timestamp_seconds", certificates.ends(self._own.certificates))
        metrics.set_pending(why.code for why in self._copy.waiting.values())
        return await metrics.text(node_lines(state))

    def failed(self, why: str) -> None:
        self._metrics.count("failures")
        LOG.warning(f"not understood: {why}")

    def _answered(self, call: str, answer: dict[str, Any], began: float, leads: bool = True) -> dict[str, Any]:
        self.check(leads)
        response = answer["response"]
        if call == BIND and response["allowed"]:
            self.bound_at = self._now()
        if not response["allowed"]:
            self._metrics.count("refusals", call, _code(response["status"]["message"]))
        self._count(call, "ok" if response["allowed"] else "refused", began)
        return answer

    def _count(self, call: str, result: str, began: float) -> None:
        self._metrics.count("answers", call, result)
        self._metrics.answered(call, time.perf_counter() - began)


def check_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuses changes of our annotations. Decisions are written by Bindings only. Requests must match the pod's sums, which quotas
    count, and these are made at creation. Raises ClusterError GH-605."""
    before, after = _ours(old), _ours(new)
    if before != after:
        key = min(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        raise ClusterError(
            Problem("GH-605", f"{key[:80]} cannot change after the pod's creation; delete the pod and create it again")
        )


def _ours(pod: Mapping[str, Any]) -> dict[str, str]:
    notes = (pod.get("metadata") or {}).get("annotations") or {}
    return {key: value for key, value in notes.items() if key.startswith(names.PREFIX_KEY)}


def _uid(asked: Mapping[str, Any]) -> str:
    pod = asked.get("Pod") or asked.get("pod") or {}
    return str((pod.get("metadata") or {}).get("uid") or "")


def _why(text: str) -> Waiting:
    return Waiting(_code(text), text)


def _code(text: str) -> str:
    """The first error code in a message."""
    at = text.find("GH-")
    return text[at : at + 6] if at >= 0 else "other"
