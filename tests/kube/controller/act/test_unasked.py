"""Online pods for which the scheduler never calls the extender: a bounded number at a time, in turn."""

import asyncio

import pytest
from aiohttp import web

from oci_hook.kube.controller.act import unasked
from oci_hook.kube.controller.act.unasked import ASKED_AT_A_TIME, Unasked
from oci_hook.kube.controller.act.wanting import Wanting
from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.preemption import preempt
from oci_hook.kube.preemption.preempt import PreemptionTerms
from tests.kube.cluster_objects import cluster, node, pod
from tests.kube.controller.parts import context


def test_a_pod_that_cannot_be_read_does_not_end_the_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(question: Question) -> bool:
        if question.pod.name == "bad":
            raise ZeroDivisionError
        return True

    monkeypatch.setattr(unasked, "online", read)
    state = cluster(node("a", 100))
    for name in ("bad", "good"):
        state.apply_pod(pod(name, memory=10))
    looks = unasked.Unasked(context(None, state), Wanting(), preempt.PreemptionTerms(equal_offline=True))
    asyncio.run(looks.look(0.0))
    asyncio.run(looks.look(1.0))
    assert {uid: seen.online for uid, seen in looks._seen.items()} == {"u-bad": False, "u-good": True}
    assert [line.split(":")[0] for line in caplog.messages] == ["default/bad"]


def test_a_namespace_of_many_pods_does_not_keep_others_from_being_asked_about() -> None:
    state = ClusterState()
    for n in range(1000):
        obj = pod(f"p{n}", memory=10, **{"class": "online"})
        obj["metadata"]["namespace"] = "flood" if n else "first"
        state.apply_pod(obj)
    late = pod("q", memory=10, **{"class": "online"})
    late["metadata"]["namespace"] = "team"
    state.apply_pod(late)
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"code": 404}, status=404)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Credential(url, token="x")) as client:
            unasked = Unasked(context(client, state, ("flood", "first", "team")), Wanting(), PreemptionTerms())
            for second in (0.0, 5.0):
                await unasked.look(second)

    asyncio.run(run())
    assert "/api/v1/namespaces/team/pods/q" in asked and len(asked) == ASKED_AT_A_TIME
