"""The driver's real process, called by grpcio as by the kubelet: registration, prepare, unprepare, containers, kills."""

import errno
import json
import os
import random
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from oci_hook.core.layout import UNLISTED
from oci_hook.discovery.save import save_inventory
from oci_hook.kube.dra import grpc_server
from oci_hook.kube.dra.kubelet_messages import ClaimName
from oci_hook.kube.dra.prepare import HIDDEN, ClaimPreparer
from oci_hook.kube.link import kubeconfig
from oci_hook.linux.proc import process_life
from testbed.containers import Bundle, Runc
from testbed.engines.cri import decode
from testbed.engines.dra_calls import SERVICE, answers, asked
from testbed.installs import MEMORY_MIB, UUIDS, Install
from testbed.until import until
from tests.kube.dra.node import DEEP, DEVICES, NODE, ApiServer, DraNode, result
from tests.kube.link.test_api import Server, pki  # noqa: F401

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ONE, TWO = "11111111-aaaa-4000-8000-000000000001", "22222222-bbbb-4000-8000-000000000002"
THREE = "33333333-cccc-4000-8000-000000000003"
Pki = dict[str, tuple[Path, Path]]


@pytest.fixture
def node(prefix: Install, pki: Pki, tmp_path: Path) -> Iterator[DraNode]:  # noqa: F811
    http = Server(*pki["ours"])
    made = DraNode(prefix, ApiServer(http), pki["ours"], tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.kill()
        http.close()
        shutil.rmtree(made.kubelet)


def test_it_registers_with_both_versions(node: DraNode) -> None:
    info = dict(decode(node.call("/pluginregistration.Registration/GetInfo", b"", node.registration)))
    assert info == {
        1: [b"DRAPlugin"],
        2: [b"gpu-hook.io"],
        3: [str(node.socket).encode()],
        4: [b"v1.DRAPlugin", b"v1beta1.DRAPlugin"],
    }
    assert node.call("/pluginregistration.Registration/NotifyRegistrationStatus", b"\x08\x01", node.registration) == b""
    for path in (node.socket, node.registration):
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_claim_becomes_a_grant_and_goes(node: DraNode, version: str) -> None:
    node.api.claim(ONE, result("8Gi", "30", shareID="s-1"))
    ids, error = node.prepare(ONE, version=version)
    assert (ids, error) == ([f"gpu-hook.io/claim={ONE}-0"], "")
    (grant,) = node.install.grants()
    (share,) = grant.shares
    assert (share.uuid, share.memory_mib, share.compute) == (UUIDS[0], 8192, 30)
    assert (grant.who.namespace, grant.who.pod, grant.who.pod_uid) == ("default", "p1", "9-9")
    again = node.prepare(ONE, version=version)
    assert again == (ids, "") and node.install.grants() == (grant,)
    assert node.unprepare(ONE, version=version) == "" and node.nothing_left()
    assert node.unprepare(ONE, version=version) == ""


def test_the_answer_names_request_pool_device_and_share(node: DraNode) -> None:
    node.api.claim(ONE, result(request="a/big", shareID="s-1"), result(gpu=1, request="b"))
    answer = node.call(SERVICE.format("v1", "NodePrepareResources"), asked(("default", ONE, "c1")))
    [(_, found)] = answers(answer)
    first, second = (dict(decode(device)) for device in found[1])
    assert first == {
        1: [b"a"],
        2: [NODE.encode()],
        3: [DEVICES[0].encode()],
        4: [f"gpu-hook.io/claim={ONE}-0".encode()],
        5: [b"s-1"],
    }
    assert second[3] == [DEVICES[1].encode()] and second[1] == [b"b"] and 5 not in second
    (grant,) = node.install.grants()
    assert [share.uuid for share in grant.shares] == list(UUIDS)


def test_each_claim_has_an_answer(node: DraNode) -> None:
    """One is good, one is unknown, one has no room beside the first."""
    node.api.claim(ONE, result("20Gi"))
    node.api.claim(TWO, result("8Gi"), name="c2")
    call = SERVICE.format("v1", "NodePrepareResources")
    found = dict(
        answers(node.call(call, asked(("default", ONE, "c1"), ("default", "3-3", "no"), ("default", TWO, "c2"))))
    )
    assert 2 not in found[ONE] and found[ONE][1]
    assert found["3-3"][2][0].startswith(b"GH-610: ")
    assert found[TWO][2][0].startswith(b"GH-201: ")
    assert [grant.who.id for grant in node.install.grants()] == [ONE]
    assert node.unprepare(TWO) == node.unprepare("3-3") == "" and node.unprepare(ONE) == "" and node.nothing_left()


def test_what_is_wrong_is_refused_and_leaves_nothing(node: DraNode) -> None:
    share = {"apiVersion": "gpu-hook.io/v1", "kind": "Share"}

    def config(**words: Any) -> list[dict[str, Any]]:
        return [{"source": "FromClaim", "opaque": {"driver": "gpu-hook.io", "parameters": {**share, **words}}}]

    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    cases: list[tuple[str, dict[str, Any], Any]] = [
        ("GH-610", result(pool="n2"), None),
        ("GH-202", result(device="gpu-that-left"), None),
        ("GH-102", result(adminAccess=True), None),
        ("GH-101", result(memory="many"), None),
        ("GH-101", result(compute="1500m"), None),
        ("GH-102", result(), config(polcy="fixed-share")),
        ("GH-102", result(), config(memory="1Gi")),
        ("GH-102", result(), config(**{"apart-from": "web"})),
        ("GH-101", result(compute="30"), config(policy="no-such")),
        ("GH-101", result(), config(policy=deep)),
        ("GH-101", result(), config(policy=DEEP)),
        ("GH-101", result(), config(policy={"a": 1})),
        ("GH-103", result(), config(exclusive=True)),
        ("GH-101", result(), [{"opaque": {"driver": "gpu-hook.io", "parameters": [1, 2]}}]),
        ("GH-105", result(compute="30"), config(policy="x" * 70000)),
        ("GH-610", {**result(), "driver": "other.io"}, None),
    ]
    for code, given, words in cases:
        node.api.claim(ONE, given, config=words)
        ids, error = node.prepare(ONE)
        assert error.startswith(code) and "\n" not in error and len(error) < 1000, (code, error)
        assert ids == [] and node.nothing_left()
    node.api.claim(ONE, result(), config=config(policy="fixed-share"))
    said = node.prepare(ONE)[1]  # in the words of the claim, not in those that they are translated to
    assert said.startswith("GH-103: policy='fixed-share' and capacity.requests contradict each other: "), said
    node.api.claim(ONE, result(), result(memory="1Gi", request="two"))
    assert node.prepare(ONE)[1].startswith("GH-103")  # twice the same GPU
    node.api.claim(ONE, result())
    node.api.claims["default/c1"]["metadata"]["uid"] = TWO
    assert node.prepare(ONE)[1].startswith("GH-610")
    for shape in (
        [],
        {"metadata": []},
        {"metadata": {"uid": ONE}, "status": {"allocation": [1]}},
        {"status": 3},
        "text",
        None,
    ):
        node.api.claims["default/c1"] = shape  # type: ignore[assignment]
        assert node.prepare(ONE)[1].startswith("GH-610"), shape
    for uid, name, namespace in (
        ("../../x", "c1", "default"),
        (ONE, "..", "default"),
        (ONE, "c1", ""),
        ("", "c1", "default"),
    ):
        assert node.prepare(uid, name, namespace=namespace)[1].startswith("GH-610")
    node.api.down = True
    assert node.prepare(ONE)[1].startswith("GH-608")
    assert node.nothing_left()


def test_words_of_the_claim_replace_those_of_its_class(node: DraNode) -> None:
    def entry(**words: Any) -> dict[str, Any]:
        parameters = {"apiVersion": "gpu-hook.io/v1", "kind": "Share", **words}
        return {"opaque": {"driver": "gpu-hook.io", "parameters": parameters}}

    other = {"opaque": {"driver": "other.io", "parameters": {"any": "thing"}}}
    not_ours = {**entry(policy="best-effort"), "requests": ["another"]}
    config = [entry(policy="fixed-share"), other, entry(policy="burst-share", **{"compute-limit": 60}), not_ours]
    node.api.claim(ONE, result(compute="30"), config=config)
    assert node.prepare(ONE)[1] == ""
    (grant,) = node.install.grants()
    assert grant.terms.policy == "burst-share" and grant.shares[0].compute_limit == 60


def test_all_of_the_memory_is_the_whole_gpu(node: DraNode) -> None:
    node.api.claim(ONE, result(f"{MEMORY_MIB}Mi"))
    assert node.prepare(ONE)[1] == ""
    (grant,) = node.install.grants()
    assert grant.exclusive and grant.shares[0].whole
    assert node.unprepare(ONE) == ""
    node.api.claim(ONE, {**result(), "consumedCapacity": None})
    assert node.prepare(ONE)[1] == "" and node.install.grants()[0].exclusive


def test_a_bad_client_harms_nobody(node: DraNode) -> None:
    call = SERVICE.format("v1", "NodePrepareResources")
    for message in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\x12\xff", os.urandom(200), b"\x08\x01"):
        with pytest.raises(grpc.RpcError) as caught:
            node.call(call, message)
        assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)
    with pytest.raises(grpc.RpcError):
        node.call(call, b"\x0a" + b"x" * (2 << 20))
    with pytest.raises(grpc.RpcError) as caught:
        node.call("/no.Such/Method", b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), b""):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(node.socket))
            raw.sendall(data)
    node.api.claim(ONE, result())
    assert node.prepare(ONE)[1] == ""


