"""ResourceQuotas and LimitRanges in other systems' words: after `translate` they bound the sums of the create webhook's pods."""

import json

import yaml

from oci_hook.core import dialects
from oci_hook.core.rules import Rules
from oci_hook.kube.formats import names
from oci_hook.kube.formats.quantity import whole
from oci_hook.kube.manifests.translate import translate
from oci_hook.kube.pod.mutate import WebhookOptions, mutate

RULES = Rules(dialects=dialects.NAMES, qgpu_memory_unit="MiB")
OPTIONS = WebhookOptions(RULES)
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: team}
spec:
  hard:
    pods: "10"
    requests.nvidia.com/gpu: "4" # whole ones
    limits.nvidia.com/gpumem: 16k
    requests.tencent.com/vcuda-core: 250
    requests.rdma/hca: "2"
    requests.nvidia.com/gpumem-percentage: 50
---
apiVersion: v1
kind: LimitRange
metadata: {name: most}
spec:
  limits:
  - type: Pod
    max: {cpu: "4", 'nvidia.com/gpu': "2"}
    min: {tencent.com/vcuda-memory: '4'}
  - type: Container
    max:
      nvidia.com/gpucores: 50
    default: {nvidia.com/gpu: 1}
"""


def test_quotas_and_limits_bound_the_sums_of_translated_pods() -> None:
    done = translate(QUOTA, RULES)
    quota, limits = yaml.safe_load_all(done.text)
    assert quota["spec"]["hard"] == {
        "pods": "10",
        "requests.gpu-hook.io/gpus": "4",
        "requests.gpu-hook.io/memory-mib": 16000,
        "requests.gpu-hook.io/compute": 250,
        "requests.rdma/hca": "2",
        "requests.nvidia.com/gpumem-percentage": 50,
    }
    pods, containers = limits["spec"]["limits"]
    assert pods == {"type": "Pod", "max": {"cpu": "4", names.GPUS: "2"}, "min": {names.MEMORY: "1024"}}
    assert containers == {"type": "Container", "max": {names.COMPUTE: 50}, "default": {"nvidia.com/gpu": 1}}
    assert "# whole ones" in done.text and translate(done.text, RULES).text == done.text
    notes = [note for one in done.quotas for note in one.notes]
    assert [note.partition(" ")[0] for note in notes] == [
        "requests.nvidia.com/gpumem-percentage",
        f"{names.COMPUTE}:",
        "default",
    ]
    assert translate(QUOTA, Rules(dialects=("t9k",))).text == QUOTA


def test_a_quota_counts_of_a_pod_what_its_original_counts() -> None:
    """Kubernetes counts a pod's requests after the webhook: of the original that is nothing, of the translated one the same."""
    for resource, amount, most in (
        ("nvidia.com/gpu", "2", "2"),
        ("nvidia.com/gpumem", "3000", "3000"),
        ("nvidia.com/gpucores", "30", "30"),
        ("tencent.com/vcuda-core", "40", "40"),
        ("tencent.com/vcuda-memory", "8", "8"),
        ("tke.cloud.tencent.com/qgpu-memory", "5", "5"),
        ("tensorstack.dev/nvidia-gpu", "2", "2"),
    ):
        beside = {"tencent.com/vcuda-memory": {"tencent.com/vcuda-core": "10"}}.get(resource, {})
        container = {"name": "c", "resources": {"limits": {resource: amount, **beside}}}
        done = mutate({"metadata": {"name": "p"}, "spec": {"containers": [container]}}, OPTIONS)
        (has,) = [op["value"]["requests"] for op in done.patch if op["path"] == "/spec/containers/0/resources"]
        hard = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {f"requests.{resource}": most}}}
        quota = yaml.safe_load(translate(json.dumps(hard), RULES).text)["spec"]["hard"]
        assert resource not in has
        ((key, bound),) = quota.items()
        assert whole(has[key.removeprefix("requests.")]) == whole(str(bound)), resource


def test_a_quota_that_cannot_be_rewritten_is_told() -> None:
    both = {"limits.nvidia.com/gpu": "2", "requests.nvidia.com/gpu": "1", "requests.nvidia.com/mig-1g.5gb": "1"}
    odd = {"requests.nvidia.com/gpumem": "1.5", "requests.tensorstack.dev/nvidia-gpu-node": "1"}
    done = translate(
        json.dumps({"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {**both, **odd}}}), RULES
    )
    assert list(json.loads(done.text)["spec"]["hard"]) == [
        "limits.nvidia.com/gpu",
        f"requests.{names.GPUS}",
        "requests.nvidia.com/mig-1g.5gb",
        *odd,
    ]
    assert len(done.quotas[0].notes) == 4
    other = "apiVersion: other/v1\nkind: ResourceQuota\nspec: {hard: {requests.nvidia.com/gpu: 1}}\n"
    assert translate(other, RULES).text == other
    for odd_form in ("spec: {hard: [1]}", "spec: {hard: {requests.nvidia.com/gpu: [1]}}", "spec:", "spec: {limits: 3}"):
        text = f"apiVersion: v1\nkind: ResourceQuota\n{odd_form}\n---\napiVersion: v1\nkind: LimitRange\n{odd_form}\n"
        assert translate(text, RULES).text == text
