"""`gpu-hook translate`: the words, the places they go to, every other byte kept, and what is refused."""

import difflib
import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oci_hook.cli.main import cli
from oci_hook.core import dialects
from oci_hook.core.request import parse
from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError
from oci_hook.kube.manifests import translate as kube
from oci_hook.kube.manifests import yaml_edit
from oci_hook.oci import request_mounts
from testbed.long import draws

ALL = Rules(dialects=dialects.NAMES, qgpu_memory_unit="GiB")


def run(text: str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["translate", "-", *options], input=text, catch_exceptions=False)


def new(text: str, *options: str) -> str:
    result = run(text, *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def changes(text: str, *options: str) -> list[str]:
    """The removed and the added lines."""
    diff = difflib.ndiff(text.splitlines(), new(text, *options).splitlines())
    return [line for line in diff if line[0] in "+-"]


def refused(text: str, *options: str) -> list[str]:
    result = run(text, *options)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    return result.stderr.splitlines()


def notes(text: str, *options: str) -> list[str]:
    result = run(text, *options)
    assert result.exit_code == 0, result.stderr
    return result.stderr.splitlines()


def pod(*limits: str, before: str = "", extra: str = "") -> str:
    """A pod with one container for each line of limits."""
    containers = "".join(
        f"  - name: c{n}\n    image: x\n    resources:\n      limits: {{{line}}}\n" for n, line in enumerate(limits)
    )
    return f"kind: Pod\nmetadata:\n  name: p\n{before}spec:\n{extra}  containers:\n{containers}"


COMMENTED = """\
# two containers
apiVersion: batch/v1
kind: CronJob   # nightly
metadata: {name: "train"}
spec:
  schedule: '0 3 * * *'
  jobTemplate:
    spec:
      template:
        metadata:
          annotations:
            # gpu-manager's ceiling
            tencent.com/vcuda-core-limit: "60"
            other: "x"  # stays
        spec:
          # who runs it
          restartPolicy: Never
          containers:
            - name: main
              resources:
                requests:
                  cpu: 1      # one
                  tencent.com/vcuda-core: 30
                # and at most
                limits:
                  # a third
                  tencent.com/vcuda-core: 30  # per cent
                  tencent.com/vcuda-memory: 16
                  "memory": 1Gi
              args: [ a,
                      b ]
            - resources:
                limits:
                  tencent.com/vcuda-core: 200
              name: two
---
kind: ConfigMap
data: {text: "tencent.com/vcuda-core: 30"}
"""


def test_comments_order_and_everything_else_stay() -> None:
    assert changes(COMMENTED.replace("tencent.com/vcuda-core: 200", "tencent.com/vcuda-core: 5")) == [
        '-             tencent.com/vcuda-core-limit: "60"',
        "+             gpu-hook.io/memory.main: 4Gi",
        '+             gpu-hook.io/compute.main: "30"',
        "+             gpu-hook.io/policy.main: burst-share",
        '+             gpu-hook.io/compute-limit.main: "60"',
        '+             gpu-hook.io/compute.two: "5"',
        "+             gpu-hook.io/policy.two: burst-share",
        '+             gpu-hook.io/compute-limit.two: "60"',
        "+           runtimeClassName: gpu-hook",
        "-                   tencent.com/vcuda-core: 30",
        "-                   tencent.com/vcuda-core: 30  # per cent",
        "-                   tencent.com/vcuda-memory: 16",
        "-             - resources:",
        "+             - resources: {}",
        "-                 limits:",
        "-                   tencent.com/vcuda-core: 5",
    ]


def test_every_problem_with_its_container() -> None:
    assert refused(COMMENTED.replace("16", "4Gi")) == [
        "GH-101: CronJob train: container main: tencent.com/vcuda-memory='4Gi' is not a whole number from 1 to 65536;"
        " write a number within these bounds",
        "GH-103: CronJob train: container two: tencent.com/vcuda-core-limit='60' is a ceiling above a guarantee,"
        " and no compute is asked; add compute",
    ]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("tencent.com/vcuda-core: 200, tencent.com/vcuda-memory: 60", {"gpus": "2", "exclusive": "true"}),
        ("nvidia.com/vcuda-core: 30, nvidia.com/vcuda-memory: 3000", {"memory": "3000Mi", "compute": "30"}),
        ("nvidia.com/gpu: 2", {"gpus": "2"}),
        (
            'nvidia.com/gpu: "1", nvidia.com/gpumem-percentage: 50, nvidia.com/gpucores: 20, nvidia.com/priority: 0',
            {"memory": "50%", "compute": "20", "gpus": "1", "class": "online"},
        ),
        ("tensorstack.dev/nvidia-gpu-percent: 25", {"memory": "25%", "visible": "index"}),
        (
            "tensorstack.dev/nvidia-gpu-node: 1",
            {"gpus": "all", "exclusive": "true", "visible": "all", "node": "exclusive"},
        ),
        (
            "tke.cloud.tencent.com/qgpu-core: 30, tke.cloud.tencent.com/qgpu-memory: 5",
            {"memory": "5Gi", "compute": "30"},
        ),
        (
            "tke.cloud.tencent.com/qgpu-core-greedy: 10, tke.cloud.tencent.com/qgpu-memory: 5",
            {"memory": "5Gi", "class": "offline"},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_words_of_each_system(limits: str, words: dict[str, str]) -> None:
    done = yaml.safe_load(new(pod(limits), "--qgpu-memory-unit", "GiB"))
    assert done["metadata"]["annotations"] == {f"gpu-hook.io/{key}.c0": value for key, value in words.items()}
    assert done["spec"]["runtimeClassName"] == "gpu-hook"
    assert "resources" not in done["spec"]["containers"][0]


KAI = """
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations:
    team: a
    {words}
spec:
  initContainers:
    - name: first
      image: x
  containers:
    - name: main
      image: x
    - name: logs
      image: x
"""


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ('gpu-fraction: "0.5"', {"memory.main": "50%"}),
        ('{gpu-memory: "2000", gpu-fraction-container-name: logs}', {"memory.logs": "2000Mi"}),
        (
            "{nvidia.com/container.main.gpu-memory.request: 8Gi, nvidia.com/container.first.gpu-memory.limit: 1Gi}",
            {"memory.first": "1Gi", "memory.main": "8Gi"},
        ),
    ],
)
def test_kais_words_are_for_the_first_container_or_a_named_one(words: str, ours: dict[str, str]) -> None:
    lines = words.strip("{}").replace(", ", "\n    ")
    done = yaml.safe_load(new(KAI.replace("{words}", lines)))
    assert done["metadata"]["annotations"] == {"team": "a"} | {f"gpu-hook.io/{key}": text for key, text in ours.items()}


