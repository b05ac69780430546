"""The simulator's packages for Debian and Red Hat: its Python package beside gpu-hook's, its manual and its documents."""

import gzip
from pathlib import Path

import click
import deb
import interpreter
import man
import rpm
from payload import ROOT, Files, below, package, pages, read

from gpu_hook_simulator.cli import sim

SOURCE = ROOT / "simulator"
HERE = SOURCE / "packaging"
CONTROL = """\
Package: gpu-hook-simulator
Version: {version}
Architecture: {architecture}
Maintainer: gpu-hook maintainers <maintainers@gpu-hook.invalid>
Installed-Size: {size}
Depends: gpu-hook (= {version})
Section: admin
Priority: optional
Description: simulated NVIDIA GPUs for gpu-hook
 A driver below the real container runtimes, for machines without a GPU: to try
 gpu-hook and to test what runs on it. `gpu-hook sim up` starts it.
"""
MANUAL = """\
.TH GPU\\-HOOK\\-SIM 1 "@DATE@" "gpu\\-hook @VERSION@"
.SH NAME
gpu\\-hook\\-sim \\- simulated GPUs for machines without one
.SH SYNOPSIS
.B gpu\\-hook sim
.I COMMAND
[options]
.SH COMMANDS
"""


def contents(arch: str) -> Files:
    files = package(arch, "gpu_hook_simulator", SOURCE)
    files = below(deb.HOME, files | interpreter.code(files))
    files["usr/share/man/man1/gpu-hook-sim.1.gz"] = (gzip.compress(manual().encode(), mtime=0), 0o644)
    found = pages(SOURCE, (SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))))
    files |= below("usr/share/doc/gpu-hook-simulator", found)
    return files


def manual() -> str:
    context = click.Context(sim, info_name="gpu-hook sim")
    return man.dated(MANUAL + "\n".join(man.commands(sim, context)) + "\n.SH SEE ALSO\n.BR gpu\\-hook (1)\n")


def deb_package(out: Path, arch: str) -> Path:
    """OUT/gpu-hook-simulator_VERSION_ARCHITECTURE.deb"""
    files = contents(arch)
    files["usr/share/doc/gpu-hook-simulator/copyright"] = read(HERE / "copyright")
    scripts = {f"DEBIAN/{name}": read(HERE / name, 0o755) for name in ("prerm",)}
    return deb.pack(out, arch, CONTROL, files, scripts)


def rpm_package(out: Path, arch: str) -> Path:
    """OUT/gpu-hook-simulator-VERSION-1.ARCH.rpm"""
    files = {**contents(arch), "usr/share/doc/gpu-hook-simulator/LICENSE": read(ROOT / "LICENSE")}
    return rpm.pack(out, arch, "gpu-hook-simulator", HERE, files)
