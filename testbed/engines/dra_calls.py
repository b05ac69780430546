"""The kubelet's calls of a driver of ResourceClaims, as bytes."""

from typing import Any

from testbed.engines.cri import decode

SERVICE = "/k8s.io.kubelet.pkg.apis.dra.{}.DRAPlugin/{}"


def asked(*claims: tuple[str, str, str]) -> bytes:
    from testbed.engines.cri import chunk

    return b"".join(chunk(1, b"".join(chunk(i, text.encode()) for i, text in enumerate(claim, 1))) for claim in claims)


def answers(data: bytes) -> list[tuple[str, dict[int, list[Any]]]]:
    entries = [dict(decode(entry)) for entry in dict(decode(data)).get(1, [])]
    return [(entry.get(1, [b""])[0].decode(), dict(decode(entry.get(2, [b""])[0]))) for entry in entries]
