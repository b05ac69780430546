"""How the API server is reached: its address, whom to trust, as whom to come. From a kubeconfig file, or from what a pod has."""

import base64
import os
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from oci_hook.core.value import Value
from oci_hook.errors import ClusterError, Problem

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE = 60.0  # seconds after which a token file is read again: the kubelet replaces it at 80 per cent of its life
MAX_FILE = 1 << 20


class Token:
    """A bearer token that may stand in a file, which is read again from time to time."""

    def __init__(self, text: str = "", file: str = "") -> None:
        self._text = text
        self._file = file
        self._read_at = float("-inf")

    def get(self) -> str:
        """ "" for none. Raises OSError where the file cannot be read and never could."""
        if self._file and time.monotonic() - self._read_at > TOKEN_AGE:
            try:
                self._text = Path(self._file).read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                if not self._text:
                    raise OSError(f"{self._file} has no token") from None
            self._read_at = time.monotonic()
        return self._text

    def forget(self) -> bool:
        """The server refused it: read the file again at the next use. False: there is no file."""
        self._read_at = float("-inf")
        return bool(self._file)


class Access(Value):
    """namespace: of the pod or of the kubeconfig's context; "" if neither says one."""

    server: str
    tls: ssl.SSLContext | None
    token: Token
    namespace: str = ""


def load(kubeconfig: str = "") -> Access:
    """Raises ClusterError GH-608."""
    try:
        return from_kubeconfig(Path(kubeconfig)) if kubeconfig else from_pod()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as e:
        what = kubeconfig or "the pod's service account"
        raise ClusterError(
            Problem("GH-608", f"{what} gives no way to the API server: {e}; name a kubeconfig with --kubeconfig")
        ) from None


def from_pod(folder: Path = IN_POD, environment: Any = os.environ) -> Access:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not (host and port):
        raise ValueError("KUBERNETES_SERVICE_HOST is not set, so this is no pod")
    address = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    namespace = (folder / "namespace").read_text(encoding="ascii").strip()
    return Access(f"https://{address}:{port}", tls, Token(file=str(folder / "token")), namespace)


def from_kubeconfig(path: Path) -> Access:
    """The current context's cluster and user. Raises ValueError for what is not supported."""
    if path.stat().st_size > MAX_FILE:
        raise ValueError("it is larger than 1 MiB")
    data = yaml.safe_load(path.read_bytes())
    if not isinstance(data, dict):
        raise ValueError("it is no kubeconfig")
    if not data.get("current-context"):
        raise ValueError("it has no current-context")
    context = _named(data, "contexts", "context", data["current-context"])
    cluster = _named(data, "clusters", "cluster", context["cluster"])
    user = _named(data, "users", "user", context["user"])
    for key in ("exec", "auth-provider", "username"):
        if key in user:
            raise ValueError(f"users with {key!r} are not supported; use a certificate, a token or a token file")
    server = str(cluster["server"]).rstrip("/")
    token = Token(str(user.get("token") or ""), _beside(path, user.get("tokenFile")))
    tls = _tls(path, cluster, user) if server.startswith("https://") else None
    return Access(server, tls, token, str(context.get("namespace") or ""))


def _tls(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    if cluster.get("insecure-skip-tls-verify"):
        raise ValueError("insecure-skip-tls-verify is not supported: name the certificate authority")
    ca = _bytes(path, cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=ca.decode() if ca else None)
    certificate, key = _bytes(path, user, "client-certificate"), _bytes(path, user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:  # mode 0600; the ssl module reads files only
            both.write(certificate + b"\n" + key)
            both.flush()
            tls.load_cert_chain(both.name)
    return tls


def _named(data: dict[str, Any], listed: str, member: str, name: str) -> dict[str, Any]:
    for one in data.get(listed) or ():
        if one["name"] == name:
            return one[member] or {}
    raise ValueError(f"its {listed} have no {name!r}")


def _bytes(path: Path, data: dict[str, Any], key: str) -> bytes:
    if inline := data.get(f"{key}-data"):
        return base64.b64decode(inline, validate=True)
    file = _beside(path, data.get(key))
    return Path(file).read_bytes() if file else b""


def _beside(path: Path, file: Any) -> str:
    """Relative names are relative to the kubeconfig."""
    return str(path.parent / str(file)) if file else ""
