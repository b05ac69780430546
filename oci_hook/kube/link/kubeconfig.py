"""The API server's address, its CA and our credentials, from kubeconfig files as kubectl reads them, or from a pod's service
account. Standard library only, since each node's reporter loads it."""

import base64
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from oci_hook.core.value import Value
from oci_hook.errors import refuse

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
PLUG_INS = "plug-ins (exec) are not run"
ONLY_KUBECTL = "which only kubectl follows"
KUBECTLS = (PLUG_INS, ONLY_KUBECTL)  # in errors after which those who have kubectl may ask it
# Without "as" we might do more than kubectl.
KUBECTLS_KEYS = "proxy-url", "as", "as-uid", "as-groups", "as-user-extra"
KINDS = {"clusters": "cluster", "contexts": "context", "users": "user"}  # list in the file -> member of its entries
MAX_FILE = 1 << 20
ADVICE = "name a kubeconfig with --kubeconfig"


class Credential(Value):
    """server: https://HOST:PORT, or http on this machine. ca, certificate, key: PEM, or the path of a file that may be replaced.
    token_file: read for each use, since tokens rotate. namespace: of the pod or the context, "" if neither has one. name: expected in
    the server's certificate, "" for the host."""

    server: str
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    token_file: str = ""
    namespace: str = ""
    name: str = ""

    def bearer(self) -> str:
        """The token, "" for none. Raises OSError."""
        try:
            return read(self.token_file).strip() if self.token_file else self.token
        except ValueError:
            raise OSError(f"{self.token_file} has no token") from None

    def context(self) -> ssl.SSLContext | None:
        """Reads the files anew; None for http. Raises OSError, ssl.SSLError."""
        if not self.server.startswith("https://"):
            return None
        context = trusting(pem(self.ca))
        if self.certificate:
            # load_cert_chain takes files only.
            with _File(pem(self.certificate)) as certificate, _File(pem(self.key)) as key:
                context.load_cert_chain(certificate, key)
        return context


def trusting(ca: str) -> ssl.SSLContext:
    """A client's context that trusts these certificates (PEM). Python 3.13 asks for all of RFC 5280 by default
    (VERIFY_X509_STRICT), which clusters' authorities often lack: key usage, key identifiers. kubectl does not ask for it."""
    context = ssl.create_default_context(cadata=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def files(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The existing files of KUBECONFIG or, without that variable, ~/.kube/config, as for kubectl; [] if there are none. Raises
    ClusterError GH-608 if the variable names files and none is there."""
    named = environment.get("KUBECONFIG", "")
    listed = named.split(os.pathsep) if named else [os.path.expanduser("~/.kube/config")]
    found = [path for path in listed if path and os.path.exists(path)]
    if named and not found:
        raise refuse("GH-608", f"KUBECONFIG names {named:.200}, which does not exist; correct or unset it")
    return found


def parse_yaml(text: str) -> Any:
    """Raises ValueError."""
    import yaml  # a tenth of the reporter's memory, so the reporter passes another parser

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError("it is not YAML") from None


def load(paths: Sequence[str], advice: str = ADVICE, parse: Callable[[str], Any] = parse_yaml) -> Credential:
    """Loads these kubeconfig files or, if there are none, the pod's service account. advice: the end of the error message. Raises
    ClusterError GH-608."""
    try:
        found = of_files(paths, parse) if paths else of_pod()
        found.context()
        return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
        what = ", ".join(paths) or "the pod's service account"
        why = f"{e.filename}: {e.strerror}" if isinstance(e, OSError) and e.filename else e
        raise refuse("GH-608", f"{what:.100} gives no access to the API server: {why!s:.120}; {advice}") from None


def of_pod(folder: str = ACCOUNT, environment: Mapping[str, str] = os.environ) -> Credential:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError("KUBERNETES_SERVICE_HOST is not set, so this is no pod")
    address = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    namespace = read(f"{folder}/namespace").strip()
    return Credential(address, f"{folder}/ca.crt", token_file=f"{folder}/token", namespace=namespace)


def of_files(paths: Sequence[str], parse: Callable[[str], Any] = parse_yaml) -> Credential:
    """Loads the current context. For each entry, the first file that has it counts. Paths in a file are relative to its folder
    (Kubernetes' documentation: Organizing Cluster Access Using kubeconfig Files). Raises ValueError for unsupported contents."""
    current = ""
    entries: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {kind: {} for kind in KINDS}
    for path in paths:
        data = parse(read(path)) or {}
        if not isinstance(data, dict):
            raise ValueError("it is no kubeconfig")
        current = current or str(data.get("current-context") or "")
        for kind, member in KINDS.items():
            for entry in data.get(kind) or ():
                entries[kind].setdefault(entry["name"], (os.path.dirname(path), entry.get(member) or {}))
    if not current:
        raise ValueError("it has no current-context")

    def named(kind: str, name: str) -> tuple[str, dict[str, Any]]:
        if name not in entries[kind]:
            raise ValueError(f"its {kind} have no {name!r}")
        return entries[kind][name]

    _, context = named("contexts", current)
    cluster, user = named("clusters", context["cluster"]), named("users", context["user"])
    found = Credential(
        str(cluster[1]["server"]).rstrip("/"),
        _text(cluster, "certificate-authority"),
        _text(user, "client-certificate"),
        _text(user, "client-key"),
        str(user[1].get("token") or ""),
        _beside(user, "tokenFile"),
        str(context.get("namespace") or ""),
        str(cluster[1].get("tls-server-name") or ""),
    )
    for key in KUBECTLS_KEYS:
        if cluster[1].get(key) or user[1].get(key):
            raise ValueError(f"it has {key!r}, {ONLY_KUBECTL}")
    parts = urlsplit(found.server)
    local = parts.scheme == "http" and parts.hostname in LOOPBACK
    if not (local or parts.scheme == "https") or cluster[1].get("insecure-skip-tls-verify"):
        raise ValueError("its server must use https, and be verified")
    if not (found.certificate or found.token or found.token_file or local):
        raise ValueError(f"the user has no certificate, token or token file, and {PLUG_INS}")
    return found


def _text(entry: tuple[str, dict[str, Any]], key: str) -> str:
    if inline := entry[1].get(f"{key}-data"):
        return base64.b64decode(inline, validate=True).decode()
    return _beside(entry, key)


def _beside(entry: tuple[str, dict[str, Any]], key: str) -> str:
    folder, values = entry
    return os.path.join(folder, values[key]) if values.get(key) else ""


def pem(text: str) -> str:
    return text if "-----BEGIN" in text or not text else read(text)


def read(path: str) -> str:
    with open(path, "rb") as f:
        text = f.read(MAX_FILE + 1)
    if len(text) > MAX_FILE:
        raise ValueError(f"{path} is larger than 1 MiB")
    return text.decode()


class _File:
    """A path for reading this text, in this process only."""

    def __init__(self, text: str) -> None:
        self._fd = os.memfd_create("gpu-hook", os.MFD_CLOEXEC)
        os.write(self._fd, text.encode())

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
