"""The secret that decisions are signed with, in generations, and each node's key of it. Pure; see docs/internals/cluster.md."""

import json
from collections.abc import Iterable, Mapping

from oci_hook.core.value import Value
from oci_hook.kube.signing import node_key

MOST_BELIEVED = 1 << 20  # a generation that nodes may name: far below a decision's bound
SKEW = 300.0  # seconds that clocks may differ
KEPT = 64  # a pod runs longer than keys do: its containers start again, and its node checks its decision then


class Secrets(Value):
    """generations: (number, secret), oldest first. since: Unix time at which the newest was made."""

    generations: tuple[tuple[int, bytes], ...] = ()
    since: float = 0.0

    @property
    def newest(self) -> int:
        return self.generations[-1][0] if self.generations else 0

    def node_keys(self, node: str) -> dict[str, str]:
        """What the node is told."""
        return {str(number): node_key(secret, node).hex() for number, secret in self.generations}


def rotated(have: Secrets, life: float, now: float, fresh: bytes, above: int = 0) -> Secrets:
    """The same object where nothing is due. life: seconds after which a new generation is made. fresh: 32 random bytes. above:
    the highest generation that a node has: where our secret was lost, the new one must not take an old number."""
    if have.generations and now - have.since < life and have.newest >= above:
        # By a clock that was far ahead: not a new generation, of which some are kept only, but its time from now on.
        return have if have.since - now <= SKEW else have.replace(since=now)
    number = max(have.newest, above) + 1
    return Secrets((*have.generations, (number, fresh))[-KEPT:], now)


def believed(said: Iterable[int]) -> int:
    """The generation that half of the nodes have, of what each says. One node alone must not have new ones made: 64 of them, or
    one large number, would make the decisions of all pods worthless."""
    found = sorted(number for number in said if 0 < number <= MOST_BELIEVED)
    return found[len(found) // 2] if found else 0


def to_text(secrets: Secrets) -> str:
    return json.dumps({str(number): secret.hex() for number, secret in secrets.generations}, separators=(",", ":"))


def from_text(text: str, since: float) -> Secrets:
    """Raises ValueError for anything that `to_text` does not write."""
    data = json.loads(text)
    if not isinstance(data, Mapping):
        raise ValueError("is not an object")
    found = sorted((int(number), bytes.fromhex(secret)) for number, secret in data.items())
    if any(len(secret) != 32 or not 0 < number < 1 << 30 for number, secret in found):
        raise ValueError("has a generation that is not 32 bytes")
    return Secrets(tuple(found[-KEPT:]), since)
