"""`gpu-hook ps`: living grants as a table and as JSON; use read from the account page without trusting it."""

import fcntl
import json
import os
import shutil
import struct
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oci_hook.boundary import limit_records
from oci_hook.boundary.limit_records import FAILED, SET, SETTING, LimitRecord
from oci_hook.cli import ps
from oci_hook.core.boundary import NO_LIMIT, Limit
from oci_hook.core.grant import Grant, Life, Share
from oci_hook.core.units import MIB
from oci_hook.linux.mount import mountinfo
from oci_hook.linux.proc import boot_id, process_life
from oci_hook.observe import account as used
from tests.cli.box import Install

POD = {"namespace": "ns", "pod": "shop", "container": "web", "pod_uid": "u-1", "engine": "containerd"}


def test_nothing(install: Install) -> None:
    assert install.text("ps") == "no container holds a share\n"
    assert install.data("ps") == {"containers": []}


def test_table(install: Install) -> None:
    install.grant("a" * 64, Share("GPU-0", 4096, 30, 80), Share("GPU-1", 1000), policy="burst-share", who=POD)
    install.grant("whole", Share("GPU-1", 24576, whole=True), exclusive=True, priority_class="online")
    install.grant("files", policy="best-effort")
    table = install.text("ps")
    assert table.count("2027-01-15 08:00:00\n") == 4
    assert table.replace("2027-01-15 08:00:00", "SINCE_") == (
        "CONTAINER     NAME         GPU  UUID   MEMORY  USED  BOUNDARY  COMPUTE  POLICY       CLASS    STATE     SINCE\n"
        "aaaaaaaaaaaa  ns/shop/web  0    GPU-0  4Gi     -     shim      30-80%   burst-share  default  starting  SINCE_\n"
        "aaaaaaaaaaaa  ns/shop/web  1    GPU-1  1000Mi  -     shim      -        burst-share  default  starting  SINCE_\n"
        "files         -            -    -      -       -     -         -        best-effort  default  starting  SINCE_\n"
        "whole         -            1    GPU-1  whole   -     -         -        burst-share  online   starting  SINCE_\n"
    )


def test_json(install: Install) -> None:
    grant = install.grant("c1", Share("GPU-1", 4096, 30, 100), who=POD, driver_version="1.2")
    assert install.data("ps") == {
        "containers": [
            {
                "key": grant.key,
                "id": "c1",
                "root": "/run/runc",
                "bundle": "/bundles/c1",
                "engine": "containerd",
                "pod_uid": "u-1",
                "namespace": "ns",
                "pod": "shop",
                "name": "web",
                "pid": None,
                "gpus": [
                    {
                        "index": 1,
                        "uuid": "GPU-1",
                        "memory_mib": 4096,
                        "compute": 30,
                        "compute_limit": 100,
                        "whole": False,
                        "slot": 0,
                        "request_mib": 0,
                        "booked_mib": 4096,
                        "used_mib": None,
                        "kept_mib": None,
                    }
                ],
                "policy": "burst-share",
                "class": "default",
                "state": "starting",
                "waits_seconds": None,
                "frozen_since": None,
                "suspended_since": None,
                "lent_to": None,
                "host_mib": 0,
                "waits_since": None,
                "waits_for": None,
                "preempt_tolerance_us": None,
                "account_problem": None,
                "exclusive": False,
                "capabilities": ["compute", "utility"],
                "driver_version": "1.2",
                "created": 1_800_000_000,
                "boundary": "shim",
                "boundary_why": "the driver was not asked when the GPUs were listed",
                "boundary_failed": False,
            }
        ]
    }


