"""The NVIDIA driver's files in a driver root, by capability: what a container needs beside the device nodes.

Not for the hot path: `gpu-hook gpus --refresh` looks once, the inventory remembers. A library counts when its version
suffix is the driver's and its ELF class and machine are this machine's; links are followed inside the root only.
"""

import os
from fnmatch import fnmatchcase
from stat import S_ISREG, S_ISSOCK

from oci_hook.core.inventory import DriverFile
from oci_hook.core.value import Value
from oci_hook.errors import refuse
from oci_hook.linux.walk import Tree
from oci_hook.node import elf

# Where distributions put the 64-bit libraries; the first place that has a library wins.
LIBRARY_PLACES = (
    "/usr/lib64",
    "/usr/lib/{multiarch}",
    "/usr/lib/{multiarch}/nvidia/current",
    "/usr/lib64/nvidia",
    "/usr/lib/nvidia",
    "/lib64",
    "/lib/{multiarch}",
    "/lib/{multiarch}/nvidia/current",
    "/usr/lib",
    "/usr/local/nvidia/lib64",  # where virtual machines of GPU clouds and GKE's installer put the driver
)
BINARY_PLACES = (
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib/nvidia/current",
    "/usr/lib/nvidia",
    "/bin",
    "/sbin",
    "/usr/local/nvidia/bin",
)
MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}

