"""scripts/cluster build: Kubernetes 1.20.2 from Debian bookworm's source package, and the rest from its packages.

1.20.2 is the newest version whose source Debian has with all dependencies. An interrupted build continues. `take` needs no
compiler: it takes a release's programs from a folder, and `build` puts those of Debian sid beside them.
"""

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from testbed.cluster import packages, programs
from testbed.cluster.programs import CannotRun
from testbed.debian import alone, unpack

GO = "usr/lib/go-1.19"
VERSION = "v1.20.2"
REFLECT = "github.com/modern-go/reflect2"
OPENAPI = "pkg/generated/openapi/zz_generated.openapi.go"
OPENAPI_MARK = "+k8s:openapi-gen="
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"
OF_RUNC = (LOADER, "libc.so.6", "libseccomp.so.2")


def build(jobs: int, say: Callable[[str], None]) -> None:
    """The programs in the cache, built if they are missing. One build at a time."""
    if programs.ready():
        return
    programs.use(programs.version())
    if platform.machine() != "x86_64":
        raise CannotRun(
            f"the packages in {programs.PACKAGES.name} are for x86_64; this machine is {platform.machine()}"
        )
    home = programs.home()
    work = home.with_name(f"{home.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    with alone(home, say):
        if not programs.ready() and programs.version() == programs.BUILT_HERE:
            _build(work, home, jobs, say)
        elif not programs.ready():
            _add(work, home)
    shutil.rmtree(work, ignore_errors=True)


def take(folder: Path, say: Callable[[str], None]) -> str:
    """Caches the programs of a Kubernetes release, which are in that folder, with etcd, containerd, runc and, where it has none,
    kubectl of Debian sid. Returns the version, like 1.36."""
    found = subprocess.run([str(folder / "kube-apiserver"), "--version"], capture_output=True, text=True, check=True)
    version = ".".join(found.stdout.split()[1].lstrip("v").split(".")[:2])
    place = programs.given(version).parent
    with alone(place, say):
        work = place.with_name(f"{version}.work")
        shutil.rmtree(work, ignore_errors=True)
        (work / "bin").mkdir(parents=True)
        for name in (*programs.BUILT, *(["kubectl"] if (folder / "kubectl").exists() else [])):
            shutil.copy(folder / name, work / "bin")
        shutil.rmtree(place, ignore_errors=True)
        work.rename(place)
    programs.use(version)
    build(1, say)
    say(f"{found.stdout.strip()} is in {programs.home()}")
    return version


def _add(work: Path, home: Path) -> None:
    """A release's programs, by links, and what a cluster needs beside them."""
    debs, _ = packages.fetch(work, programs.PACKAGES_OF_TODAY, "sid")
    root, out = work / "root", work / "out"
    unpack(debs, root)
    shutil.rmtree(out, ignore_errors=True)
    (out / "bin").mkdir(parents=True)
    for path in programs.TAKEN:
        shutil.copy(root / path, out / "bin")
    _bring_libraries(root, out, home)
    shutil.copytree(root / "usr/lib/cni", out / "cni")
    for name in (*programs.BUILT, "kubectl"):
        taken = programs.given(programs.version()) / name
        if taken.exists():
            (out / "bin" / name).unlink(missing_ok=True)
            os.link(taken, out / "bin" / name)
    out.rename(home)


def _bring_libraries(root: Path, out: Path, home: Path) -> None:
    """runc of sid needs a newer C library than this machine may have, and so does patchelf. runc executes /proc/self/exe again,
    so the file itself names its loader."""
    (out / "lib").mkdir()
    for name in OF_RUNC:
        shutil.copy(root / LIBRARIES / name, out / "lib")
    patchelf = [root / LIBRARIES / LOADER, "--library-path", root / LIBRARIES, root / "usr/bin/patchelf"]
    names = ["--set-interpreter", home / "lib" / LOADER, "--force-rpath", "--set-rpath", home / "lib"]
    subprocess.run([*patchelf, *names, out / "bin/runc"], check=True)


def _build(work: Path, home: Path, jobs: int, say: Callable[[str], None]) -> None:
    began = time.monotonic()

    def step(what: str) -> None:
        say(f"{time.monotonic() - began:5.0f} s  {what}")

    step("packages of Debian bookworm")
    debs, dsc = packages.fetch(work)
    assert dsc
    root, out = work / "root", work / "out"
    if not (work / "unpacked").exists():
        unpack(debs, root)
        (work / "unpacked").touch()
    source = work / "gopath/src/k8s.io/kubernetes"
    if not (source / ".ready").exists():
        step("source of Kubernetes")
        _source(root, dsc, source)
    (out / "bin").mkdir(parents=True, exist_ok=True)
    go = _Go(work, root / GO, source, jobs)
    if not (source / OPENAPI).exists():
        step("generated OpenAPI definitions")
        go.openapi(work)
    step(f"go build {' '.join(programs.BUILT)} (5 to 20 minutes on two cores)")
    go.build(out / "bin", *(f"./cmd/{name}" for name in programs.BUILT))
    for path in programs.TAKEN:
        shutil.copy(root / path, out / "bin")
    shutil.copytree(root / "usr/lib/cni", out / "cni", dirs_exist_ok=True)
    out.rename(home)
    step(f"done: {home}")


def _source(root: Path, dsc: Path, source: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    source.parent.mkdir(parents=True, exist_ok=True)
    # packages.fetch compared the checksums.
    subprocess.run(["dpkg-source", "--no-check", "-x", str(dsc), str(source)], check=True, stdout=subprocess.DEVNULL)
    # The vendored version 1.0.1 faults in map iteration when compiled by Go 1.18 or newer.
    shutil.rmtree(source / "vendor" / REFLECT)
    shutil.copytree(root / "usr/share/gocode/src" / REFLECT, source / "vendor" / REFLECT)
    with open(programs.PATCH) as patch:
        subprocess.run(["patch", "-s", "-p1"], stdin=patch, cwd=source, check=True)
    (source / ".ready").touch()


class _Go:
    def __init__(self, work: Path, root: Path, source: Path, jobs: int) -> None:
        self.source = source
        self.environment = {
            "PATH": f"{root}/bin:/usr/bin:/bin",
            "HOME": str(work),
            "GOROOT": str(root),
            "GOPATH": str(work / "gopath"),
            "GOCACHE": str(work / "gocache"),
            "GOTMPDIR": str(work),
            "GO111MODULE": "off",  # the source package has its dependencies in vendor/
            "CGO_ENABLED": "0",
            "GOFLAGS": f"-p={jobs}",
            "GOMAXPROCS": str(jobs),
        }

    def run(self, *command: str) -> None:
        subprocess.run(["nice", *command], cwd=self.source, env=self.environment, check=True)

    def build(self, out: Path, *what: str) -> None:
        values = {
            "gitVersion": VERSION,
            "gitMajor": "1",
            "gitMinor": "20",
            "gitTreeState": "clean",
            "buildDate": "2021-01-13T00:00:00Z",
        }
        flags = ["-s", "-w"]
        for package in ("component-base/version", "client-go/pkg/version"):
            for name, value in values.items():
                flags += ["-X", f"k8s.io/kubernetes/vendor/k8s.io/{package}.{name}={value}"]
        self.run("go", "build", "-ldflags", " ".join(flags), "-o", f"{out}/", *what)

    def openapi(self, work: Path) -> None:
        """The source package leaves this file out. openapi-gen makes it from the folders that upstream's make takes."""
        tool = work / "openapi-gen"
        self.run("go", "build", "-o", str(tool), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        self.run(
            str(tool),
            "--logtostderr",
            *("-i", ",".join(_generated_from(self.source))),
            *("-p", "k8s.io/kubernetes/pkg/generated/openapi"),
            *("-O", "zz_generated.openapi"),
            *("-h", "hack/boilerplate/boilerplate.generatego.txt"),
            *("-r", str(work / "violations")),
        )


def _generated_from(source: Path) -> list[str]:
    """Every Go package with the mark of openapi-gen, by its import path."""
    found = set()
    for top in ("cmd", "pkg", "plugin", "staging/src/k8s.io"):
        for folder, _, files in os.walk(source / top):
            inside = os.path.relpath(folder, source)
            if "code-generator" in inside.split("/") or "sample-apiserver" in inside.split("/"):
                continue
            for name in files:
                if not name.endswith(".go") or name.endswith("_test.go") or "zz_generated" in name:
                    continue
                if OPENAPI_MARK in Path(folder, name).read_text():
                    found.add(inside)
    staging = "staging/src/"
    return sorted(
        f"k8s.io/kubernetes/vendor/{path[len(staging) :]}" if path.startswith(staging) else f"k8s.io/kubernetes/{path}"
        for path in found
    )
