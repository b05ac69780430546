"""The wrapper's limits of time and memory: kept, reported with a code, and lifted when the real runtime begins."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook import runtime
from oci_hook.linux import limits, lock
from testbed.containers import Bundle, Runc
from testbed.expensive_images import cost
from testbed.installs import Install
from tests.test_precreate import ASK as PODMAN_ASK
from tests.test_runtime import ASK, refused

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
GIB = 1 << 30


def from_source(install: Install, file: str, more: str) -> None:
    """Make the install run from its sources, with `more` appended to one of them."""
    lib = install.prefix / "lib/gpu-hook"
    for pack in lib.glob("*.pack"):
        pack.unlink()
    with open(lib / "oci_hook" / file, "a") as f:
        f.write("\n" + more)


def test_a_state_that_never_ends(prefix: Install) -> None:
    from_source(prefix, "hook.py", "DEADLINE = 1.5\n")
    program = [str(prefix.prefix / "bin/oci-gpu-hook"), "prestart"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as hook:
        assert hook.wait(60) == 1
        assert hook.stderr and hook.stderr.read().startswith(b"GH-405: ")


@pytest.mark.parametrize(
    "never", ["while True: pass", "import time; time.sleep(1000)", "x = [0]\n    while True: x += x"]
)
def test_a_look_that_never_ends(prefix: Install, bundle: Bundle, runc: Runc, never: str) -> None:
    """By a mistake of ours, or a hanging file system, the look at the image never ends: refused, nothing changed."""
    grows = "+=" in never
    from_source(prefix, "runtime.py", f"DEADLINE = {600 if grows else 1.5}\n")
    from_source(prefix, "apply/bundle_plan.py", f"def look(*_):\n    {never}\n")
    said = refused(runc, prefix, bundle(ASK), "GH-412" if grows else "GH-405")
    assert "MiB" in said if grows else "after 2 s" in said
    assert prefix.grants() == ()


def test_late_when_all_is_written(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """The deadline passes just before the exec: config.json is as it was, and nothing stays booked."""
    from_source(prefix, "runtime.py", "DEADLINE = 1.5\ndef run_real(*_):\n    while True: pass\n")
    refused(runc, prefix, bundle(ASK), "GH-405")
    assert prefix.grants() == ()


def test_a_stopped_holder_of_the_ledger(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    (prefix.state / "ledger").mkdir(mode=0o700)
    b = bundle(ASK)
    with open(prefix.state / "ledger/lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        r = runc.create(b, prefix)
    assert r.returncode == 1 and "GH-303: " in r.stderr and f"is locked for {lock.LOCK_SECONDS:g} s by" in r.stderr
    assert lock.LOCK_SECONDS < runtime.DEADLINE


SIZE = 15 << 20
HEAVY = [
    "{},",
    "[],",
    '{"":0},',
    "[[[]]],",
    '"",',
    "1.5,",
    "1e9,",
    '"\\ud800",',
    "12345678901234567890,",
    '"' + "x" * 99 + '",',
]


@pytest.mark.parametrize("what", HEAVY)
def test_a_config_json_that_is_heavy(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path, what: str) -> None:
    """16 MiB of JSON, which may take fifty times as much in Python: it fits in the memory limit, or is refused."""
    b = bundle(ASK)
    text = (b / "config.json").read_text().rstrip()[:-1] + ', "x-new": [' + what * (SIZE // len(what)) + "0]}"
    (b / "config.json").write_text(text)
    command = [prefix.program, "--root", str(runc.root), "create", "--bundle", str(b), "--pid-file", "/no/x"]
    status, seconds, megabytes = cost([*command, runc.new_id()], tmp_path / "err")
    said = (tmp_path / "err").read_text()
    print(what[:20], status, seconds, megabytes, said[:200])
    assert megabytes < (limits.MEMORY >> 20) + 150  # runc's own, if it comes to that
    if "GH-" in said:
        assert status == 1 and "GH-412" in said and said.count("\n") == 1
        assert (b / "config.json").read_text() == text and prefix.grants() == ()


def test_podman_is_told_as_well(prefix: Install, bundle: Bundle) -> None:
    b = bundle(PODMAN_ASK)
    text = (b / "config.json").read_text().rstrip()[:-1] + ', "x-new": [' + '{"":0},' * (SIZE // 7) + "0]}"
    r = subprocess.run(
        [str(prefix.prefix / "bin/oci-gpu-hook"), "precreate"], input=text, capture_output=True, text=True
    )
    assert r.returncode == 1 and r.stdout == "" and "GH-412" in r.stderr and r.stderr.count("\n") == 1


@pytest.mark.parametrize("asks", [True, False], ids=["edited", "passed-on"])
@pytest.mark.parametrize(
    ("as_limit", "before"),
    [
        (resource.RLIM_INFINITY, lambda: None),
        (4 * GIB, lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN)),
        (GIB, lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGUSR1])),
    ],
)
def test_the_runtime_has_what_the_engine_gave(
    prefix: Install, bundle: Bundle, as_limit: int, before: Callable[[], Any], asks: bool
) -> None:
    seen = prefix.prefix.parent / "seen"
    script = prefix.prefix.parent / "runtime"
    script.write_text(
        f"#!/bin/sh\ngrep Max.address /proc/self/limits > {seen}\ngrep Sig[^Q] /proc/self/status >> {seen}\n"
    )
    script.chmod(0o755)
    prefix.set(runtime=str(script))

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (as_limit, resource.RLIM_INFINITY))
        before()

    lines = []
    # "--" is not understood by the launcher, so that Python passes it on.
    for program in (prefix.program, str(script)):
        args = ["create", "--bundle", str(bundle(ASK if asks else {})), "--", "some-id"]
        assert subprocess.run([program, *args], preexec_fn=prepare).returncode == 0
        lines.append(seen.read_text())
    assert lines[0] == lines[1]
    assert ("unlimited" if as_limit == resource.RLIM_INFINITY else str(as_limit)) in lines[0].split("Sig")[0]


def test_the_alarm_is_not_the_runtimes(prefix: Install, bundle: Bundle) -> None:
    """A timer outlives execve(2): left on, it would kill the runtime in the middle of its work."""
    script = prefix.prefix.parent / "runtime"
    asks = "import signal; print(signal.getitimer(signal.ITIMER_REAL))"
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{asks}'\n")
    script.chmod(0o755)
    prefix.set(runtime=str(script))
    r = subprocess.run([prefix.program, "create", "--bundle", str(bundle(ASK)), "x"], capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout == "(0.0, 0.0)\n"
    assert r.stderr == ""