def test_kais_words_for_a_container_that_the_pod_lacks() -> None:
    [line] = refused(KAI.replace("{words}", "nvidia.com/container.mian.gpu-memory.limit: 1Gi"))
    assert line.startswith("GH-102: Pod p: nvidia.com/container.mian.gpu-memory.limit: the pod has no container 'mian'")


@pytest.mark.parametrize(("unit", "memory"), [("MiB", "5Mi"), ("GiB", "5Gi")])
def test_qgpus_unit_must_be_said(unit: str, memory: str) -> None:
    text = pod("tke.cloud.tencent.com/qgpu-memory: 5")
    assert f"gpu-hook.io/memory.c0: {memory}" in new(text, "--qgpu-memory-unit", unit)
    [line] = refused(text)
    assert line.startswith("GH-101: Pod p: container c0: tke.cloud.tencent.com/qgpu-memory='5' has no unit here")
    assert "say MiB or GiB (setting qgpu_memory_unit, translate --qgpu-memory-unit)" in line


def test_keys_name_the_container_whose_resources_they_replace() -> None:
    def annotations(*limits: str) -> dict[str, str]:
        found: dict[str, str] = yaml.safe_load(new(pod(*limits)))["metadata"]["annotations"]
        return {key.removeprefix("gpu-hook.io/"): value for key, value in found.items()}

    one, two = "nvidia.com/gpumem: 1024", "nvidia.com/gpumem: 2048"
    assert annotations(one) == {"memory.c0": "1Gi"}
    assert annotations(one, one) == {"memory.c0": "1Gi", "memory.c1": "1Gi"}
    assert annotations(one, two) == {"memory.c0": "1Gi", "memory.c1": "2Gi"}
    assert annotations(one, "cpu: 1") == {"memory.c0": "1Gi"}


