"""Makes and renews the controller's certificate authority and serving certificate.

A new authority is announced (the bundle has both) for OVERLAP of a serving certificate's life before it signs anything. The old
one stays in the bundle until it expires. So a caller that reads the bundle late still trusts us.
"""

import datetime
import ipaddress

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from oci_hook.core.value import Value
from oci_hook.kube.formats.names import CONTROLLER

# Life of an authority, in lives of a serving certificate: ten years of the usual ones. A scheduler's configuration has the authority,
# and a person has to write the next one there.
AUTHORITY_LIVES = 40
RENEW = 1 / 3  # part of the life left at which a certificate is renewed
OVERLAP = 1 / 10  # of a serving certificate's life
# Seconds by which another clock may be behind ours. A certificate that begins in the future comes from a wrong clock.
SLACK = 300


class Pair(Value):
    """A certificate and its key, both PEM; empty for none."""

    certificate: str = ""
    key: str = ""

    def __bool__(self) -> bool:
        return bool(self.certificate and self.key)


class Certificates(Value):
    """The certificates in the Secret. next: the announced authority. old: the previous authority's certificate."""

    authority: Pair = Pair()
    next: Pair = Pair()
    old: str = ""
    serving: Pair = Pair()

    @property
    def bundle(self) -> str:
        """The CA bundle for callers."""
        return "".join(filter(None, (self.authority.certificate, self.next.certificate, self.old)))


def ends(have: Certificates) -> float:
    """The serving certificate's end as Unix time; 0 if there is none, or it is unreadable."""
    return _end(have.serving.certificate) if _sound(have.serving) else 0.0


def readable(have: Certificates) -> Certificates:
    """The same without unreadable parts, for which the ssl module raises an exception, and written as we write it."""
    return Certificates(_sound(have.authority), _sound(have.next), _sound_certificate(have.old), _sound(have.serving))


def renewed(have: Certificates, names: tuple[str, ...], life: float, now: float) -> Certificates:
    """Renews what is due; returns the same object if nothing is. names: DNS names and addresses of the server. life: of a serving
    certificate, in seconds. now: Unix time."""
    result = have
    if not (_sound(have.authority) and _start(have.authority.certificate) <= now < _end(have.authority.certificate)):
        return _first(names, life, now)
    if have.next and not (_sound(have.next) and _start(have.next.certificate) <= now):
        result = result.replace(next=Pair())
    if not result.next and _left(result.authority.certificate, now) < RENEW:
        result = result.replace(next=_authority(life, now))
    elif result.next and now - _start(result.next.certificate) - SLACK >= OVERLAP * life:
        result = Certificates(result.next, Pair(), result.authority.certificate, Pair())
    if result.old and not (_sound_certificate(result.old) and _end(result.old) > now):
        result = result.replace(old="")
    if not _serves(result.serving, result.authority.certificate, names, now):
        result = result.replace(serving=_serving(result.authority, names, life, now))
    return result


def _first(names: tuple[str, ...], life: float, now: float) -> Certificates:
    authority = _authority(life, now)
    return Certificates(authority, Pair(), "", _serving(authority, names, life, now))


def _authority(life: float, now: float) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpu-hook controller {serial & 0xFFFFFFFF:08x}")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # keyCertSign, cRLSign
    made = (
        _builder(name, name, key, serial, life * AUTHORITY_LIVES, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(made, key)


def _serving(authority: Pair, names: tuple[str, ...], life: float, now: float) -> Pair:
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    issuer_key = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(life, _end(authority.certificate) - now)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CONTROLLER)])
    made = (
        _builder(name, issuer.subject, key, x509.random_serial_number(), life, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(made, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, serial: int, life: float, now: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(_time(now - SLACK))
        .not_valid_after(_time(now + life))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _serves(pair: Pair, authority: str, names: tuple[str, ...], now: float) -> bool:
    """True if this authority signed it for these names, and it is valid for long enough."""
    if not _sound(pair) or _start(pair.certificate) > now or _left(pair.certificate, now) < RENEW:
        return False
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # of any kind: the certificate is not ours, so a new one is made
        return False
    return {_name(name) for name in names} <= set(alternatives)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem).decode(), private.decode())


def _sound(pair: Pair) -> Pair:
    """The pair as we write it; none if one is missing or unreadable, or they do not belong together."""
    try:
        key = serialization.load_pem_private_key(pair.key.encode(), None)
        certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
        if isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key():
            return _pair(certificate, key)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        pass
    return Pair()


def _sound_certificate(text: str) -> str:
    try:
        return x509.load_pem_x509_certificate(text.encode()).public_bytes(serialization.Encoding.PEM).decode()
    except ValueError:
        return ""


def _start(text: str) -> float:
    return x509.load_pem_x509_certificate(text.encode()).not_valid_before_utc.timestamp()


def _end(text: str) -> float:
    return x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc.timestamp()


def _left(text: str, now: float) -> float:
    """The remaining part of its life; 1 is all of it."""
    begin, end = _start(text) + SLACK, _end(text)
    return (end - now) / max(end - begin, 1.0)


def _time(now: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(now), datetime.timezone.utc)
