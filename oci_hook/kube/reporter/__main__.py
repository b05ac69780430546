"""`python -m oci_hook.kube.reporter PREFIX`, started by the agent; exits when its standard input closes. With --withdraw, for
uninstalling, it removes all that it wrote about this node."""

import sys

from oci_hook.kube.kubeconfig import Credential
from oci_hook.kube.reporter import process, withdraw
from oci_hook.kube.reporter.options import Options
from oci_hook.kube.reporter.reporter import Reporter
from oci_hook.kube.reporter.status import Status


def main(arguments: list[str]) -> int:
    prefix, *rest = arguments

    def work(node: str, options: Options, known: Credential, status: Status) -> None:
        if "--withdraw" in rest:
            withdraw.withdraw(prefix, node, options, known)
            return
        process.end_with_stdin()
        Reporter(prefix, node, options, known, status).run()

    return process.run(prefix, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
