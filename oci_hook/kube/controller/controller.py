"""`gpu-hook controller`: one process, one event loop. This file connects the parts, starts them and ends them in order."""

import asyncio
import gc
import logging
import os
import resource
import secrets
import signal
import socket
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from oci_hook.config import settings as node_settings
from oci_hook.core.decision import Decision
from oci_hook.core.rules import Rules
from oci_hook.errors import ClusterError, Problem, SettingsError
from oci_hook.kube.controller.act.budgets import BudgetWatch
from oci_hook.kube.controller.act.evictor import Evictor
from oci_hook.kube.controller.act.preemptor import Preemptor
from oci_hook.kube.controller.act.taints import FragmentTaints, ModeTaints
from oci_hook.kube.controller.act.waker import Waker
from oci_hook.kube.controller.api.client import ApiError, Client
from oci_hook.kube.controller.api.objects import NAMESPACES, NODES, PODS, slim
from oci_hook.kube.controller.api.pod_events import Events
from oci_hook.kube.controller.api.reflector import Reflector
from oci_hook.kube.controller.api.shallow import decode
from oci_hook.kube.controller.context import Context
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.lead.leader import Leader
from oci_hook.kube.controller.lead.peer import Peer
from oci_hook.kube.controller.lead.takeover import Takeover
from oci_hook.kube.controller.options import ControllerOptions, reached_at
from oci_hook.kube.controller.serve.metrics import Metrics
from oci_hook.kube.controller.serve.page import Page
from oci_hook.kube.controller.serve.router import Router
from oci_hook.kube.controller.serve.server import HttpsServer
from oci_hook.kube.controller.serve.service import Service
from oci_hook.kube.controller.trust import certificates, generations
from oci_hook.kube.controller.trust.authority import Authority
from oci_hook.kube.controller.trust.own_secret import Own
from oci_hook.kube.link import kubeconfig
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod import mutate
from oci_hook.kube.preemption.preempt import PreemptionTerms

LOG = logging.getLogger(__name__)

TICK = 2.0  # seconds
GIVE_BACK = 8.0
DRAIN = 2.0  # seconds for which a terminating pod still forwards requests, until callers have dropped its address


