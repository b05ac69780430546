"""A container's processes as its account page names them: real ones, in time namespaces of their own."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from oci_hook.agent.watch.process_owner import ProcessOwners
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.linux import proc
from oci_hook.observe import inside

SAY = (
    "import os; print(os.getpid(), open('/proc/self/stat').read().rpartition(')')[2].split()[19], flush=True); input()"
)


@pytest.fixture(params=[0, 86400, -5])
def process(request: pytest.FixtureRequest) -> Iterator[inside.Owner]:
    """(pid, start time as it sees it itself) of a process whose clock since boot is so many seconds ahead."""
    command = ["unshare", "--time", "--fork", "--pid", "--kill-child", f"--boottime={request.param}", sys.executable]
    with subprocess.Popen([*command, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        _, start = p.stdout.readline().split()
        (child,) = [pid for pid in proc.pids() if proc.start_time(pid) and proc.parent(pid) == p.pid]
        assert abs(int(start) - proc.start_time(child) - request.param * os.sysconf("SC_CLK_TCK")) <= 1
        yield child, int(start)
        p.communicate("\n")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_container_in_a_time_namespace_owns_what_it_wrote(process: inside.Owner) -> None:
    pid, start = process
    assert inside.Table([pid], 1.0).find((1, start)) == (pid, proc.start_time(pid))
    grant = Grant("k" * 32, Identity("/run", "x", "/b"), Life("boot", init=proc.process_life(pid)), ())
    owners = ProcessOwners()
    owners.update({grant.key: grant})
    assert (1, start) in owners.find({pid: math.inf})[pid][1].owners


def test_the_kernel_rounds_the_sum_of_start_and_offset() -> None:
    assert inside.owners(7, 100) == {(7, 0), (7, 100)}
    assert inside.owners(7, 100, 3 * inside.TICK) == {(7, 0), (7, 103)}
    assert inside.owners(7, 100, 3 * inside.TICK + 1) == {(7, 0), (7, 103), (7, 104)}
    assert inside.owners(7, 100, -3 * inside.TICK - 1) == {(7, 0), (7, 96), (7, 97)}
