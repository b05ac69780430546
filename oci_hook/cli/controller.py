"""`gpu-hook controller`: runs the cluster's controller in the foreground."""

from typing import Any

import click

from oci_hook.cli import logs, output
from oci_hook.core.rules import BY_CLASS
from oci_hook.errors import GhError
from oci_hook.kube.link import kubeconfig
from oci_hook.kube.pod.node_orders import NODE_ORDERS

NEEDS = "the controller needs more packages than a node: `pip install 'gpu-hook[cluster]'`"


@click.command()
@click.option("--address", required=True, metavar="HOST:PORT", help="Where to listen, by HTTPS.")
@click.option("--namespace", metavar="NAME", help="Our own namespace. [default: the pod's]")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the API server. [default: the pod's service account]")
@click.option("--url", default="", metavar="https://HOST:PORT", help="How callers reach us without a Service.")
@click.option(
    "--settings", default="", metavar="FILE", help="Lines as in settings.yaml: dialects, qgpu_memory_unit ..."
)
@click.option("--place", type=click.Choice([BY_CLASS, *NODE_ORDERS]), help="Order of nodes for pods that name none.")
@click.option(
    "--scheduler", default="default-scheduler", metavar="NAME", help="Scheduler for pods that name another system's."
)
@click.option("--queue-label", default="", metavar="KEY", help="Label to set to T9k's group name.")
@click.option("--extender-address", default="", metavar="127.0.0.1:PORT", help="Also answer a scheduler here, by HTTP.")
@click.option("--webhooks", default="gpu-hook", metavar="NAME", help="Name of our MutatingWebhookConfiguration.")
@click.option("--validating-webhooks", default="", metavar="NAME", help="Name of a ValidatingWebhookConfiguration.")
@click.option("--node-account", default="gpu-hook-node", metavar="NAME", help="Service account of the nodes' pods.")
@click.option("--daemon-set", default="gpu-hook-node", metavar="NAME", help="DaemonSet of the nodes' pods.")
@click.option("--metrics-token-file", type=click.File("r"), help="Token for /metrics: first line of this file.")
@click.option(
    "--page-address", default="", metavar="127.0.0.1:PORT", help="Serve the cluster's web page here, by HTTP."
)
@click.option(
    "--page-token-file",
    type=click.File("r"),
    help="Also serve it at --address, with the first line of this file as its token.",
)
@click.option("--certificate-days", type=click.FloatRange(min=0.0005), default=90.0, help="Life of our certificates.")
@click.option(
    "--key-days", type=click.FloatRange(min=0.001), default=30.0, help="Interval at which nodes get new keys."
)
@click.option("--pod", envvar="POD_NAME", default="", metavar="NAME", help="Our own pod. [environment: POD_NAME]")
@click.option(
    "--reached-at",
    envvar="POD_IP",
    default="",
    metavar="HOST",
    help="Where other controllers reach us. [environment: POD_IP; default: --address's host]",
)
@click.option("--evict/--no-evict", default=True, help="Evict pods that their node refused.")
@click.option(
    "--preemption",
    type=click.Choice(["off", "report", "on"]),
    default="on",
    help="Preempt pods if nothing else makes room on a GPU; report: only write events. [default: on]",
)
@click.option(
    "--equal-offline/--no-equal-offline",
    default=True,
    help="Also preempt offline pods for online ones of the same priority.",
)
@click.option(
    "--log-level", type=click.Choice(logs.LEVELS), default="info", help="The least that is logged. [default: info]"
)
@click.option(
    "--log-format", type=click.Choice(logs.FORMATS), default="text", help="json: an object a line. [default: text]"
)
def controller(**given: Any) -> None:
    """Run the cluster's controller: webhooks, the scheduler's extender, evictions, taints, nodes' keys.

    Several may run: a Lease elects the leader, and the others forward to it what only a leader may decide.
    """
    try:
        from oci_hook.kube.controller import controller, options
    except ModuleNotFoundError as e:
        if e.name and e.name.partition(".")[0] in ("aiohttp", "msgspec", "cryptography"):
            raise click.UsageError(f"{e.name} is missing; {NEEDS}") from None
        raise
    try:
        logs.start(given["log_level"], given["log_format"])
        controller.run(options_of(given, options))
    except GhError as e:
        output.fail(e, as_json=False)


def options_of(given: dict[str, Any], options: Any) -> Any:
    host, port = options.address(given["address"])
    extender = given["extender_address"]
    extender_host, extender_port = options.loopback(extender) if extender else ("127.0.0.1", 0)
    files = [given["kubeconfig"]] if given["kubeconfig"] else []
    namespace = given["namespace"] or kubeconfig.load(files).namespace or "gpu-hook"
    page = given["page_address"]
    page_host, page_port = options.loopback(page) if page else ("127.0.0.1", 0)
    return options.ControllerOptions(
        host,
        port,
        namespace,
        options.server_names(namespace, given["url"], host),
        mutating=given["webhooks"],
        validating=given["validating_webhooks"],
        kubeconfig=given["kubeconfig"] or "",
        settings=given["settings"],
        extender_host=extender_host,
        extender_port=extender_port,
        node_account=given["node_account"],
        node_daemon_set=given["daemon_set"],
        certificate_life=given["certificate_days"] * options.DAY,
        key_life=given["key_days"] * options.DAY,
        metrics_token=first_line(given["metrics_token_file"]),
        page_host=page_host,
        page_port=page_port,
        page_token=first_line(given["page_token_file"]),
        place=given["place"] or "",
        scheduler=given["scheduler"],
        queue_label=given["queue_label"],
        evict=given["evict"],
        preemption=given["preemption"],
        equal_offline=given["equal_offline"],
        pod=given["pod"],
        reached_at=options.reached_at(given["reached_at"], host, port),
    )


def first_line(file: Any) -> str:
    """Reads the token; "" without a file. Raises click.UsageError if the line is empty."""
    token = str(file.readline().strip()) if file else ""
    if file and not token:
        raise click.UsageError(f"{file.name} has no token in its first line")
    return token
