"""Finds the NVIDIA driver's files in a driver root, by capability: what a container needs besides the device nodes.

`gpu-hook gpus --refresh` looks for them once, and the inventory keeps them. A library is taken if its version suffix is
the driver's and its ELF class and machine are this machine's. Links are followed inside the root only.
"""

import os
from contextlib import suppress
from fnmatch import fnmatchcase
from stat import S_ISREG, S_ISSOCK

from oci_hook.core import layout
from oci_hook.core.inventory import WHOLE, DriverFile
from oci_hook.core.value import Value
from oci_hook.errors import NodeError, refuse
from oci_hook.install import own_path
from oci_hook.linux import elf
from oci_hook.linux.walk import Tree, Work

ROOT_STEPS = 1 << 20  # half a second: these are root's own files, often of the whole node

# Distributions' folders of 64-bit libraries; the first place that has a library wins.
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
    "/usr/local/nvidia/lib64",  # of virtual machines of GPU clouds and of GKE's installer
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

# The names that NVIDIA's own container toolkit gives to containers, by capability. OpenCL and VDPAU reach the GPU without
# libcuda, as graphics do, so they are for whole GPUs only. The MPS programs are left out: one MPS server would serve
# clients that have different limits.
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
    "compute" + WHOLE: ("nvidia-opencl",),
    "video": ("nvidia-encode", "nvidia-opticalflow", "nvcuvid"),
    "video" + WHOLE: ("vdpau/vdpau_nvidia",),
    "graphics": (
        *("nvidia-eglcore", "nvidia-glcore", "nvidia-tls", "nvidia-glsi", "nvidia-fbc", "nvidia-ifr", "nvidia-rtcore"),
        *("nvoptix", "GLX_nvidia", "EGL_nvidia", "GLESv2_nvidia", "GLESv1_CM_nvidia", "nvidia-glvkspirv", "nvidia-cbl"),
        *("nvidia-vulkan-producer", "nvidia-gpucomp", "nvidia-allocator"),
    ),
    "ngx": ("nvidia-ngx",),
}
# Libraries with version numbers of their own, which are loaded by soname.
OWN_VERSION = {
    "graphics": ("nvidia-egl-gbm", "nvidia-egl-wayland", "nvidia-egl-wayland2", "nvidia-egl-xcb", "nvidia-egl-xlib"),
}
# Other names by which libraries are loaded: for a client on another machine's display, and as the backend of GBM.
ALSO = {"GLX_nvidia": "libGLX_indirect.so.0", "nvidia-allocator": "gbm/nvidia-drm_gbm.so"}
# Files that tell loaders where the libraries are, and data files; a container gets them at these paths.
DATA = {
    "compute" + WHOLE: ("/etc/OpenCL/vendors/nvidia.icd", "/etc/cufile.json"),  # the second: GPUDirect Storage
    "graphics": (
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        *(f"{top}/vulkan/icd.d/nvidia_icd{arch}.json" for top in ("/usr/share", "/etc") for arch in ("", ".{machine}")),
        *(f"{top}/vulkan/implicit_layer.d/nvidia_layers.json" for top in ("/usr/share", "/etc")),
        "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",
        "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
        "/usr/share/nvidia/nvoptix.bin",
    ),
    "display": ("/usr/share/X11/xorg.conf.d/10-nvidia.conf", "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
}
# Modules of the X server, which a container gets at the same path. Each tuple has all names of one file.
X_MODULES = (
    ("drivers/nvidia_drv.so",),
    ("extensions/libglxserver_nvidia.so", "extensions/libglxserver_nvidia.so.{version}"),
)
X_PLACES = ("/usr/lib/xorg/modules", "/usr/lib64/xorg/modules", "/usr/lib/{multiarch}/xorg/modules")
BINARIES = {"utility": ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced")}
SOCKETS = {"utility": ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")}
FIRMWARE = ("/lib/firmware/nvidia/{version}", "gsp*.bin")


class DriverFiles(Value):
    """The result of a search. version: the driver's. libcuda, libnvml: absolute host paths of the real libraries."""

    version: str
    libcuda: str
    libnvml: str
    files: tuple[DriverFile, ...]


def find(root: str, kernel_version: str = "", machine: str = "") -> DriverFiles:
    """Search the driver root. kernel_version: the loaded driver's, "" if none is loaded.

    Raises NodeError GH-302 when libcuda or libnvidia-ml are missing, of two versions, or not of the loaded driver's.
    """
    machine = machine or os.uname().machine
    try:
        with Tree(root, Work(ROOT_STEPS, f"the driver root {root}")) as tree:
            return _Search(tree, root, machine).run(kernel_version)
    except OSError as e:
        raise refuse("GH-302", f"driver root {root}: {e.strerror}; correct driver_root in the settings") from None


def find_in(root: str, kernel_version: str = "") -> tuple[str, DriverFiles]:
    """(driver root, its files): root's, or, where that is / and has no driver that fits, those in the place of an installer.
    Raises as find."""
    try:
        return root, find(root, kernel_version)
    except NodeError:
        for other in layout.DRIVER_ROOTS if root == "/" else ():
            with suppress(NodeError):
                if os.path.isdir(other) and own_path.changeable(other) is None:
                    return other, find(other, kernel_version)
        raise


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
        for place in self.library_places:
            self._list(place + "/vdpau")
        self.vdpau_places = [place for place in self.listing if place.endswith("/vdpau")]
        self.multiarch = multiarch

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
                    " libraries, or correct driver_root in the settings; without a GPU, `gpu-hook sim up` makes one",
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
                    folder, slash, own = stem.rpartition("/")
                    name = f"lib{own}.so.{version}"
                    names = dict.fromkeys(folder + slash + each for each in (name, soname or name))
                    if capability == "graphics" and stem in ALSO:
                        names[ALSO[stem]] = None
                    files.append(DriverFile(path, "library", capability, tuple(names)))
        files += self._others(version)
        return DriverFiles(version, cuda[version], nvml[version], tuple(files))

    def _versions(self, stem: str) -> dict[str, str]:
        """Version -> host path of each lib<stem>.so.VERSION for this machine."""
        found: dict[str, str] = {}
        start = f"lib{stem}.so."
        for place in self.library_places:
            for name in self.listing[place]:
                version = name[len(start) :]
                # libcuda.so.1 is a soname, not a version: a driver's version has at least one dot (550.163.01).
                if name.startswith(start) and "." in version and version.replace(".", "").isdigit():
                    path = self._fitting(f"{place}/{name}")[0]
                    if path:
                        found.setdefault(version, path)
        return found

    def _library(self, stem: str, version: str) -> tuple[str, str]:
        folder, _, own = stem.rpartition("/")
        name = f"lib{own}.so.{version}"
        for place in self.vdpau_places + self.library_places if folder else self.library_places:
            if name in self.listing[place]:
                path, soname = self._fitting(f"{place}/{name}")
                if path:
                    return path, soname
        return "", ""

    def _fitting(self, path: str) -> tuple[str, str]:
        """(host path, soname) if the path leads to a 64-bit library for this machine, else ("", "")."""
        try:
            inside, mode = self.tree.resolve(path)
            if not S_ISREG(mode):
                return "", ""
            fd = os.open(self.root + inside, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                facts = elf.read(fd, elf.SONAME)
            finally:
                os.close(fd)
        except OSError:
            return "", ""
        if facts is None or facts.bits != 64 or facts.machine != elf.MACHINES.get(self.machine):
            return "", ""
        return self.root + inside, facts.texts.get(elf.SONAME, "")

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
        before = len(self.listing)
        self._list(FIRMWARE[0].format(version=version))
        for canonical in list(self.listing)[before:]:
            for name in self.listing[canonical]:
                if fnmatchcase(name, FIRMWARE[1]):
                    files.append(DriverFile(f"{self.root}{canonical}/{name}", "firmware", "utility"))
        return files + self._own_versions() + self._data() + self._x_modules(version)

    def _own_versions(self) -> list[DriverFile]:
        files = []
        for capability, stems in OWN_VERSION.items():
            for stem in stems:
                start = f"lib{stem}.so."
                named = (f"{place}/{n}" for place in self.library_places for n in self.listing[place])
                for path in (path for path in named if path.rpartition("/")[2].startswith(start)):
                    found, soname = self._fitting(path)
                    if found and soname.startswith(start):
                        files.append(DriverFile(found, "library", capability, (soname,)))
                        break
        return files

    def _data(self) -> list[DriverFile]:
        files = []
        for capability, paths in DATA.items():
            for path in (path.format(machine=self.machine) for path in paths):
                for place in (path, path.replace("/usr/share/", "/usr/local/nvidia/share/")):
                    try:
                        inside, mode = self.tree.resolve(place)
                    except OSError:
                        continue
                    if S_ISREG(mode):
                        files.append(DriverFile(self.root + inside, "data", capability, (path,)))
                        break
        return files

    def _x_modules(self, version: str) -> list[DriverFile]:
        files = []
        for place in (place.format(multiarch=self.multiarch) for place in X_PLACES):
            for module in X_MODULES:
                names = tuple(f"{place}/{name.format(version=version)}" for name in module)
                path = next(filter(None, (self._fitting(name)[0] for name in names)), "")
                if path:
                    files.append(DriverFile(path, "library", "display", names))
        return files
