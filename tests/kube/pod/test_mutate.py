"""The create webhook's decision: the annotations, sums, tolerations and selectors for each dialect, and its refusals."""

import copy
import json
import time
from typing import Any

import pytest
import yaml

from oci_hook.core import dialects
from oci_hook.core.request import parse
from oci_hook.core.rules import Rules
from oci_hook.errors import GhError
from oci_hook.kube.formats import names
from oci_hook.kube.pod.asked import asked, words
from oci_hook.kube.pod.mutate import Mutation, WebhookOptions, mutate

RULES = Rules(dialects=dialects.NAMES, qgpu_memory_unit="GiB")
OPTIONS = WebhookOptions(RULES)
TOLERATION = {"key": names.T9K_TAINT, "operator": "Exists", "effect": "NoSchedule"}


def pod(*limits: dict[str, str], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{n}", "image": "x", "resources": {"limits": dict(one)}} for n, one in enumerate(limits)]
    return {"metadata": {"name": "p", "annotations": annotations or {}}, "spec": {"containers": containers, **spec}}


def apply(given: dict[str, Any], done: Mutation) -> dict[str, Any]:
    """The pod after the API server has applied the patch."""
    result: dict[str, Any] = copy.deepcopy(given)
    for operation in done.patch:
        *parents, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
        at: Any = result
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if operation["op"] == "remove":
            del at[last]
        else:
            at[last] = operation["value"]
    return result


def mutated(given: dict[str, Any], options: WebhookOptions = OPTIONS) -> dict[str, Any]:
    before = copy.deepcopy(given)
    done = mutate(given, options)
    assert given == before, "the pod that came was changed"
    assert done.asks
    return apply(given, done)


def refused(given: dict[str, Any], options: WebhookOptions = OPTIONS) -> str:
    with pytest.raises(GhError) as caught:
        mutate(given, options)
    return str(caught.value)


def amounts(done: dict[str, Any], container: int = 0) -> dict[str, str]:
    resources = done["spec"]["containers"][container].get("resources", {})
    assert resources.get("limits", {}) == resources.get("requests", {})
    return dict(resources.get("limits", {}))


def test_a_pod_that_asks_for_nothing_is_not_touched() -> None:
    for given in (pod({"cpu": "1"}), {"metadata": {}, "spec": {}}, pod({}, annotations={"team": "a"})):
        assert mutate(given, OPTIONS) == Mutation()


T9K = """
- {tensorstack.dev/nvidia-gpu: 2}
- {tensorstack.dev/nvidia-gpu-percent: 30}
- {tensorstack.dev/nvidia-gpu-node: 1}
"""
WORDS: list[tuple[dict[str, str], dict[str, str], dict[str, str]]] = [
    ({"tensorstack.dev/nvidia-gpu": "2"}, {"gpus": "2", "exclusive": "true"}, {"gpus": "2", "compute": "200"}),
    ({"tensorstack.dev/nvidia-gpu-percent": "30"}, {"memory": "30%", "visible": "index"}, {"gpus": "1"}),
    (
        {"tensorstack.dev/nvidia-gpu-node": "1"},
        {"gpus": "all", "exclusive": "true", "visible": "all", "node": "exclusive"},
        {"gpus": "1", "compute": "100"},
    ),
    (
        {"tke.cloud.tencent.com/qgpu-memory": "5", "tke.cloud.tencent.com/qgpu-core": "30"},
        {"memory": "5Gi", "compute": "30"},
        {"gpus": "1", "memory-mib": "5120", "compute": "30"},
    ),
    (
        {"nvidia.com/vcuda-core": "50", "nvidia.com/vcuda-memory": "2k"},
        {"memory": "2000Mi", "compute": "50"},
        {"gpus": "1", "memory-mib": "2000", "compute": "50"},
    ),
    ({"tencent.com/vcuda-core": "200"}, {"gpus": "2"}, {"gpus": "2", "compute": "200"}),
    (
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "10"},
        {"gpus": "2", "memory": "3000Mi", "compute": "10"},
        {"gpus": "2", "memory-mib": "6000", "compute": "20"},
    ),
    (
        {"gpu-hook.io/memory-mib": "4096", "gpu-hook.io/compute": "25"},
        {"memory": "4Gi", "compute": "25"},
        {"gpus": "1", "memory-mib": "4096", "compute": "25"},
    ),
]


