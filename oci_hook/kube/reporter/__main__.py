"""`python -m oci_hook.kube.reporter PREFIX`, started by the agent; exits when its standard input closes. With --withdraw, for
uninstalling, it removes all that it wrote about this node."""

import os
import signal
import sys
import threading

from oci_hook.errors import GhError, refuse
from oci_hook.kube.kubeconfig import Credential
from oci_hook.kube.reporter import credential, withdraw
from oci_hook.kube.reporter.options import NONE, Options, load
from oci_hook.kube.reporter.reporter import Reporter
from oci_hook.kube.reporter.status import Status


def node_name(options: Options, known: Credential) -> str:
    """Raises ClusterError GH-606."""
    said = "" if options.node == NONE else options.node
    name = said or os.environ.get("NODE_NAME", "") or credential.node(known)
    if not name:
        raise refuse(
            "GH-606", "no setting, variable NODE_NAME or kubelet's certificate names this node; set agent.node"
        )
    return name


def end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main(arguments: list[str]) -> int:
    prefix = arguments[0]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent
    status = Status()
    try:
        options = load(prefix)
        known = credential.load("" if options.kubeconfig == NONE else options.kubeconfig)
        name = node_name(options, known)
        if "--withdraw" in arguments[1:]:
            withdraw.withdraw(prefix, name, options, known)
            return 0
        threading.Thread(target=end_with_stdin, daemon=True).start()
        Reporter(prefix, name, options, known, status).run()
    except GhError as e:
        status.problems["start"] = str(e)
        status.tell()
        return 1
    except Exception as e:  # a bug of ours: the agent shows it, and restarts the reporter
        status.problems["mistake"] = f"unexpected {type(e).__name__}: {e}; please report it"
        status.tell()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