class Controller:
    def __init__(self, options: ControllerOptions, client: Client, rules: Rules) -> None:
        self._client = client
        identity = self._identity = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._metrics = Metrics()
        self.leader = Leader(client, options.namespace, identity, options.reached_at, options.pod, self._begin)
        leads = self.leader.leads
        self._events = Events(client, time.monotonic)
        self._state = ClusterState(**({"placement": options.place} if options.place else {}), verify=self._verify)
        context = Context(client, self._state, set(), self._decides, self._synced, time.monotonic)
        self._evictor = Evictor(context, self._events, lambda code: self._metrics.count("evictions", code))
        self._mode_taints = ModeTaints(context)
        self._copy = Copy(
            self._state,
            time.monotonic,
            self._evictor if options.evict else None,
            self._mode_taints if options.taint else None,
            context.enabled,
        )
        self._budgets = BudgetWatch(client)
        self._preemptor = Preemptor(
            context,
            self._budgets.budgets,
            self._events,
            options.preemption,
            PreemptionTerms(options.equal_offline),
            lambda outcome: self._metrics.count("preemptions", outcome),
        )
        self._reflectors = [
            Reflector(client, NAMESPACES, self._copy.namespaces),
            Reflector(client, NODES, self._copy.nodes),
            Reflector(client, PODS, self._copy.pods, beside=self._copy.beside),
        ]
        self._service = Service(
            context,
            options,
            self._copy,
            self._preemptor,
            self._metrics,
            mutate.WebhookOptions(rules, options.scheduler, queue_label=options.queue_label),
            self._measure,
        )
        self._fragment_taints = FragmentTaints(context)
        self._service.denied = self._fragment_taints.denied
        self._authority = Authority(client, options, self._use, leads, self._newest_key)
        self._takeover = Takeover(client, options, self._reflectors[-1], self._authority)
        self._peer = Peer(self.leader, self._away, self._find)
        self._waker = Waker(context)
        self._options = options
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        page = Page(self._copy, options.page_token, self._who)
        self._server = HttpsServer(self._service, Router(self._service, self._peer), page)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT. Raises ClusterError if it cannot listen."""
        gc.disable()  # while the copy is read: repeated scans of the growing copy would take longer than reading it
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        _present(self._tls, certificates.renewed(certificates.Certificates(), self._options.names, 86_400, time.time()))
        await self._listen()
        jobs = [
            *(reflector.run() for reflector in self._reflectors),
            self.leader.run(),
            self._takeover.run(),
            self._peer.run(),
            self._authority.run(),
            self._events.run(),
            self._evictor.run(),
            self._mode_taints.run(),
            self._budgets.run(),
            self._preemptor.run(),
            *([self._fragment_taints.run()] if self._options.taint else []),
            self._waker.run(),
            self._server.connections.run(),
            self._tick(),
        ]
        tasks = [asyncio.create_task(job) for job in jobs]
        stop = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        await self._hand_over()
        await self._server.close()
        for task in (stop, *tasks):
            task.cancel()
        await asyncio.gather(stop, *tasks, return_exceptions=True)
        for task in done - {stop}:
            task.result()  # a job ends only by an exception, which ends the program

    async def _listen(self) -> None:
        options = self._options
        try:
            await self._server.listen(options.host, options.port, self._tls)
            if options.extender_port:
                await self._server.listen_loopback(options.extender_host, options.extender_port)
            if options.page_port:
                await self._server.listen_page(options.page_host, options.page_port)
        except OSError as e:
            raise ClusterError(Problem("GH-608", f"cannot listen: {e}; choose another --address")) from None
        LOG.info(f"listening on {options.host} port {options.port}")

    def _begin(self, term: int) -> None:
        """Called when we have taken the Lease. The takeover reads the last decisions of the leader before us."""
        self._takeover.begin(term)

    def _decides(self) -> bool:
        return self.leader.leads() and self._takeover.done

    async def _hand_over(self) -> None:
        """Resigns. Requests that still arrive are forwarded to the next leader."""
        led = self.leader.leads()
        if led and self._options.taint:
            await self._fragment_taints.clear()  # before we resign: afterwards the next leader owns the taints
        self.leader.resign()
        self._server.end_connections()
        if led:
            try:
                await asyncio.wait_for(self.leader.give_back(time.monotonic() - self._service.bound_at), GIVE_BACK)
            except asyncio.TimeoutError:
                LOG.warning("lease not given back: the API server does not answer")
        if self._options.pod:
            await asyncio.sleep(DRAIN)

    async def _find(self, identity: str) -> str:
        """The address of a leader whose version did not write it into the Lease (before the release of 0.1.0), by the pod name in
        its identity. "" if there is no such pod."""
        name = identity.rsplit("-", 2)[0]
        try:
            pod = await self._client.get(f"/api/v1/namespaces/{self._options.namespace}/pods/{quote(name, safe='')}")
        except ApiError as e:
            if e.status == 404:
                return ""
            raise
        return reached_at((pod.get("status") or {}).get("podIP") or "", self._options.host, self._options.port)

    async def _away(self, pod: str) -> None:
        """Evicts the pod of a leader whose machine is unreachable, which takes it out of the Service at once."""
        try:
            await self._evictor.evict(self._options.namespace, pod)
        except ApiError as e:
            LOG.warning(f"pod {pod} is not evicted: {e}")

    def _who(self) -> dict[str, Any]:
        """The leader, for the page."""
        return {
            "leads": self._decides(),
            "holder": self.leader.holder,
            "own": self._identity,
            "synced": self._synced(),
        }

    def _synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def _use(self, own: Own) -> None:
        _present(self._tls, own.certificates)
        before = self._service.own().secrets.generations
        self._service.use(own)
        self._peer.trust(own.certificates.bundle)
        if own.secrets.generations != before and not (before and self._decides()):
            self._reflectors[-1].relist()  # verifies decisions signed with the new keys

    def _verify(self, decision: Decision) -> bool:
        return self._service.signer.holds(decision)

    def _newest_key(self) -> int:
        return generations.believed(node.key for node in self._state.nodes.values()) if self._synced() else 0

    async def _tick(self) -> None:
        frozen = False
        while True:
            await asyncio.sleep(TICK)
            for pod in self._state.tick(time.monotonic()):
                await self._ask(pod.namespace, pod.name, pod.uid)
            if not frozen and self._synced():
                frozen = True
                end_of_loading()

    def _measure(self) -> None:
        for reflector in self._reflectors:
            self._metrics.set("lists", reflector.lists, reflector.kind.name)
        self._metrics.set("connections_cut", self._server.connections.cut)
        self._metrics.set("events", self._events.written, "written")
        self._metrics.set("events", self._events.book.dropped, "dropped")

    async def _ask(self, namespace: str, name: str, uid: str) -> None:
        """Reads a pod whose Binding we allowed long ago, to see whether it was bound."""
        try:
            with self._copy.beside.reading() as reading:
                text = await self._client.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
            pod = slim(decode(text, PODS.objects))
        except ApiError as e:
            if e.status == 404:
                self._copy.no_pod(uid)
            return
        if pod["metadata"]["uid"] != uid:
            self._copy.no_pod(uid)
        elif not (pod.get("spec") or {}).get("nodeName"):
            self._state.release(uid)
        elif reading.counts(uid):  # otherwise the watch has newer data, or a later tick reads it again
            self._copy.pod(pod)


def end_of_loading() -> None:
    """Excludes the copy from garbage collection: it lives as long as the process."""
    gc.collect()
    gc.freeze()
    gc.enable()


def rules_of(path: str) -> Rules:
    """Reads the rules from a file in the format of settings.yaml; the defaults without a file. Raises SettingsError GH-501."""
    try:
        data = Path(path).read_bytes() if path else b""
    except OSError as e:
        raise SettingsError(Problem("GH-501", f"{path}: {e.strerror}")) from None
    reading = node_settings.parse("", data, path)
    settings = node_settings.interpret("", reading)
    if reading.problems:
        raise SettingsError(*reading.problems)
    return settings.rules


def _present(tls: ssl.SSLContext, have: certificates.Certificates) -> None:
    """Sets the certificate for new connections. The ssl module reads files only."""
    with tempfile.NamedTemporaryFile() as both:  # mode 0600
        both.write((have.serving.certificate + have.serving.key).encode())
        both.flush()
        tls.load_cert_chain(both.name)


async def _main(options: ControllerOptions) -> None:
    rules = rules_of(options.settings)
    async with Client(kubeconfig.load([options.kubeconfig] if options.kubeconfig else [])) as client:
        await Controller(options, client, rules).run()


def run(options: ControllerOptions) -> None:
    """Runs until SIGTERM or SIGINT. Raises GhError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_main(options))