@pytest.mark.parametrize(("limits", "words", "total"), WORDS)
def test_words_of_each_system(limits: dict[str, str], words: dict[str, str], total: dict[str, str]) -> None:
    done = mutated(pod({**limits, "cpu": "1"}))
    annotations = done["metadata"]["annotations"]
    assert annotations.pop(names.ASKED) == "1"
    if "exclusive" not in words and "memory" not in words:
        annotations.pop("gpu-hook.io/exclusive.c0", None)
    assert annotations == {f"gpu-hook.io/{key}.c0": value for key, value in words.items()}
    assert done["spec"]["runtimeClassName"] == "gpu-hook"
    resources = done["spec"]["containers"][0]["resources"]
    sums = {f"gpu-hook.io/{key}": value for key, value in total.items()}
    assert resources == {"limits": {"cpu": "1", **sums}, "requests": sums}
    assert parse(annotations, {}, "c0", Rules(dialects=()), decode=json.loads) is not None


@pytest.mark.parametrize(("limits", "words", "total"), WORDS)
def test_a_second_look_changes_nothing(limits: dict[str, str], words: dict[str, str], total: dict[str, str]) -> None:
    once = mutated(pod(limits))
    assert mutated(once) == once


@pytest.mark.parametrize(("limits", "words", "total"), WORDS)
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_container_that_another_webhook_adds_later_gets_nothing(
    where: str, limits: dict[str, str], words: dict[str, str], total: dict[str, str]
) -> None:
    once = mutated(pod(limits))
    grown = copy.deepcopy(once)
    grown["spec"].setdefault(where, []).insert(0, {"name": "proxy", "image": "x"})
    again = mutated(grown)
    assert again["metadata"] == once["metadata"]
    assert amounts(again) == amounts(once) == {f"gpu-hook.io/{key}": value for key, value in total.items()}
    assert parse(again["metadata"]["annotations"], {}, "proxy", Rules(dialects=()), decode=json.loads) is None


def test_words_of_the_whole_pod_are_for_what_comes_later_too() -> None:
    once = mutated(pod({}, annotations={"T9K_GPU_PERCENT": "50", "gpu-hook.io/class": "offline"}))
    assert once["metadata"]["annotations"]["gpu-hook.io/memory"] == "50%"
    long = "n" * 60
    given = pod({"nvidia.com/gpumem": "1024"})
    given["spec"]["containers"][0]["name"] = long
    assert mutated(given)["metadata"]["annotations"]["gpu-hook.io/memory"] == "1Gi"


@pytest.mark.parametrize(
    ("ours", "memory"),
    [
        ({"request": '{"c0": [{"memory": "1Gi"}]}'}, "1024"),
        ({"memory.c0": "1024Mi"}, "1024"),
        ({"memory.c0": "3Gi"}, "3072"),
        ({"containers": "c0"}, "2048"),
    ],
)
def test_what_names_the_container_wins_over_its_resources(ours: dict[str, str], memory: str) -> None:
    given = pod({"nvidia.com/gpumem": "2048"}, annotations={f"gpu-hook.io/{key}": text for key, text in ours.items()})
    assert amounts(mutated(given))["gpu-hook.io/memory-mib"] == memory


