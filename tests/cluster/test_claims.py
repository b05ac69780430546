"""GPU shares by ResourceClaims, on Kubernetes 1.36 or newer: docs/guide/claims.md as a user has it, real scheduler, kubelets and
containerd; no engine is configured."""

import collections
import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oci_hook.cli.main import cli
from testbed import REPO
from testbed.cluster import lab
from testbed.cluster.claims import BASE, CLI, DRIVER, Claims, pod, template
from testbed.cluster.node import SIMULATOR
from testbed.long import long

PAGE = REPO / "docs/guide/claims.md"
PROGRAMS = (DRIVER, "kubelet", "containerd")
MIB = 16384  # of a GPU
SIZES = [9001, 7000, 5003, 4001, 3007, 2503, 8191, 6101, 1009, 12007, 777, 10007, 3301, 2111, 997, 16384]
YAML = re.compile(r"^```yaml\n(apiVersion.*?)^```$", re.M | re.S)


@pytest.fixture(scope="module")
def made(runnable: None, native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Claims]:
    """GPU_HOOK_CLAIMS_CLUSTER=DIR: the --state of one that is up, or comes up there, and stays."""
    if lab.programs.minor() < 36:
        pytest.skip(
            "needs the programs of Kubernetes 1.36 or newer: GPU_HOOK_KUBERNETES=1.36, see scripts/cluster build --help"
        )
    given = os.environ.get("GPU_HOOK_CLAIMS_CLUSTER")
    claims = Claims(lab.Cluster(Path(given) if given else tmp_path_factory.mktemp("claims")))
    try:
        if not claims.cluster.exists:
            claims.up(tmp_path_factory.mktemp("image"))
        yield claims
    finally:
        if not given:
            claims.cluster.down()


@pytest.fixture
def claims(made: Claims) -> Iterator[Claims]:
    yield made
    made.clean()


@pytest.mark.promise
def test_the_page(claims: Claims) -> None:
    """Its manifest is applied as it is, after the two commands that the fixture runs."""
    page = PAGE.read_text()
    assert "gpu-hook.io/node=claims\nkubectl apply -k packaging/kubernetes/dra\n" in page
    (manifest,) = YAML.findall(page)
    claims.kubectl("apply", "-f", "-", input=manifest)
    claims.sees("demo", 4096)
    (claim,) = claims.objects("resourceclaims")
    node = claims.cluster.node(claim["status"]["allocation"]["devices"]["results"][0]["pool"])
    (grant,) = claims.grants(node)
    assert (grant["pod"], grant["name"], grant["gpus"][0]["memory_mib"], grant["gpus"][0]["compute"]) == (
        "demo",
        "main",
        4096,
        30,
    )
    env = claims.kubectl(
        "exec", "demo", "--", "sh", "-c", "echo $GPU_HOOK_MEMORY_MIB $NVIDIA_VISIBLE_DEVICES $GPU_HOOK_CLAIM"
    )
    assert env.split() == ["4096", grant["gpus"][0]["uuid"], f"default/{claim['metadata']['name']}"]


def gpu_hook(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), catch_exceptions=False)