def test_a_failed_accept_does_not_end_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepts = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ECONNABORTED, "aborted")]
    starts = [RuntimeError("can't start new thread")] * grpc_server.MAX_CONNECTIONS
    accept, start = socket.socket.accept, threading.Thread.start

    def accepted(listener: socket.socket) -> Any:
        if accepts:
            raise accepts.pop()
        return accept(listener)

    def started(thread: threading.Thread) -> None:
        if starts and not thread.name.startswith("listen "):
            raise starts.pop()
        start(thread)

    monkeypatch.setattr(socket.socket, "accept", accepted)
    monkeypatch.setattr(threading.Thread, "start", started)
    server = grpc_server.GrpcServer(f"{tmp_path}/s", {})
    (listener,) = (thread for thread in threading.enumerate() if thread.name == f"listen {tmp_path}/s")
    for served in [False] * grpc_server.MAX_CONNECTIONS + [True]:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(server.path)
            assert bool(client.recv(9)) == served
    assert not accepts and not starts
    server.close()
    listener.join(20)
    assert not listener.is_alive()


# ---- containers ----


def test_a_container_has_the_claims_share(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    node.api.claim(ONE, result("8Gi", "30"))
    assert node.prepare(ONE)[1] == ""
    folder = node.container(bundle, ONE)
    done = runc.create(folder)
    assert done.returncode == 0, done.stderr
    (grant,) = node.install.grants()
    assert (
        grant.who.id == runc.ids[-1]
        and grant.life.init == resource_claims_life(runc)
        and grant.shares[0].memory_mib == 8192
    )
    env = json.loads((folder / "config.json").read_text())["process"]["env"]
    assert {f"NVIDIA_VISIBLE_DEVICES={UUIDS[0]}", "GPU_HOOK_MEMORY_MIB=8192", "GPU_HOOK_COMPUTE=30"} <= set(env)
    mounts = Path(f"/proc/{runc.pid(runc.ids[-1])}/mountinfo").read_text()
    assert "/run/gpu-hook/policy" in mounts and "libcuda.so.1" in mounts
    assert node.unprepare(ONE).startswith("GH-407")  # its container lives
    assert [g.key for g in node.install.grants()] == [grant.key]
    runc("delete", "--force", runc.ids[-1])
    assert node.unprepare(ONE) == "" and node.nothing_left()


def resource_claims_life(runc: Runc) -> tuple[int, int] | None:
    return process_life(runc.pid(runc.ids[-1]))


def test_one_container_after_the_other_has_it_and_never_two(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    node.api.claim(ONE, result("20Gi"))
    assert node.prepare(ONE)[1] == ""
    first = node.install.grants()[0]
    for _ in range(2):
        assert runc.create(node.container(bundle, ONE)).returncode == 0
        living = runc.ids[-1]
        refused = runc.create(node.container(bundle, ONE))
        assert refused.returncode and "GH-611" in refused.stderr
        assert node.install.grants()[0].who.id == living
        runc("delete", "--force", living)
        (grant,) = node.install.grants()  # it waits anew, and nobody else gets its room meanwhile
        assert grant.who.id == ONE and grant.key == first.key and grant.born != first.born
    assert node.unprepare(ONE) == "" and node.nothing_left()


def test_of_two_containers_with_the_extended_resource_the_second_is_told_what_to_write(
    node: DraNode, bundle: Bundle, runc: Runc
) -> None:
    """Kubernetes names the requests of a pod's one claim so."""
    node.api.claim(ONE, *(result("24Gi", gpu=n, request=f"container-{n}-request-0") for n in (0, 1)))
    assert node.prepare(ONE)[1] == ""
    assert runc.create(node.container(bundle, ONE)).returncode == 0
    refused = runc.create(node.container(bundle, ONE))
    assert "GH-611" in refused.stderr and "not gpu-hook.io/gpu in several containers" in refused.stderr


def test_a_container_that_was_killed_without_poststop_gives_back(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    node.api.claim(ONE, result("20Gi"))
    assert node.prepare(ONE)[1] == ""
    folder = node.container(bundle, ONE)
    config = json.loads((folder / "config.json").read_text())
    del config["hooks"]["poststop"]
    (folder / "config.json").write_text(json.dumps(config))
    assert runc.create(folder).returncode == 0
    os.kill(runc.pid(runc.ids[-1]), signal.SIGKILL)
    until(lambda: [g.who.id for g in node.install.grants()] == [ONE], "it waits anew")
    assert runc.create(node.container(bundle, ONE)).returncode == 0


def test_a_refused_container_leaves_the_claim_as_it_was(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    node.api.claim(ONE, result("20Gi"))
    assert node.prepare(ONE)[1] == ""
    before = node.install.grants()
    cri = {"io.kubernetes.cri.sandbox-namespace": "another"}
    for annotations, code in (({"gpu-hook.io/memory": "1Gi"}, "GH-612"), (cri, "GH-610")):
        done = runc.create(node.container(bundle, ONE, annotations))
        assert done.returncode and code in done.stderr, done.stderr
        assert node.install.grants() == before
    done = runc.create(node.container(bundle, ONE))
    assert done.returncode == 0
    runc("delete", "--force", runc.ids[-1])
    folder = node.container(bundle, ONE)
    assert node.unprepare(ONE) == ""
    done = runc.create(folder)  # a CDI file that is not there any more, or forged
    assert done.returncode and "GH-610" in done.stderr and node.nothing_left()


def test_who_may_write_to_its_cgroups_gets_no_boundary_driver(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    gpus = tuple(gpu.replace(no_limits="") for gpu in node.install.inventory.gpus)
    save_inventory(node.install.settings, node.install.inventory.replace(gpus=gpus))
    words = {"apiVersion": "gpu-hook.io/v1", "kind": "Share", "boundary": "driver"}
    node.api.claim(ONE, result(), config=[{"opaque": {"driver": "gpu-hook.io", "parameters": words}}])
    assert node.prepare(ONE)[1] == ""
    before = node.install.grants()
    folder = node.container(bundle, ONE)
    config = json.loads((folder / "config.json").read_text())
    config["mounts"].append({"destination": "/cg", "type": "none", "source": "/sys/fs/cgroup", "options": ["rbind"]})
    (folder / "config.json").write_text(json.dumps(config))
    done = runc.create(folder)
    assert done.returncode and "GH-414" in done.stderr and "write to its cgroups at /cg" in done.stderr, done.stderr
    assert node.install.grants() == before


def test_a_claim_whose_gpu_left_the_node(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    node.api.claim(ONE, result())
    assert node.prepare(ONE)[1] == ""
    before = node.install.grants()
    save_inventory(node.install.settings, node.install.inventory.replace(gpus=node.install.inventory.gpus[1:]))
    done = runc.create(node.container(bundle, ONE))
    assert done.returncode and f"GH-610: ResourceClaim default/c1 has a share of GPU {UUIDS[0]}" in done.stderr, done
    assert node.install.grants() == before


def test_two_claims_in_one_container_are_refused(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    node.api.claim(ONE, result())
    node.api.claim(TWO, result(gpu=1), name="c2")
    assert node.prepare(ONE)[1] == node.prepare(TWO, "c2")[1] == ""
    folder = node.container(bundle, ONE)
    config = json.loads((folder / "config.json").read_text())
    second = json.loads((node.container(bundle, TWO) / "config.json").read_text())
    for stage in ("createRuntime", "poststop"):
        config["hooks"][stage] += second["hooks"][stage]
    (folder / "config.json").write_text(json.dumps(config))
    done = runc.create(folder)
    assert done.returncode and "GH-611" in done.stderr
    until(lambda: sorted(g.who.id for g in node.install.grants()) == [ONE, TWO], "both wait")


def test_annotations_ask_in_vain_on_such_a_node(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    done = runc.create(bundle({"gpu-hook.io/memory": "1Gi"}), node.install)
    assert done.returncode and "GH-612" in done.stderr and node.install.grants() == ()


def test_through_our_own_handler_it_is_the_same(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    """A RuntimeClass with the handler gpu-hook, also where the environment asks."""
    node.install.set(trust_env=True)
    node.api.claim(ONE, result())
    assert node.prepare(ONE)[1] == ""
    done = runc.create(node.container(bundle, ONE), node.install)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert node.install.grants()[0].who.id == runc.ids[-1]


# ---- kills ----


def test_a_driver_killed_at_any_time_leaves_and_loses_nothing(node: DraNode) -> None:
    """SIGKILL while claims are prepared and unprepared. The kubelet asks again; afterwards all is there, or nothing."""
    rng = random.Random(7)
    node.api.claim(ONE, result("20Gi"))
    for turn in range(12):
        pause = rng.uniform(0, 0.05)
        assert node.process is not None
        killer = threading.Timer(pause, node.process.kill)
        killer.start()
        call = node.prepare if turn % 2 == 0 else node.unprepare
        try:
            call(ONE)
        except grpc.RpcError:
            pass
        killer.join()
        node.kill()
        node.start()
        if turn % 2 == 0:
            assert node.prepare(ONE)[1] == ""
            assert [g.who.id for g in node.install.grants()] == [ONE] and node.file(ONE)
        else:
            assert node.unprepare(ONE) == "" and node.nothing_left()


def test_a_new_process_repairs(node: DraNode) -> None:
    node.api.claim(ONE, result("20Gi"))
    node.api.claim(TWO, result(gpu=1), name="c2")
    assert node.prepare(ONE)[1] == node.prepare(TWO, "c2")[1] == ""
    node.kill()
    (node.cdi / f"gpu-hook.io-claim-{ONE}.json").unlink()
    (node.cdi / "gpu-hook.io-claim-3-3.json").write_text("{}")
    (node.cdi / "other.json").write_text("{}")
    (node.install.state / f"claims/{TWO}.json").rename(node.install.state / f"claims/{TWO}.json.tmp")
    (node.cdi / f"gpu-hook.io-claim-{TWO}.json.5.new").write_text("{")
    node.start()
    until(lambda: (node.cdi / f"gpu-hook.io-claim-{ONE}.json").exists(), "the CDI file is back")
    until(lambda: [g.who.id for g in node.install.grants()] == [ONE], "what has no record has gone")
    assert sorted(path.name for path in node.cdi.iterdir()) == [f"gpu-hook.io-claim-{ONE}.json", "other.json"]
    assert [path.name for path in (node.install.state / "claims").iterdir()] == [f"{ONE}.json"]


def test_claims_that_the_api_server_has_no_more_go(node: DraNode) -> None:
    node.api.claim(ONE, result("20Gi"))
    assert node.prepare(ONE)[1] == ""
    node.kill()
    node.api.claims.clear()
    node.start()
    until(lambda: node.install.grants() == (), "it has gone")
    assert node.nothing_left()


@pytest.mark.parametrize(
    ("record", "said"), [("x", "cannot be read"), ("[99, {}]", "cannot be read (made by another version)")]
)
def test_a_record_that_cannot_be_read_hides_no_other_and_is_written_anew(
    node: DraNode, tmp_path: Path, record: str, said: str
) -> None:
    for number, uid in enumerate((ONE, TWO)):
        node.api.claim(uid, result("20Gi", gpu=number), name=f"c{number}")
        assert node.prepare(uid, f"c{number}")[1] == ""
    node.kill()
    file = node.install.state / f"claims/{ONE}.json"
    file.write_text(record)
    del node.api.claims["default/c1"]
    claims = ClaimPreparer(
        str(node.install.prefix), NODE, kubeconfig.load([str(tmp_path / "kubeconfig")]), str(node.cdi)
    )
    assert f"{file} {said}" in claims.forget_deleted(0.0)
    assert [grant.who.id for grant in node.install.grants()] == [ONE], "the other claim is no more"
    assert claims.prepare([ClaimName("default", ONE, "c0")])[ONE].error == ""
    assert claims.forget_deleted(1.0) == "" and len(node.install.grants()) == 1
    claims._idle[0].close()


def test_claims_that_no_pod_of_the_node_uses_go_unless_a_container_has_them(
    node: DraNode, bundle: Bundle, runc: Runc, tmp_path: Path
) -> None:
    """The node authorizer hides them from the kubelet, and all of them while it starts."""
    for number, uid in enumerate((ONE, TWO)):
        node.api.claim(uid, result("20Gi", gpu=number), name=f"c{number}")
        assert node.prepare(uid, f"c{number}")[1] == ""
    assert runc.create(node.container(bundle, TWO)).returncode == 0
    node.kill()
    claims = ClaimPreparer(
        str(node.install.prefix), NODE, kubeconfig.load([str(tmp_path / "kubeconfig")]), str(node.cdi)
    )
    shows, hides = node.api.http.answer, lambda *_: (403, b"{}")
    for now, answer, held in (
        (0.0, hides, 2),
        (HIDDEN - 1, shows, 2),
        (HIDDEN, hides, 2),
        (2 * HIDDEN - 1, hides, 2),
        (2 * HIDDEN, hides, 1),
    ):
        node.api.http.answer = answer
        assert claims.forget_deleted(now) == "" and len(node.install.grants()) == held
    assert node.file(TWO) and node.install.grants()[0].who.id == runc.ids[-1]


def test_a_claim_is_not_given_up_for_a_few_refusals(node: DraNode, tmp_path: Path) -> None:
    """Two looks say nothing of the time between them, and a server that does not answer may be a new one then."""
    node.api.claim(ONE, result("20Gi"))
    assert node.prepare(ONE)[1] == ""
    node.kill()
    claims = ClaimPreparer(
        str(node.install.prefix), NODE, kubeconfig.load([str(tmp_path / "kubeconfig")]), str(node.cdi)
    )
    for now, status, held in (
        (0.0, 403, True),
        (HIDDEN, 403, True),
        (HIDDEN + 1, 503, True),
        (HIDDEN + 2, 403, True),
        (HIDDEN + 3, 403, True),
        (2 * HIDDEN + 1, 403, True),
        (2 * HIDDEN + 2, 403, False),
    ):
        node.api.http.answer = lambda *_, status=status: (status, b"{}")
        assert bool(claims.forget_deleted(now)) == (status == 503)
        assert bool(node.install.grants()) == held and claims.is_hidden == (status == 403 and held), now


def test_gpus_of_claims_that_were_deleted_under_their_containers_are_tainted(
    node: DraNode, bundle: Bundle, runc: Runc
) -> None:
    """A tenant may take the finalizer from its claim and delete it: the scheduler then takes the GPU for free. As soon as that
    has cost one pod its place, all such GPUs are looked for."""
    until(lambda: node.api.slices, "it is published")
    for number, uid in enumerate((ONE, TWO)):
        node.api.claim(uid, result("20Gi", gpu=number), name=f"c{number}")
        assert node.prepare(uid, f"c{number}")[1] == ""
        assert runc.create(node.container(bundle, uid)).returncode == 0
    node.api.claims.clear()
    node.api.claim(THREE, result("20Gi"))
    assert node.prepare(THREE)[1].startswith("GH-201")
    taint = [{"key": "gpu-hook.io/taken", "effect": "NoSchedule"}]
    until(lambda: taints(node) == [taint, taint], "both are tainted")
    for id in runc.ids:
        runc("delete", "--force", id)
    until(lambda: taints(node) == [None, None], "none is")
    assert node.prepare(THREE)[1] == ""


def test_withdraw_removes_all(node: DraNode) -> None:
    node.api.claim(ONE, result("20Gi"))
    until(lambda: node.api.slices, "it is published")
    assert node.prepare(ONE)[1] == ""
    node.kill()
    node.withdraw()
    assert node.nothing_left() and not node.api.slices
    assert not node.socket.exists() and not node.registration.exists() and not node.socket.parent.exists()


# ---- the slice ----


def taints(node: DraNode) -> list[Any]:
    ((_, found),) = node.api.slices.items()
    return [device.get("taints") for device in found["spec"]["devices"]]


def test_the_slice_is_written_once_and_comes_back(node: DraNode) -> None:
    until(lambda: node.api.slices, "it is published")
    ((name, found),) = node.api.slices.items()
    assert (
        found["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        and found["spec"]["nodeName"] == NODE
    )
    assert [device["name"] for device in found["spec"]["devices"]] == list(DEVICES)
    assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    lists = len(node.api.http.asked)
    until(lambda: len(node.api.http.asked) > lists + 20, "it has looked again and again")
    node.kill()
    node.start()
    lists = len(node.api.http.asked)
    until(lambda: len(node.api.http.asked) > lists + 20, "the new process has looked")
    assert node.api.writes == ["POST"]
    node.api.slices.clear()  # as the kubelet does
    until(lambda: node.api.slices, "it is back")
    ((name, found),) = node.api.slices.items()
    found["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Gi"  # by somebody else
    until(
        lambda: node.api.slices[name]["spec"]["devices"][0]["capacity"]["memory"]["value"] == "24Gi", "it is as it was"
    )
    assert node.api.slices[name]["spec"]["pool"]["generation"] == 2


def test_a_node_with_many_devices_has_several_slices(node: DraNode) -> None:
    """All of one generation, and their number in each: the scheduler waits for all."""

    def pools() -> list[tuple[int, int, int]]:
        specs = [found["spec"] for found in list(node.api.slices.values())]
        pools = [(spec["pool"], len(spec["devices"])) for spec in specs]
        return sorted((pool["generation"], pool["resourceSliceCount"], devices) for pool, devices in pools)

    until(lambda: node.api.slices, "it is published")
    inventory = node.install.inventory
    for count, devices in ((130, [2, 64, 64]), (100, [36, 64]), (2, [2])):
        gpus = tuple(inventory.gpus[0].replace(uuid=f"GPU-{n}") for n in range(count))
        save_inventory(node.install.settings, inventory.replace(gpus=gpus))
        until(lambda d=devices: [one for _, _, one in pools()] == d, "all are published")  # type: ignore[misc]
        until(lambda d=devices: {(len(d), pools()[-1][0])} == {(c, g) for g, c, _ in pools()}, "they are a pool")  # type: ignore[misc]
        names = [one["name"] for found in node.api.slices.values() for one in found["spec"]["devices"]]
        assert sorted(names) == sorted(f"gpu-{n}" for n in range(count))
        writes, asked = len(node.api.writes), len(node.api.http.asked)
        until(lambda n=asked: len(node.api.http.asked) > n + 20, "it has looked again and again")  # type: ignore[misc]
        assert len(node.api.writes) <= writes + count // 64 + 1  # once more where a new name sorts before an old one


def test_a_gpu_that_others_use_is_tainted(node: DraNode, bundle: Bundle, runc: Runc) -> None:
    """As by a container that ran before the setting changed."""
    until(lambda: node.api.slices, "it is published")
    node.install.set(cluster="off")
    assert runc.create(bundle({"gpu-hook.io/memory": "8Gi", "gpu-hook.io/devices": "1"}), node.install).returncode == 0
    node.install.set(cluster="dra")

    until(
        lambda: taints(node) == [None, [{"key": "gpu-hook.io/taken", "effect": "NoSchedule"}]], "the second is tainted"
    )
    node.api.claim(ONE, result("20Gi", gpu=1))
    assert node.prepare(ONE)[1].startswith("GH-201")
    runc("delete", "--force", runc.ids[-1])
    until(lambda: taints(node) == [None, None], "none is")
    assert node.prepare(ONE)[1] == ""
    found = {"agent": process_life(os.getpid()), "mib": {UUIDS[0]: 2000}}  # as the agent writes it
    (node.install.state / UNLISTED).write_text(json.dumps(found))
    until(lambda: taints(node) == [[{"key": "gpu-hook.io/taken", "effect": "NoSchedule"}], None], "the first is")