def test_several_containers_by_name_and_init_containers() -> None:
    given = pod({"gpu-hook.io/memory-mib": "1024"}, {"cpu": "1"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048"})
    given["spec"]["initContainers"] = [
        {"name": "first", "resources": {"limits": {"gpu-hook.io/memory-mib": "8192", "gpu-hook.io/compute": "10"}}}
    ]
    done = mutated(given)
    annotations = done["metadata"]["annotations"]
    assert annotations["gpu-hook.io/memory.c0"] == "1Gi" and annotations["gpu-hook.io/memory.c2"] == "2Gi"
    assert annotations["gpu-hook.io/memory.first"] == "8Gi" and not any(key.endswith(".c1") for key in annotations)
    # side by side 3 GiB; the init container before them 8 GiB
    assert amounts(done) == {"gpu-hook.io/gpus": "2", "gpu-hook.io/memory-mib": "8192", "gpu-hook.io/compute": "10"}
    assert amounts(done, 2) == {} and done["spec"]["initContainers"][0].get("resources") == {}
    assert mutated(done) == done


def test_our_annotations_alone_get_sums_and_class() -> None:
    done = mutated(
        pod(
            {},
            {},
            annotations={"gpu-hook.io/memory": "4Gi", "gpu-hook.io/class.c1": "offline", "gpu-hook.io/compute.c1": "5"},
        )
    )
    assert amounts(done) == {
        "gpu-hook.io/gpus": "2",
        "gpu-hook.io/memory-mib": "8192",
        "gpu-hook.io/offline-compute": "5",
    }


def test_a_container_s_other_claims_stay_and_who_changes_nothing_gets_no_patch() -> None:
    claims = [{"name": "nic"}]
    given = pod({"nvidia.com/gpumem": "2048"}, {}, {"cpu": "1"}, {"nvidia.com/gpumem": "2048"})
    for container in given["spec"]["containers"]:
        container["resources"]["claims"] = claims
    given["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {}, "claims": claims}}]
    done = mutate(given, OPTIONS)
    assert [op["path"] for op in done.patch if op["path"].endswith("/resources")] == [
        "/spec/containers/0/resources",
        "/spec/containers/3/resources",
    ]
    one, two, three, four = apply(given, done)["spec"]["containers"]
    sums = {names.GPUS: "2", names.MEMORY: "4096"}
    assert one["resources"] == {"limits": sums, "requests": sums, "claims": claims}
    assert (two, three) == tuple(given["spec"]["containers"][1:3]) and four["resources"] == {"claims": claims}


def test_words_of_a_system_that_is_off_are_a_warning() -> None:
    """A device plugin of that system may run beside us, so the pod is not refused."""
    off = WebhookOptions(Rules(dialects=("t9k",)))
    done = mutate(pod({"tke.cloud.tencent.com/qgpu-core": "30", "nvidia.com/gpu": "1", "cpu": "1"}), off)
    assert not done.patch and [str(problem).partition(" has no effect")[0] for problem in done.warnings] == [
        "GH-108: tke.cloud.tencent.com/qgpu-core",
        "GH-108: nvidia.com/gpu",
    ]
    assert not mutate(pod({"cpu": "1", "amd.com/gpu": "1"}), off).warnings
    assert not mutate(pod({"nvidia.com/gpu": "0"}), off).warnings


def test_t9k_places() -> None:
    whole, part = pod({"tensorstack.dev/nvidia-gpu": "1"}), pod({"tensorstack.dev/nvidia-gpu-percent": "30"})
    assert mutated(whole)["spec"]["tolerations"] == [TOLERATION] and "nodeSelector" not in mutated(whole)["spec"]
    assert "tolerations" not in mutated(part)["spec"]
    modes = OPTIONS.replace(modes=frozenset(("xgn", "sgn")))
    assert mutated(whole, modes)["spec"]["nodeSelector"] == {names.T9K_MODE: "xgn"}
    assert mutated(part, modes)["spec"]["nodeSelector"] == {names.T9K_MODE: "sgn"}
    ours = pod({}, annotations={"gpu-hook.io/exclusive": "true"})
    ours["spec"]["containers"][0]["resources"]["limits"] = {"tensorstack.dev/nvidia-gpu": "0"}
    assert "nodeSelector" not in mutated(ours, modes)["spec"] and mutated(ours, modes)["spec"]["tolerations"] == [
        TOLERATION
    ]
    with_own = pod({"tensorstack.dev/nvidia-gpu": "1"}, tolerations=[{"operator": "Exists"}], nodeSelector={"a": "b"})
    assert mutated(with_own, modes)["spec"]["nodeSelector"] == {"a": "b", names.T9K_MODE: "xgn"}
    assert mutated(with_own, modes)["spec"]["tolerations"] == [{"operator": "Exists"}, TOLERATION]


def test_kais_words_are_for_the_first_container() -> None:
    done = mutated(pod({}, {}, annotations={"gpu-fraction": "0.5"}, initContainers=[{"name": "i", "image": "x"}]))
    assert {k: v for k, v in done["metadata"]["annotations"].items() if "memory" in k} == {
        "gpu-hook.io/memory.c0": "50%"
    }
    named = {"nvidia.com/container.c1.gpu-memory.request": "8Gi"}
    done = mutated(pod({}, {}, annotations=named, schedulerName="kai-scheduler"))
    assert {k for k in done["metadata"]["annotations"] if "memory" in k} == {"gpu-hook.io/memory.c1"}
    assert done["spec"]["schedulerName"] == "default-scheduler"
    assert "no container 'c7'" in refused(pod({}, annotations={"nvidia.com/container.c7.gpu-memory.limit": "8Gi"}))


def test_schedulers_and_queues() -> None:
    given = pod({"tensorstack.dev/nvidia-gpu": "1"}, schedulerName="t9k-scheduler")
    given["metadata"]["labels"] = {names.T9K_GROUP: "red"}
    assert mutated(given)["spec"]["schedulerName"] == "default-scheduler"
    assert mutated(given, OPTIONS.replace(scheduler="mine"))["spec"]["schedulerName"] == "mine"
    assert mutated(given, OPTIONS.replace(scheduler="t9k-scheduler"))["spec"]["schedulerName"] == "t9k-scheduler"
    given["spec"]["schedulerName"] = "volcano"
    queued = mutated(given, OPTIONS.replace(queue_label="kueue.x-k8s.io/queue-name"))
    assert queued["spec"]["schedulerName"] == "volcano"
    assert queued["metadata"]["labels"] == {names.T9K_GROUP: "red", "kueue.x-k8s.io/queue-name": "red"}


def test_another_runtime_class() -> None:
    given = pod({"nvidia.com/gpu": "1"}, runtimeClassName="nvidia", overhead={"podFixed": {"cpu": "1"}})
    done = mutated(given)
    assert done["spec"]["runtimeClassName"] == "gpu-hook" and "overhead" not in done["spec"]
    for sandbox in ("gvisor", "kata", "kata-qemu", "my-gVisor", "io.kata.v2"):
        assert refused(pod({"nvidia.com/gpu": "1"}, runtimeClassName=sandbox)).startswith(
            "GH-103: the pod asks for a GPU"
        )
    for theirs in ("nvidia-cdi", "nvidia-legacy", "gpu-hook"):
        assert mutated(pod({"nvidia.com/gpu": "1"}, runtimeClassName=theirs))["spec"]["runtimeClassName"] == "gpu-hook"
    kept = mutate(pod({"nvidia.com/gpu": "1"}, runtimeClassName="crun-tuned", overhead={"podFixed": {}}), OPTIONS)
    assert "runtimeClassName 'crun-tuned' stays" in kept.warnings[0].message
    assert not any("runtimeClassName" in one["path"] or "overhead" in one["path"] for one in kept.patch)
    assert mutate(pod({"cpu": "1"}, runtimeClassName="kata"), OPTIONS) == Mutation()


@pytest.mark.parametrize("key", ["gpu-hook.io/alloc", "gpu-hook.io/alloc.c0", "gpu-hook.io/grant"])
def test_only_the_controller_decides(key: str) -> None:
    assert refused(pod({}, annotations={key: "{}"})).startswith("GH-605: " + key)
    mirror = {key: "{}", "kubernetes.io/config.mirror": "x"}
    assert mutate(pod({}, annotations=mirror), OPTIONS) == Mutation()


def test_a_pod_that_asks_for_nothing_says_not_that_the_controller_has_read_it() -> None:
    """Else its sums would pass for totals: it would hold them without a GPU, and no other pod had room."""
    sums = {"gpu-hook.io/gpus": "4", "gpu-hook.io/memory-mib": "4096"}
    assert refused(pod(sums, annotations={"gpu-hook.io/asked": "1"})).startswith(
        "GH-605: gpu-hook.io/asked is in the pod"
    )
    again = pod(sums, annotations={"gpu-hook.io/asked": "1", "gpu-hook.io/memory": "1Gi"})
    assert mutated(again)["spec"]["containers"][0]["resources"]["limits"]["gpu-hook.io/memory-mib"] == "1024"


BAD: list[tuple[dict[str, str], dict[str, str], str]] = [
    ({"nvidia.com/vcuda-core": "1500m"}, {}, "GH-101"),
    ({"nvidia.com/vcuda-core": "150"}, {}, "GH-101"),
    ({"gpu-hook.io/compute": "101"}, {}, "GH-101"),
    ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048"}, {"gpu-hook.io/memory": "1Gi"}, "GH-103"),
    ({}, {"gpu-hook.io/memory": "4G"}, "GH-101"),
    ({}, {"gpu-hook.io/memroy": "4Gi"}, "GH-102"),
    ({}, {"gpu-hook.io/memory.other": "4Gi"}, "GH-102"),
    ({}, {"gpu-hook.io/memory": "4Gi", "gpu-hook.io/exclusive": "true"}, "GH-103"),
    ({"gpu-hook.io/memory-mib": "1"}, {"gpu-hook.io/x": "y" * 70_000}, "GH-105"),
    ({}, {"gpu-hook.io/node": "shared"}, "GH-101"),
    ({}, {"gpu-hook.io/node-placement": "Spread"}, "GH-101"),
    ({"gpu-hook.io/memory-mib": "1"}, {"gpu-hook.io/node-placement": "by-class"}, "GH-101"),
]


@pytest.mark.parametrize(("limits", "annotations", "code"), BAD)
def test_bad_words_are_refused_at_creation(limits: dict[str, str], annotations: dict[str, str], code: str) -> None:
    assert refused(pod(limits, annotations=annotations)).startswith(code + ": ")


def test_everything_wrong_is_said_at_once() -> None:
    """gpu-hook.io/compute is both an annotation and the name of a sum, so it is read separately."""
    said = refused(pod({}, annotations={"gpu-hook.io/memory": "lots", "gpu-hook.io/compute": "101"}))
    assert said.count("gpu-hook.io/memory='lots'") == said.count("gpu-hook.io/compute='101'") == 1
    said = refused(pod({"nvidia.com/gpumem": "x"}, annotations={"gpu-hook.io/memroy": "4Gi"}))
    assert "nvidia.com/gpumem='x'" in said and "gpu-hook.io/memroy" in said
    said = refused(pod({}, annotations={"gpu-hook.io/memory": "lots", "gpu-hook.io/node-placement": "Spread"}))
    assert "gpu-hook.io/memory='lots'" in said
    assert said.count("gpu-hook.io/node-placement='Spread' is not one of binpack, spread") == 1


def test_limits_and_requests_differ() -> None:
    given = pod({"nvidia.com/gpu": "2"})
    given["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "1"}
    assert refused(given).startswith("GH-103: container c0: nvidia.com/gpu is '2' in limits and '1' in requests")
    given["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "2"}}
    assert amounts(mutated(given))["gpu-hook.io/gpus"] == "2"


def test_steps_of_qgpu() -> None:
    options = WebhookOptions(RULES.replace(profile="qgpu"))
    word = "tke.cloud.tencent.com/qgpu-"
    assert "is not a multiple of 5; with the profile qgpu, write 35" in refused(
        pod({word + "core": "32", word + "memory": "4"}), options
    )
    assert amounts(mutated(pod({word + "core": "35", word + "memory": "4"}), options))["gpu-hook.io/compute"] == "35"
    assert amounts(mutated(pod({word + "core": "32", word + "memory": "4"})))["gpu-hook.io/compute"] == "32"
    off = WebhookOptions(Rules(dialects=(), profile="qgpu"))
    assert refused(pod({}, annotations={word + "core": "1" * 5000}), off).startswith("GH-108")


def test_one_container_asks_for_the_node() -> None:
    both = pod({"tensorstack.dev/nvidia-gpu-node": "1"}, {"tensorstack.dev/nvidia-gpu": "1"})
    assert refused(both).startswith("GH-103: containers c0, c1 ask for GPUs")
    assert refused(pod({}, {}, annotations={"gpu-hook.io/node": "exclusive"})).startswith("GH-103")
    assert mutated(pod({}, {}, annotations={"gpu-hook.io/node.c1": "exclusive"}))


@pytest.mark.parametrize("spec", [None, {}, {"containers": None}, {"containers": [{"name": "a", "resources": None}]}])
def test_a_pod_that_is_hardly_one(spec: Any) -> None:
    assert mutate({"spec": spec}, OPTIONS) == Mutation()


def test_the_seeds_of_t9k_as_printed() -> None:
    for limits in yaml.safe_load(T9K):
        assert mutate(
            pod({key: str(value) for key, value in limits.items()}, schedulerName="t9k-scheduler"), OPTIONS
        ).asks


@pytest.mark.parametrize("begin", ["x{}/y", "gpu-hok.io/memory{}", "{}hook.io/x", "{}nvidia.com/x"])
def test_a_pod_of_many_annotations_and_containers_keeps_nobody_waiting(begin: str) -> None:
    """Reading such a pod took 7 to 60 s, and the API server waits 2 s for the webhook, for every pod."""
    notes = {begin.format(i): "1" for i in range(8000)} | {"gpu-hook.io/memory": "1Mi"}
    began = time.process_time()
    assert "GH-105" in refused(pod(*[{}] * 128, annotations=notes))
    ours = time.process_time() - began
    began = time.process_time()
    mutated(pod(*[{}] * 64, annotations={"gpu-hook.io/memory": "1Mi", **{f"a{i}/b": "1" for i in range(1400)}}))
    assert ours < 2 * (time.process_time() - began)


@pytest.mark.parametrize("every", [{"gpu-hook.io/memory": "2Gi"}, {"gpu-hook.io/devices": "all"}])
def test_the_decision_has_room_beside_the_other_annotations(every: dict[str, str]) -> None:
    """Otherwise nobody can change or delete the pod once it is bound."""
    for spare in (0, 300):
        note = "ä" * ((256 << 10) // 2 - 50 - spare)
        assert refused(pod({}, annotations={**every, "note": note})).startswith("GH-105: the pod's annotations have 26")
    mutated(pod({}, annotations={**every, "note": "x" * ((256 << 10) - 10_000)}))
    assert mutate(pod({}, annotations={"note": "x" * ((256 << 10) - 10)}), OPTIONS) == Mutation(), "it asks for nothing"


# --- what the webhook says of the rest of a pod


def said(given: dict[str, Any], code: str, options: WebhookOptions = OPTIONS) -> list[str]:
    return [problem.message for problem in mutate(given, options).warnings if problem.code == code]


UNREAD = (
    *(
        "nvidia.com/vgpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "aliyun.com/gpu-mem",
        "volcano.sh/vgpu-memory",
    ),
    *("volcano.sh/vgpu-number", "elasticgpu.io/gpu-core", "koordinator.sh/gpu-core", "k8s.amazonaws.com/vgpu"),
)


@pytest.mark.parametrize("resource", UNREAD)
def test_a_resource_of_a_system_that_nobody_reads_is_told(resource: str) -> None:
    for more in ({}, {"nvidia.com/gpumem": "1000"}):
        given = pod({resource: "1", **more})
        told = said(given, "GH-108")
        assert len(told) == 1 and told[0].startswith(f"{resource} is not read by gpu-hook")
        if more:
            assert mutated(given)["spec"]["containers"][0]["resources"]["limits"][resource] == "1", "it stays"
    assert not said(pod({resource: "0"}), "GH-108")


def test_a_resource_that_somebody_reads_or_that_is_no_gpu_is_not_told() -> None:
    given = pod(
        {"rdma/hca": "1", "nvidia.com/hostdev": "1", "amd.com/gpu": "1", "nvidia.com/gpumem": "1000", "cpu": "1"}
    )
    assert not said(given, "GH-108")
    off = WebhookOptions(Rules(dialects=("t9k",)))
    assert [
        "dialects does not include hami" in text for text in said(pod({"nvidia.com/gpumem": "1"}), "GH-108", off)
    ] == [True]
    many = pod({f"nvidia.com/mig-{n}": "1" for n in range(500)})
    assert len(said(many, "GH-108")) == 8


def test_a_pod_that_names_its_node_is_told_what_to_write() -> None:
    given = pod({}, annotations={"gpu-hook.io/memory": "1Gi"}, nodeName="n1")
    (told,) = said(given, "GH-601")
    assert "nodeSelector: {kubernetes.io/hostname: n1}" in told
    assert mutated(given)["spec"]["nodeName"] == "n1"
    assert not mutate(pod({}, nodeName="n1"), OPTIONS).warnings
    assert not said(pod({}, annotations={"gpu-hook.io/memory": "1Gi"}, nodeName=""), "GH-601")


MEMORY = {"gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute": "10"}


def with_security(given: dict[str, Any], name: str, section: str = "containers", **security: Any) -> dict[str, Any]:
    one = {"name": name, "image": "x", "securityContext": security}
    given["spec"].setdefault(section, []).append(one)
    return given


@pytest.mark.parametrize("section", ["initContainers", "containers"])
@pytest.mark.parametrize("always", [False, True])
def test_a_privileged_container_beside_keys_for_the_whole_pod_gets_no_share(section: str, always: bool) -> None:
    """JupyterHub's chart brings such an init container by default; every node refuses it with a share."""
    given = with_security(pod({}, {}, annotations=dict(MEMORY)), "metadata", section, privileged=True)
    if always and section == "initContainers":
        given["spec"][section][0]["restartPolicy"] = "Always"
    done = mutated(given)
    assert done["metadata"]["annotations"]["gpu-hook.io/containers"] == "c0,c1"
    assert [name for name, _, _ in asked(words(as_stored(done)), Rules())] == ["c0", "c1"]
    assert amounts(done)["gpu-hook.io/gpus"] == "2" and amounts(done)["gpu-hook.io/compute"] == "20"
    assert said(given, "GH-403") == ["privileged, and gets no share: metadata; the pod's keys are for c0, c1 alone"]


def as_stored(done: dict[str, Any]) -> dict[str, Any]:
    return {**done, "metadata": {**done["metadata"], "uid": "u", "namespace": "n"}}


@pytest.mark.parametrize(
    ("annotations", "limits"),
    [
        ({"gpu-hook.io/memory.dind": "1Gi"}, {}),
        ({**MEMORY, "gpu-hook.io/class.dind": "offline"}, {}),
        ({**MEMORY, "gpu-hook.io/containers": "c0, dind"}, {}),
        ({"gpu-hook.io/request": '{"dind": [{"memory": "1Gi"}]}'}, {}),
        ({}, {"nvidia.com/gpumem": "1000"}),
    ],
)
def test_a_privileged_container_that_asks_for_itself_is_refused(
    annotations: dict[str, str], limits: dict[str, str]
) -> None:
    given = with_security(pod({}, annotations=annotations), "dind", privileged=True)
    given["spec"]["containers"][1]["resources"] = {"limits": limits}
    assert refused(given).startswith("GH-403: container dind is privileged")


def test_a_pod_of_privileged_containers_alone_is_refused() -> None:
    given = with_security({"metadata": {"name": "p", "annotations": dict(MEMORY)}, "spec": {}}, "dind", privileged=True)
    assert refused(given) == (
        "GH-403: container dind is privileged, and would reach every GPU; drop privileged, or ask for no GPU"
    )
    assert mutated(with_security(pod({}, annotations=dict(MEMORY)), "plain", privileged=False))


def test_a_privileged_container_that_asks_for_nothing_is_left() -> None:
    for words_of_it in ({"gpu-hook.io/memory.c0": "1Gi"}, {**MEMORY, "gpu-hook.io/containers": "c0"}):
        given = with_security(pod({}, annotations=words_of_it), "dind", privileged=True)
        assert not said(given, "GH-403")
        wanted = words_of_it.get("gpu-hook.io/containers")
        assert mutated(given)["metadata"]["annotations"].get("gpu-hook.io/containers") == wanted
    assert mutate(with_security(pod({}), "dind", privileged=True), OPTIONS) == Mutation()


@pytest.mark.parametrize(
    ("spec", "security", "why"),
    [
        ({"hostPID": True}, {}, "hostPID"),
        ({}, {"capabilities": {"add": ["SYS_ADMIN", "NET_ADMIN"]}}, "CAP_SYS_ADMIN"),
        ({}, {"capabilities": {"add": ["CAP_DAC_READ_SEARCH"]}}, "CAP_DAC_READ_SEARCH"),
        ({}, {"capabilities": {"add": ["all"]}}, "CAP_ALL"),
        ({"hostUsers": False}, {"capabilities": {"add": ["SYS_ADMIN"]}}, ""),
        ({}, {"capabilities": {"drop": ["ALL"]}, "procMount": "Default"}, ""),
        ({}, {"allowPrivilegeEscalation": True, "runAsUser": 0}, ""),
    ],
)
def test_what_can_undo_a_limit_is_told(spec: dict[str, Any], security: dict[str, Any], why: str) -> None:
    given = with_security(
        {"metadata": {"name": "p", "annotations": dict(MEMORY)}, "spec": {**spec}}, "main", **security
    )
    given["spec"]["containers"][0]["volumeDevices"] = [{"name": "disk", "devicePath": "/dev/xvda"}]
    told = said(given, "GH-403")
    assert [text.partition(",")[0] for text in told] == ([f"container main has {why}"] if why else [])


def test_a_bare_pod_that_cannot_be_applied_again_is_told() -> None:
    """The API server refuses to change a pod's resources, runtimeClassName and schedulerName; `kubectl apply` tries to."""
    for limits, spec, what in (
        ({"nvidia.com/gpumem": "1000"}, {}, "resources"),
        ({"gpu-hook.io/gpus": "1"}, {}, "resources"),
        ({"nvidia.com/gpu": "1"}, {"runtimeClassName": "nvidia"}, "resources and runtimeClassName"),
        ({"nvidia.com/gpu": "1"}, {"schedulerName": "hami-scheduler"}, "resources and schedulerName"),
    ):
        given = pod(limits, **spec)
        (told,) = said(given, "GH-103")
        assert told.startswith(f"gpu-hook replaced {what} of this bare Pod")
        owned = {**given, "metadata": {**given["metadata"], "ownerReferences": [{"kind": "ReplicaSet"}]}}
        made = {**given, "metadata": {"generateName": "p-"}}
        assert not said(owned, "GH-103") and not said(made, "GH-103")
    assert not said(pod({}, annotations=dict(MEMORY), runtimeClassName="gpu-hook"), "GH-103")
    assert not said(pod({"rdma/hca": "1"}, annotations=dict(MEMORY)), "GH-103")


def test_long_names_of_containers_make_no_long_answer() -> None:
    """The API server looks at them after the webhooks."""
    long = "x" * 5000
    given = with_security(pod({}, annotations=dict(MEMORY)), long, privileged=True)
    assert all(len(text) < 300 for text in said(given, "GH-403"))
    assert (
        len(refused(with_security({"metadata": {"annotations": dict(MEMORY)}, "spec": {}}, long, privileged=True)))
        < 300
    )
    root = with_security({"metadata": {"annotations": dict(MEMORY)}, "spec": {"hostPID": True}}, long)
    assert all(len(text) < 300 for text in said(root, "GH-403"))
    crowd = pod(*({} for _ in range(100)), annotations={**MEMORY, "gpu-hook.io/class": "default"})
    crowd["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert refused(crowd).startswith("GH-602")
