"""Answers: what the pure parts decide, with what they cannot have: the API server, the Lease, the counters. Each decision is one
stretch of code without `await`, so none sees half of another."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

from oci_hook.errors import ClusterError, GhError, Problem
from oci_hook.kube import admission, extender, mutate, names, review
from oci_hook.kube.choose import Question
from oci_hook.kube.controller import certificates, figures, own_secret
from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.dry_runs import DryRuns
from oci_hook.kube.controller.metrics import Metrics, node_lines
from oci_hook.kube.controller.node_key import node_of
from oci_hook.kube.controller.objects import PODS, slim
from oci_hook.kube.controller.options import Options
from oci_hook.kube.controller.own_secret import Own
from oci_hook.kube.controller.preemptor import Preemptor
from oci_hook.kube.controller.shallow import decode
from oci_hook.kube.controller.wanting import MOST_NODES
from oci_hook.kube.overview import Waiting
from oci_hook.kube.pods import PodWords, words
from oci_hook.kube.signing import Signer

PREEMPTABLE = ("GH-201", "GH-204", "GH-609")  # refusals for what others hold
BIND, CREATE, FILTER, PREEMPT = "bind", "create", "filter", "preempt"

READINGS = 4  # of a pod, where lists of all pods begin meanwhile
OF_PODS = ("GH-601", "GH-602", "GH-603")  # why a Binding is denied, whatever its node


class NotNow(Exception):
    """We do not lead, or do not know the whole cluster yet."""


class Service:
    """leads: whether the Lease is ours at this moment. synced: whether the copy is whole. measure: sets the figures that only
    the controller knows."""

    def __init__(
        self,
        client: Client,
        options: Options,
        copy: Copy,
        preemptor: Preemptor,
        metrics: Metrics,
        mutation: mutate.Options,
        leads: Callable[[], bool],
        synced: Callable[[], bool],
        now: Callable[[], float],
        measure: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._measure, self._preemptor = measure, preemptor
        self.denied: Callable[[PodWords, str], None] = lambda pod, node: None  # a Binding, because of its node
        self.signer = Signer({})
        self.bound_at = float("-inf")  # when we allowed a Binding last, by `now`
        self._own = Own()
        self._client, self._options, self._copy, self._metrics = client, options, copy, metrics
        self._dry_runs = DryRuns(copy.state, self._mutating)
        self._mutation, self._leads, self._synced, self._now, self._log = mutation, leads, synced, now, log

    def own(self) -> Own:
        return self._own

    def use(self, own: Own) -> None:
        self._own = own
        self.signer = Signer(dict(own.secrets.generations))

    def check(self, leads: bool = True) -> None:
        """Raises NotNow. Asked before each decision, and again before its answer leaves: a pause may lie between. leads:
        whether only a leader may answer."""
        if leads and not self._leads():
            raise NotNow("not the leader")
        if not self._synced():
            raise NotNow("the cluster is not read yet")
        if not self._own.secrets.generations:
            raise NotNow("no secret yet")

    # --- webhooks

    async def review_pod(self, asked: Any) -> Any:
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

    def _mutating(self) -> mutate.Options:
        return self._mutation.replace(modes=frozenset(self._copy.modes.values()))

    async def review_binding(self, asked: Any) -> Any:
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
        """Why pods of this namespace get no GPU. The webhook's configuration has the same selector, but who calls us may be
        somebody else than the API server: its errors name our URL, with the token."""
        if namespace in self._copy.enabled:
            return None
        label = f"{names.NAMESPACE_LABEL}={names.ENABLED}"
        return Problem("GH-601", f"the namespace {namespace[:63]} does not have the label {label}")

    async def _fetch(self, namespace: str, name: str) -> None:
        """A pod that the watch has not brought yet."""
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
        raise ClusterError(Problem("GH-608", f"pod {namespace}/{name} cannot be read while all pods are listed anew"))

    def _note(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        pod = self._copy.state.pending(request.get("namespace") or "", request.get("name") or "")
        if pod is not None and not answer["response"]["allowed"]:
            self._copy.waiting[pod.uid] = why = _why(answer["response"]["status"]["message"])
            if why.code not in OF_PODS:
                target = str(((request.get("object") or {}).get("target") or {}).get("name") or "")
                self.denied(pod, target)
                if why.code in PREEMPTABLE:  # the scheduler took this node without asking our extender
                    self._preemptor.note(pod, [target], more=True)

    # --- extender

    async def filter_as_a_hint(self, asked: Any) -> Any:
        """While nobody leads: the scheduler goes on, and the bind webhook of the next leader chooses again where it must."""
        return await self.filter(asked, leads=False)

    async def filter(self, asked: Any, leads: bool = True) -> Any:
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

    async def preempt(self, asked: Any) -> Any:
        began = time.perf_counter()
        pod = await self._real(asked)
        refused = isinstance(pod, Problem)
        answer = extender.NO_VICTIMS if isinstance(pod, Problem) else self._victims(asked, pod)
        self.check()
        self._count(PREEMPT, "refused" if refused else "ok", began)
        return answer

    def dry_run(self, verb: str) -> Callable[[Any], Awaitable[Any]]:
        """verb: the name of one of dry_runs.py's answers."""

        async def answer(asked: Any) -> Any:
            began = time.perf_counter()
            found = getattr(self._dry_runs, verb)(asked)
            self.check()
            self._count("dry-run", "ok", began)
            return found

        return answer

    def _victims(self, asked: Any, pod: PodWords) -> Any:
        if Question(pod).asks:
            self._preemptor.note(pod, extender.to_hurry(asked, self._copy.state), more=True)
        return extender.preempt(asked, self._copy.state, pod, self._preemptor.budgets, self._preemptor.terms)

    async def _real(self, asked: Mapping[str, Any], leads: bool = True) -> PodWords | Problem:
        """The pod that is asked about, as the API server has it: a caller may say anything, and a reservation for a pod that
        is not there would take room from others."""
        said = words(asked["Pod"])
        if (why := self._not_enabled(said.namespace)) is not None:
            return why if Question(said).asks else said
        pod = self._waits(said)
        if pod is None:  # the scheduler's watch may be ahead of ours
            await self._fetch(said.namespace, said.name)
            self.check(leads)
            pod = self._waits(said)
        if pod is None:
            return Problem(
                "GH-603", f"pod {said.namespace[:63]}/{said.name[:253]} with this UID and without a node is not known"
            )
        return pod

    def _waits(self, said: PodWords) -> PodWords | None:
        pod = self._copy.state.pending(said.namespace, said.name)
        return pod if pod is not None and pod.uid == said.uid else None

    # --- nodes' keys

    async def node_key(self, token: str) -> Any:
        try:
            node = await node_of(self._client, self._options, token)
        except ApiError as e:
            raise ClusterError(Problem("GH-608", f"the token cannot be reviewed: {e.status} {e.reason}")) from None
        self.check()
        self._metrics.answers.labels("node-key", "ok" if node else "refused").inc()
        return None if node is None else {"node": node, "keys": self._own.secrets.node_keys(node)}

    # --- metrics

    def may_read_metrics(self, authorization: str) -> bool:
        wanted = self._options.metrics_token
        return not wanted or own_secret.same(f"Bearer {wanted}", authorization)

    async def metrics_text(self) -> bytes:
        state, metrics = self._copy.state, self._metrics
        self._measure()
        metrics.leads.set(self._leads())
        metrics.objects.labels("nodes").set(len(state.nodes))
        metrics.objects.labels("pods").set(len(state.pods))
        metrics.objects.labels("reservations").set(len(state.reservations))
        metrics.holds.set(sum(bool(one.victims) for one in state.reservations.values()))
        metrics.certificate_end.set(certificates.ends(self._own.certificates))
        metrics.set_pending(why.code for why in self._copy.waiting.values())
        return await metrics.text(node_lines(list(state.nodes), lambda name: figures.of_node(state, name)))

    def failed(self, why: str) -> None:
        self._metrics.failures.inc()
        self._log(f"not understood: {why}")

    def _answered(self, call: str, answer: dict[str, Any], began: float, leads: bool = True) -> dict[str, Any]:
        self.check(leads)
        response = answer["response"]
        if call == BIND and response["allowed"]:
            self.bound_at = self._now()
        if not response["allowed"]:
            self._metrics.refusals.labels(call, _code(response["status"]["message"])).inc()
        self._count(call, "ok" if response["allowed"] else "refused", began)
        return answer

    def _count(self, call: str, result: str, began: float) -> None:
        self._metrics.answers.labels(call, result).inc()
        self._metrics.latency.labels(call).observe(time.perf_counter() - began)


def check_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Only a Binding writes what the controller decided. What is asked for stays as it was created: the pod's sums, which quotas
    count, were made of it. Raises ClusterError GH-605."""
    before, after = _ours(old), _ours(new)
    if before != after:
        key = min(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        raise ClusterError(
            Problem("GH-605", f"{key[:80]} is changed; it stays as the pod was created with: make the pod anew")
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
    """The first code in a message."""
    at = text.find("GH-")
    return text[at : at + 6] if at >= 0 else "other"
