"""Answers a finding as the policy says: reports it, freezes the container or kills it, and records what was done."""

from oci_hook.agent import journal
from oci_hook.agent.act import enforce, facts
from oci_hook.agent.judge.audit_rules import REPORTED, Finding
from oci_hook.agent.node import Node
from oci_hook.ledger import events


class Response:
    """`answer` each new finding once, `clear` it when it is over; `stop_again`, and `forget` containers that have ended."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Key -> "killed" or "frozen", the reason for it, and the processes killed with it. Kept until its grant ends, or
        # somebody resumes it.
        self._stopped: dict[str, tuple[str, Finding, tuple[tuple[int, int], ...]]] = {}

    def answer(self, finding: Finding, harm: bool = False, others: tuple[tuple[int, int], ...] = ()) -> None:
        """Answer a finding. harm: the container takes what others were granted. others: processes of it, (pid, start
        time), to kill with it."""
        node = self._node
        policy = node.options.policy if finding.proved and finding.kind not in REPORTED else "report"
        node.counters.finding(finding.kind)
        what, failed = "reported", ""
        if policy == "freeze":
            what = "frozen"
        elif policy == "kill" or (policy == "protect" and harm):
            others = (*(((finding.pid, finding.start),) if finding.pid else ()), *others)
            what = "killed"
        if what != "reported":
            self._stopped[finding.key] = what, finding, others
            failed = self._stop(finding.key)
            if not failed:
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
        """Record that a finding is over. Who could not be frozen for it is left."""
        what, why, _ = self._stopped.get(finding.key, ("", finding, ()))
        if what == "frozen" and why.what == finding.what and not self._node.watched[finding.key].stopped:
            del self._stopped[finding.key]
        self._record(finding, "is over", journal.NOTICE, "finding-cleared")

    def forget(self, keys: set[str]) -> None:
        for key in keys:
            self._stopped.pop(key, None)

    def stop_again(self) -> None:
        """Stop once more each container that was to be stopped and still runs. One that was frozen, and that somebody has let
        go on, is watched as before."""
        node = self._node
        for key, (what, finding, _) in tuple(self._stopped.items()):
            watched = node.watched[key]
            if what == "frozen" and watched.stopped:
                if enforce.is_thawed(node.grants[key]):
                    del self._stopped[key]
                    watched.stopped, node.shown = "", False
                    watched.answered.clear()
                    self._record(finding, "resumed", journal.NOTICE, "finding")
                continue
            failed = self._stop(key)
            before, watched.stopped = watched.stopped, "" if failed else what
            if before != watched.stopped:
                node.shown = False
                self._record(finding, f"{what} failed: {failed}" if failed else what, journal.WARNING, "finding")

    def _stop(self, key: str) -> str:
        """Do what is to be done to this container; "" or why that failed."""
        (what, _, others), grant = self._stopped[key], self._node.grants[key]
        return enforce.kill(grant, others) if what == "killed" else enforce.freeze(grant)

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
