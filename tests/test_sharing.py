"""What containers on one GPU see of each other, in real containers: the GPU page, everybody's slot file, their own.

Root in a container, with the capabilities that docker gives it, tries to change what is not its own.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.gpu_page import SLOT_FILE_SIZE, gpu_page, head
from oci_hook.core.policy_page import policy_page
from oci_hook.ledger import slot_files
from testbed.containers import Bundle, Runc
from testbed.installs import UUIDS, Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
DOCKER = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL"
CAPABILITIES = [f"CAP_{name}" for name in (*DOCKER.split(), "AUDIT_WRITE")]
ASK = {"gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute": "30", "gpu-hook.io/devices": "0"}
HOOK = {"path": "", "args": ["oci-gpu-hook", "prestart"]}


def as_docker(spec: dict[str, Any]) -> None:
    for kind in ("bounding", "effective", "permitted"):
        spec["process"]["capabilities"][kind] = CAPABILITIES


@pytest.fixture(params=["wrapper", "hook"])
def start(request: pytest.FixtureRequest, prefix: Install, bundle: Bundle, runc: Runc) -> Iterator[Any]:
    """start(annotations) -> the id of a running container that got its share by wrapper or hook."""

    def edit(spec: dict[str, Any]) -> None:
        as_docker(spec)
        if request.param == "hook":
            spec["hooks"] = {"prestart": [{**HOOK, "path": str(prefix.prefix / "bin/oci-gpu-hook")}]}

    def start(annotations: dict[str, str] = ASK) -> str:
        folder = bundle(annotations, edit=edit)
        done = runc.create(folder, prefix if request.param == "wrapper" else None)
        assert done.returncode == 0, done.stderr
        assert runc("start", runc.ids[-1]).returncode == 0
        return runc.ids[-1]

    yield start
    runc.close()
    slot_files.drop(str(prefix.state))


def sh(runc: Runc, id: str, script: str) -> "subprocess.CompletedProcess[str]":
    return runc.exec(id, "sh", "-c", script)


def test_offline_compute_has_a_hundred_per_cent_of_its_own(
    start: Any, prefix: Install, bundle: Bundle, runc: Runc
) -> None:
    for class_ in ("online", "offline"):
        start({**ASK, "gpu-hook.io/compute": "60", "gpu-hook.io/class": class_})
    assert sorted(g.terms.priority_class for g in prefix.grants()) == ["offline", "online"]
    for class_, what in (("default", "compute"), ("offline", "offline compute")):
        full = bundle({**ASK, "gpu-hook.io/compute": "41", "gpu-hook.io/class": class_}, edit=as_docker)
        done = runc.create(full, prefix)
        assert done.returncode and f"has 40 of 100 % {what} free, 41 % asked" in done.stderr


def test_own_slot_to_write_all_else_to_read(start: Any, prefix: Install, runc: Runc) -> None:
    one, two = start(), start({**ASK, "gpu-hook.io/devices": "1,0", "gpu-hook.io/class": "offline"})
    grants = {g.who.id: g for g in prefix.grants()}
    assert [s.slot for s in grants[one].shares] == [1] and [s.slot for s in grants[two].shares] == [1, 2]

    # The second container has the GPUs in its own order; the page is the host's.
    host = Path(slot_files.folder(str(prefix.state), UUIDS[0]))
    page = slot_files.page(str(prefix.state), UUIDS[0])
    assert page == gpu_page(UUIDS[0], (grants[one], grants[two]), *head(page)[1:], head(page)[0])
    expected = subprocess.run(["md5sum"], input=page, capture_output=True).stdout.decode()
    for id, number in ((one, 1), (two, 2)):
        seen = sh(runc, id, f"dd if=/run/gpu-hook/policy bs=4096 skip={number} count=1 2>/dev/null | md5sum")
        assert seen.stdout == expected
    assert sh(runc, two, "ls /run/gpu-hook/share/0/slot /run/gpu-hook/share/1/slot").stdout.split()[1:] == [
        *("00", "/run/gpu-hook/share/1/slot:"),
        *("00", "01"),
    ]
    options = sh(runc, two, "grep -E ' /run/gpu-hook/(share|slot)/' /proc/self/mounts").stdout.splitlines()
    flags = {line.split()[1].removeprefix("/run/gpu-hook/"): set(line.split()[3].split(",")) for line in options}
    assert set(flags) == {"share/0", "slot/0", "share/1", "slot/1"}
    for place, found in flags.items():
        assert found >= {"rw" if place.startswith("slot") else "ro", "nosuid", "nodev", "noexec"}

    # Its own slot file: any user in the container can write it, and the other container sees that.
    assert sh(runc, two, "printf hello | dd of=/run/gpu-hook/slot/1 conv=notrunc").returncode == 0
    assert sh(runc, one, "head -c5 /run/gpu-hook/share/0/slot/01").stdout == "hello"
    assert runc("exec", "--user", "1000:1000", two, "sh", "-c", "printf x >> /run/gpu-hook/slot/1").returncode == 0
    own = runc("exec", "--user", "1000", one, "sh", "-c", "head -c5 /run/gpu-hook/share/0/slot/01")
    assert own.stdout == "hello"

    # Other files: root with docker's capabilities cannot change them.
    before = {p: p.read_bytes() for p in host.rglob("*") if p.is_file()}
    for attack in (
        *("echo x >> policy", ": > share/1/slot/00", "echo x >> share/1/slot/00", "truncate -s0 share/1/slot/00"),
        *("dd if=/dev/zero of=share/1/slot/00 bs=1 count=1 conv=notrunc", "rm share/1/slot/00", "rm policy"),
        *("touch share/1/slot/05", "mv share/1/slot/01 share/1/slot/00", "ln share/1/slot/01 share/1/x"),
        *("chmod 666 policy", "chown 1000 share/1/slot/00", "mkdir share/1/d", "echo x > policy"),
        *("rm slot/1", "mount -o remount,rw,bind share/1", "umount share/1", "echo x > share/1/slot/01"),
    ):
        tried = sh(runc, two, f"cd /run/gpu-hook && {attack}")
        assert tried.returncode != 0, attack
    assert {p: p.read_bytes() for p in host.rglob("*") if p.is_file()} == before

    # A container may fill its own slot file; the others' stay readable, and the next container gets a slot.
    sh(runc, two, "dd if=/dev/zero of=/run/gpu-hook/slot/1 bs=64k conv=notrunc; true")
    assert (host / "slot/01").stat().st_size == slot_files.TMPFS_SIZE - SLOT_FILE_SIZE
    three = start()
    assert (host / "slot/02").stat().st_size == (host / "slot/01").stat().st_size == SLOT_FILE_SIZE
    assert sh(runc, three, "printf hi | dd of=/run/gpu-hook/slot/0 conv=notrunc").returncode == 0
    sh(runc, two, ": > /run/gpu-hook/slot/1")
    assert sh(runc, one, "wc -c < /run/gpu-hook/share/0/slot/01").stdout.strip() == "0"

    # The slot file goes with its container, for the others as well.
    runc("delete", "--force", two)
    four = start()
    assert sh(runc, four, "wc -c < /run/gpu-hook/share/0/slot/01; ls /run/gpu-hook/share/0/slot").stdout.split() == [
        *(str(SLOT_FILE_SIZE), "00", "01", "02"),
    ]
    grants = {g.who.id: g for g in prefix.grants()}
    pages = {g.key: policy_page(g, prefix.inventory) for g in grants.values()}
    assert {k: Path(prefix.state, "pages", k, "policy").read_bytes()[:4096] for k in pages} == pages


def test_a_whole_gpu_shares_nothing(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    folder = bundle({"gpu-hook.io/gpus": "1"})
    assert runc.create(folder, prefix).returncode == 0
    spec = json.loads((folder / "config.json").read_text())
    assert not [m for m in spec["mounts"] if m["destination"].startswith(("/run/gpu-hook/share", "/run/gpu-hook/slot"))]
    assert slot_files.gpus(str(prefix.state)) == []


def test_a_refused_container_leaves_no_slot(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """The grant is made, then the plan is refused: the GPU is as before."""

    def in_the_way(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]

    try:
        assert runc.create(bundle(ASK, edit=in_the_way), prefix).returncode == 1
        host = Path(slot_files.folder(str(prefix.state), UUIDS[0]))
        page = slot_files.page(str(prefix.state), UUIDS[0])
        assert page == gpu_page(UUIDS[0], (), *head(page)[1:], head(page)[0]) and head(page)[0] % 2 == 0
        assert list((host / "slot").iterdir()) == [] and prefix.grants() == ()
    finally:
        slot_files.drop(str(prefix.state))
