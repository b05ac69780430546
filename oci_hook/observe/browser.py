"""The rules for all pages that we serve to browsers: the agent's, the cluster controller's. Pure."""

import base64
import ipaddress

# The page contains its script and style, and connects to its own server only. data: is its empty icon.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'"
)
SAFE = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LOG_IN = {"WWW-Authenticate": 'Basic realm="gpu-hook"'}  # a browser asks for the token as a password, and keeps it
PORT_MAX = 65535
LOOPBACK_V6 = ipaddress.ip_address("::1")


def credential(authorization: str) -> bytes:
    """The token in an Authorization header: a bearer token (programs), or the password of any user name (browsers)."""
    kind, _, given = authorization.partition(" ")
    if kind.lower() == "bearer":
        return given.strip().encode()
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2] if kind.lower() == "basic" else b""
    except ValueError:
        return b""


def is_loopback(host: str) -> bool:
    """True if this is an address in 127.0.0.0/8, or ::1; False for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address == LOOPBACK_V6 or (address.version == 4 and address.is_loopback)


def names_this_machine(host: str) -> bool:
    """True if a Host header (RFC 9110, 7.2) is localhost or a loopback address, with or without a port. Where no token is
    needed, it must be: otherwise any web page in a browser on this machine could read ours by a host name that it resolves
    to this machine (DNS rebinding)."""
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket or ":" not in name:
            return False
    else:
        name, colon, port = host.partition(":")
        rest = colon + port
    if rest and not (rest[0] == ":" and rest[1:].isascii() and rest[1:].isdigit() and len(rest) <= 6):
        return False
    if rest and int(rest[1:]) > PORT_MAX:
        return False
    return name.lower() == "localhost" or is_loopback(name)