def test_init_containers_count() -> None:
    text = pod("nvidia.com/gpumem: 1024") + "  initContainers: [{name: first, image: x}]\n"
    assert "gpu-hook.io/memory.c0: 1Gi" in new(text)


def test_a_name_too_long_for_a_key_is_in_request() -> None:
    name = "n" * 60
    text = pod("nvidia.com/gpu: 2, nvidia.com/gpumem: 1024, nvidia.com/priority: 0", "cpu: 1").replace("c0", name)
    done = yaml.safe_load(new(text))
    assert done["metadata"]["annotations"] == {
        "gpu-hook.io/request": json.dumps({name: [{"memory": "1Gi"}, {"memory": "1Gi"}]})
    }
    assert f"container {name}: class: online does not fit" in notes(text)[0]
    fits = yaml.safe_load(new(text.replace(name, "n" * 57)))["metadata"]["annotations"]
    assert fits["gpu-hook.io/class." + "n" * 57] == "online" and "gpu-hook.io/request" in fits  # memory. is longer
    assert "gpu-hook.io/memory." + "n" * 56 in new(text.replace(name, "n" * 56))
    [line] = refused(pod("tensorstack.dev/nvidia-gpu-node: 1", "cpu: 1").replace("c0", name))
    assert line.startswith("GH-107") and "shorten it to 53 characters" in line


def test_requests_and_limits() -> None:
    both = pod("x: 1").replace(
        "limits: {x: 1}", "limits: {nvidia.com/gpumem: 5}\n      requests: {nvidia.com/gpumem: 6}"
    )
    assert refused(both) == [
        "GH-103: Pod p: container c0: nvidia.com/gpumem is '5' in limits and '6' in requests;"
        " a share's request equals its limit, or is left out"
    ]
    assert "gpu-hook.io/memory.c0: 5Mi" in new(both.replace("6", "5"))
    assert "gpu-hook.io/memory.c0: 5Mi" in new(pod("nvidia.com/gpumem: 5").replace("limits", "requests"))


def test_two_systems_that_disagree() -> None:
    [line] = refused(pod("nvidia.com/gpumem: 3000, nvidia.com/vcuda-memory: 2000"))
    assert line.startswith("GH-104: Pod p: container c0: ")
    assert "gpu-hook.io/memory.c0: 3000Mi" in new(
        pod("nvidia.com/gpumem: 3000, nvidia.com/vcuda-memory: 2000"), "--dialect", "hami"
    )


def test_our_own_annotations_that_are_there() -> None:
    ours = pod("nvidia.com/gpumem: 1024", before="  annotations:\n    gpu-hook.io/memory: 1Gi\n")
    assert changes(ours) == [
        "+     gpu-hook.io/memory.c0: 1Gi",
        "+   runtimeClassName: gpu-hook",
        "-     resources:",
        "-       limits: {nvidia.com/gpumem: 1024}",
    ]
    assert refused(ours.replace("1Gi", "2Gi")) == [
        "GH-103: Pod p: gpu-hook.io/memory='2Gi' is set, but the resources mean '1Gi'; remove one"
    ]
    policy = pod("nvidia.com/gpumem: 1024", before="  annotations:\n    gpu-hook.io/policy: fs\n")
    assert refused(policy)[0].startswith("GH-103: Pod p: container c0: gpu-hook.io/policy='fs'")


def test_runtime_classes() -> None:
    """As the webhook has it: NVIDIA's are replaced, sandboxes refused, and others stay."""
    for sandbox in ("gvisor", "kata-qemu"):
        text = pod("nvidia.com/gpu: 1", extra=f"  runtimeClassName: {sandbox}\n")
        assert refused(text)[0].startswith("GH-103: Pod p: the pod asks for a GPU, and its runtimeClassName")
    text = pod("nvidia.com/gpu: 1", extra="  runtimeClassName: crun-tuned\n")
    assert "note: Pod p: runtimeClassName 'crun-tuned' stays" in notes(text)[-1]
    assert yaml.safe_load(new(text))["spec"]["runtimeClassName"] == "crun-tuned"


