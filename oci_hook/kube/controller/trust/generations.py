"""The generations of the secret that signs decisions, and the node keys derived from it. Pure; see docs/internals/cluster.md."""

import json
from collections.abc import Iterable, Mapping

from oci_hook.core.value import Value
from oci_hook.kube.formats.signing import node_key

MOST_BELIEVED = 1 << 20  # highest generation that we accept from nodes, far below a decision's bound
SKEW = 300.0  # seconds by which clocks may differ
KEPT = 64  # generations; a pod may outlive many, and its node checks its decision at each container start


class Secrets(Value):
    """generations: (number, secret), oldest first. since: Unix time of the newest one."""

    generations: tuple[tuple[int, bytes], ...] = ()
    since: float = 0.0

    @property
    def newest(self) -> int:
        return self.generations[-1][0] if self.generations else 0

    def node_keys(self, node: str) -> dict[str, str]:
        """The node's keys by generation."""
        return {str(number): node_key(secret, node).hex() for number, secret in self.generations}


def rotated(have: Secrets, life: float, now: float, fresh: bytes, above: int = 0) -> Secrets:
    """Adds a generation if one is due; otherwise returns the same object. life: seconds between generations. fresh: 32 random bytes.
    above: the highest generation that a node has: after a loss of our Secret, a new one must not reuse its number."""
    if have.generations and now - have.since < life and have.newest >= above:
        # A time in the future comes from a wrong clock: correct it. A new generation would push out an old one.
        return have if have.since - now <= SKEW else have.replace(since=now)
    number = max(have.newest, above) + 1
    return Secrets((*have.generations, (number, fresh))[-KEPT:], now)


def believed(said: Iterable[int]) -> int:
    """The median of the generations that the nodes report. A single node must not cause new ones: 64 new generations, or one large
    number, would invalidate the decisions of all pods."""
    found = sorted(number for number in said if 0 < number <= MOST_BELIEVED)
    return found[len(found) // 2] if found else 0


def to_text(secrets: Secrets) -> str:
    return json.dumps({str(number): secret.hex() for number, secret in secrets.generations}, separators=(",", ":"))


def from_text(text: str, since: float) -> Secrets:
    """Reads the text of `to_text`. Raises ValueError for any other."""
    data = json.loads(text)
    if not isinstance(data, Mapping):
        raise ValueError("is not an object")
    found = sorted((int(number), bytes.fromhex(secret)) for number, secret in data.items())
    if any(len(secret) != 32 or not 0 < number < 1 << 30 for number, secret in found):
        raise ValueError("has a generation that is not 32 bytes")
    return Secrets(tuple(found[-KEPT:]), since)
