"""`python -m oci_hook.kube.reporter PREFIX`, started by the agent; exits when its standard input closes. With --withdraw, for
uninstalling, it removes all that it wrote about this node."""

import sys

from oci_hook.kube.link import node_process
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.node_settings import NodeSettings
from oci_hook.kube.link.status import Status
from oci_hook.kube.reporter import withdraw
from oci_hook.kube.reporter.reporter import Reporter


def main(arguments: list[str]) -> int:
    prefix, *rest = arguments

    def work(node: str, options: NodeSettings, known: Credential, status: Status) -> None:
        if "--withdraw" in rest:
            withdraw.withdraw(prefix, node, options, known)
            return
        node_process.end_with_stdin()
        Reporter(prefix, node, options, known, status).run()

    return node_process.run(prefix, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