def test_what_has_no_equivalent() -> None:
    text = pod(
        "tencent.com/vcuda-core: 100, tencent.com/vcuda-memory: 60, nvidia.com/mig-1g.5gb: 1",
        before="  annotations: {nvidia.com/use-gputype: A100, b: c}\n",
        extra="  schedulerName: hami-scheduler\n  runtimeClassName: nvidia\n"
        "  nodeSelector: {nvidia-device-enable: enable}\n",
    )
    assert notes(text) == [
        "note: Pod p: container c0: tencent.com/vcuda-memory has no effect beside tencent.com/vcuda-core=100",
        "note: Pod p: annotation nvidia.com/use-gputype has no equivalent and stays",
        "note: Pod p: container c0: resource nvidia.com/mig-1g.5gb has no equivalent and stays",
        "note: Pod p: nodeSelector nvidia-device-enable stays; remove it if the nodes have no such label",
        "note: Pod p: schedulerName hami-scheduler stays; gpu-hook needs no special scheduler",
        "note: Pod p: runtimeClassName was nvidia",
    ]
    done = yaml.safe_load(new(text))
    assert done["spec"]["runtimeClassName"] == "gpu-hook"
    assert done["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/mig-1g.5gb": 1}}


def test_nothing_to_translate() -> None:
    text = pod("cpu: 1")
    assert new(text) == text
    assert notes(text) == ["note: nothing requests a GPU in the words of " + ", ".join(dialects.NAMES)]


RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: rc, namespace: n}
spec:
  headGroupSpec:
    template:
      spec: {containers: [{name: c, resources: {limits: {cpu: 1, nvidia.com/gpu: 1}}}]}
  workerGroupSpecs:
    - groupName: Big
      template:
        spec: {containers: [{name: c, resources: {limits: {cpu: 1, nvidia.com/gpumem: 4000, nvidia.com/vgpu: 1}}}]}
    - template: {spec: {containers: [{name: c, resources: {limits: {cpu: 1}}}]}}
