"""The reporter's credentials for the API server, preferably the kubelet's, and the node's name in them."""

import json
import os
import ssl
from typing import Any, NoReturn

from oci_hook.kube.link import kubeconfig
from oci_hook.kube.link.kubeconfig import Credential, pem

# A kubelet's common name begins with it (Kubernetes' documentation: Using Node Authorization).
NODE_USER = "system:node:"
COMMON_NAME = b"\x06\x03\x55\x04\x03"  # DER of the object identifier 2.5.4.3


def load(file: str) -> Credential:
    """file: "" for the pod's service account. Raises ClusterError GH-608."""
    return kubeconfig.load([file] if file else [], "set agent.kubeconfig to the kubelet's kubeconfig", _yaml)


def node(known: Credential) -> str:
    """The node, if this is a kubelet's credential; else ""."""
    try:
        return node_of(ssl.PEM_cert_to_DER_cert(_first(pem(known.certificate)))) if known.certificate else ""
    except (OSError, ValueError):
        return ""


def node_of(der: bytes) -> str:
    """The node in a kubelet's certificate, from the common name of its subject, a short string (X.690, 8.1.3.4)."""
    at = -1
    while (at := der.find(COMMON_NAME, at + 1)) >= 0:
        head, value = der[at + 5 : at + 7], der[at + 7 :]
        if len(head) == 2 and head[0] in (0x0C, 0x13, 0x16) and head[1] < 0x80:
            name = value[: head[1]].decode("ascii", "replace")
            if name.startswith(NODE_USER):
                return name.removeprefix(NODE_USER)
    return ""


def _first(text: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + text.partition(begin)[2].partition(end)[0] + end


def _yaml(text: str) -> Any:
    """Parses JSON here and other YAML in a child process, since the parser would take a tenth of the reporter's memory."""
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
        raise ValueError("it is not YAML")
    return json.loads(answer)


def _as_json(text: str, fd: int) -> NoReturn:
    try:
        answer = json.dumps(kubeconfig.parse_yaml(text))
        with open(fd, "w") as f:
            f.write(answer)
    except BaseException:  # an empty answer means failure
        os._exit(1)
    os._exit(0)
