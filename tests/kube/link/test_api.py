"""The reporter's client against the test's own HTTPS server: broken watches, keys from a controller, trusted certificates."""

import asyncio
import contextlib
import http.server
import json
import os
import ssl
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from oci_hook.config import cluster
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.kube.controller.api.client import ApiError as ClientError
from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.formats import names
from oci_hook.kube.link import api as reporter_api
from oci_hook.kube.link import kubeconfig
from oci_hook.kube.link.api import FAILURES, Api, ApiError
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.node_settings import NodeSettings
from oci_hook.kube.link.status import Status
from oci_hook.kube.link.watcher import Change, Watcher
from oci_hook.kube.reporter import key_keeper, node_key
from oci_hook.kube.reporter.key_keeper import KeyKeeper
from oci_hook.kube.reporter.reporter import Reporter
from oci_hook.kube.reporter.views import SeenNode
from testbed.installs import Install
from testbed.until import until
from tests.decisions import KEYS, NODE

ANSWER = {"node": NODE, "keys": {str(number): key for number, key in KEYS.items()}}
Answer = Callable[[str, str, str], tuple[int, bytes]]  # method, path, Authorization -> status, body


class Server:
    """answer: replaceable. asked: (method, path, Authorization) of each request. bodies: of the requests."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.answer: Answer = lambda *_: (404, b"{}")
        self.asked: list[tuple[str, str, str]] = []
        self.bodies: list[bytes] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                what = (self.command, self.path, self.headers.get("Authorization") or "")
                server.asked.append(what)
                status, body = server.answer(*what)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any

            def log_message(self, *_: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def made(folder: Path, name: str, names: str) -> tuple[Path, Path]:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    crt, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [*command, "-addext", f"subjectAltName={names}", "-keyout", key, "-out", crt], check=True, capture_output=True
    )
    return crt, key


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("pki")
    ours = "DNS:gpu-hook-controller.gpu-hook.svc,IP:127.0.0.1"
    return {"ours": made(folder, "ours", ours), "other": made(folder, "other", "DNS:other.gpu-hook.svc")}


@pytest.fixture
def server(pki: dict[str, tuple[Path, Path]]) -> Iterator[Server]:
    found = Server(*pki["ours"])
    yield found
    found.close()


@pytest.fixture
def known(server: Server, pki: dict[str, tuple[Path, Path]], tmp_path: Path) -> Credential:
    (tmp_path / "token").write_text("one")
    return Credential(f"https://127.0.0.1:{server.port}", str(pki["ours"][0]), token_file=str(tmp_path / "token"))


@pytest.mark.parametrize("which", ["reporter", "controller"])
def test_the_certificate_is_for_the_name_in_the_kubeconfig(
    pki: dict[str, tuple[Path, Path]], tmp_path: Path, which: str
) -> None:
    """As by an SSH tunnel to the API server, whose certificate does not have 127.0.0.1."""
    server = Server(*pki["other"])
    server.answer = lambda *_: (200, b"{}")
    cluster = {"server": f"https://127.0.0.1:{server.port}", "certificate-authority": str(pki["other"][0])}

    async def asked(credential: Credential) -> object:
        async with Client(credential) as client:
            return await client.get("/version")

    def get(name: str) -> object:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {**cluster, "tls-server-name": name}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        credential = kubeconfig.load([str(tmp_path / "config")])
        if which == "controller":
            return asyncio.run(asked(credential))
        with contextlib.closing(Api(credential)) as api:
            return api.get("/version")

    try:
        assert get("other.gpu-hook.svc") == {}
        for wrong in ("", "else.gpu-hook.svc"):
            with pytest.raises(
                (ssl.SSLCertVerificationError, ClientError), match="CERTIFICATE_VERIFY_FAILED|Certificate"
            ):
                get(wrong)
    finally:
        server.close()


def test_a_token_is_read_anew_for_each_call(server: Server, known: Credential, tmp_path: Path) -> None:
    api = Api(known)
    server.answer = lambda *_: (200, b'{"a":1}')
    assert api.get("/x") == {"a": 1}
    (tmp_path / "token").write_text("two\n")
    assert api.call("PATCH", "/x", {}) == {"a": 1}
    assert [asked[2] for asked in server.asked] == ["Bearer one", "Bearer two"]
    server.answer = lambda *_: (403, b'{"message":"forbidden: no"}')
    with pytest.raises(ApiError, match="forbidden: no .HTTP 403"):
        api.get("/x")
    server.answer = lambda *_: (200, b"<html>")
    with pytest.raises(FAILURES):
        api.get("/x")
    api.close()


@pytest.mark.parametrize("how", (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), BrokenPipeError(32, "x")))
def test_a_kept_connection_that_the_server_has_closed_is_made_anew(
    server: Server, known: Credential, monkeypatch: pytest.MonkeyPatch, how: Exception
) -> None:
    api = Api(known)
    server.answer = lambda *_: (200, b"1")
    assert api.get("/x") == 1

    def closed(*_: Any) -> None:
        raise how

    assert api._connection is not None
    monkeypatch.setattr(api._connection, "request", closed)
    assert api.get("/y") == 1 and [asked[1] for asked in server.asked] == ["/x", "/y"]
    api.close()


def test_a_server_of_another_authority_is_not_asked(server: Server, known: Credential, pki: Any) -> None:
    with pytest.raises(ssl.SSLError):
        Api(known.replace(ca=str(pki["other"][0]))).get("/x")
    assert server.asked == []


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def line(kind: str, found: Any) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def test_a_watch_goes_on_where_it_was_and_lists_anew_when_it_is_too_old(server: Server, known: Credential) -> None:
    """It also lists anew after garbage, an error, and an endless line."""
    watches = iter(
        (
            (200, line("ADDED", item("b", 6)) + line("BOOKMARK", item("", 9))),
            (200, line("DELETED", item("b", 10))),
            (200, line("ERROR", {"code": 410, "message": "too old"})),
            (200, b"garbage\n"),
            (500, b"{}"),
            (200, b'{"type":"ADDED"'),
            (200, line("ADDED", {})),
            (200, line("MODIFIED", item("c", 99))),
        )
    )

    def answer(method: str, path: str, token: str) -> tuple[int, bytes]:
        if "watch=1" in path:
            return next(watches, (200, b""))
        return 200, json.dumps({"metadata": {"resourceVersion": "5"}, "items": [item("a", 1)]}).encode()

    server.answer = answer
    seen: list[Change] = []
    watcher = Watcher(
        known, "pods", "/api/v1/pods", "spec.nodeName=n1", lambda found: found["metadata"]["name"], seen.append
    )
    watcher.start()
    until(lambda: any(change.value == "c" for change in seen))
    watcher.stop()
    told = [(change.how, change.value) for change in seen if change.how != "failure"]
    assert told[:3] == [("all", ["a"]), ("put", "b"), ("gone", "b")] and told[-1] == ("put", "c")
    assert [how for how, _ in told].count("all") == 6  # at first, after 410, and after each of four failures
    paths = [path for _, path, _ in server.asked]
    assert "resourceVersion=5&" in paths[1] and "resourceVersion=9&" in paths[2] and "resourceVersion=10&" in paths[3]
    assert all("fieldSelector=spec.nodeName%3Dn1" in path for path in paths)
    watcher.join(20)


def test_a_list_that_is_too_large_comes_in_pages(
    server: Server, known: Credential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_api, "MAX_PAGE", 4 << 20, raising=False)
    monkeypatch.setattr(reporter_api, "MAX_ANSWER", 5 << 20)
    many, mib = 12, 1

    def answer(method: str, path: str, token: str) -> tuple[int, bytes]:
        asked = parse_qs(urlsplit(path).query)
        if "watch" in asked:
            return 200, b""
        first = int(asked.get("continue", ["0"])[0])
        last = min(many, first + int(asked.get("limit", [str(many)])[0]))
        items = [{**item(str(n), n), "x": "x" * (mib << 20)} for n in range(first, last)]
        more = {"continue": str(last)} if last < many else {}
        return 200, json.dumps({"metadata": {"resourceVersion": "5", **more}, "items": items}).encode()

    def listed() -> Change:
        seen: list[Change] = []
        watcher = Watcher(
            known, "pods", "/api/v1/pods", "spec.nodeName=n1", lambda found: found["metadata"]["name"], seen.append
        )
        watcher.start()
        until(lambda: seen)
        watcher.stop()
        watcher.join(20)
        return seen[0]

    server.answer = answer
    told = listed()
    assert (told.how, told.value) == ("all", [str(n) for n in range(many)])
    assert all("fieldSelector=spec.nodeName%3Dn1" in path for _, path, _ in server.asked)
    many, mib = 1, 6
    told = listed()
    assert (told.how, told.value) == ("failure", "one object of /api/v1/pods: the answer is larger than 5 MiB")


def test_a_grant_whose_pod_is_not_known_is_looked_for_once(
    server: Server, known: Credential, prefix: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A static pod's grant has the kubelet's uid of it, which no pod of the API server has."""
    pods: list[str] = []

    def answer(method: str, path: str, token: str) -> tuple[int, bytes]:
        items = [{"metadata": {"uid": uid}, "spec": {}, "status": {}} for uid in pods]
        return 200, json.dumps({"metadata": {}, "items": items}).encode()

    def looks(*uids: str) -> int:
        grants = tuple(Grant(uid, Identity("/run", uid, "/b", pod_uid=uid), Life("", (0, 0)), ()) for uid in uids)
        monkeypatch.setattr(reporter._ledger, "grants", lambda: grants)
        server.asked.clear()
        for _ in range(5):
            reporter._write({}, {})
        return sum(path.startswith("/api/v1/pods") for _, path, _ in server.asked)

    server.answer = answer
    reporter = Reporter(str(prefix.prefix), NODE, NodeSettings(), known, Status())
    monkeypatch.setattr(reporter, "_publish_sums", lambda *_: False)
    reporter._seen.node, reporter._seen.pods = SeenNode({}, {}, {}, {}), {}
    assert looks("static") == 1
    pods.append("late")
    assert looks("static", "late") == 1 and list(reporter._seen.pods) == ["late"]
    reporter._seen.pods = {}  # an older list of the watch's
    assert looks("static", "late") == 1 and looks() == 0
    assert looks("static") == 1
    reporter._api.close()
    reporter._selector.close()