"""


def test_each_template_of_an_object_has_its_own_words() -> None:
    text = f"{pod('cpu: 1')}---{RAY}"
    _, ray = yaml.safe_load_all(new(text))
    head, groups = ray["spec"]["headGroupSpec"]["template"], ray["spec"]["workerGroupSpecs"]
    assert head["metadata"] == {"annotations": {"gpu-hook.io/gpus.c": "1"}}
    assert groups[0]["template"]["metadata"] == {"annotations": {"gpu-hook.io/memory.c": "4000Mi"}}
    assert groups[1] == yaml.safe_load(RAY)["spec"]["workerGroupSpecs"][1]
    ray_sees = "KubeRay took num-gpus from nvidia.com/gpu, which went; write it into rayStartParams"
    assert notes(text) == [
        f"note: RayCluster rc (head): {ray_sees}",
        "note: RayCluster rc (Big): container c: resource nvidia.com/vgpu has no equivalent and stays",
    ]
    assert [one["part"] for one in json.loads(new(text, "--json"))["objects"]] == ["", "head", "Big", "1"]
    claims = [one for one in yaml.safe_load_all(new(text, "--to", "dra")) if one["kind"] == "ResourceClaimTemplate"]
    assert [one["metadata"] for one in claims] == [
        {"name": "rc-head-gpu-c", "namespace": "n"},
        {"name": "rc-big-gpu-c", "namespace": "n"},
    ]


def test_objects_of_unknown_kinds_stay_and_are_told_if_they_ask() -> None:
    other = (
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: m}\n"
        "spec: {predictor: {model: {resources: &r {limits: {nvidia.com/gpu: 1}}}, again: *r}}\n"
    )
    told = (
        "note: InferenceService m: nvidia.com/gpu stays; kinds InferenceService of serving.kserve.io are not read here, but"
        " their pods by the cluster's webhook"
    )
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    assert (new(other), notes(other)) == (other, [told])
    asks = pod("nvidia.com/gpumem: 1024")
    for text in (f"{other}---\n{asks}", f"{asks}---\n{other}---\n{service}"):
        assert notes(text) == [told] and "gpu-hook.io/memory.c0: 1Gi" in new(text) and other in new(text)
    assert new(service) == service
    rollout = "apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nspec: {workloadRef: {name: d}}\n"
    assert new(rollout) == rollout


def test_knative_must_allow_the_runtime_class() -> None:
    text = (
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: k}\n"
        "spec: {template: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}}\n"
    )
    assert notes(text) == [
        "note: Service k: Knative takes runtimeClassName only with its feature kubernetes.podspec-runtimeclassname"
    ]


def test_a_text_without_a_change_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(kube, "verified")
    text = pod("cpu: 1")
    assert new(text) == text
    with pytest.raises(NameError):
        new(pod("nvidia.com/gpu: 1"))


# --- libyaml, and PyYAML's own parser


@pytest.mark.skipif(yaml_edit.QUICK is None, reason="PyYAML came without libyaml")
def test_a_manifest_is_read_by_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = [0]
    read = yaml.reader.Reader.__init__

    def measured(self: Any, stream: str) -> None:
        longest.append(len(stream))
        read(self, stream)

    monkeypatch.setattr(yaml.reader.Reader, "__init__", measured)
    done = kube.translate(COMMENTED.replace("200", "5"), ALL)
    assert done.pods[0].annotations and max(longest) < 100  # a value of ours alone


def seen(node: Any) -> Any:
    """A node with its places, as edits use them."""
    value = node.value
    if isinstance(node, yaml.MappingNode):
        value = [(seen(key), seen(one)) for key, one in value]
    elif isinstance(node, yaml.SequenceNode):
        value = [seen(one) for one in value]
    marks = [(mark.index, mark.line, mark.column) for mark in (node.start_mark, node.end_mark)]
    if isinstance(node, yaml.ScalarNode):
        return node.tag, value, node.style in ("|", ">"), marks
    return node.tag, value, bool(node.flow_style), marks[0], marks[1] if node.flow_style or not value else None


PIECES = (
    *("a: b\n", "  - x\n", "- y: 1\n", "'é ü'", '"\\u263a"', "\u263a: \U0001f600\n", "|\n  t\n\n", ">-\n   f\n  g\n"),
    *("{a: b, c: [1, 2]}\n", "? k\n: v\n", "# ctätä\n", "\r\n", "---\n", "...\n", "&a ", "*a ", "!!str ", "~", "\t"),
    *(
        "k:\n",
        "  ",
        "k: |2-\n    s\n",
        "'x\n\n  y'\n",
        '"x\\\n  y"\n',
        "\u2028",
        "\x85",
        ",",
        ": ",
        "- ",
        "null",
        "0x10",
    ),
)


@pytest.mark.skipif(yaml_edit.QUICK is None, reason="PyYAML came without libyaml")
@settings(max_examples=draws(300), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.sampled_from(["", "\ufeff", COMMENTED]))
def test_libyaml_sees_the_same_places(text: str, before: str) -> None:
    text = before + text
    quick = yaml_edit.documents(text) if readable(text) else None
    if quick is None:
        return
    slow = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    assert list(map(seen, quick)) == list(map(seen, slow))


def readable(text: str) -> bool:
    try:
        list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        return False
    return True


def test_twice_is_once() -> None:
    once = new(COMMENTED.replace("200", "5"))
    assert new(once) == once


@pytest.mark.parametrize(
    "metadata",
    [
        "metadata: {name: p}\n",
        "metadata: {}\n",
        "metadata:\n",
        "metadata:\n  annotations:\n  name: p\n",
        "metadata:\n  annotations: {}\n",
        "metadata:\n  annotations: {a: b}\n",
        "metadata:\n  annotations: {T9K_GPU_PERCENT: '5'}\n",
        "metadata:\n  annotations:\n    T9K_GPU_PERCENT: '5'\n",
        "metadata:\n    name: p\n    annotations:\n        a: |\n          block\n\n          scalar\n",
        "metadata:\n  labels:\n    a: b\n  # the end\n",
        "",
        "metadata: null # none\n",
    ],
)
@pytest.mark.parametrize("order", [True, False])
def test_metadata_of_every_shape(metadata: str, order: bool) -> None:
    spec = "spec:\n  containers:\n  - name: c\n    resources: {limits: {nvidia.com/gpumem: 1024, cpu: 1}}\n"
    said = metadata + spec if order else spec + metadata
    if "T9K" in metadata:
        said = said.replace("nvidia.com/gpumem", "nvidia.com/gpucores").replace("1024", "10")
    before, after = yaml.safe_load(said), yaml.safe_load(new("kind: Pod\n" + said))
    gone = "T9K_GPU_PERCENT"
    expected = {k: v for k, v in ((before.get("metadata") or {}).get("annotations") or {}).items() if k != gone}
    words = {"memory": "5%", "compute": "10", "visible": "index"} if "T9K" in metadata else {"memory": "1Gi"}
    expected |= {f"gpu-hook.io/{key}.c": value for key, value in words.items()}
    assert after["metadata"] == {**(before.get("metadata") or {}), "annotations": expected}
    assert after["spec"]["containers"] == [{"name": "c", "resources": {"limits": {"cpu": 1}}}]


@pytest.mark.parametrize(
    "metadata",
    ["", '"metadata": null,', '"metadata": {},', '"metadata": {"annotations": null},', '"metadata":{"name":"p"},'],
)
def test_metadata_in_json(metadata: str) -> None:
    spec = '"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": 1024}}}]}'
    done = json.loads(new(f'{{"kind": "Pod", {metadata} {spec}}}'))
    name = {"name": "p"} if "name" in metadata else {}
    assert done["metadata"] == {**name, "annotations": {"gpu-hook.io/memory.c": "1Gi"}}
    assert done["spec"] == {"runtimeClassName": "gpu-hook", "containers": [{"name": "c", "resources": {}}]}


@pytest.mark.parametrize("indent", [None, 2])
def test_json(indent: int | None) -> None:
    text = json.dumps(list(yaml.safe_load_all(COMMENTED.replace("200", "5")))[0], indent=indent)
    done = json.loads(new(text))
    expected = list(yaml.safe_load_all(new(COMMENTED.replace("200", "5"))))[0]
    for data in (done, expected):  # a block that began on the line of its dash has to stay, empty
        data["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][1].pop("resources", None)
    assert done == expected


def test_a_list_aliases_windows_lines_and_no_last_newline() -> None:
    items = (
        "kind: List\nitems:\n- kind: Pod\n  metadata: {name: a}\n  spec:\n    containers:\n"
        "    - name: c\n      resources: &r\n        limits: &l\n          nvidia.com/gpumem: 1024\n"
        "        requests: *l\n    - name: d\n      resources: *r"
    )
    for text in (items, items + "\n", items.replace("\n", "\r\n")):
        done = kube.translate(text, ALL).text
        assert ("\r\n" in done) == ("\r\n" in text) and done.count("\r\n") in (0, done.count("\n"))
        [item] = yaml.safe_load(done)["items"]
        assert item["metadata"]["annotations"] == {"gpu-hook.io/memory.c": "1Gi", "gpu-hook.io/memory.d": "1Gi"}
        assert item["spec"] == {"runtimeClassName": "gpu-hook", "containers": [{"name": "c"}, {"name": "d"}]}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "GH-107: no object in it has a kind; those with a pod template are Pod,"),
        ("a: 1\n", "GH-107: no object in it has a kind"),
        ("kind: Service\n", "note: nothing"),
        (
            "kind: Deployment\nspec:\n  {{- with .Values.x }}\n",
            "GH-107: line 3 has {{ }} as a Helm chart's templates: run `helm template` first, and translate its output\n"
            "GH-107: line 3: not YAML: ",
        ),
        ("kind: Pod\nspec: {replicas: {{ .Values.x }}}\n", "GH-107: line 2 has {{ }} as a Helm"),
        (pod("nvidia.com/gpu: '{{ .Values.gpus }}'"), "GH-107: line 9 has {{ }} as a Helm"),
        ("kind: Workflow\nspec: {a: '{{inputs.parameters.x}}', b: [}\n", "GH-107: line 2: not YAML: "),
        (
            "services:\n  a:\n    deploy: {}\n",
            "GH-107: it is a compose file, of which only you know the shares: give each service",
        ),
        ("a: [1", "GH-107: line 1: not YAML: "),
        ("a: 1\n\tb: 2\n", "GH-107: line 2: not YAML: "),
        ("spec: {{ .Values.x }}\nkind: Pod\n", "GH-107: "),
        ("kind: Pod\n", "GH-107: Pod (no name): its pods have no containers"),
        ("kind: Job\nspec: {}\n", "GH-107: Job (no name): it has no spec.template"),
        ("kind: Pod\nspec: {containers: []}\n", "GH-107: Pod (no name): its pods have no containers"),
        ("[" * 3000, "GH-107: "),
        ("kind: Pod\n? [a]\n: b\n", "GH-107: line 2: a key is a list or a mapping"),
        (
            "kind: Pod\nspec: !x {containers: [{name: c, resources: {limits: {nvidia.com/gpumem: 1}}}]}\n",
            "GH-107: it uses <<, aliases, tags or a key twice",
        ),
        (
            "x: &x {nvidia.com/gpumem: 1}\nkind: Pod\nspec: {containers: [{name: c, resources: {limits: {<<: *x,"
            " nvidia.com/gpucores: 5}}}]}\n",
            "GH-107: it uses <<, aliases, tags or a key twice",
        ),
        (
            pod("nvidia.com/gpumem: 1").replace("  name: p", "  name:p"),
            "GH-107: Pod (no name): line 3: metadata is not",
        ),
        (pod("nvidia.com/gpumem: 1", before="  annotations: x\n"), "GH-107: Pod p: line 4: annotations is not"),
        (pod("nvidia.com/gpumem: [1]"), "note: nothing"),
    ],
    ids=lambda value: value[:40],
)
def test_bad_manifests(text: str, line: str) -> None:
    result = run(text)
    assert result.stderr.startswith(line), result.output
    assert (result.exit_code, result.stdout) == ((1, "") if line.startswith("GH") else (0, text))
    assert "Traceback" not in result.output


def test_files(tmp_path: Any) -> None:
    file = tmp_path / "pod.yaml"
    file.write_bytes(b"\xff\xfe")
    result = CliRunner().invoke(cli, ["translate", str(file)])
    assert result.exit_code == 1 and result.stderr.startswith(f"GH-107: {file}: not UTF-8")
    assert CliRunner().invoke(cli, ["translate", str(tmp_path / "none")]).exit_code == 2
    file.write_text("a: " + "x" * (kube.MAX_SIZE + 1))
    assert CliRunner().invoke(cli, ["translate", str(file)]).stderr.startswith("GH-107: the manifest has ")


def test_the_report() -> None:
    report = json.loads(new(COMMENTED.replace("200", "5"), "--json"))
    assert report["manifest"] == new(COMMENTED.replace("200", "5"))
    [cron] = report["objects"]
    assert (cron["kind"], cron["name"]) == ("CronJob", "train")
    assert cron["containers"]["two"] == {"compute": "5", "policy": "burst-share", "compute-limit": "60"}
    errors = run(pod("nvidia.com/gpumem: x"), "--json")
    assert errors.exit_code == 1 and json.loads(errors.stdout)["errors"][0]["code"] == "GH-101"


damage = st.tuples(
    st.integers(0, 4),
    st.integers(0, 2000),
    st.sampled_from(
        [" ", ":", "- ", "{", "}", "#", "\n", "&a ", "*a", "'", "|\n", "? ", "!x ", "<<: ", "null", "\t", ","]
    ),
)


@settings(max_examples=draws(100), deadline=None)
@given(st.lists(damage, max_size=3), st.booleans())
def test_damaged_manifests_are_refused_or_stay_what_they_are(damages: list[tuple[int, int, str]], flow: bool) -> None:
    """Any damaged manifest gives coded errors, or a text that same_elsewhere has checked."""
    text = pod("nvidia.com/gpumem: 1024", "cpu: 1") if flow else COMMENTED.replace("200", "5")
    for how, place, new_text in damages:
        lines = text.split("\n")
        line = place % len(lines)
        if how == 0:
            del lines[line]
        elif how == 1:
            lines.insert(line, lines[-1 - line])
        elif how == 2:
            lines[line] = "  " + lines[line]
        text = "\n".join(lines)
        place %= len(text) + 1
        if how > 2:
            text = text[:place] + new_text + text[place + (how == 4) :]
    try:
        done = kube.translate(text, ALL).text
    except RequestError as e:
        assert all(len(str(p)) <= 300 for p in e.problems)
        return
    assert kube.translate(done, ALL).text == done


# A translated container asks for what its resources asked for.

KEYS = sorted({key for name in dialects.NAMES for key in dialects.table(name).KEYS if "/" in key and "*" not in key})
limits = st.dictionaries(st.sampled_from([*KEYS, "cpu"]), st.sampled_from(["1", "2", "30", "100", "200"]), max_size=3)


@settings(max_examples=draws(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(limits, min_size=1, max_size=3), st.sampled_from(["block", "flow"]), st.booleans())
@example([{}, {"nvidia.com/vcuda-memory": "1", "runai/gpu-fraction": "1"}], "block", True)
@example([{"nvidia.com/gpumem-percentage": "1", "tensorstack.dev/nvidia-gpu-percent": "1"}], "block", False)
def test_the_same_request(asked_for: list[dict[str, str]], style: str, long: bool) -> None:
    names = [("n" * 57 if long else "c") + str(n) for n in range(len(asked_for))]
    parts = [{"name": n, "resources": {"limits": said}} for n, said in zip(names, asked_for, strict=True)]
    text = yaml.safe_dump({"kind": "Pod", "spec": {"containers": parts}}, default_flow_style=style == "flow")
    try:
        done = kube.translate(text, ALL)
    except RequestError as e:
        assert all(len(str(p)) <= 300 for p in e.problems)
        return
    after = yaml.safe_load(done.text)
    annotations = (after.get("metadata") or {}).get("annotations") or {}
    for name, said, container in zip(names, asked_for, after["spec"]["containers"], strict=True):
        if said.get("tencent.com/vcuda-core", said.get("nvidia.com/vcuda-core", "0")) in ("100", "200"):
            said = {key: value for key, value in said.items() if "vcuda-memory" not in key}
        if said.get("tke.cloud.tencent.com/qgpu-core") == "100":
            said = {key: value for key, value in said.items() if "qgpu-memory" not in key}
        wanted = parse(said, {}, name, ALL)
        got = parse(annotations, {}, name, Rules(dialects=()), decode=request_mounts.decode)
        if not long:
            assert got == wanted
        elif wanted is not None:  # memory-request is lost where no key fits; a note says so
            less = tuple(gpu.replace(memory_request=None) for gpu in wanted.gpus)
            noted = any("memory-request" in note for pod in done.pods for note in pod.notes)
            assert got is not None and got.gpus == (less if noted else wanted.gpus)
        if wanted is not None:
            assert not set(KEYS) & set((container.get("resources") or {}).get("limits") or {})
            assert after["spec"]["runtimeClassName"] == "gpu-hook"


def test_words_of_others_that_have_an_equivalent_are_told() -> None:
    text = pod("nvidia.com/gpu: 1", before="  annotations: {nvidia.com/use-gpuuuid: GPU-a}\n")
    assert notes(text) == [
        "note: Pod p: annotation nvidia.com/use-gpuuuid stays without effect; write gpu-hook.io/devices"
    ]


@pytest.mark.parametrize(
    ("gpu", "node", "ours"),
    [
        ("spread", "binpack", {"gpu-hook.io/placement.c0": "spread", "gpu-hook.io/node-placement": "binpack"}),
        ("topology-aware", "spread", {"gpu-hook.io/node-placement": "spread"}),
    ],
)
def test_hamis_orders_are_ours(gpu: str, node: str, ours: dict[str, str]) -> None:
    words = f"{{hami.io/gpu-scheduler-policy: {gpu}, hami.io/node-scheduler-policy: {node}}}"
    text = pod("nvidia.com/gpu: 1", "cpu: 1", before=f"  annotations: {words}\n")
    assert yaml.safe_load(new(text))["metadata"]["annotations"] == {"gpu-hook.io/gpus.c0": "1"} | ours
    assert notes(text) == []
    idle = pod("cpu: 1", before=f"  annotations: {words}\n")
    assert new(idle) == idle
    assert refused(text.replace("-policy: " + node, "-policy: x"))[0].startswith(
        "GH-101: Pod p: container c0: hami.io/node-scheduler-policy='x' is not one of"
    )
