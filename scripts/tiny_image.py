"""The smallest images that real programs run in: busybox, and on request the host's loader and C library."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

ARCH = platform.machine()
LOADER = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
APPLETS = ("sh", "sleep", "cat", "ls", "mknod", "echo", "env", "grep", "md5sum", "mount", "true", "dd", "stat", "rm")


def busybox(root: Path, debian: bool = False) -> Path:
    """A static busybox; the library folder of Red Hat, or of Debian with its /etc/debian_version."""
    for folder in ("bin", "dev", "proc", "sys", "etc", "tmp", "run", "usr/lib64", "usr/bin"):
        (root / folder).mkdir(parents=True)
    program = next(p for p in ("/bin/busybox", "/usr/bin/busybox", "/usr/sbin/busybox") if os.path.exists(p))
    shutil.copy(program, root / "bin/busybox")
    for applet in APPLETS:
        os.symlink("busybox", root / "bin" / applet)
    if debian:
        (root / "etc/debian_version").write_text("12.1\n")
        (root / f"usr/lib/{ARCH}-linux-gnu").mkdir(parents=True)
    return root


def with_c_library(root: Path) -> Path:
    """busybox with the host's loader and C library, where that loader looks for it."""
    loader = LOADER[ARCH]
    listing = subprocess.run([loader, "--list", "/bin/ls"], capture_output=True, text=True, check=True).stdout
    libc = Path(next(line.split()[2] for line in listing.splitlines() if "libc.so.6" in line))
    busybox(root, debian=f"{ARCH}-linux-gnu" in libc.parts)
    target = root / loader.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(loader, target)
    folder = root / ("usr/lib/" + f"{ARCH}-linux-gnu" if f"{ARCH}-linux-gnu" in libc.parts else "usr/lib64")
    for name in LIBRARIES:
        if (libc.parent / name).exists():
            shutil.copy(libc.parent / name, folder / name)
    return root
