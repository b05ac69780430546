"""Pods in each system's words and in every spelling of an amount mean the same to the create webhook, after `translate`, and to
`explain --manifest`. Kubernetes' quantities and the API server's own changes are written here once more, by its documents."""

import json
import re
import textwrap
from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oci_hook.core import dialects, near_misses
from oci_hook.core.rules import Rules
from oci_hook.errors import GhError
from oci_hook.kube.answers import manifest
from oci_hook.kube.formats import names
from oci_hook.kube.formats.quantity import milli, plain, whole
from oci_hook.kube.manifests import kinds
from oci_hook.kube.manifests.translate import translate
from oci_hook.kube.pod.mutate import WebhookOptions, mutate
from testbed.long import draws

RULES = Rules(dialects=dialects.NAMES, qgpu_memory_unit="MiB")
OPTIONS = WebhookOptions(RULES)
REFUSED = "refused"

# --- Kubernetes' own rules

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")


def amount(text: str) -> Fraction | None:
    """The number that a quantity is; None for another text."""
    found = QUANTITY.fullmatch(text)
    if not found:
        return None
    number, suffix = Fraction(found[1].rstrip(".")), found[2] or ""
    if suffix in BINARY:
        return number * 1024 ** BINARY[suffix]
    return number * Fraction(10) ** (DECIMAL[suffix] if suffix in DECIMAL else int(suffix[1:]))


def canonical(text: str) -> str:
    """A whole number as the API server writes it: with the largest suffix of its own kind."""
    number = amount(text)
    assert number is not None and number.denominator == 1
    binary = text.endswith("i") and abs(number) >= 1024
    step, suffixes, power = (1024, ["", *BINARY], 0) if binary else (1000, ["", "k", "M", "G", "T", "P", "E"], 0)
    rest = int(number)
    while rest and rest % step == 0 and power < 6:
        rest, power = rest // step, power + 1
    exponent = not binary and re.search("[eE][+-]?[0-9]+$", text)
    return f"{rest}e{3 * power}" if exponent and power else f"{rest}{suffixes[power]}"


numbers = st.one_of(
    st.integers(-(1 << 40), 1 << 40).map(str),
    st.integers(0, 3000).map(lambda n: f"{n}.{n % 7}"),
    st.sampled_from(["5.", ".5", "+0", "-0", "000", "007", "+1.50", "0.001"]),
)
suffixes = st.sampled_from([*DECIMAL, *BINARY, "e3", "E3", "e-3", "E+2", "e0", "e", "ki", "K", "i", "x", "e3k", " "])