# --- keys from the controller ---


def test_the_controller_is_known_by_its_authority_and_its_services_name(server: Server, pki: Any) -> None:
    where, ca = ("127.0.0.1", server.port), pki["ours"][0].read_text()
    server.answer = lambda *_: (200, json.dumps(ANSWER).encode())
    assert json.loads(node_key.fetch(where, "gpu-hook", ca, "t")) == ANSWER
    assert server.asked == [("POST", "/v1/node-key", "Bearer t")]
    for namespace, authority in (("elsewhere", ca), ("gpu-hook", pki["other"][0].read_text())):
        with pytest.raises(ssl.SSLError):
            node_key.fetch(where, namespace, authority, "t")
    assert len(server.asked) == 1
    server.answer = lambda *_: (403, b"no pod of ours\n")
    with pytest.raises(ApiError, match="no pod of ours"):
        node_key.fetch(where, "gpu-hook", ca, "t")


def test_keys_are_asked_for_until_they_come_and_again_when_something_changed(
    server: Server, known: Credential, pki: Any, tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc/cluster.json"
    answers: dict[str, tuple[int, bytes]] = {"key": (503, b"not the leader")}

    def answer(method: str, path: str, token: str) -> tuple[int, bytes]:
        if path == names.NODE_KEY:
            return answers["key"]
        return 200, json.dumps({"spec": {"clusterIP": "127.0.0.1", "ports": [{"port": server.port}]}}).encode()

    server.answer = answer
    api, ca = Api(known), {"ca.crt": pki["ours"][0].read_text()}
    keeper = KeyKeeper(str(tmp_path), NODE, NodeSettings(controller_token=str(tmp_path / "token")))
    keeper.look(api, None, 0, {}, 0.0)  # the controller's ConfigMap is not known yet
    assert server.asked == [] and keeper.problem == ""
    keeper.look(api, ca, 1, {}, 1.0)
    assert "not the leader" in keeper.problem and not file.exists()
    count = len(server.asked)
    keeper.look(api, ca, 1, {}, 1.1)  # not at once again
    assert len(server.asked) == count

    answers["key"] = (200, json.dumps({**ANSWER, "node": "n2"}).encode())
    keeper.look(api, ca, 1, {}, 100.0)
    assert "keys of node n2" in keeper.problem and not file.exists()
    answers["key"] = (200, json.dumps(ANSWER).encode())
    keeper.look(api, ca, 1, {}, 200.0)
    found = cluster.keys(str(tmp_path))
    assert keeper.problem == "" and found is not None and found.node == NODE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.stat().st_ino

    count = len(server.asked)
    keeper.look(api, ca, 1, {"u": "GH-201"}, 300.0)
    assert len(server.asked) == count  # this refusal is not about a signature
    keeper.look(api, ca, 1, {"u": "GH-602"}, 301.0)
    keeper.look(api, ca, 1, {"u": "GH-602"}, 302.0)
    assert (
        len(server.asked) == count + 2 and file.stat().st_ino == before
    )  # asked once; unchanged keys are not written again
    keeper.look(api, ca, 2, {}, 303.0)
    assert len(server.asked) == count + 4
    keeper.look(api, ca, 2, {}, 304.0 + key_keeper.EVERY)
    assert len(server.asked) == count + 6
    os.unlink(tmp_path / "token")
    keeper.look(api, ca, 3, {}, 400.0)
    assert "no keys from the controller" in keeper.problem and file.exists()
    api.close()