def test_odd_sizes_fill_the_gpus_and_no_more(claims: Claims, tmp_path: Path) -> None:
    """Each pod that has a node runs with its amount; the ledgers are what the scheduler has allocated; the rest waits. --long: 60."""
    chance = random.Random(31)
    sizes = [chance.randint(300, 6000) for _ in range(60)] if long() else SIZES
    for number, size in enumerate(sizes):
        claims.apply(template(f"p{number}", f"{size}Mi"), pod(f"p{number}"))
    lab.wait(60, "each has been tried", lambda: all(p["status"].get("conditions") for p in claims.objects("pods")))
    last: list[str] = []

    def settled() -> bool:
        before = list(last)
        last[:] = sorted(p["metadata"]["name"] for p in claims.objects("pods") if p["spec"].get("nodeName"))
        time.sleep(2)
        return bool(last) and before == last

    lab.wait(120, "nothing more is placed", settled)
    for name in last:
        claims.sees(name, sizes[int(name[1:])])
    held: dict[str, int] = {}
    for node in claims.nodes:
        for grant in claims.grants(node):
            (gpu,) = grant["gpus"]
            assert gpu["memory_mib"] == sizes[int(grant["pod"][1:])]
            held[gpu["uuid"]] = held.get(gpu["uuid"], 0) + gpu["memory_mib"]
    assert sum(held.values()) == sum(sizes[int(name[1:])] for name in last) and max(held.values()) <= MIB
    waiting = [size for number, size in enumerate(sizes) if f"p{number}" not in last]
    assert waiting and all(size > MIB - used for size in waiting for used in (held.get(u, 0) for u in held))

    # What people are told agrees.
    kinds = "nodes,pods,resourceclaims,resourceslices,deviceclasses"
    dump = tmp_path / "dump.json"
    dump.write_text(claims.kubectl("get", kinds, "-A", "-o", "json"))
    rows = json.loads(gpu_hook("ps", "--cluster", "--json", "--dump", str(dump)).output)["pods"]
    assert {row["pod"]: (row["memory_mib"], row["uuid"] in held) for row in rows} == {
        name: (sizes[int(name[1:])], True) for name in last
    }
    name = next(f"p{number}" for number in range(len(sizes)) if f"p{number}" not in last)
    said = gpu_hook("explain", "--pod", name, "--json", "--dump", str(dump))
    data = json.loads(said.output)
    assert said.exit_code == 1 and data["problem"]["code"] == "GH-607", said.output
    free = {gpu["uuid"]: gpu["free_mib"] for node in data["nodes"] for gpu in node["gpus"]}
    assert free == {uuid: MIB - held.get(uuid, 0) for uuid in free} and held.keys() <= free.keys()


def test_what_is_wrong_is_an_event_with_its_code(claims: Claims) -> None:
    claims.apply(template("typo", "1Gi", words={"polcy": "fixed-share"}), pod("typo"))
    claims.apply(template("both", "1Gi", words={"exclusive": True}), pod("both"))
    claims.says("typo", "GH-102")
    claims.says("both", "GH-103")


def test_a_claim_keeps_its_finalizer_as_long_as_its_share(claims: Claims) -> None:
    """Who may edit it could delete it else, keep the share, and have the scheduler place others on the same room."""
    own = {**template("kept", "2Gi"), "kind": "ResourceClaim"}
    own["spec"] = own["spec"]["spec"]
    claims.apply(own, pod("kept", resourceClaims=[{"name": "gpu", "resourceClaimName": "kept"}]))
    claims.sees("kept", 2048)
    without = ("patch", "resourceclaim", "kept", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    with pytest.raises(RuntimeError, match="stays while the claim has a share of a GPU; delete the pod"):
        claims.kubectl(*without)
    claims.kubectl("delete", "resourceclaim", "kept", "--wait=false")
    with pytest.raises(RuntimeError, match="stays while the claim has a share"):
        claims.kubectl(*without)
    claims.kubectl("delete", "pod", "kept", "--grace-period=1")
    lab.wait(60, "the claim has gone by itself", lambda: not claims.objects("resourceclaims"))


def test_one_claim_for_two_pods_serves_one_at_a_time(claims: Claims) -> None:
    shared = template("one", "2Gi")
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one"},
        "spec": shared["spec"]["spec"],
    }
    use = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}
    claims.apply(claim, pod("first", **use))
    claims.sees("first", 2048)
    claims.apply(pod("second", **use))
    claims.says("second", "GH-611")
    claims.kubectl("delete", "pod", "first", "--grace-period=1")
    claims.sees("second", 2048)


def test_of_two_containers_with_one_claim_one_starts(claims: Claims) -> None:
    """The other one is refused until it has ended."""
    both = pod("two", command="gpu-probe info; sleep 15")
    main = both["spec"]["containers"][0]
    both["spec"]["containers"].append(
        {**main, "name": "other", "command": ["sh", "-c", "gpu-probe info; exec sleep 100000"]}
    )
    both["spec"]["restartPolicy"] = "OnFailure"
    claims.apply(template("two", "2Gi"), both)
    claims.says("two", "GH-611")
    lab.wait(180, "both have had it", lambda: " 2048 MiB total" in claims.kubectl("logs", "two", "-c", "other"))


def test_whole_gpus_by_the_extended_resource(claims: Claims) -> None:
    """Without any claim of the user's."""
    whole = pod("whole")
    del whole["spec"]["resourceClaims"]
    whole["spec"]["containers"][0]["resources"] = {"limits": {"gpu-hook.io/gpu": "1"}}
    claims.apply(whole)
    claims.sees("whole", MIB)
    (grant,) = [grant for node in claims.nodes for grant in claims.grants(node)]
    assert grant["pod"] == "whole" and grant["gpus"][0]["whole"]


