"""Reads and writes the controller's Secret: certificates, generations of the nodes' keys, URL tokens. Pure."""

import base64
import hmac
from collections.abc import Mapping
from typing import Any

from oci_hook.core.value import Value
from oci_hook.kube.controller.trust import certificates, generations
from oci_hook.kube.controller.trust.certificates import Certificates, Pair
from oci_hook.kube.controller.trust.generations import Secrets

TOKEN = 32  # hex digits

# Keys of the Secret.
CA, CA_KEY, NEXT_CA, NEXT_CA_KEY, OLD_CA = "ca.crt", "ca.key", "next-ca.crt", "next-ca.key", "old-ca.crt"
TLS, TLS_KEY = "tls.crt", "tls.key"
NODE_KEYS, NODE_KEYS_SINCE = "node-keys", "node-keys-since"
WEBHOOK_TOKEN, EXTENDER_TOKEN = "webhook-token", "extender-token"


class Own(Value):
    """webhook_token, extender_token: parts of the URLs by which the API server and the scheduler call us. Error messages of these
    callers show the URLs to users, so a token must not give power over others' pods (service.py)."""

    certificates: Certificates = Certificates()
    secrets: Secrets = Secrets()
    webhook_token: str = ""
    extender_token: str = ""


def read(data: Mapping[str, Any] | None) -> Own:
    """Reads the Secret's data. Missing and unreadable entries become empty."""
    text = {}
    for key, value in (data or {}).items():
        try:
            text[key] = base64.b64decode(value, validate=True).decode("ascii")
        except (ValueError, TypeError):
            continue
    try:
        secrets = generations.from_text(text.get(NODE_KEYS, "{}"), float(text.get(NODE_KEYS_SINCE, "0")))
    except (ValueError, TypeError, AttributeError):
        secrets = Secrets()
    have = Certificates(
        Pair(text.get(CA, ""), text.get(CA_KEY, "")),
        Pair(text.get(NEXT_CA, ""), text.get(NEXT_CA_KEY, "")),
        text.get(OLD_CA, ""),
        Pair(text.get(TLS, ""), text.get(TLS_KEY, "")),
    )
    return Own(
        certificates.readable(have),
        secrets,
        _token(text.get(WEBHOOK_TOKEN, "")),
        _token(text.get(EXTENDER_TOKEN, "")),
    )


def data(own: Own) -> dict[str, str]:
    have = own.certificates
    text = {
        CA: have.authority.certificate,
        CA_KEY: have.authority.key,
        NEXT_CA: have.next.certificate,
        NEXT_CA_KEY: have.next.key,
        OLD_CA: have.old,
        TLS: have.serving.certificate,
        TLS_KEY: have.serving.key,
        NODE_KEYS: generations.to_text(own.secrets),
        NODE_KEYS_SINCE: str(int(own.secrets.since)),
        WEBHOOK_TOKEN: own.webhook_token,
        EXTENDER_TOKEN: own.extender_token,
    }
    return {key: base64.b64encode(value.encode()).decode() for key, value in text.items()}


def renewed(
    own: Own, names: tuple[str, ...], certificate_life: float, key_life: float, now: float, chance: bytes, above: int
) -> Own:
    """Renews what is due; returns the same object if nothing is. chance: 64 random bytes. above: the newest generation that a node has."""
    result = Own(
        certificates.renewed(own.certificates, names, certificate_life, now),
        generations.rotated(own.secrets, key_life, now, chance[:32], above),
        own.webhook_token or chance[32:48].hex(),
        own.extender_token or chance[48:64].hex(),
    )
    return own if result == own else result


def same(token: str, given: str) -> bool:
    """Compares in constant time."""
    return bool(token) and hmac.compare_digest(token.encode(), given.encode(errors="surrogatepass"))


def _token(text: str) -> str:
    return text if len(text) == TOKEN and set(text) <= set("0123456789abcdef") else ""
