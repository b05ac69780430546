"""An install with simulated GPUs and a runc of its own, for tests that run real programs in real containers."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_hook_simulator import driver_root
from oci_hook.cli.main import cli
from oci_hook.ledger import slot_files
from oci_hook.linux import elf
from testbed import installs, tiny_image
from testbed.compiled import ZIG
from testbed.containers import Runc

ARCH = platform.machine()
MULTIARCH = f"{ARCH}-linux-gnu"
CLIENTS = Path(__file__).resolve().parent / "clients"
CC = [*ZIG, "-std=c11", "-Wall", "-Wextra", "-fno-sanitize=undefined"]
GLIBC = ["-target", f"{ARCH}-linux-gnu.2.17"]  # starts in every image with a C library since 2012
MUSL = ["-target", f"{ARCH}-linux-musl", "-dynamic"]

LIMIT_MIB = 1024
GPU_MIB = 8192
CONTEXT_MIB = driver_root.CONTEXT_MIB
SHARE = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": f"{LIMIT_MIB}Mi"}
Edit = Callable[[dict[str, Any]], object]


def compile_client(out: Path, *args: str, target: Sequence[str] = GLIBC) -> Path:
    """Compile C files of testbed/clients; other words are the compiler's."""
    words = [str(CLIENTS / word) if word.endswith(".c") else word for word in args]
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*CC, *target, "-o", str(out), *words], check=True)
    return out


