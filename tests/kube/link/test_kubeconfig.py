"""Credentials for the API server: kubectl's rule for several kubeconfig files, and refused ones."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from oci_hook.errors import ClusterError
from oci_hook.kube.link import kubeconfig
from oci_hook.kube.link.kubeconfig import Credential

LOCAL = "http://127.0.0.1:8001"


def written(path: Path, **lists: Any) -> str:
    """A kubeconfig with these clusters, contexts and users by name; `current` is its current context."""
    data: dict[str, Any] = {"current-context": lists.pop("current", "")}
    for kind, entries in lists.items():
        data[kind] = [{"name": name, kind[:-1]: entry} for name, entry in entries.items()]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data))
    return str(path)


def test_the_first_file_that_says_something_counts(tmp_path: Path) -> None:
    """Entry by entry: nothing of the second `u` is taken, not even fields that the first lacks."""
    first = written(tmp_path / "1/a", users={"u": {"tokenFile": "token"}}, clusters={"k": {"server": LOCAL}})
    second = written(
        tmp_path / "2/b",
        current="c",
        users={"u": {"token": "other", "client-certificate-data": "eA=="}, "more": {}},
        clusters={"k": {"server": "https://other"}},
        contexts={"c": {"cluster": "k", "user": "u", "namespace": "n"}},
    )
    third = written(tmp_path / "3/c", current="d", contexts={"c": {"cluster": "x", "user": "x"}})
    (tmp_path / "1/token").write_text("right\n")
    environment = {"KUBECONFIG": os.pathsep.join([f"{tmp_path}/none", first, "", second, third])}
    paths = kubeconfig.files(environment)
    assert paths == [first, second, third]
    found = kubeconfig.load(paths, "advice")
    assert found == Credential(LOCAL, token_file=f"{tmp_path}/1/token", namespace="n") and found.bearer() == "right"


def test_where_kubectl_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kubeconfig.files({}) == []
    own = written(tmp_path / ".kube/config")
    assert kubeconfig.files({}) == kubeconfig.files({"KUBECONFIG": ""}) == [own]
    with pytest.raises(ClusterError, match="GH-608: KUBECONFIG names .*/none, which does not exist"):
        kubeconfig.files({"KUBECONFIG": f"{tmp_path}/none"})


def test_a_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("n\n")
    (tmp_path / "token").write_text("t\n")
    found = kubeconfig.of_pod(str(tmp_path), {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert (found.server, found.namespace, found.bearer()) == ("https://[fd00::1]:6443", "n", "t")
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(OSError, match="token has no token"):
        found.bearer()
    with pytest.raises(ValueError, match="so this is no pod"):
        kubeconfig.of_pod(str(tmp_path), {})


@pytest.mark.parametrize(
    ("cluster", "user", "why"),
    [
        ({"server": "http://10.0.0.1"}, {"token": "t"}, "must use https, and be verified"),
        ({"server": "https://a", "insecure-skip-tls-verify": True}, {"token": "t"}, "must use https, and be verified"),
        ({"server": "https://a"}, {"exec": {"command": "aws"}}, "plug-ins .exec. are not run"),
        (
            {"server": "https://a", "proxy-url": "socks5://b:1"},
            {"token": "t"},
            "it has 'proxy-url', which only kubectl",
        ),
        ({"server": "https://a"}, {"token": "t", "as": "x", "as-groups": ["y"]}, "it has 'as', which only kubectl"),
        ({"server": "https://a"}, {"token": "t", "as-groups": ["y"]}, "it has 'as-groups', which only kubectl"),
        ({"server": "https://a", "certificate-authority": "gone"}, {"token": "t"}, "/gone: No such file or directory"),
        ({"server": "https://a", "certificate-authority-data": "?"}, {"token": "t"}, "base64"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], why: str) -> None:
    contexts = {"c": {"cluster": "k", "user": "u"}}
    path = written(tmp_path / "a/config", current="c", contexts=contexts, clusters={"k": cluster}, users={"u": user})
    with pytest.raises(ClusterError, match=f"GH-608: .*/a/config gives no access to the API server: .*{why}.*; advice"):
        kubeconfig.load([path], "advice")


def test_a_proxy_on_this_machine_needs_no_user(tmp_path: Path) -> None:
    """As `kubectl proxy` serves."""
    contexts = {"c": {"cluster": "k", "user": "u"}}
    clusters = {"k": {"server": f"{LOCAL}/"}}
    path = written(tmp_path / "config", current="c", contexts=contexts, clusters=clusters, users={"u": {}})
    found = kubeconfig.load([path], "advice")
    assert found == Credential(LOCAL) and found.context() is None and found.bearer() == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no current-context"),
        ("root:x:0:0", "it is no kubeconfig"),
        ("kind: [", "it is not YAML"),
        ("kind: Config", "it has no current-context"),
        ("current-context: x", "its contexts have no 'x'"),
        ("#" * (1 << 20) + "\n", ".*/file is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ClusterError, match=f"GH-608: .*/file gives no access to the API server: {why};"):
        kubeconfig.load([str(tmp_path / "file")])
