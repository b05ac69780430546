"""The smallest images that real programs run in: busybox, and on request the host's loader and C library; or another
architecture's, of Debian's packages."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

ARCH = platform.machine()
LOADER = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
APPLETS = ("sh", "sleep", "cat", "ls", "mknod", "echo", "env", "grep", "md5sum", "mount", "true", "dd", "stat", "rm")


def busybox(root: Path, debian: bool = False, host: Path = Path("/"), arch: str = ARCH) -> Path:
    """A static busybox; the library folder of Red Hat, or of Debian with its /etc/debian_version."""
    for folder in ("bin", "dev", "proc", "sys", "etc", "tmp", "run", "usr/lib64", "usr/bin"):
        (root / folder).mkdir(parents=True)
    program = next(p for folder in ("bin", "usr/bin", "usr/sbin") if (p := host / folder / "busybox").exists())
    shutil.copy(program, root / "bin/busybox")
    for applet in APPLETS:
        os.symlink("busybox", root / "bin" / applet)
    if debian:
        (root / "etc/debian_version").write_text("12.1\n")
        (root / f"usr/lib/{arch}-linux-gnu").mkdir(parents=True)
    return root


def with_c_library(root: Path, host: Path = Path("/"), arch: str = ARCH) -> Path:
    """busybox with the host's loader and C library, where that loader looks for it. host: a folder of Debian's packages for
    `arch`, whose programs need not run here."""
    loader, debian = LOADER[arch], f"{arch}-linux-gnu"
    libc = host / "usr/lib" / debian / "libc.so.6"
    if host == Path("/"):
        listing = subprocess.run([loader, "--list", "/bin/ls"], capture_output=True, text=True, check=True).stdout
        libc = Path(next(line.split()[2] for line in listing.splitlines() if "libc.so.6" in line))
    busybox(root, debian in libc.parts, host, arch)
    target = root / loader.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(libc.parent / target.name if host != Path("/") else loader, target)
    folder = root / ("usr/lib/" + debian if debian in libc.parts else "usr/lib64")
    for name in LIBRARIES:
        if (libc.parent / name).exists():
            shutil.copy(libc.parent / name, folder / name)
    return root