def test_who_holds_the_memory_limit(install: Install) -> None:
    """By what was recorded, and not by what should be."""
    file = install.state / "inventory.json"
    found = json.loads(file.read_text())
    for gpu in found["gpus"]:
        gpu["no_limits"] = ""
    file.write_text(json.dumps(found))
    me = Life(boot_id(), init=process_life(os.getpid()))
    grant = install.grant("c1", Share("GPU-0", 4096), life=me)
    install.grant("whole", Share("GPU-1", 24576, whole=True), life=me)

    def seen() -> tuple[str, str, bool]:
        c = install.data("ps")["containers"][0]
        return c["boundary"], c["boundary_why"], c["boundary_failed"]

    assert seen() == ("shim", "no limit is recorded for it; start it again", True)
    assert "c1: memory limit held by the shim alone: no limit is recorded" in install.text("ps")
    (install.state / "boundary").mkdir(mode=0o700)
    size = 4096 * MIB
    limit = (Limit("GPU-0", size, size),)
    good = LimitRecord(grant.key, "c1", boot_id(), SET, (("/sys/fs/cgroup/x", 7),), limit)
    for record, held in (
        (good, "driver"),
        (good.replace(boot="another"), "shim"),
        (good.replace(state=SETTING), "shim"),
        (good.replace(limits=(Limit("GPU-1", size, size),)), "shim"),
        (good.replace(limits=(Limit("GPU-0", 0, NO_LIMIT),)), "shim"),
        (good.replace(cgroups=()), "shim"),
        (good.replace(state=FAILED, why="no luck"), "shim"),
    ):
        limit_records.write(str(install.state), record)
        assert seen()[0] == held, record
    assert seen() == ("shim", "no luck", True)
    limit_records.write(str(install.state), good)
    text = file.read_text()
    file.write_text(text.replace("GPU-0", "GPU-9"))
    assert seen() == ("driver", "", False), "its GPU has left the inventory"
    file.write_text(text)
    (install.state / "boundary" / grant.key).write_text("{")
    assert seen()[0] == "shim"
    whole = install.data("ps")["containers"][1]
    assert (whole["boundary"], whole["boundary_failed"]) == ("shim", False)


def test_a_share_that_waits_for_its_container(install: Install) -> None:
    """As podman's precreate hook leaves it if the container is never created."""
    life = Life(boot_id(), deadline=int(time.monotonic()) + 40)
    install.grant("ghost", Share("GPU-0", 100), life=life)
    (entry,) = install.data("ps")["containers"]
    assert entry["state"] == "starting" and 30 < entry["waits_seconds"] <= 40
    assert "starting, waits " in install.text("ps") and "s more for its container" in install.text("ps")
    assert "no runtime has begun to create it; its share is kept for" in install.text("why", "ghost")
    (seen,) = install.data("top")["containers"]
    assert seen["state"] == "starting" and 30 < seen["waits_seconds"] <= 40


def test_the_dead_are_not_listed_and_nothing_is_written(install: Install) -> None:
    dead = subprocess.Popen(["sleep", "60"])
    install.grant("dead", Share("GPU-0", 1), life=Life(boot_id(), creator=process_life(dead.pid)))
    dead.kill()
    dead.wait()
    before = install.ledger()
    assert install.data("ps") == {"containers": []}
    assert install.ledger() == before


def test_names_from_tenants_cannot_speak_to_the_terminal(install: Install) -> None:
    install.grant("c", Share("GPU-0", 1), who={"container": "\x1b[2Jx"})
    assert "\x1b" not in install.text("ps")
    assert "  ?[2Jx  " in install.text("ps")


def test_without_an_inventory_the_holders_are_still_told(install: Install) -> None:
    install.grant("c", Share("GPU-0", 1024))
    (install.state / "inventory.json").unlink()
    result = install.run("ps")
    assert result.exit_code == 0 and result.stderr.startswith("warning: GH-301: ")
    assert result.stdout.splitlines()[1].startswith("c          -     -    GPU-0  1Gi ")
    assert install.data("ps")["containers"][0]["gpus"][0]["index"] is None


def test_a_ledger_that_cannot_be_read(install: Install) -> None:
    install.grant("c", Share("GPU-0", 1))
    [file] = (install.state / "ledger").glob("*.json")
    file.write_text("{")
    assert install.data("ps", status=1)["errors"][0]["code"] == "GH-303"


# Memory in use


