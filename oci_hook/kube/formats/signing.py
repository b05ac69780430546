"""Signs decisions for the node that will check them, and verifies decisions read back from pods."""

import functools
import hashlib
import hmac
from collections.abc import Mapping

from oci_hook.core.decision import Decision, signed_text

LABEL = b"gpu-hook.io/node-key\0"


@functools.lru_cache(8192)
def node_key(secret: bytes, node: str) -> bytes:
    """The key of a node, from the controller's secret of one generation."""
    return hmac.new(secret, LABEL + node.encode(), hashlib.sha256).digest()


class Signer:
    """secrets: the controller's, by generation. The two newest sign. Older ones still verify, since pods may run for years."""

    def __init__(self, secrets: Mapping[int, bytes]) -> None:
        self.secrets = dict(secrets)
        self._newest = sorted(secrets)[-2:]

    def sign(self, decision: Decision, generation: int) -> Decision:
        """generation: of the key that the node reports. If that is 0 or no longer signs, the newest one does. Raises
        ValueError without a secret."""
        if not self.secrets:
            raise ValueError("the controller has no secret")
        if generation not in self._newest:
            generation = self._newest[-1]
        decision = decision.replace(generation=generation)
        return decision.replace(sig=self._sig(decision))

    def holds(self, decision: Decision) -> bool:
        return decision.generation in self.secrets and hmac.compare_digest(self._sig(decision), decision.sig)

    def _sig(self, decision: Decision) -> str:
        key = node_key(self.secrets[decision.generation], decision.node)
        return hmac.new(key, signed_text(decision).encode(), hashlib.sha256).hexdigest()
