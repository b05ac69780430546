"""Commits that are about to be pushed: the subject says what, the body says why (CONTRIBUTING, house rules)."""

import re
import subprocess
from collections.abc import Iterator

import pytest

from testbed import REPO

SUBJECT = re.compile(r"[a-z0-9][\w.,+*/ -]*: \S")
MOST = 72
# What git proposes for a merge: names of branches, which tell nobody what came.
PROPOSED = re.compile(r"Merge (?:branch|branches|remote-tracking branch|commit|tag|pull request)\b")


def faults(subject: str, body: str, parents: int = 1) -> list[str]:
    """What the house rules say against such a message."""
    found = []
    if len(subject) > MOST:
        found.append(f"{len(subject)} characters in the subject, {MOST} at most")
    if not SUBJECT.match(subject) or PROPOSED.match(subject):
        found.append("the subject is no `area: verb object`")
    if parents == 1 and not body.strip():
        found.append("no body that says why")
    return found


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(REPO), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def pushed_to() -> str:
    """The remote branch that a push from here would change; "" where there is none."""
    names = (git("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}"), "origin/HEAD", "origin/main")
    return next((name for name in names if name and git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")), "")


def messages(base: str) -> Iterator[tuple[str, str, str, int]]:
    """(abbreviated id, subject, body, number of parents) of each commit since then."""
    log = git("log", "-z", "--format=%h%n%P%n%s%n%b", f"{base}..HEAD")
    for entry in filter(None, log.split("\0")):
        number, parents, subject, body = entry.split("\n", 3)
        yield number, subject, body, len(parents.split())


def test_messages_of_a_push() -> None:
    if not git("rev-parse", "--git-dir"):
        pytest.skip("no git repository: a copy of its files")
    if not (remote := pushed_to()):
        pytest.skip("no remote branch to push to")
    base = git("merge-base", remote, "HEAD")
    assert base, f"HEAD and {remote} have no commit in common; fetch the whole history"
    assert [(n, subject, found) for n, subject, body, p in messages(base) if (found := faults(subject, body, p))] == []


@pytest.mark.parametrize(
    ("subject", "body", "parents", "fault"),
    [
        ("kube: hold room before the first eviction", "Else another pod takes it.", 1, ""),
        ("apply, ledger: bound what tokens expand to", "Because.", 1, ""),
        ("kube: merge the page of the cluster", "", 2, ""),
        ("hold room before the first eviction", "Because.", 1, "area: verb object"),
        ("kube: hold room", "\n \n", 1, "why"),
        ("kube: " + "hold room " * 7, "Because.", 1, "72"),
        ("Merge branch 'lane-m'", "", 2, "area: verb object"),
        ("ma", "", 2, "area: verb object"),
    ],
)
def test_what_a_message_lacks(subject: str, body: str, parents: int, fault: str) -> None:
    found = "; ".join(faults(subject, body, parents))
    assert fault in found and bool(found) == bool(fault)