def used_mib(grant: Grant) -> list[int | None]:
    """As `ps` shows it."""
    return [gpu["used_mib"] for gpu in ps.as_data(grant, {})["gpus"]]


def page(*totals_mib: float, idle_mib: int = 0) -> bytes:
    """An account page with these totals; one process keeps `idle_mib` in its free cache on each GPU."""
    data = bytearray(used.SIZE)
    used.HEAD.pack_into(data, 0, used.MAGIC, used.VERSION)
    for i, mib in enumerate(totals_mib):
        value = int(mib * MIB) // used.UNIT
        words = value << used.VALUE_SHIFT | 5 << 20 | 7, 0, 0, int(idle_mib > 0)
        used.GPU.pack_into(data, used.GPUS_OFFSET + used.GPU.size * i, *words, 0, 0)
        spare = (idle_mib * MIB // used.UNIT) << used.FREE_SHIFT | 11
        struct.pack_into("<Q", data, used.FREE_CACHES_OFFSET + 8 * (used.MOST_GPUS * 3 + i), spare)
    return bytes(data)


@contextmanager
def container(setup: str) -> Iterator[Life]:
    """The life of a process with its own /run, which the shell script `setup` fills."""
    script = f"mount -t tmpfs none /run && mkdir -p /run/gpu-hook/account && cd /run/gpu-hook/account && {setup}"
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{script} && echo ready && exec sleep 60"]
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout and p.stdout.readline() == "ready\n"
        yield Life(boot_id(), init=process_life(p.pid))
    finally:
        p.kill()
        p.communicate()


@pytest.mark.root
def test_use_is_read_from_the_containers_page(install: Install, tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(page(100, 2048, 0.5))
    with container(f"cp {tmp_path}/page page") as life:
        shares = (Share("GPU-0", 4096), Share("GPU-1", 4096))
        grant = install.grant("c", *shares, life=life)
        assert used_mib(grant) == [100, 2048]
        assert used_mib(grant.replace(shares=shares * 2)) == [100, 2048, 1, 0]  # rounded up
        entry = install.data("ps")["containers"][0]
        assert [gpu["used_mib"] for gpu in entry["gpus"]] == [100, 2048]
        assert life.init and entry["pid"] == life.init[0]
        assert "  GPU-0  4Gi     100Mi  " in install.text("ps")


HOSTILE = [
    "true",
    "mkfifo page",
    "mkdir page",
    "ln -s page page",
    "ln -s /dev/zero page",
    "ln -s /proc/self/root/etc/passwd page",
    "ln -s ../../../../../../etc/hostname page",
    "echo short >page",
    "truncate -s 1M page",
    "yes | head -c 100000 >page",
    "cd .. && rmdir account && ln -s /proc account",
]


@pytest.mark.root
@pytest.mark.parametrize("setup", HOSTILE)
def test_a_page_that_is_none_says_nothing(install: Install, setup: str) -> None:
    with container(setup) as life:
        assert used_mib(install.grant("c", Share("GPU-0", 1), life=life)) == [None]


SMALL = "cd / && mount -t tmpfs -o size=1M,nr_inodes=16 a /run/gpu-hook/account && cd /run/gpu-hook/account"


@pytest.mark.root
@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ("head -c 600000 /dev/zero >junk", "its folder is full"),
        ("touch $(seq 20) 2>/dev/null; true", "its folder is full"),
        ("touch page && head -c 600000 /dev/zero >junk", "its folder is full"),
        ("echo short >page", "it is not of this version"),
        ("mkdir page", "it is not a regular file"),
        ("ln -s page page", "it is not a regular file"),
    ],
)
def test_a_container_without_an_account_page_gets_no_memory(install: Install, setup: str, why: str) -> None:
    """The shim says so in the container, and each command outside."""
    with container(f"{SMALL} && {setup}") as life:
        install.grant("c", Share("GPU-0", 1), life=life)
        said = install.data("ps")["containers"][0]["account_problem"]
        assert said.startswith(f"{why}; device memory is refused in the container (GH-308): ")
        assert f"account page of c: {said}\n" in install.text("ps")
        assert f"its memory use is unknown, since its account page cannot be read: {said}\n" in install.text("why", "c")


