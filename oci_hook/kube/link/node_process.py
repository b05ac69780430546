"""A process of the agent for the cluster: its start, its end with its standard input, and its failures as the agent shows them."""

import os
import signal
import threading
from collections.abc import Callable

from oci_hook.errors import GhError, refuse
from oci_hook.kube.link import credential
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.node_settings import NONE, NodeSettings, load
from oci_hook.kube.link.status import Status

Work = Callable[[str, NodeSettings, Credential, Status], None]  # node's name; raises GhError


def run(prefix: str, work: Work) -> int:
    """The exit status: 1 where the process says in its status why it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent
    status = Status()
    try:
        options = load(prefix)
        known = credential.load("" if options.kubeconfig == NONE else options.kubeconfig)
        work(_node_name(options, known), options, known, status)
    except GhError as e:
        status.problems["start"] = str(e)
        status.tell()
        return 1
    except Exception as e:  # a bug of ours: the agent shows it, and starts the process again
        status.problems["mistake"] = f"unexpected {type(e).__name__}: {e}; please report it"
        status.tell()
        raise
    return 0


def end_with_stdin() -> None:
    """From now on the process exits when its standard input closes."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _node_name(options: NodeSettings, known: Credential) -> str:
    """Raises ClusterError GH-606."""
    said = "" if options.node == NONE else options.node
    name = said or os.environ.get("NODE_NAME", "") or credential.node(known)
    if not name:
        raise refuse(
            "GH-606", "no setting, variable NODE_NAME or kubelet's certificate names this node; set agent.node"
        )
    return name
