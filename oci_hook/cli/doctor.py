"""`gpu-hook doctor`: what is wrong on this node, on one screen."""

import os

import click

from oci_hook.cli import output, registration
from oci_hook.cli.agent_check import check_agent
from oci_hook.config import settings as node_settings
from oci_hook.engines.doctor import FAIL, OK, STATES, WARN, CheckResult, examine
from oci_hook.errors import GhError


@click.command()
@registration.host_root
@click.option("--cluster", is_flag=True, help="Examine the cluster instead: controller, webhooks, certificates, nodes.")
@output.kubeconfig_option("--cluster")
@output.answers
def doctor(prefix: str, host_root: str, cluster: bool, kubeconfig: str | None) -> output.Report:
    """List what is wrong on this node, with the command that fixes it.

    Run it as root: other users cannot see most of the node, and are told only what is known to be well.

    With --cluster: says what of gpu-hook the cluster has, and what is missing there, as after an upgrade of Kubernetes; changes
    nothing. It reads with your rights, and says what it may not read.

    Exit status 0: all is well. 1: there are warnings. 2: containers will not start, or not as they should.
    """
    if kubeconfig and not cluster:
        raise click.UsageError("--kubeconfig needs --cluster")
    if cluster:
        from oci_hook.cli import doctor_cluster  # the cluster's part: not for every use

        return report(doctor_cluster.findings(kubeconfig))
    option = node_settings.option(prefix)
    findings = examine(prefix, host_root)
    try:
        settings = node_settings.load(prefix)
    except GhError:
        pass  # one of the findings says so
    else:
        findings += check_agent(settings, prefix, option)
    if os.geteuid():
        findings = for_plain_user(findings, option)
    return report(findings)


def report(findings: list[CheckResult]) -> output.Report:
    worst = max((f.state for f in findings), key=STATES.index, default=OK)
    status = {WARN: 1, FAIL: 2}.get(worst, 0)
    width = max(len(f.check) for f in findings)
    lines = [line for finding in findings for line in as_lines(finding, width)]
    count = sum(f.state in (WARN, FAIL) for f in findings)
    lines.append(f"{output.count(count, 'thing')} to fix" if count else "all is well")
    data = {"state": worst, "findings": [vars(f) for f in findings]}
    return output.Report(data, lines, exit_status=status)


def for_plain_user(findings: list[CheckResult], option: str) -> list[CheckResult]:
    """Without what may only seem to be wrong to a user who is not root, and with what this user should do, first."""
    message = "you are not root, who alone can see all of the node; run this as root"
    advice = CheckResult("user", WARN, message, "", f"sudo gpu-hook doctor{option}")
    return [advice, *(finding for finding in findings if finding.state == OK)]


def as_lines(finding: CheckResult, width: int) -> list[str]:
    code = f"{finding.code}: " if finding.code else ""
    lines = [f"{finding.state:4}  {finding.check:{width}}  {code}{output.printable(finding.message)}"]
    if finding.fix and finding.state != OK:
        lines.append(f"{'':4}  {'':{width}}  fix: {finding.fix}")
    return lines
