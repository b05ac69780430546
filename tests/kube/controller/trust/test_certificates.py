"""The authority and the serving certificate over simulated years: a client that read the bundle within the overlap always trusts the
server."""

import datetime
import socket
import ssl
import tempfile
import threading

import pytest
from cryptography import x509

from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.controller.trust import certificates as c

LIFE = 100_000.0
NAMES = ("gpu-hook-controller.gpu-hook.svc", "10.0.0.1")
NOW = 1_700_000_000.0


def test_the_first_certificate_is_trusted_by_its_bundle_and_by_nothing_else() -> None:
    have, other = (c.renewed(c.Certificates(), NAMES, 1e7, datetime.datetime.now().timestamp()) for _ in range(2))
    assert shake_hands(have, have.bundle, NAMES[0]) == "ok"
    assert shake_hands(have, have.bundle, NAMES[1]) == "ok"
    assert "IP address mismatch" in shake_hands(have, have.bundle, "10.0.0.2")
    assert "Hostname mismatch" in shake_hands(have, have.bundle, "gpu-hook-controller.other.svc")
    assert "certificate verify failed" in shake_hands(have, other.bundle, NAMES[0])


def test_nothing_is_renewed_before_it_is_due() -> None:
    have = c.renewed(c.Certificates(), NAMES, LIFE, NOW)
    assert c.renewed(have, NAMES, LIFE, NOW + 1) is have
    assert c.renewed(have, NAMES, LIFE, NOW + LIFE * 0.6) is have
    later = c.renewed(have, NAMES, LIFE, NOW + LIFE * 0.7)
    assert later.serving != have.serving and later.authority == have.authority


def test_another_name_or_a_damaged_part_is_renewed_at_once() -> None:
    have = c.renewed(c.Certificates(), NAMES, LIFE, NOW)
    assert c.renewed(have, (*NAMES, "10.0.0.9"), LIFE, NOW + 1).serving != have.serving
    for damaged in (
        have.replace(serving=c.Pair(have.serving.certificate, have.authority.key)),
        have.replace(serving=c.Pair("x", "y")),
        have.replace(old="x"),
        have.replace(next=c.Pair("x", "y")),
    ):
        repaired = c.renewed(damaged, NAMES, LIFE, NOW + 1)
        assert repaired.authority == have.authority and trusted(repaired.serving, repaired.bundle, NOW + 1)
        assert not repaired.next and not repaired.old
    lost = c.renewed(have.replace(authority=c.Pair("", "")), NAMES, LIFE, NOW + 1)
    assert trusted(lost.serving, lost.bundle, NOW + 1)


def test_for_six_years_a_scheduler_needs_no_new_authority() -> None:
    life = ControllerOptions.certificate_life
    have = c.renewed(c.Certificates(), NAMES, life, NOW)
    first, leaves = have.bundle, set()
    for day in range(0, 6 * 365, 10):
        have = c.renewed(have, NAMES, life, NOW + day * 86_400)
        assert have.bundle == first and trusted(have.serving, first, NOW + day * 86_400), day
        leaves.add(have.serving.certificate)
    assert len(leaves) > 20


def test_over_two_years_the_bundle_of_a_tenth_of_a_life_ago_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "AUTHORITY_LIVES", 4)  # else the search of all bundles takes long
    have = c.renewed(c.Certificates(), NAMES, LIFE, NOW)
    bundles = [(NOW, have.bundle)]
    authorities = {have.authority.certificate}
    now = NOW
    while now < NOW + 13 * LIFE:
        now += LIFE / 40
        have = c.renewed(have, NAMES, LIFE, now)
        bundles.append((now, have.bundle))
        authorities.add(have.authority.certificate)
        for when, bundle in bundles:
            if when >= now - LIFE / 10 + LIFE / 40:
                assert trusted(have.serving, bundle, now), (now - NOW) / LIFE
        assert have.bundle.count("BEGIN CERTIFICATE") <= 2
    assert len(authorities) >= 4


def test_after_years_without_a_controller_all_begins_anew() -> None:
    have = c.renewed(c.Certificates(), NAMES, LIFE, NOW)
    later = c.renewed(have, NAMES, LIFE, NOW + 100 * LIFE)
    assert later.authority != have.authority and trusted(later.serving, later.bundle, NOW + 100 * LIFE)


@pytest.mark.parametrize("step", [0.7, 2.9, 5.0])
@pytest.mark.parametrize("looks", [1, 20])
def test_what_a_clock_far_ahead_made_is_made_anew_when_it_is_right(step: float, looks: int) -> None:
    have = c.renewed(c.Certificates(), NAMES, LIFE, NOW)
    for look in range(looks):
        have = c.renewed(have, NAMES, LIFE, NOW + (step + 0.02 * look) * LIFE)
    right = c.renewed(have, NAMES, LIFE, NOW)
    assert trusted(right.serving, right.bundle, NOW)
    assert c.renewed(right, NAMES, LIFE, NOW + 1) is right
    assert not right.next or c._start(right.next.certificate) <= NOW


def test_a_clock_a_little_ahead_changes_nothing() -> None:
    have = c.renewed(c.Certificates(), NAMES, LIFE, NOW)
    assert c.renewed(have, NAMES, LIFE, NOW - 299) is have


def trusted(serving: c.Pair, bundle: str, now: float) -> bool:
    certificate = x509.load_pem_x509_certificate(serving.certificate.encode())
    at = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)
    for authority in x509.load_pem_x509_certificates(bundle.encode()):
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:
            continue
        return all(one.not_valid_before_utc <= at <= one.not_valid_after_utc for one in (certificate, authority))
    return False


def shake_hands(have: c.Certificates, bundle: str, name: str) -> str:
    """Returns "ok" or the client's error."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write((have.serving.certificate + have.serving.key).encode())
        file.flush()
        server.load_cert_chain(file.name)
    client = ssl.create_default_context(cadata=bundle)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=name).close()
        return "ok"
    except ssl.SSLError as e:
        return str(e)
    finally:
        ours.close()
        thread.join()