class Stage:
    """Two simulated GPUs of 8 GiB; containers get 1 GiB of the first."""

    def __init__(self, folder: Path, *options: str) -> None:
        """options: more of `gpu-hook sim up`."""
        self.folder = folder
        self.prefix, self.state = folder / "prefix", folder / "state"
        installs.lay(str(self.prefix), state_dir=str(self.state))
        up = [
            "sim",
            "up",
            *([] if "--gpus" in options else ["--gpus", "2"]),
            "--memory",
            f"{GPU_MIB}Mi",
            "--prefix",
            str(self.prefix),
            *options,
        ]
        CliRunner().invoke(cli, up, catch_exceptions=False)
        self.program = str(self.prefix / "bin/gpu-hook-runtime")
        self.runc = Runc(folder)
        self.version = driver_root.VERSION
        self.driver = next((self.prefix / "sim/root").rglob("libcuda.so.1")).parent
        self._bundles = 0

    def bundle(
        self,
        rootfs: Path,
        args: Sequence[str],
        annotations: Mapping[str, str] = SHARE,
        env: Mapping[str, str] | None = None,
        edit: Edit = lambda spec: None,
    ) -> Path:
        self._bundles += 1
        folder = self.folder / f"bundle{self._bundles}"
        folder.mkdir()
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        file = folder / "config.json"
        spec = json.loads(file.read_text())
        spec["annotations"] = dict(annotations)
        spec["process"].update(terminal=False, args=list(args))
        spec["process"]["env"] += [f"{name}={value}" for name, value in (env or {}).items()]
        spec["root"] = {"path": str(rootfs), "readonly": False}
        edit(spec)
        file.write_text(json.dumps(spec))
        return folder

    def run(self, rootfs: Path, *args: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end in a container with a share."""
        folder = self.bundle(rootfs, args, **more)
        id = self.runc.new_id()
        done = self.runc("run", "--bundle", str(folder), id, program=self.program)
        self.runc("delete", "--force", id, program=self.program)
        return done

    def start(self, rootfs: Path, *args: str, **more: Any) -> str:
        """A container that runs beside the test; its id."""
        folder = self.bundle(rootfs, args or ("/bin/sleep", "600"), **more)
        id = self.runc.new_id()
        done = self.runc("run", "--detach", "--bundle", str(folder), id, program=self.program)
        assert done.returncode == 0, done.stderr
        return id

    def refused(self, rootfs: Path, *codes: str, **more: Any) -> str:
        """The words of a create that refuses with these codes."""
        folder = self.bundle(rootfs, ("/bin/true",), **more)
        done = self.runc("create", "--bundle", str(folder), self.runc.new_id(), program=self.program)
        assert done.returncode == 1, done
        assert re.findall(r"GH-\d{3}", done.stderr) == list(codes), done.stderr
        return done.stderr

    def used_mib(self) -> int:
        """MiB in use as the GPU itself says, asked on the host: contexts of the driver included."""
        code = (
            "import pynvml as n; n.nvmlInit();"
            "print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).used >> 20)"
        )
        env = {"GPU_HOOK_SIM_GPUS": str(self.state / "sim/gpus"), "LD_LIBRARY_PATH": str(self.driver)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        return int(done.stdout)

    def held(self, command: Sequence[str], program: str | None = None) -> "Held":
        """Run a filling client; what it got and what the GPU says while it has it."""
        pipe = subprocess.PIPE
        runtime = [program or self.program, "--root", str(self.runc.root)]
        with subprocess.Popen([*runtime, *command], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
            assert child.stdout and child.stderr and child.stdin
            line = child.stdout.readline()
            used = self.used_mib() if line.startswith("granted=") else -1
            child.stdin.close()
            rest = line + child.stdout.read() + child.stderr.read()
        return Held(rest, used)

    def fill(self, rootfs: Path, *args: str, **more: Any) -> "Held":
        """The same as a container's own process."""
        folder = self.bundle(rootfs, args, **more)
        id = self.runc.new_id()
        held = self.held(["run", "--bundle", str(folder), id])
        self.runc("delete", "--force", id, program=self.program)
        return held

    def exec(self, id: str, *args: str) -> "Held":
        """The same in a container that runs."""
        return self.held(["exec", id, *args], program="runc")

    def close(self) -> None:
        self.runc.close()
        slot_files.drop(str(self.state))
        shutil.rmtree(self.folder, ignore_errors=True)


class Held:
    """A filling client's words, and the GPU's use while it held what it got (MiB)."""

    def __init__(self, output: str, used: int) -> None:
        self.output = output
        self.used = used
        words = dict(word.split("=", 1) for word in output.split() if "=" in word)
        self.granted = int(words.get("granted", -1))
        self.code = int(words.get("code", -1))

    def __repr__(self) -> str:
        return f"granted {self.granted} MiB, code {self.code}, on the GPU {self.used} MiB: {self.output!r}"


def stopped_at_the_limit(held: Held, limit: int = LIMIT_MIB) -> None:
    """It got what it was granted, no byte more, and was told CUDA_ERROR_OUT_OF_MEMORY.

    What the GPU itself counts is within the limit: the driver's context is part of it.
    """
    assert held.code == 2, held
    assert held.granted <= limit and held.used <= limit, held
    assert held.granted >= limit * 8 // 10, held  # pools grow in steps


def glibc_image(root: Path, libdir: str = f"usr/lib/{MULTIARCH}", libc: Path | None = None) -> Path:
    """busybox, a loader and a C library in `libdir`; those of the host, or of an unpacked Debian package `libc`."""
    tiny_image.busybox(root)
    shutil.rmtree(root / "usr/lib64")
    loader = tiny_image.LOADER[ARCH]
    if libc:
        source = next(libc.rglob("libc.so.6")).parent
        interpreter = next(libc.rglob(os.path.basename(loader)))
    else:
        listing = subprocess.run([loader, "--list", "/bin/ls"], capture_output=True, text=True, check=True).stdout
        source = Path(next(line.split()[2] for line in listing.splitlines() if "libc.so.6" in line)).parent
        interpreter = Path(loader)
    (root / libdir).mkdir(parents=True, exist_ok=True)
    for name in tiny_image.LIBRARIES:
        if (source / name).exists():
            shutil.copy(source / name, root / libdir / name)
    target = root / libdir / os.path.basename(loader)
    shutil.copy(interpreter.resolve(), target)
    target.chmod(0o755)
    if not (root / loader.lstrip("/")).exists():
        (root / loader.lstrip("/")).parent.mkdir(exist_ok=True)
        (root / loader.lstrip("/")).symlink_to(f"/{libdir}/{target.name}")
    if libdir.endswith(MULTIARCH):
        (root / "etc/debian_version").write_text("12.1\n")
    else:
        search_only(target, "/" + libdir)
    return root


LOADED = """
import sys
for name in sys.argv[1:]: __import__(name)
for line in open("/proc/self/maps"):
    print(line.split(maxsplit=5)[5].strip() if line.count("/") else "")
"""
LIBRARIES_OF = ("ctypes", "zlib", "bz2", "lzma", "ssl", "hashlib", "curses", "uuid", "sqlite3", "decimal")


def python_image(root: Path, *modules: str) -> list[dict[str, Any]]:
    """An image in which this very Python runs with all that is installed beside it; the mounts that make it so.

    The C libraries that `modules` load are copied: a mount over the image's library folder would be refused.
    """
    glibc_image(root)
    command = [sys.executable, "-c", LOADED, *LIBRARIES_OF, *modules]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    own = tuple(f"{folder}/" for folder in {sys.base_prefix, sys.prefix} if folder != "/usr")
    for path in {Path(line) for line in shown.splitlines() if ".so" in line and not line.startswith(own)}:
        with path.open("rb") as file:
            facts = elf.read(file.fileno(), elf.SONAME)
        target = root / f"usr/lib/{MULTIARCH}" / (facts and facts.texts.get(elf.SONAME) or path.name)
        if not target.exists() and not path.is_relative_to(sysconfig.get_path("stdlib")):
            shutil.copy(path, target)
    folders = [sys.prefix, sys.base_prefix]
    if sys.base_prefix == "/usr":
        folders[1] = sysconfig.get_path("stdlib")
        python = Path(os.path.realpath(sys.executable))
        shutil.copy(python, root / "usr/bin")
        (root / "usr/bin/python3").symlink_to(python.name)  # the name in a virtual environment's own link
    options = ["rbind", "ro", "nosuid", "nodev"]
    return [{"destination": f, "source": f, "type": "bind", "options": options} for f in dict.fromkeys(folders)]


def search_only(loader: Path, *folders: str) -> None:
    """Change which folders a Debian loader searches by itself, as other distributions compile theirs."""
    data = loader.read_bytes()
    own = [f"/lib/{MULTIARCH}/", f"/usr/lib/{MULTIARCH}/", "/lib/", "/usr/lib/"]
    joined = b"\0".join(name.encode() for name in own) + b"\0"
    assert joined in data, "the loader's folders are where they were"
    new = [*folders, *["/none"] * len(own)][: len(own)]
    new.sort(key=len, reverse=True)
    by_room = sorted(range(len(own)), key=lambda i: -len(own[i]))
    for i, name in zip(by_room, new, strict=True):
        room = len(own[i])
        own[i] = (name[:room] if name == "/none" else name).ljust(room, "/")  # /usr/lib64////// is /usr/lib64
        assert len(own[i]) == room, (name, room)
    loader.write_bytes(data.replace(joined, b"\0".join(name.encode() for name in own) + b"\0"))


def make_stage(factory: pytest.TempPathFactory, name: str) -> Stage:
    return Stage(factory.mktemp(name))
