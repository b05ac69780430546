"""How long threads wait for a processor, by real ones that compete for one."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from oci_hook.linux.schedstat import run_delays

SPIN = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\nwhile 1: pass"


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count run delays")
def test_two_that_share_a_processor_wait_and_a_sleeper_does_not() -> None:
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) for _ in range(2)]
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            for one in spinning:
                assert one.stdout and one.stdout.readline() == b"\n"
            sleeper.send_signal(signal.SIGSTOP)
            os.waitpid(sleeper.pid, os.WUNTRACED)
            before = [run_delays(one.pid)[one.pid] for one in (*spinning, sleeper)]
            while min(run_delays(one.pid)[one.pid] - n for one, n in zip(spinning, before, strict=False)) < 100_000_000:
                pass
            assert run_delays(sleeper.pid) == {sleeper.pid: before[2]}
        finally:
            for one in (*spinning, sleeper):
                one.kill()
                one.communicate()


def test_each_thread_has_its_own() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert {os.getpid(), thread.native_id} <= set(run_delays(os.getpid()))
    finally:
        end.set()
        thread.join()


def test_no_such_process() -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    assert run_delays(gone.pid) == {}
