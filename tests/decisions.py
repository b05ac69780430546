"""Decisions as the controller would sign them, and a node that knows their key."""

import hmac
import json
from pathlib import Path
from typing import Any

from oci_hook.core.decision import DecidedShare, DecidedTerms, Decision, signed_text, text
from oci_hook.core.layout import ALLOC

NODE = "n1"
UID = "0f5d7c3e-1c2b-4e5f-8a9b-0c1d2e3f4a5b"
OTHER_UID = "11111111-1c2b-4e5f-8a9b-0c1d2e3f4a5b"
KEYS = {1: "11" * 32, 2: "22" * 32}
CRI = "io.kubernetes.cri."
TERMS = DecidedTerms("best-effort", "default")  # of a container that asks for memory alone


def signed(made: Decision, key: str = "") -> Decision:
    key = key or KEYS[made.generation]
    return made.replace(sig=hmac.digest(bytes.fromhex(key), signed_text(made).encode(), "sha256").hex())


def decided(
    containers: dict[str, list[DecidedShare]],
    uid: str = UID,
    node: str = NODE,
    generation: int = 2,
    terms: DecidedTerms = TERMS,
    key: str = "",
) -> str:
    names = sorted(containers)
    made = Decision(
        uid,
        node,
        generation,
        tuple((name, tuple(containers[name])) for name in names),
        tuple((name, terms) for name in names),
    )
    return text(signed(made, key))


def pod(alloc: str | None, asks: dict[str, str], container: str = "a", uid: str = UID) -> dict[str, str]:
    """The annotations of a container's spec as containerd writes them."""
    of_pod = {CRI + "container-type": "container", CRI + "container-name": container, CRI + "sandbox-uid": uid}
    of_pod |= {CRI + "sandbox-name": "p", CRI + "sandbox-namespace": "ns"}
    return {**of_pod, **asks, **({ALLOC: alloc} if alloc is not None else {})}


def write_keys(prefix: Path, mode: int = 0o600, data: Any = None) -> None:
    file = prefix / "etc/cluster.json"
    said = {"node": NODE, "keys": {str(number): key for number, key in KEYS.items()}} if data is None else data
    file.write_text(said if isinstance(said, str) else json.dumps(said))
    file.chmod(mode)