@settings(max_examples=draws(300), deadline=None)
@given(numbers, suffixes)
@example("3", "E+-3")
@example("", "k")
def test_quantities_are_those_of_kubernetes(number: str, suffix: str) -> None:
    text = number + suffix
    meant = amount(text)
    if meant is None or meant.denominator != 1:
        with pytest.raises(ValueError):
            whole(text)
        assert plain(text) == text
    else:
        assert whole(text) == whole(canonical(text)) == meant
        assert amount(canonical(text)) == meant
    if meant is not None:
        assert milli(text) == -(-meant * 1000 // 1)


# --- pods

AMOUNTS = {
    "nvidia.com/gpu": (0, 1, 2, 17),
    "nvidia.com/gpumem": (0, 1000, 3072, 5000),
    "nvidia.com/gpumem-percentage": (0, 50),
    "nvidia.com/gpucores": (0, 30),
    "nvidia.com/priority": (0, 1),
    "tencent.com/vcuda-core": (0, 30, 100, 200),
    "tencent.com/vcuda-memory": (0, 16),
    "nvidia.com/vcuda-core": (0, 30, 300),
    "nvidia.com/vcuda-memory": (0, 2000, 4096),
    "tke.cloud.tencent.com/qgpu-core": (0, 35, 100, 160, 200),
    "tke.cloud.tencent.com/qgpu-memory": (0, 5000),
    "tke.cloud.tencent.com/qgpu-core-greedy": (0, 10),
    "tensorstack.dev/nvidia-gpu": (0, 1, 2),
    "tensorstack.dev/nvidia-gpu-percent": (0, 25),
    "tensorstack.dev/nvidia-gpu-node": (0, 1),
}
BY_SYSTEM = [
    [key for key in AMOUNTS if key in dialects.table(name).KEYS] for name in ("hami", "gpu-manager", "qgpu", "t9k")
]
ANNOTATIONS = [
    *({}, {}, {}, {"team": "a"}, {"T9K_GPU_PERCENT": "50"}, {"T9K_GPU_MEMORY": "2000"}, {"gpu-fraction": "0.5"}),
    *({"hami.io/gpu-scheduler-policy": "spread"}, {"hami.io/node-scheduler-policy": "binpack"}),
    *({"nvidia.com/gpu": "0"}, {"nvidia.com/gpumem": "1000"}, {"nvidia.com/vcuda-core-limit": "60"}),
    *(
        {"gpu-hook.io/memory": "1Gi"},
        {"gpu-hook.io/gpus": "0"},
        {"gpu-hook.io/gpus": "all"},
        {"gpu-hook.io/gpus": "none"},
        {"gpu-hook.io/gpus.c0": "0"},
    ),
    *({"gpu-hook.io/memory.c0": "3Gi"}, {"gpu-hook.io/containers": "c0"}, {"gpu-hook.io/class": "offline"}),
    *({"gpu-hook.io/request": '{"c0": [{"memory": "1Gi"}]}'}, {"nvidia.com/container.c0.gpu-memory.limit": "1e9"}),
]


def spellings(number: int) -> list[str]:
    """As people and programs write it in YAML, with quotes or without."""
    found = [
        str(number),
        f"{number}.0",
        f"{number}e0",
        f"{number * 1000}m",
        f"{number}000000u",
        f"+{number}",
        hex(number),
    ]
    found += [f"{Fraction(number, 1000).limit_denominator().__float__()}k"]
    if number % 1000 == 0:
        found += [f"{number // 1000}k", f"{number // 1000}e3", f"{number // 1000}E+3"]
    if number % 1024 == 0:
        found += [f"{number // 1024}Ki"]
    return [*found, *(json.dumps(text) for text in found if "x" not in text)]


@st.composite
def resources(draw: Any) -> dict[str, str]:
    keys = draw(st.sampled_from([*BY_SYSTEM, *BY_SYSTEM, list(AMOUNTS)]))
    found = {}
    for key in draw(st.lists(st.sampled_from(keys), max_size=2, unique=True)):
        bad = st.sampled_from(["1500m", "x", "-1", "1.5", '"0x10"', "~", "5G", "4Gi"])
        good = st.sampled_from(AMOUNTS[key]).flatmap(lambda number: st.sampled_from(spellings(number)))
        found[key] = draw(st.one_of(good, good, good, good, good, bad))
    return found


def in_yaml(said: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {text}" for key, text in said.items()) + "}"


KINDS = [
    (f"{group}/v1".lstrip("/"), kind, path)
    for (group, kind), paths in {**kinds.KUBERNETES, **kinds.OTHERS}.items()
    for path in paths
]
COUNTED = [one for one in KINDS if one[1] not in kinds.NOT_COUNTED]
OWN = [one for one in COUNTED if one[1] in ("Pod", "Deployment", "CronJob")]


def in_kind(version: str, kind: str, path: tuple[str, ...], pod: str) -> str:
    """The text of an object with a pod template at a path."""
    for before, key in reversed(list(zip(("", *path), path, strict=False))):
        if key != kinds.EACH:
            pod = f"{key}:\n{textwrap.indent(pod, '  ')}"
        elif before.endswith("ReplicaSpecs"):
            pod = f"Worker:\n{textwrap.indent(pod, '  ')}"
        else:
            pod = "- " + textwrap.indent(pod, "  ")[2:]
    return f"apiVersion: {version}\nkind: {kind}\n{pod}"


def at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value[key] if key != kinds.EACH else value[0] if isinstance(value, list) else value["Worker"]
    return value


@st.composite
def manifests(draw: Any) -> str:
    """The text of one workload."""
    version, kind, path = draw(st.sampled_from([*OWN, *OWN, ("v1", "List", ()), *COUNTED]))
    annotations = draw(st.sampled_from(ANNOTATIONS))
    lines = ["metadata:", f"  annotations: {json.dumps(annotations)}"] if annotations else ["metadata: {name: p}"]
    lines += ["spec:"]
    anchor = ""
    for section, letter, fewest in (("initContainers", "i", 0), ("containers", "c", 1)):
        many = draw(st.integers(fewest, 2))
        lines += [f"  {section}:"] if many else []
        for number in range(many):
            lines += [f"  - name: {letter}{number}", "    image: x"]
            limits, how = draw(resources()), draw(st.sampled_from(["limits", "requests", "both", "alias"]))
            if how == "alias" and anchor:
                lines += [f"    resources: *{anchor}"]
            elif how == "both":
                lines += ["    resources:", f"      limits: {in_yaml(limits)}", f"      requests: {in_yaml(limits)}"]
            elif limits:
                anchor = f"r{letter}{number}"
                part = "requests" if how == "requests" else "limits"
                lines += [f"    resources: &{anchor}", f"      {part}: {in_yaml(limits)}"]
    pod = "\n".join(lines) + "\n"
    if kind == "List":
        return f"kind: List\nitems:\n- kind: Pod\n{textwrap.indent(pod, '  ')}"
    return in_kind(version, kind, path, pod)


def api_server(text: str) -> dict[str, Any] | None:
    """The pod of a manifest as the API server hands it to webhooks; None if it refuses an amount."""
    [obj] = yaml.safe_load_all(text)
    obj = obj["items"][0] if obj["kind"] == "List" else obj
    name = (obj.get("apiVersion", ""), obj["kind"])
    paths = [path for version, kind, path in KINDS if kind == name[1] and name[0] in ("", version)]
    for path in paths:
        try:
            obj = at(obj, path)
            break
        except KeyError:
            continue
    for container in (*(obj["spec"].get("initContainers") or ()), *obj["spec"]["containers"]):
        given = container.get("resources") or {}
        new: dict[str, dict[str, str]] = {}
        for part in ("limits", "requests"):
            for key, value in (given.get(part) or {}).items():
                number = amount("0" if value is None else str(value))
                if number is None or number.denominator != 1 or number < 0:
                    return None
                new.setdefault(part, {})[key] = canonical("0" if value is None else str(value))
        if "limits" in new:
            new["requests"] = {**new["limits"], **new.get("requests", {})}
        container["resources"] = new
    return {"metadata": {**obj["metadata"], "name": "p", "namespace": "n", "uid": "u"}, "spec": obj["spec"]}


def webhook(pod: dict[str, Any] | None) -> Any:
    """Our annotations and the sums that a pod gets."""
    if pod is None:
        return REFUSED
    try:
        done = mutate(pod, OPTIONS)
    except GhError as e:
        assert all(len(str(problem)) < 300 for problem in e.problems)
        return REFUSED
    if not done.asks:
        return None
    values = {operation["path"]: operation.get("value") for operation in done.patch}
    resources = values.get("/spec/containers/0/resources", pod["spec"]["containers"][0].get("resources"))
    sums = {key: text for key, text in resources.get("limits", {}).items() if key in names.SUMS}
    return values["/metadata/annotations"], sums


def translated(text: str) -> Any:
    try:
        return webhook(api_server(translate(text, RULES).text))
    except GhError as e:
        assert all(len(str(problem)) < 300 for problem in e.problems)
        return REFUSED


def explained(text: str) -> Any:
    """Our annotations of the pods of `explain --manifest`."""
    [role] = manifest.roles(text, OPTIONS)
    return REFUSED if role.problem else {key: said for key, said in role.pod.annotations.items()} or None


@settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(manifests())
def test_webhook_translate_and_explain_agree(text: str) -> None:
    said = webhook(api_server(text))
    assert translated(text) == said
    seen = explained(text)
    if isinstance(said, tuple):
        ours = {key: value for key, value in said[0].items() if key.startswith(names.PREFIX_KEY)}
        assert {key: value for key, value in seen.items()} == ours
    else:
        assert (seen == REFUSED) == (said == REFUSED)


@pytest.mark.parametrize(("version", "kind", "path"), KINDS, ids=lambda value: str(value)[:70])
def test_every_kind_is_translated(version: str, kind: str, path: tuple[str, ...]) -> None:
    text = in_kind(version, kind, path, pod({"nvidia.com/gpumem": "1024"}).partition("\n")[2])
    done = translate(text, RULES)
    [new] = yaml.safe_load_all(done.text)
    assert at(new, path)["metadata"]["annotations"] == {"gpu-hook.io/memory.c0": "1Gi"}
    assert at(new, path)["spec"]["runtimeClassName"] == "gpu-hook"
    assert translate(done.text, RULES).text == done.text


def test_a_kind_of_another_group_is_another_kind() -> None:
    text = in_kind("example.org/v1", "Job", ("spec", "template"), pod({"nvidia.com/gpumem": "1024"}).partition("\n")[2])
    done = translate(text, RULES)
    assert (done.text, done.pods) == (text, [])
    assert done.notes == [
        "Job (no name): nvidia.com/gpumem stays; kinds Job of example.org are not read here, but their pods by the"
        " cluster's webhook"
    ]
    with pytest.raises(GhError, match="GH-107: .* no workload of a known kind, but 'Job'; write"):
        manifest.roles(text, OPTIONS, left_out=set())


POD = "{spec: {containers: [{name: c}]}}"


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (
            f"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {{name: r}}\nspec: {{headGroupSpec: {{template: {POD}}},"
            f" workerGroupSpecs: [{{groupName: a, replicas: 3, numOfHosts: 2, template: {POD}}}, {{template: {POD}}}]}}",
            {"r/head": 1, "r/a": 6, "r/1": 1},
        ),
        (
            f"apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {{name: r}}\nspec: {{submitterPodTemplate: {POD}}}",
            {"r/submitter": 1},
        ),
        (
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: t}\nspec: {pytorchReplicaSpecs:"
            f" {{Master: {{template: {POD}}}, Worker: {{replicas: 4, template: {POD}}}}}}}",
            {"t/Master": 1, "t/Worker": 4},
        ),
        (
            "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: s}\nspec: {replicatedJobs: [{name: w,"
            f" replicas: 2, template: {{spec: {{parallelism: 4, completions: 3, template: {POD}}}}}}}]}}",
            {"s/w": 6},
        ),
        (
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\nspec: {replicas: 2,"
            f" leaderWorkerTemplate: {{size: 4, leaderTemplate: {POD}, workerTemplate: {POD}}}}}",
            {"l/leader": 2, "l/worker": 6},
        ),
        (
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\nspec: {replicas: 2,"
            f" leaderWorkerTemplate: {{size: 4, workerTemplate: {POD}}}}}",
            {"l/worker": 8},
        ),
        (
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\nspec: {tasks: [{name: w, replicas: 2,"
            f" template: {POD}}}]}}",
            {"v/w": 2},
        ),
        (
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: CronJob\nmetadata: {name: v}\nspec: {jobTemplate: {spec: {tasks:"
            f" [{{replicas: 2, template: {POD}}}]}}}}}}",
            {"v/0": 2},
        ),
    ],
    ids=lambda value: value[:70] if isinstance(value, str) else None,
)
def test_the_pods_of_others_workloads_are_counted(said: str, counts: dict[str, int]) -> None:
    assert {role.name: role.count for role in manifest.roles(said, OPTIONS)} == counts


# --- zero, and names


def pod(*containers: dict[str, str], first: dict[str, str] | None = None, part: str = "limits") -> str:
    lines = ["kind: Pod", "metadata: {name: p}", "spec:"]
    for section, letter, each in (("initContainers", "i", [first] if first else []), ("containers", "c", containers)):
        lines += [f"  {section}:"] if each else []
        for number, said in enumerate(each):
            lines += [f"  - name: {letter}{number}", "    image: x", f"    resources: {{{part}: {in_yaml(said)}}}"]
    return "\n".join(lines) + "\n"


OUR_SUMS = (names.GPUS, names.MEMORY, names.COMPUTE)
ZEROS = ("0", '"0"', "0.0", "0m", "0Ki", "0Mi", "0k", "0e3", "-0", "~")


@pytest.mark.parametrize(
    "key", [*(key for key in AMOUNTS if 0 in AMOUNTS[key] and not key.endswith("priority")), *OUR_SUMS]
)
def test_zero_asks_for_nothing(key: str) -> None:
    for part in ("limits", "requests"):
        for zero in ZEROS:
            text = pod({"cpu": "1", key: zero}, part=part)
            assert webhook(api_server(text)) is None and explained(text) is None
            assert translate(text, RULES).text == text
    asks = {"nvidia.com/gpumem": "1024"}
    beside = pod(asks, {key: "0"}, first={key: "0"})
    assert translated(beside) == webhook(api_server(beside)) == webhook(api_server(pod(asks, {}, first={"cpu": "1"})))
    assert key in OUR_SUMS or key not in translate(beside, RULES).text


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0"}, {"nvidia.com/gpu": "1"}),
        ({"nvidia.com/gpu": "0", "tencent.com/vcuda-core": "30"}, {"tencent.com/vcuda-core": "30"}),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "3000"}, None),
        ({"nvidia.com/gpu": "0", "nvidia.com/gpucores": "30", "tencent.com/vcuda-core": "30"}, None),
        ({"nvidia.com/gpu": "0", "nvidia.com/priority": "0"}, {}),
        ({"tencent.com/vcuda-core": "0", "tencent.com/vcuda-memory": "0"}, {}),
        ({"tencent.com/vcuda-core": "0", "tencent.com/vcuda-memory": "8"}, None),
        ({"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "0"}, {"tencent.com/vcuda-core": "200"}),
        ({"tke.cloud.tencent.com/qgpu-core": "0", "tke.cloud.tencent.com/qgpu-memory": "5"}, None),
        ({"tensorstack.dev/nvidia-gpu": "0", "tensorstack.dev/nvidia-gpu-percent": "50"}, None),
        ({"tensorstack.dev/nvidia-gpu": "1", "tensorstack.dev/nvidia-gpu-node": "0"}, None),
        ({names.GPUS: "0", names.MEMORY: "1024"}, None),
        ({names.GPUS: "2", names.MEMORY: "0"}, {names.GPUS: "2"}),
        ({names.GPUS: "0", "nvidia.com/gpumem": "1024"}, {"nvidia.com/gpumem": "1024"}),
    ],
    ids=str,
)
def test_zero_beside_other_words(said: dict[str, str], meant: dict[str, str] | None) -> None:
    """A share of zero is as if it were not written. No GPU beside a share of the same system contradicts it."""
    text = pod(said)
    if meant is not None:
        assert translated(text) == webhook(api_server(text)) == webhook(api_server(pod(meant)))
        return
    given = api_server(text)
    assert given is not None
    with pytest.raises(
        GhError, match=r"^GH-103: container c0: .* contradict each other: the second asks for no GPU"
    ) as e:
        mutate(given, OPTIONS)
    assert len(e.value.problems) == 1 and translated(text) == explained(text) == REFUSED


def test_our_own_words_for_no_gpu() -> None:
    """`gpus: 0` is the whole answer; `none` also gives driver files."""
    asks = [{"nvidia.com/gpumem": "1024"}, {"cpu": "1"}]
    for said, meant in (("gpus.c1", 1024), ("gpus", None)):
        text = pod(*asks).replace("{name: p}", f'{{name: p, annotations: {{gpu-hook.io/{said}: "0"}}}}')
        result = webhook(api_server(text))
        assert translated(text) == result
        assert result == REFUSED if meant is None else result[1] == {names.GPUS: "1", names.MEMORY: str(meant)}
    for word in ("all", "none", "2"):  # the key is also the name of a resource of ours
        text = pod({}).replace("{name: p}", f'{{name: p, annotations: {{gpu-hook.io/gpus: "{word}"}}}}')
        assert webhook(api_server(text))[0] == {"gpu-hook.io/gpus": word, names.ASKED: "1"} == explained(text)


def test_a_container_that_is_added_to_a_translated_pod_gets_nothing() -> None:
    """A service mesh adds its proxy after `translate`, when the pod is made."""
    for said in ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpumem": "1k"}, {"tensorstack.dev/nvidia-gpu-percent": "30"}):
        grown = api_server(translate(pod(said), RULES).text)
        assert grown is not None
        grown["spec"]["containers"].append({"name": "proxy", "image": "x"})
        assert webhook(grown) == webhook(api_server(pod(said)))


def test_a_translated_container_needs_a_name() -> None:
    with pytest.raises(GhError, match="GH-107: Pod p: a container has no name"):
        translate(pod({"nvidia.com/gpu": "1"}).replace("name: c0", "image: y"), RULES)


def test_one_container_asks_for_the_node() -> None:
    node, gpu = {"tensorstack.dev/nvidia-gpu-node": "1"}, {"tensorstack.dev/nvidia-gpu": "1"}
    for text in (pod(node, node), pod(gpu, node), pod(gpu, first=node)):
        assert webhook(api_server(text)) == explained(text) == REFUSED
        with pytest.raises(
            GhError, match="^GH-103: Pod p: containers [ci]0, c[01] ask for GPUs, and one of them for the whole"
        ):
            translate(text, RULES)
    assert translated(pod(node, {})) == webhook(api_server(pod(node, {}))) != REFUSED


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("vidia.com/vcuda-memory", "nvidia.com/vcuda-memory"),  # as gpu-manager's page prints it
        ("nvdia.com/gpumem", "nvidia.com/gpumem"),
        ("tencnet.com/vcuda-core", "tencent.com/vcuda-core"),
    ],
)
def test_a_resource_of_a_misspelt_system_is_refused(key: str, meant: str) -> None:
    text = pod({"nvidia.com/vcuda-core": "50", key: "2000"})
    for said in (lambda: translate(text, RULES), lambda: mutate(api_server(text) or {}, OPTIONS)):
        with pytest.raises(GhError, match=rf"^GH-108: .*c0: resource {key} is not one .*; did you mean {meant}\?"):
            said()
    other = pod({"nvidia.com/gpu": "1", "amd.com/gpu": "1", "nvidia.com/vgpu": "1", "x/gpu": "1", "cpu": "1"})
    assert translated(other) == webhook(api_server(other)) == webhook(api_server(pod({"nvidia.com/gpu": "1"})))


def test_many_resources_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison is some 30 us, and the API server waits 2 s for the webhook."""
    compared = []
    monkeypatch.setattr(near_misses, "distance", lambda one, other: compared.append(one) or 9)
    given = api_server(pod({"nvidia.com/gpu": "1", **{f"s{n}.example/gpumem": "1" for n in range(2000)}}))
    assert given is not None and mutate(given, OPTIONS).asks
    assert 10 < len(compared) < 40
