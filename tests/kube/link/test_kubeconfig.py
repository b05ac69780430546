"""Credentials for the API server: kubectl's rule for several kubeconfig files, and refused ones."""

import contextlib
import json
import os
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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


def test_an_authority_as_clusters_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without key usage and key identifiers, which Python 3.13 asks for by default."""
    made = ssl.create_default_context

    def strict(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        context = made(*args, **kwargs)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now, day = datetime.now(timezone.utc), timedelta(days=1)
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    leaf = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        found = x509.CertificateBuilder().subject_name(subject).issuer_name(root).public_key(public)
        found = found.serial_number(x509.random_serial_number())
        return found.not_valid_before(now - day).not_valid_after(now + day)

    authority = builder(root, ca_key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    served = builder(leaf, key.public_key()).add_extension(names, False)
    pem = serialization.Encoding.PEM
    (tmp_path / "ca").write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    (tmp_path / "pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + served.sign(ca_key, hashes.SHA256()).public_bytes(pem)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "pem")
    client = Credential("https://localhost", ca=(tmp_path / "ca").read_text()).context()
    assert client
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(ours, theirs, server_hostname="localhost"), server.wrap_bio(theirs, ours, server_side=True)
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ends[0].getpeercert()
