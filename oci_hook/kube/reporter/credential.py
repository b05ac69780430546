"""Who the reporter is for the API server: a kubeconfig, best the kubelet's own, or the pod's service account."""

import base64
import json
import os
import ssl
from pathlib import Path
from typing import Any, NoReturn

from oci_hook.core.value import Value
from oci_hook.errors import refuse

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NODE_USER = (
    "system:node:"  # a kubelet's common name begins with it (Kubernetes' documentation: Using Node Authorization)
)
COMMON_NAME = b"\x06\x03\x55\x04\x03"  # DER of the object identifier 2.5.4.3
MAX_FILE = 1 << 20


class Credential(Value):
    """server: https://HOST:PORT. ca, certificate, key: PEM, or a path where the file may be replaced. token_file: read anew for
    each request, since tokens rotate."""

    server: str
    ca: str
    certificate: str = ""
    key: str = ""
    token: str = ""
    token_file: str = ""

    def bearer(self) -> str:
        """Raises OSError."""
        return _read(self.token_file).strip() if self.token_file else self.token

    def context(self) -> ssl.SSLContext:
        """With the files as they are now. Raises OSError, ssl.SSLError."""
        context = ssl.create_default_context(cadata=_pem(self.ca))
        if self.certificate:
            # load_cert_chain takes files only.
            with _File(_pem(self.certificate)) as certificate, _File(_pem(self.key)) as key:
                context.load_cert_chain(certificate, key)
        return context

    def node(self) -> str:
        """The node whose kubelet's credential this is, "" for another one."""
        try:
            return node_of(ssl.PEM_cert_to_DER_cert(_first(_pem(self.certificate)))) if self.certificate else ""
        except (OSError, ValueError):
            return ""


def load(kubeconfig: str) -> Credential:
    """kubeconfig: "" for the pod's service account. Raises ClusterError GH-608."""
    try:
        return of_kubeconfig(_yaml(_read(kubeconfig)), Path(kubeconfig).parent) if kubeconfig else of_account()
    except OSError as e:
        raise refuse(
            "GH-608", f"{e.filename}: {e.strerror}; set agent.kubeconfig to the kubelet's kubeconfig"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        what = f"{type(e).__name__} {e}"
        raise refuse("GH-608", f"kubeconfig {kubeconfig} cannot be used: {what:.120}; set agent.kubeconfig") from None


def of_account() -> Credential:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        why = "there is no kubeconfig and no service account: set agent.kubeconfig to the kubelet's kubeconfig"
        raise refuse("GH-608", why)
    host = f"[{host}]" if ":" in host else host
    return Credential(f"https://{host}:{port}", f"{ACCOUNT}/ca.crt", token_file=f"{ACCOUNT}/token")


def of_kubeconfig(data: Any, folder: Path) -> Credential:
    """Of the current context. Paths in it are relative to the file's folder."""
    named = {
        kind: {entry["name"]: entry[kind[:-1]] for entry in data.get(kind) or ()}
        for kind in ("clusters", "contexts", "users")
    }
    context = named["contexts"][data["current-context"]]
    cluster, user = named["clusters"][context["cluster"]], named["users"][context["user"]]

    def part(of: dict[str, Any], name: str) -> str:
        if of.get(f"{name}-data"):
            return base64.b64decode(of[f"{name}-data"], validate=True).decode()
        return str(folder / of[name]) if of.get(name) else ""

    if not str(cluster["server"]).startswith("https://") or cluster.get("insecure-skip-tls-verify"):
        raise ValueError("the API server must be asked by https, and verified")
    token_file = str(folder / user["tokenFile"]) if user.get("tokenFile") else ""
    found = Credential(
        str(cluster["server"]).rstrip("/"),
        part(cluster, "certificate-authority"),
        part(user, "client-certificate"),
        part(user, "client-key"),
        str(user.get("token") or ""),
        token_file,
    )
    if not (found.certificate or found.token or found.token_file):
        raise ValueError("the user has no certificate and no token; credential plug-ins are not run")
    return found


def node_of(der: bytes) -> str:
    """The node of a kubelet's certificate: the common name of its subject, which is a short string (X.690, 8.1.3.4)."""
    at = -1
    while (at := der.find(COMMON_NAME, at + 1)) >= 0:
        head, value = der[at + 5 : at + 7], der[at + 7 :]
        if len(head) == 2 and head[0] in (0x0C, 0x13, 0x16) and head[1] < 0x80:
            name = value[: head[1]].decode("ascii", "replace")
            if name.startswith(NODE_USER):
                return name.removeprefix(NODE_USER)
    return ""


class _File:
    """A path under which this text can be read, and which nobody else can."""

    def __init__(self, text: str) -> None:
        self._fd = os.memfd_create("gpu-hook", os.MFD_CLOEXEC)
        os.write(self._fd, text.encode())

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _pem(text: str) -> str:
    return text if "-----BEGIN" in text or not text else _read(text)


def _first(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + pem.partition(begin)[2].partition(end)[0] + end


def _read(path: str) -> str:
    with open(path, "rb") as f:
        return f.read(MAX_FILE).decode()


def _yaml(text: str) -> Any:
    """JSON is YAML too. Other YAML is read by a child process, since its parser would take a tenth of the reporter's memory."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        _as_json(text, theirs)
    os.close(theirs)
    with open(ours, "rb") as f:
        answer = f.read()
    os.waitpid(child, 0)
    if not answer:
        raise ValueError("is not YAML")
    return json.loads(answer)


def _as_json(text: str, fd: int) -> NoReturn:
    try:
        import yaml

        with open(fd, "w") as f:
            json.dump(yaml.safe_load(text), f)
    except BaseException:  # an empty answer says it all
        os._exit(1)
    os._exit(0)
