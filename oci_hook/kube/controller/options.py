"""The options of `gpu-hook controller`."""

import ipaddress

from oci_hook.core.value import Value
from oci_hook.errors import ClusterError, Problem
from oci_hook.kube.formats.names import CONTROLLER

DAY = 86_400.0


class ControllerOptions(Value):
    """host, port: where to listen. extender_host, extender_port: loopback address that answers a scheduler without a token; port
    0: none. names: of the serving certificate. certificate_life, key_life: seconds. node_account: service account of the
    DaemonSet's pods. metrics_token: "" for none. page_host, page_port: loopback address that serves the page without a token; port
    0: none. page_token: opens the page at host and port; "": not served there. place: order of nodes. scheduler: replaces another
    system's scheduler name. pod: our own pod, "" for none. reached_at: our HOST:PORT for other controllers. preemption: off,
    report or on. equal_offline: online pods may preempt offline ones of the same priority."""

    host: str
    port: int
    namespace: str
    names: tuple[str, ...]
    mutating: str = "gpu-hook"
    validating: str = ""
    kubeconfig: str = ""
    settings: str = ""
    extender_host: str = "127.0.0.1"
    extender_port: int = 0
    node_account: str = "gpu-hook-node"
    node_daemon_set: str = "gpu-hook-node"
    certificate_life: float = 90 * DAY
    key_life: float = 30 * DAY
    metrics_token: str = ""
    page_host: str = "127.0.0.1"
    page_port: int = 0
    page_token: str = ""
    place: str = ""
    scheduler: str = "default-scheduler"
    queue_label: str = ""
    evict: bool = True
    pod: str = ""
    reached_at: str = ""
    taint: bool = True
    preemption: str = "on"
    equal_offline: bool = True


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPV6]:PORT. Raises ClusterError GH-608."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not (colon and host and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ClusterError(Problem("GH-608", f"{text!r} is not an address: write HOST:PORT, as in 0.0.0.0:8443"))
    return host, int(port)


def server_names(namespace: str, url: str, host: str) -> tuple[str, ...]:
    """The names of the serving certificate: the Service's, and the host of the URL or of the address. Raises ClusterError GH-608."""
    service = f"{CONTROLLER}.{namespace}"
    found = [CONTROLLER, service, f"{service}.svc", f"{service}.svc.cluster.local"]
    if url:
        if not url.startswith("https://"):
            raise ClusterError(Problem("GH-608", f"{url!r} is not a URL for callers: write https://HOST:PORT"))
        found.append(url.partition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]"))
    if host not in ("0.0.0.0", "::"):
        found.append(host)
    return tuple(dict.fromkeys(name for name in found if name))


def loopback(text: str) -> tuple[str, int]:
    """HOST:PORT on the loopback, since callers there need no token. Raises ClusterError GH-608."""
    host, port = address(text)
    try:
        own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = False
    if not own:
        raise ClusterError(
            Problem("GH-608", f"{host} is not a loopback address; callers from elsewhere use --address and a token")
        )
    return host, port


def reached_at(told: str, host: str, port: int) -> str:
    """HOST:PORT for other controllers; "" if we listen on all addresses and `told` is empty."""
    name = told or ("" if host in ("0.0.0.0", "::") else host)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}" if name else ""
