"""Rootless engines beside an install of root's: what asks for nothing runs as ever, also where gpu-hook is the default, and
what asks is refused with one line. The user is without a name, and without further users of its own."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.engines.box import IMAGE, Place

pytestmark = [pytest.mark.root, pytest.mark.slow]
UID = 4242
V2 = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; mount --make-rshared /"
ASK = {"gpu-hook.io/memory": "1Gi"}
REFUSED = "GH-303: the container asks for a share of a GPU, and the ledger of shares is root's"
NO_GPU = "gpu-probe: libcuda.so.1: cannot open shared object file"


class User:
    """A plain user on the place's machine."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.dir.chmod(0o711)
        self.home, self.rootfs = place.dir / "home", place.dir / "its-image"
        (self.home / "run").mkdir(parents=True)
        subprocess.run(["cp", "-a", place.rootfs, self.rootfs], check=True)
        for folder in (self.home, self.rootfs):
            subprocess.run(["chown", "-Rh", f"{UID}:{UID}", folder], check=True)

    def __call__(self, *command: str) -> "subprocess.CompletedProcess[str]":
        who = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        environment = [f"HOME={self.home}", f"XDG_RUNTIME_DIR={self.home}/run", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        return self.place.hideout.run(*who, "env", "-i", *environment, *command)

    def bundle(self, annotations: dict[str, str], near: str = "") -> Path:
        """near: further text that a rootless container may have."""
        folder = self.home / f"bundle{len(annotations)}{len(near)}"
        folder.mkdir()
        subprocess.run(["runc", "spec", "--rootless"], cwd=folder, check=True)
        spec = json.loads((folder / "config.json").read_text())
        spec["process"].update(terminal=False, args=["gpu-probe", "info"])
        spec["process"]["env"].append(f"TEXT={near}")
        spec["process"].pop("rlimits", None)
        spec["root"] = {"path": str(self.rootfs), "readonly": False}
        for kind in ("uidMappings", "gidMappings"):
            spec["linux"][kind] = [{"containerID": 0, "hostID": UID, "size": 1}]
        spec["annotations"] = annotations
        (folder / "config.json").write_text(json.dumps(spec))
        subprocess.run(["chown", "-R", f"{UID}:{UID}", folder], check=True)
        return folder

    def podman(self, *words: str, flags: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        return self("podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", *flags, *words)


@pytest.fixture(scope="module")
def user(native: Path) -> Iterator[User]:
    place = Place(native, first=V2)
    try:
        yield User(place)
    finally:
        place.close()


def test_runc(user: User) -> None:
    program, root = user.place.program, f"{user.home}/run/runc"
    assert user(program, "--version").stdout.startswith("runc ")
    for near in ("", "T9K_GPU_PERCENT nvidia.com/gpu libcuda gpu-hook.io/memory \\u002f"):
        done = user(program, "--root", root, "run", "--bundle", str(user.bundle({}, near)), "quiet")
        assert done.returncode == 3 and NO_GPU in done.stderr, done
    asks = user.bundle(ASK)
    before = (asks / "config.json").read_bytes()
    done = user(program, "--root", root, "run", "--bundle", str(asks), "asks")
    assert done.returncode == 1 and REFUSED in done.stderr and len(done.stderr.splitlines()) == 1, done
    assert (asks / "config.json").read_bytes() == before and user.place.no_grants()
    assert user(program, "--root", root, "delete", "--force", "asks").returncode == 0
    (asks / "config.json").write_bytes(before.replace(b"/", b"\\/"))  # as Slurm writes it
    done = user(program, "--root", root, "run", "--bundle", str(asks), "asks")
    assert done.returncode == 1 and REFUSED in done.stderr, done
    by_hand = user(f"{user.place.prefix}/bin/oci-gpu-hook", "createRuntime")
    assert by_hand.returncode == 1 and REFUSED in by_hand.stderr


@pytest.mark.skipif(not shutil.which("podman"), reason="no podman")
def test_podman(user: User) -> None:
    loaded = user.podman("load", "--input", str(user.place.archive))
    assert loaded.returncode == 0, loaded.stderr
    words = ("run", "--rm", "--network=none")
    asks = [w for k, v in ASK.items() for w in ("--annotation", f"{k}={v}")]
    plain = user.podman(*words, IMAGE, "gpu-probe", "info", flags=("--runtime=runc",))
    if NO_GPU not in plain.stderr:
        pytest.skip(f"no rootless podman here: {plain.stderr[-200:]}")
    user.place.gpu_hook("install", "--engine", "podman", "--set-default")
    for flags in ((), ("--runtime=gpu-hook",)):  # the default runtime of all users now is ours
        done = user.podman(*words, IMAGE, "gpu-probe", "info", flags=flags)
        assert done.returncode == 3 and NO_GPU in done.stderr, done
        done = user.podman(*words, *asks, IMAGE, "gpu-probe", "info", flags=flags)
        # podman keeps what a precreate hook says to itself.
        assert done.returncode != 0 and "executing [oci-gpu-hook precreate]: exit status 1" in done.stderr, done
    user.place.gpu_hook("uninstall", "--engine", "podman")
    done = user.podman(*words, *asks, IMAGE, "gpu-probe", "info", flags=(f"--runtime={user.place.program}",))
    assert done.returncode != 0 and REFUSED in done.stderr and NO_GPU not in done.stderr, done
    assert user.place.no_grants()
    assert user.podman("ps", "--all", "--quiet").stdout == ""
