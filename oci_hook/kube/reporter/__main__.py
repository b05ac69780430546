"""`python -m oci_hook.kube.reporter PREFIX`, by the agent; ends when its standard input does. With --withdraw instead, by whom
uninstalls: take back all that was written about this node."""

import os
import signal
import sys
import threading
from collections.abc import Callable

from oci_hook.errors import GhError, refuse
from oci_hook.kube.reporter import credential, withdraw
from oci_hook.kube.reporter.options import NONE, Options, load
from oci_hook.kube.reporter.reporter import Reporter
from oci_hook.kube.reporter.status import Status

MAX_LINE = 1 << 20


def node_name(options: Options, known: credential.Credential) -> str:
    """Raises ClusterError GH-606."""
    said = "" if options.node == NONE else options.node
    name = said or os.environ.get("NODE_NAME", "") or known.node()
    if not name:
        raise refuse(
            "GH-606", "no setting, variable NODE_NAME or kubelet's certificate names this node; set agent.node"
        )
    return name


def listen(hear: Callable[[bytes], None]) -> None:
    """Hands on the agent's lines, and ends the process with standard input."""
    text = b""
    while data := os.read(0, 64 << 10):
        *lines, text = (text + data).split(b"\n")
        text = text[:MAX_LINE]
        for line in filter(None, lines):
            hear(line)
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
        reporter = Reporter(prefix, name, options, known, status)
        threading.Thread(target=listen, args=(reporter.hear,), daemon=True).start()
        reporter.run()
    except GhError as e:
        status.problems["start"] = str(e)
        status.tell()
        return 1
    except Exception as e:  # a mistake of ours: the agent shows it, and starts the reporter again
        status.problems["mistake"] = f"unexpected {type(e).__name__}: {e}; please report it"
        status.tell()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