# The names that NVIDIA's own container toolkit hands to containers per capability. Left out: OpenCL, which reaches the
# card without libcuda, and the MPS programs, which would be one server for clients with limits of their own.
LIBRARIES = {
    "utility": ("nvidia-ml", "nvidia-cfg", "nvidia-nscq"),
    "compute": (
        "cuda",
        "cudadebugger",
        "nvidia-gpucomp",
        "nvidia-ptxjitcompiler",
        "nvidia-fatbinaryloader",
        "nvidia-allocator",
        "nvidia-compiler",
        "nvidia-pkcs11",
        "nvidia-pkcs11-openssl3",
        "nvidia-nvvm",
        "nvidia-nvvm70",
        "nvidia-tileiras",
    ),
    "video": ("nvidia-encode", "nvidia-opticalflow", "nvcuvid"),
}
BINARIES = {"utility": ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced")}
SOCKETS = {"utility": ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")}
FIRMWARE = ("/lib/firmware/nvidia/{version}", "gsp*.bin")


class DriverFiles(Value):
    """What was found. version: the driver's. libcuda, libnvml: absolute host paths of the real libraries."""

    __slots__ = ("version", "libcuda", "libnvml", "files")

    def __init__(self, version: str, libcuda: str, libnvml: str, files: tuple[DriverFile, ...]) -> None:
        self.version = version
        self.libcuda = libcuda
        self.libnvml = libnvml
        self.files = files


def find(root: str, kernel_version: str = "", machine: str = "") -> DriverFiles:
    """Look through the driver root. kernel_version: what the loaded driver says, "" if none is loaded.

    Raises NodeError GH-302 when libcuda or libnvidia-ml are missing, of two versions, or not of the loaded driver's.
    """
    machine = machine or os.uname().machine
    try:
        with Tree(root) as tree:
            return _Search(tree, root, machine).run(kernel_version)
    except OSError as e:
        raise refuse("GH-302", f"driver root {root}: {e.strerror}; correct driver_root in the settings") from None


class _Search:
    def __init__(self, tree: Tree, root: str, machine: str) -> None:
        self.tree = tree
        self.root = root.rstrip("/")
        self.machine = machine
        multiarch = MULTIARCH.get(machine, f"{machine}-linux-gnu")
        self.listing: dict[str, list[str]] = {}
        for place in LIBRARY_PLACES:
            self._list(place.format(multiarch=multiarch))
        self.library_places = list(self.listing)

    def _list(self, place: str) -> None:
        try:
            canonical = self.tree.resolve(place)[0]
        except OSError:
            return
        if canonical not in self.listing:
            self.listing[canonical] = sorted(self.tree.names(canonical))

    def run(self, kernel_version: str) -> DriverFiles:
        cuda = self._versions("cuda")
        nvml = self._versions("nvidia-ml")
        for library, found in (("libcuda", cuda), ("libnvidia-ml", nvml)):
            if not found:
                raise refuse(
                    "GH-302",
                    f"no {library}.so.VERSION for {self.machine} below {self.root or '/'}; install the NVIDIA driver's"
                    " libraries, or correct driver_root in the settings",
                )
        version = kernel_version or next((v for v in cuda if v in nvml), "")
        if version not in cuda or version not in nvml:
            said = f"the loaded driver is {kernel_version}" if kernel_version else "they differ"
            raise refuse(
                "GH-302",
                f"libcuda is {', '.join(cuda)[:60]}, libnvidia-ml is {', '.join(nvml)[:60]} below {self.root or '/'},"
                f" {said}; install one driver version, and reboot if it was updated",
            )
        files: list[DriverFile] = []
        for capability, stems in LIBRARIES.items():
            for stem in stems:
                path, soname = self._library(stem, version)
                if path:
                    name = f"lib{stem}.so.{version}"
                    files.append(DriverFile(path, "library", capability, tuple(dict.fromkeys((name, soname or name)))))
        files += self._others(version)
        return DriverFiles(version, cuda[version], nvml[version], tuple(files))

    def _versions(self, stem: str) -> dict[str, str]:
        """Version -> host path of every fitting lib<stem>.so.VERSION."""
        found: dict[str, str] = {}
        start = f"lib{stem}.so."
        for place in self.library_places:
            for name in self.listing[place]:
                version = name[len(start) :]
                # libcuda.so.1 is a soname, not a version: a driver's has at least one dot (550.163.01).
                if name.startswith(start) and "." in version and version.replace(".", "").isdigit():
                    path = self._fitting(f"{place}/{name}")[0]
                    if path:
                        found.setdefault(version, path)
        return found

    def _library(self, stem: str, version: str) -> tuple[str, str]:
        name = f"lib{stem}.so.{version}"
        for place in self.library_places:
            if name in self.listing[place]:
                path, soname = self._fitting(f"{place}/{name}")
                if path:
                    return path, soname
        return "", ""

    def _fitting(self, path: str) -> tuple[str, str]:
        """(host path, soname) when it leads to a 64-bit library of this machine, else ("", "")."""
        try:
            inside, mode = self.tree.resolve(path)
            if not S_ISREG(mode):
                return "", ""
            fd = os.open(self.root + inside, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                facts = elf.read(fd)
            finally:
                os.close(fd)
        except OSError:
            return "", ""
        if facts is None or facts.bits != 64 or facts.machine != elf.MACHINES.get(self.machine):
            return "", ""
        return self.root + inside, facts.soname

    def _others(self, version: str) -> list[DriverFile]:
        files = []
        for capability, programs in BINARIES.items():
            for program in programs:
                for place in BINARY_PLACES:
                    path = self._fitting(f"{place}/{program}")[0]
                    if path.endswith("/" + program):
                        files.append(DriverFile(path, "binary", capability))
                        break
        for capability, sockets in SOCKETS.items():
            for socket in sockets:
                try:
                    inside, mode = self.tree.resolve(socket)
                except OSError:
                    continue
                if S_ISSOCK(mode):
                    files.append(DriverFile(self.root + inside, "socket", capability))
        folder = FIRMWARE[0].format(version=version)
        self._list(folder)
        for canonical in list(self.listing)[len(self.library_places) :]:
            for name in self.listing[canonical]:
                if fnmatchcase(name, FIRMWARE[1]):
                    files.append(DriverFile(f"{self.root}{canonical}/{name}", "firmware", "utility"))
        return files
