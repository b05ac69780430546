"""Answers a finding as the policy says: reports it, freezes the container or kills it, and records what was done."""

from oci_hook.agent import journal
from oci_hook.agent.act import enforce, facts
from oci_hook.agent.judge.audit_rules import REPORTED, Finding
from oci_hook.agent.node import Node
from oci_hook.ledger import events


class Response:
    """`answer` each new finding once, `clear` it when it is over; `kill_again`, and `forget` containers that have ended."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Key -> the reason for killing the container, and the processes killed with it; kept until its grant ends.
        self._killed: dict[str, tuple[Finding, tuple[tuple[int, int], ...]]] = {}

    def answer(self, finding: Finding, harm: bool = False, others: tuple[tuple[int, int], ...] = ()) -> None:
        """Answer a finding. harm: the container takes what others were granted. others: processes of it, (pid, start
        time), to kill with it."""
        node = self._node
        policy = node.options.policy if finding.proved and finding.kind not in REPORTED else "report"
        grant = node.grants[finding.key]
        node.counters.finding(finding.kind)
        what, failed = "reported", ""
        if policy == "freeze":
            what, failed = "frozen", enforce.freeze(grant)
        elif policy == "kill" or (policy == "protect" and harm):
            others = (*(((finding.pid, finding.start),) if finding.pid else ()), *others)
            what, failed = "killed", enforce.kill(grant, others)
            self._killed[finding.key] = finding, others
        if what != "reported" and not failed:
            node.watched[finding.key].stopped = what
            node.shown = False
        # The process is described only after that: it can make the description slow.
        culprit = finding.pid or (others[0][0] if others else 0)
        try:
            who = facts.describe(culprit) if culprit else ""
        except Exception as e:
            who = f"not described: {type(e).__name__}"
        if who:
            finding = finding.replace(evidence=f"{finding.evidence} ({who})")
        self._record(finding, f"{what} failed: {failed}" if failed else what, journal.WARNING, "finding")

    def clear(self, finding: Finding) -> None:
        """Record that a finding is over."""
        self._record(finding, "is over", journal.NOTICE, "finding-cleared")

    def forget(self, keys: set[str]) -> None:
        for key in keys:
            self._killed.pop(key, None)

    def kill_again(self) -> None:
        """Kill once more each container that was to be killed and still runs."""
        node = self._node
        for key, (finding, others) in self._killed.items():
            failed, watched = enforce.kill(node.grants[key], others), node.watched[key]
            before, watched.stopped = watched.stopped, "" if failed else "killed"
            if before != watched.stopped:
                node.shown = False
                self._record(finding, f"killed failed: {failed}" if failed else "killed", journal.WARNING, "finding")

    def _record(self, finding: Finding, what: str, priority: int, event: str) -> None:
        who = self._node.grants[finding.key].who
        on = f" on GPU {finding.uuid}" if finding.uuid else ""
        journal.write(
            f"container {who.id[:100]}: {finding.kind}{on}: {finding.evidence}; {what}",
            priority,
            container=who.id,
            finding=finding.kind,
            gpu=finding.uuid,
        )
        events.record(
            self._node.state_dir,
            event,
            id=who.id[:256],
            name=events.full_name(who),
            kind=finding.kind,
            uuid=finding.uuid,
            pid=finding.pid,
            evidence=finding.evidence[:500],
            action=what[:200],
        )
