"""`python -m oci_hook.kube.dra PREFIX [--cdi DIR] [--withdraw]`, started by the agent; exits when its standard input closes. With
--withdraw, for uninstalling, it removes all that it wrote."""

import os
import signal
import sys
import threading

from oci_hook.errors import GhError, refuse
from oci_hook.kube.reporter import credential
from oci_hook.kube.reporter.__main__ import end_with_stdin, node_name
from oci_hook.kube.reporter.api import FAILURES, ApiError
from oci_hook.kube.reporter.options import NONE, load
from oci_hook.kube.reporter.status import Status
from oci_hook.kube.reporter.watcher import words
from oci_hook.linux import namespace


def join_host() -> None:
    """Into the mount namespace of the machine's init, where engines run our hook: what several containers share of a GPU is mounted
    by the first grant (ledger/slot_files.py). Before any thread is made. Raises ClusterError GH-606."""
    try:
        there = namespace.same("mnt", 1)
    except OSError:
        return  # who may not look at init is confined by more than namespaces
    try:
        if not there:
            namespace.setns(os.pidfd_open(1), namespace.CLONE_NEWNS, "/proc/1/ns/mnt")
    except OSError as e:
        why = f"the driver of ResourceClaims cannot enter the machine's mount namespace: {e.strerror}"
        raise refuse("GH-606", f"{why}; run the agent as packaging/kubernetes/dra does") from None


def main(arguments: list[str]) -> int:
    prefix, *rest = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent
    status = Status()
    try:
        from oci_hook.kube.dra.driver import CDI, Driver  # h2 may be missing

        join_host()
        options = load(prefix)
        known = credential.load("" if options.kubeconfig == NONE else options.kubeconfig)
        folder = rest[rest.index("--cdi") + 1] if "--cdi" in rest else CDI
        driver = Driver(prefix, node_name(options, known), options, known, status, folder)
        if "--withdraw" in rest:
            driver.withdraw()
            return 0
        threading.Thread(target=end_with_stdin, daemon=True).start()
        driver.run()
    except ModuleNotFoundError as e:
        why = f"the driver of ResourceClaims needs the Python package {e.name}; pip install 'gpu-hook[dra]'"
        status.problems["start"] = str(refuse("GH-606", why))
        status.tell()
        return 1
    except (ApiError, *FAILURES) as e:
        status.problems["start"] = str(refuse("GH-608", f"the driver of ResourceClaims ends: {words(e)}"))
        status.tell()
        return 1
    except GhError as e:
        status.problems["start"] = str(e)
        status.tell()
        return 1
    except Exception as e:  # a bug of ours: the agent shows it, and restarts the driver
        status.problems["mistake"] = f"unexpected {type(e).__name__}: {e}; please report it"
        status.tell()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
