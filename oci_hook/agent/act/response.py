"""Answers a finding as the policy says: reports it, freezes the container or kills it, and records what was done."""

import time

from oci_hook.agent import journal
from oci_hook.agent.act import enforce, facts
from oci_hook.agent.judge.audit_rules import REPORTED, Finding, What
from oci_hook.agent.node_state import NodeState
from oci_hook.ledger import events

DESCRIBING = 1.0  # seconds between two ticks: a container can have a thousand processes, and make each slow to describe


class Response:
    """`answer` each new finding once, `clear` it when it is over, or say `over`, which records nothing; `tick` regularly, and
    `forget` containers that have ended."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        # Key -> "killed" or "frozen", the reasons for it, and the processes killed with it. Kept until its grant ends, or
        # somebody resumes it, or all reasons are over before it could be frozen.
        self._stopped: dict[str, tuple[str, dict[What, Finding], tuple[tuple[int, int], ...]]] = {}
        # Since the last tick: why containers could not be stopped, which takes a while and is tried once for all findings,
        # processes in words, and the seconds that this took.
        self._failed: dict[str, str] = {}
        self._described: dict[tuple[int, int], str] = {}
        self._describing = 0.0

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
            _, reasons, known = self._stopped.get(finding.key, ("", {}, ()))
            reasons = {**reasons, finding.what: finding}
            self._stopped[finding.key] = what, reasons, tuple(dict.fromkeys((*known, *others)))
            failed = self._stop(finding.key)
            if not failed:
                node.watched[finding.key].stopped = what
                node.shown = False
        # The process is described only after that: it can make the description slow.
        culprit = (finding.pid, finding.start) if finding.pid else others[0] if others else None
        if culprit and (who := self._describe(culprit)):
            finding = finding.replace(evidence=f"{finding.evidence} ({who})")
        self._record(finding, f"{what} failed: {failed}" if failed else what, journal.WARNING, "finding")

    def _describe(self, process: tuple[int, int]) -> str:
        """ "" where there is no time left for it."""
        if process not in self._described and self._describing < DESCRIBING:
            began = time.monotonic()
            try:
                self._described[process] = facts.describe(process[0])
            except Exception as e:
                self._described[process] = f"not described: {type(e).__name__}"
            self._describing += time.monotonic() - began
        return self._described.get(process, "")

    def clear(self, finding: Finding) -> None:
        """Record that a finding is over."""
        self.over(finding)
        self._record(finding, "is over", journal.NOTICE, "finding-cleared")

    def over(self, finding: Finding) -> bool:
        """Have a container that could not be frozen so far no longer frozen for this; False: it is frozen, or was not to be."""
        what, reasons, _ = self._stopped.get(finding.key, ("", {}, ()))
        if what != "frozen" or finding.what not in reasons or self._node.watched[finding.key].stopped:
            return False
        del reasons[finding.what]
        if not reasons:
            del self._stopped[finding.key]
        return True

    def forget(self, keys: set[str]) -> None:
        for key in keys:
            self._stopped.pop(key, None)
            self._failed.pop(key, None)

    def tick(self) -> None:
        """Stop once more each container that was to be stopped and still runs. One that was frozen, and that somebody has let
        go on, is watched as before."""
        node = self._node
        self._failed, self._described, self._describing = {}, {}, 0.0
        for key, (what, reasons, _) in tuple(self._stopped.items()):
            *_, finding = reasons.values()
            watched = node.watched[key]
            if what == "frozen" and watched.stopped:
                if enforce.is_thawed(node.grants[key]):
                    del self._stopped[key]
                    watched.stopped, node.shown = "", False
                    watched.answered.clear()
                    watched.resumed += 1
                    self._record(finding, "resumed", journal.NOTICE, "finding")
                continue
            failed = self._stop(key)
            before, watched.stopped = watched.stopped, "" if failed else what
            if before != watched.stopped:
                node.shown = False
                self._record(finding, f"{what} failed: {failed}" if failed else what, journal.WARNING, "finding")

    def _stop(self, key: str) -> str:
        """Do what is to be done to this container, unless that failed since the last tick; "" or why it failed."""
        (what, _, others), grant = self._stopped[key], self._node.grants[key]
        if not self._failed.get(key):
            self._failed[key] = enforce.kill(grant, others) if what == "killed" else enforce.freeze(grant)
        return self._failed[key]

    def _record(self, finding: Finding, what: str, priority: int, event: str) -> None:
        who = self._node.grants[finding.key].who
        on = f" on GPU {finding.uuid}" if finding.uuid else ""
        journal.write(
            f"container {events.title(who)}: {finding.kind}{on}: {finding.evidence}; {what}",
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
