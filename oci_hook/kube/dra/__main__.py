"""`python -m oci_hook.kube.dra PREFIX [--cdi DIR] [--withdraw]`, started by the agent; exits when its standard input closes. With
--withdraw, for uninstalling, it removes all that it wrote."""

import os
import sys

from oci_hook.errors import refuse
from oci_hook.kube.link import node_process
from oci_hook.kube.link.api import FAILURES, ApiError
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.node_settings import NodeSettings
from oci_hook.kube.link.status import Status
from oci_hook.kube.link.watcher import words
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

    def work(node: str, options: NodeSettings, known: Credential, status: Status) -> None:
        try:
            from oci_hook.kube.dra.driver import CDI, ClaimDriver  # h2 may be missing

            join_host()
            folder = rest[rest.index("--cdi") + 1] if "--cdi" in rest else CDI
            driver = ClaimDriver(prefix, node, options, known, status, folder)
            if "--withdraw" in rest:
                driver.withdraw()
                return
            node_process.end_with_stdin()
            driver.run()
        except ModuleNotFoundError as e:
            why = f"the driver of ResourceClaims needs the Python package {e.name}; pip install 'gpu-hook[dra]'"
            raise refuse("GH-606", why) from None
        except (ApiError, *FAILURES) as e:
            raise refuse("GH-608", f"the driver of ResourceClaims ends: {words(e)}") from None

    return node_process.run(prefix, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