def test_two_gpus_in_one_claim(claims: Claims) -> None:
    claims.apply(template("two", "3Gi", count=2), pod("two"))
    claims.sees("two", 3072)
    (grant,) = [grant for node in claims.nodes for grant in claims.grants(node)]
    assert [gpu["memory_mib"] for gpu in grant["gpus"]] == [3072, 3072]


def test_a_share_in_a_user_namespace(claims: Claims) -> None:
    look = "cat /proc/self/uid_map; gpu-probe info; exec sleep 100000"
    claims.apply(template("mapped", "3Gi"), pod("mapped", command=look, hostUsers=False))
    claims.sees("mapped", 3072)
    assert int(claims.log("mapped").split()[1]) >= 65536


def test_each_kind_of_request(claims: Claims, tmp_path: Path) -> None:
    """By firstAvailable, by CEL on attributes, by class, by constraints, of MIG devices; what fits nowhere waits."""
    node = claims.nodes[1]
    size = "device.capacity['gpu-hook.io'].memory.compareTo(quantity('{}'))"
    own = "device.attributes['gpu-hook.io']"
    small, large = (f"{own}.type == 'mig' && {size.format('8Gi')} {how} 0" for how in ("<", ">="))
    try:
        resplit(claims, node, 3, "--mig=3g.8gb,2g.4gb")
        choices = [
            ("big", "100Gi", {}),
            ("other", "1Gi", cel(f"{own}.productName == 'no such'")),
            ("small", "2Gi", cel(f"{own}.type == 'gpu'")),
        ]
        first = template("first")
        first["spec"]["spec"]["devices"]["requests"][0] = {
            "name": "gpu",
            "firstAvailable": [{"name": name, **share(memory), **more} for name, memory, more in choices],
        }
        second = cel(f"{own}.index == 1 && {own}.cudaComputeCapability.isGreaterThan(semver('1.0.0'))")
        asked = {
            "pair": (constrained(template("pair", "999Mi", count=2), matchAttribute="gpu-hook.io/productName"), 999),
            "whole": (template("whole", deviceClassName="gpu.gpu-hook.io"), MIB),
            "first": (first, 2048),
            "second": (template("second", "1003Mi", **second), 1003),
            "part": (template("part", "1001Mi", **cel(small)), 1001),
            "all": (template("all", **cel(large)), 8192),
            "no-two": (constrained(template("no-two", "1Gi", count=2), matchAttribute="gpu-hook.io/uuid"), 0),
            "second-8g": (template("second-8g", "8Gi", **cel(large)), 0),
        }
        for name, (made, mib) in asked.items():
            claims.apply(made, pod(name))
            if mib:
                claims.sees(name, mib)
        shares = {grant["pod"]: grant["gpus"] for each in claims.nodes for grant in claims.grants(each)}
        assert {name: [gpu["memory_mib"] for gpu in gpus] for name, gpus in shares.items()} == {
            name: [mib] * (1 + (name == "pair")) for name, (_, mib) in asked.items() if mib
        }
        assert {name for name, gpus in shares.items() if gpus[0]["whole"]} == {"whole", "all"}
        claims.says("no-two", "cannot allocate all claims")
        claims.says("second-8g", "cannot allocate all claims")
        kinds = "nodes,pods,resourceclaims,resourceslices,deviceclasses"
        (dump := tmp_path / "dump.json").write_text(claims.kubectl("get", kinds, "-A", "-o", "json"))
        rows = json.loads(gpu_hook("ps", "--cluster", "--json", "--dump", str(dump)).output)["pods"]
        assert {(row["pod"], row["uuid"]) for row in rows} == {
            (name, gpu["uuid"]) for name, gpus in shares.items() for gpu in gpus
        }
    finally:
        claims.clean()
        resplit(claims, node, 2)


def resplit(claims: Claims, node: lab.Node, devices: int, *mig: str) -> None:
    """Other GPUs in the node's place, as when an administrator makes MIG devices."""
    node.gpu_hook("sim", "up", f"--prefix={SIMULATOR}", "--gpus=2", "--memory=16Gi", *mig)
    node.machine.run(*CLI, "gpus", "--refresh")

    def published() -> bool:
        (spec,) = [one["spec"] for one in claims.objects("resourceslices") if one["spec"]["nodeName"] == node.name]
        return len(spec["devices"]) == devices

    lab.wait(60, f"{node.name} publishes {devices} devices", published)


