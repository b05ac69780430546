"""A machine with nothing but busybox, runc and its libraries: no Python, and file systems mounted as a test says."""

import shlex
import shutil
import subprocess
from pathlib import Path

from testbed import tiny_image
from testbed.namespaces import Namespaces
from tests.packaging.machine import Machine

# On a tmpfs, and read-only once all is there; what must be written has mounts of its own.
ENTER = """
mount -t tmpfs tmpfs /mnt && cp -a {root}/. /mnt
for d in dev proc sys; do mount --rbind /$d /mnt/$d; done
mount -t tmpfs -o mode=755 tmpfs /mnt/run && mount --bind {shared} /mnt/packages
{mounts}
mount -o remount,ro /mnt
cd /mnt && pivot_root . mnt && umount -l /mnt && cd /
"""


def made(root: Path, folders: tuple[str, ...]) -> Path:
    """The files of one, with these folders."""
    tiny_image.busybox(root)
    shutil.rmtree(root / "bin")
    (root / "bin").mkdir()
    busybox = next(path for path in map(Path, ("/bin/busybox", "/usr/bin/busybox")) if path.exists())
    shutil.copy(busybox, root / "bin/busybox")
    for applet in subprocess.check_output([busybox, "--list"], text=True).split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    runc = Path(shutil.which("runc") or "/usr/sbin/runc")
    listed = subprocess.check_output(["ldd", str(runc)], text=True)
    for file in (runc, *(Path(word) for word in listed.split() if word.startswith("/"))):
        target = root / str(file).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    for folder in ("mnt", "packages", *folders):
        (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return root


class Bare(Machine):
    """mounts: a script, run with the root at /mnt and still writable. `shared` is its /packages."""

    def __init__(self, root: Path, shared: Path, mounts: str) -> None:
        words = {"root": shlex.quote(str(root)), "shared": shlex.quote(str(shared)), "mounts": mounts}
        Namespaces.__init__(self, ENTER.format(**words))

    def command(self, *command: str) -> list[str]:
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return self.enter("/bin/env", "-i", path, *command)