@pytest.mark.root
def test_a_page_that_has_its_room_does_not_mind_a_full_folder(install: Install, tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(page(7))
    with container(f"{SMALL} && cat {tmp_path}/page >page; cat /dev/zero >junk 2>/dev/null; true") as life:
        assert used_mib(install.grant("c", Share("GPU-0", 1), life=life)) == [7]


@pytest.mark.root
def test_a_page_of_the_host_is_never_read(install: Install, tmp_path: Path) -> None:
    """A link in the container to a valid page is not followed, even if the host has a page at that path."""
    (tmp_path / "page").write_bytes(page(7))
    with container(f"mount -t tmpfs none {tmp_path} && ln -s {tmp_path}/page page") as life:
        assert used_mib(install.grant("c", Share("GPU-0", 1), life=life)) == [None]


@pytest.mark.root
def test_a_pid_that_is_another_process_now(install: Install, tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(page(7))
    with container(f"cp {tmp_path}/page page") as life:
        assert life.init
        grant = install.grant("c", Share("GPU-0", 1), life=life)
        other = life.replace(init=(life.init[0], life.init[1] + 1))
        assert used_mib(grant.replace(life=other)) == [None]
        assert used_mib(grant) == [7]


@pytest.mark.root
def test_what_is_kept_idle_is_not_in_use(install: Install, tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(page(7, 9, idle_mib=2))
    with container(f"cp {tmp_path}/page page") as life:
        grant = install.grant("c", Share("GPU-0", 1), Share("GPU-1", 1), life=life)
        assert used_mib(grant) == [5, 7]
    (tmp_path / "page").write_bytes(page(7, 9, idle_mib=2)[: used.FREE_CACHES_OFFSET + 100])
    with container(f"cp {tmp_path}/page page") as life:
        assert used_mib(install.grant("d", Share("GPU-0", 1), Share("GPU-1", 1), life=life)) == [7, 9]
    (tmp_path / "page").write_bytes(page(1, idle_mib=2))
    with container(f"cp {tmp_path}/page page") as life:
        assert used_mib(install.grant("e", Share("GPU-0", 1), life=life)) == [0]


@pytest.mark.root
def test_a_list_of_mounts_without_end_is_not_read(tmp_path: Path) -> None:
    """Each mount's path is nearly as long as possible."""
    (tmp_path / "page").write_bytes(page(7))
    deep = "/".join(["d" * 250] * 14)
    many = (
        f"cd /run && mkdir -p {deep} && mount -t tmpfs a {deep} && for i in $(seq 400); do mount --bind {deep} {deep}"
    )
    with container(f"cp {tmp_path}/page page && {many} || exit 1; done") as life:
        assert life.init
        tracemalloc.start()
        try:
            with pytest.raises(used.DamagedPage, match="too many mounts"), used.Account(*life.init):
                pass
            assert tracemalloc.get_traced_memory()[1] < 2 << 20
        finally:
            tracemalloc.stop()
        assert mountinfo(str(life.init[0]), 64 << 20)


@pytest.mark.root
def test_a_page_full_of_owners_is_read_in_five_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container can have thousands of descriptors told of each read (F_NOTIFY), and the reader pays for that."""
    path, reads, pread = tmp_path / "page", [], os.pread
    words = [0, *((n + 2) << 32 | 1 for n in range(1, used.SLOTS))]
    path.write_bytes(page(100)[: used.OWNERS_OFFSET] + used.OWNERS.pack(*words) + page(100)[used.ENTRIES_OFFSET :])
    monkeypatch.setattr(used.os, "pread", lambda fd, n, at: (reads.append(n), pread(fd, n, at))[1])
    with container(f"cp {path} page") as life:
        assert life.init
        with used.Account(*life.init) as account:
            usage = account.read(1, by_process=True)
    assert usage and not usage.owners and len(reads) <= 5


DEVICES = Path("/sys/fs/cgroup/devices")


@pytest.mark.root
@pytest.mark.skipif(not DEVICES.is_dir(), reason="needs version 1 of cgroups")
def test_forged_owners_cost_the_reader_no_more_than_the_list_of_processes_once(tmp_path: Path) -> None:
    """At each read every slot has another owner, and none of them is a process of the container. All are locked."""
    path, folder = tmp_path / "page", DEVICES / f"gh-test-{os.getpid()}"
    folder.mkdir()
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(200)]
    try:
        path.write_bytes(page(100))
        with container(f"ln {path} page 2>/dev/null || cp {path} page") as life:
            assert life.init
            for pid in (life.init[0], *(p.pid for p in sleepers)):
                (folder / "cgroup.procs").write_text(str(pid))
            inside = Path(f"/proc/{life.init[0]}/root/run/gpu-hook/account/page")
            with used.Account(*life.init) as account, open(inside, "r+b") as holder:
                fcntl.fcntl(holder, fcntl.F_OFD_SETLK, used.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, used.SLOTS, 0))
                for look in range(4):
                    words = [(n + 2) << 32 | look + 1 for n in range(used.SLOTS)]
                    with open(inside, "r+b") as f:
                        f.seek(used.OWNERS_OFFSET)
                        f.write(used.OWNERS.pack(*words))
                    began = time.process_time()
                    usage = account.read(1)
                    assert time.process_time() - began < 1 and usage and usage.totals[0] >> 20 == 100
                    assert len(usage.owners) == used.SLOTS
    finally:
        for p in sleepers:
            p.kill()
        for p in sleepers:
            p.wait()
        end = time.monotonic() + 120
        while (folder / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.02)
        folder.rmdir()


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_layout_is_that_of_the_c_header(tmp_path: Path) -> None:
    shim = Path(used.__file__).parents[1] / "shim"
    (tmp_path / "x.c").write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "pages/account_page.h"\n'
        "typedef struct gh_account_page P;\n"
        'int main(void) { printf("%llu %u %zu %zu %zu %llu %d", (unsigned long long)GH_ACCOUNT_MAGIC,\n'
        "GH_ACCOUNT_VERSION, offsetof(P, version), offsetof(P, gpu), sizeof(struct gh_account_gpu),\n"
        "(unsigned long long)gh_word(1, 0, 0), 1 << GH_UNIT_SHIFT);\n"
        'printf(" %zu %zu %zu %d %llu", offsetof(P, owner), sizeof(P), offsetof(struct gh_account_gpu, '
        "surcharge), GH_ACCOUNT_SLOTS, GH_VALUE_MAX);\n"
        'printf(" %zu %zu %d %d %zu", offsetof(struct gh_account_gpu, cached), offsetof(P, free_cache), '
        "GH_ACCOUNT_GPUS, GH_CACHE_BITS, offsetof(P, entry)); }\n"
    )
    subprocess.run(["cc", "-I", str(shim), "-o", str(tmp_path / "x"), str(tmp_path / "x.c")], check=True)
    said = subprocess.run([str(tmp_path / "x")], capture_output=True, text=True, check=True).stdout.split()
    assert [int(n) for n in said] == [
        used.MAGIC,
        used.VERSION,
        struct.calcsize("<Q"),
        used.GPUS_OFFSET,
        used.GPU.size,
        1 << used.VALUE_SHIFT,
        used.UNIT,
        used.OWNERS_OFFSET,
        used.SIZE,
        used.SURCHARGE_OFFSET,
        used.SLOTS,
        used.VALUE_MAX,
        3 * struct.calcsize("<Q"),
        used.FREE_CACHES_OFFSET,
        used.MOST_GPUS,
        used.FREE_SHIFT,
        used.ENTRIES_OFFSET,
    ]


def test_a_grant_without_an_init_says_nothing(install: Install) -> None:
    assert used_mib(install.grant("c", Share("GPU-0", 1))) == [None]