def share(memory: str) -> Any:
    return {"deviceClassName": "gpu-share.gpu-hook.io", "capacity": {"requests": {"memory": memory}}}


def cel(expression: str) -> Any:
    return {"selectors": [{"cel": {"expression": expression}}]}


def constrained(made: Any, **constraint: str) -> Any:
    made["spec"]["spec"]["devices"]["constraints"] = [constraint]
    return made


def test_a_container_that_restarts_keeps_its_share(claims: Claims) -> None:
    claims.apply(template("again", "2Gi"), pod("again", command="gpu-probe info; sleep 3; exit 1"))
    path = "jsonpath={.status.containerStatuses[0].restartCount}"
    lab.wait(180, "it has restarted twice", lambda: claims.kubectl("get", "pod", "again", "-o", path) in ("2", "3"))
    claims.sees("again", 2048)


def test_kills_in_the_middle_lose_and_leave_nothing(claims: Claims) -> None:
    """SIGKILL of driver, kubelet and containerd on both nodes, while 8 pods that fill all GPUs come and while they go. --long: 100."""
    chance, kills = random.Random(31), collections.Counter[str]()
    began = time.monotonic()
    while kills.total() < (100 if long() else 8):
        come_and_go(claims, chance, kills)
        claims.clean()
        print(f"{time.monotonic() - began:5.0f} s  {kills.total()} kills: {dict(kills)}")


def come_and_go(claims: Claims, chance: random.Random, kills: collections.Counter[str]) -> None:
    names = [f"k{number}" for number in range(8)]
    claims.apply(*(made for name in names for made in (template(name, "7000Mi"), pod(name))))
    strike(claims, chance, kills)
    for name in names:
        claims.sees(name, 7000)
    grants = [grant for node in claims.nodes for grant in claims.grants(node)]
    assert sorted(grant["pod"] for grant in grants) == names
    allocated = {
        claim["metadata"]["ownerReferences"][0]["name"]: result["device"]
        for claim in claims.objects("resourceclaims")
        for result in claim["status"]["allocation"]["devices"]["results"]
    }
    assert {grant["pod"]: grant["gpus"][0]["uuid"].lower() for grant in grants} == allocated
    assert set(collections.Counter(allocated.values()).values()) == {2}
    claims.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=1")
    strike(claims, chance, kills)


def strike(claims: Claims, chance: random.Random, kills: collections.Counter[str]) -> None:
    """Three programs of each node, each as soon as the driver has begun something, or after a while of nothing."""

    def one(node: lab.Node, program: str, patience: float) -> None:
        folder = Path(f"/proc/{node.machine.pid}/root/run/gpu-hook/claims")
        pids, before, end = claims.pids(node, program), set(folder.glob("*")), time.monotonic() + patience
        while set(folder.glob("*")) == before and time.monotonic() < end:
            time.sleep(0.0005)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
                kills[program] += 1
        if program != DRIVER:
            node.stop(program)
            node.start(program)

    def both(node: lab.Node, plan: list[tuple[str, float]]) -> None:
        for program, patience in plan:
            one(node, program, patience)

    plans = [[(p, chance.uniform(0, 4)) for p in chance.choices(PROGRAMS, k=3)] for _ in claims.nodes]
    with ThreadPoolExecutor() as pool:
        list(pool.map(both, claims.nodes, plans))


def test_delete_leaves_nothing(made: Claims) -> None:
    """The last test of this file."""
    made.clean()
    made.kubectl("delete", "-k", str(BASE), timeout=240)
    left = "ls -d /opt/gpu-hook /opt/gpu-hook-cli /var/lib/kubelet/plugins/gpu-hook.io /run/gpu-hook/claims 2>/dev/null || true"
    for node in made.nodes:

        def gone(node: lab.Node = node) -> bool:
            return not node.machine.run("sh", "-c", left).stdout

        lab.wait(120, f"{node.name} has nothing of gpu-hook", gone)
    lab.wait(90, "no slice is left", lambda: not made.objects("resourceslices"))
    made.install()
