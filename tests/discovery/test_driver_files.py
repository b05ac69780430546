"""The driver's files in a driver root: real ones from Debian, and layouts made of real ELF files."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.core.inventory import DriverFile
from oci_hook.discovery import driver_files
from oci_hook.errors import NodeError
from oci_hook.linux import elf
from testbed.packages import nvidia, unpacked

GRAPHICS = (
    *("libnvidia-eglcore", "libegl-nvidia0", "libglx-nvidia0", "nvidia-egl-common", "nvidia-vulkan-common"),
    *("nvidia-opencl-icd", "nvidia-opencl-common", "libnvidia-encode1", "nvidia-vdpau-driver"),
    "xserver-xorg-video-nvidia",
)
MULTIARCH = "usr/lib/x86_64-linux-gnu"


class Root:
    """A driver root filled with copies of one real library, changed where a test says so."""

    def __init__(self, place: Path, library: Path) -> None:
        self.place = place
        self.sample = library.read_bytes()
        self.place.mkdir(exist_ok=True)

    def add(self, name: str, machine: int = 62, bits: int = 2) -> Path:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = bytearray(self.sample)
        data[4] = bits
        data[18:20] = machine.to_bytes(2, "little")
        path.write_bytes(data)
        return path

    def driver(self, folder: str, version: str = "550.1.2") -> None:
        for stem in ("cuda", "nvidia-ml"):
            self.add(f"{folder}/lib{stem}.so.{version}")

    def find(self, version: str = "") -> driver_files.DriverFiles:
        return driver_files.find(str(self.place), version, "x86_64")

    def names(self, version: str = "") -> set[str]:
        return {Path(f.path).name for f in self.find(version).files}

    def refused(self, version: str = "") -> str:
        with pytest.raises(NodeError) as e:
            self.find(version)
        assert [p.code for p in e.value.problems] == ["GH-302"]
        return str(e.value)


@pytest.fixture
def root(tmp_path: Path, simulated: Path) -> Root:
    if os.uname().machine != "x86_64":
        pytest.skip("the samples are this machine's own libraries, and the layouts here are of x86-64")
    return Root(tmp_path / "root", simulated / "sim/libcuda.so.1")


@pytest.mark.parametrize(
    "folder", ["usr/lib64", MULTIARCH, f"{MULTIARCH}/nvidia/current", "lib64", "usr/lib", "usr/local/nvidia/lib64"]
)
def test_layouts(root: Root, folder: str) -> None:
    root.driver(folder)
    root.add(f"{folder}/libnvidia-ptxjitcompiler.so.550.1.2")
    said = root.find()
    assert (said.version, said.libcuda) == ("550.1.2", f"{root.place}/{folder}/libcuda.so.550.1.2")
    assert said.libnvml == f"{root.place}/{folder}/libnvidia-ml.so.550.1.2"
    assert root.names() == {
        "libcuda.so.550.1.2",
        "libnvidia-ml.so.550.1.2",
        "libnvidia-ptxjitcompiler.so.550.1.2",
    }


def test_names_in_the_container_are_version_and_soname(root: Root) -> None:
    root.driver("usr/lib64")
    cuda = next(f for f in root.find().files if "libcuda" in f.path)
    assert cuda == DriverFile(
        f"{root.place}/usr/lib64/libcuda.so.550.1.2", "library", "compute", ("libcuda.so.550.1.2", "libcuda.so.1")
    )


def test_capabilities(root: Root) -> None:
    root.driver("usr/lib64")
    for stem in ("nvidia-cfg", "nvidia-nvvm", "nvidia-encode", "nvidia-opencl", "nvidia-glcore", "GLX_nvidia"):
        root.add(f"usr/lib64/lib{stem}.so.550.1.2")
    for program in ("nvidia-smi", "nvidia-cuda-mps-server", "nvidia-debugdump"):
        root.add(f"usr/bin/{program}")
    said = {(Path(f.path).name.split(".so")[0], f.kind, f.capability) for f in root.find().files}
    # OpenCL and graphics reach the GPU past libcuda: whole GPUs only. The MPS programs serve others: left out.
    assert said == {
        ("libnvidia-opencl", "library", "compute+whole"),
        ("libnvidia-glcore", "library", "graphics"),
        ("libGLX_nvidia", "library", "graphics"),
        ("libcuda", "library", "compute"),
        ("libnvidia-ml", "library", "utility"),
        ("libnvidia-cfg", "library", "utility"),
        ("libnvidia-nvvm", "library", "compute"),
        ("libnvidia-encode", "library", "video"),
        ("nvidia-smi", "binary", "utility"),
        ("nvidia-debugdump", "binary", "utility"),
    }


def test_graphics_display_and_video_of_whole_gpus(root: Root) -> None:
    root.driver("usr/lib64")
    for name in ("libGLX_nvidia.so.550.1.2", "libnvidia-allocator.so.550.1.2", "libnvidia-ngx.so.550.1.2"):
        root.add(f"usr/lib64/{name}")
    root.add("usr/lib64/vdpau/libvdpau_nvidia.so.550.1.2")
    root.add("usr/lib64/xorg/modules/drivers/nvidia_drv.so")
    root.add("usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.550.1.2")
    texts = {
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json": "graphics",
        "etc/vulkan/icd.d/nvidia_icd.x86_64.json": "graphics",
        "usr/share/nvidia/nvoptix.bin": "graphics",
        "usr/share/X11/xorg.conf.d/10-nvidia.conf": "display",
        "etc/OpenCL/vendors/nvidia.icd": "compute+whole",
    }
    for name in (*texts, "usr/share/vulkan/icd.d/radeon_icd.x86_64.json"):
        (root.place / name).parent.mkdir(parents=True, exist_ok=True)
        (root.place / name).write_text("{}")
    (root.place / "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json").mkdir(parents=True)  # no file
    files = {(Path(f.path).name, f.capability): f for f in root.find().files}
    for name, capability in texts.items():
        found = files.pop((Path(name).name, capability))
        assert found == DriverFile(f"{root.place}/{name}", "data", capability, (f"/{name}",))
    modules = "/usr/lib64/xorg/modules"
    assert {key: f.names[1:] for key, f in files.items() if key[1] not in ("compute", "utility")} == {
        ("libGLX_nvidia.so.550.1.2", "graphics"): ("libcuda.so.1", "libGLX_indirect.so.0"),  # the sample's own soname
        ("libnvidia-allocator.so.550.1.2", "graphics"): ("libcuda.so.1", "gbm/nvidia-drm_gbm.so"),
        ("libnvidia-ngx.so.550.1.2", "ngx"): ("libcuda.so.1",),
        ("libvdpau_nvidia.so.550.1.2", "video+whole"): ("vdpau/libcuda.so.1",),
        ("nvidia_drv.so", "display"): (),
        ("libglxserver_nvidia.so.550.1.2", "display"): (f"{modules}/extensions/libglxserver_nvidia.so.550.1.2",),
    }
    assert files["libvdpau_nvidia.so.550.1.2", "video+whole"].names[0] == "vdpau/libvdpau_nvidia.so.550.1.2"
    assert files["nvidia_drv.so", "display"].names == (f"{modules}/drivers/nvidia_drv.so",)
    # Where virtual machines of GPU clouds have it; the container's loaders look in the usual place.
    (root.place / "usr/local/nvidia").mkdir(parents=True)
    (root.place / "usr/share").rename(root.place / "usr/local/nvidia/share")
    [moved] = [f for f in root.find().files if f.path.endswith("10_nvidia.json")]
    name = "share/glvnd/egl_vendor.d/10_nvidia.json"
    assert (moved.path, moved.names) == (f"{root.place}/usr/local/nvidia/{name}", (f"/usr/{name}",))


def test_libraries_with_versions_of_their_own(root: Root) -> None:
    """egl-wayland and others: taken by their soname, which says whose they are."""
    root.driver("usr/lib64")
    root.add("usr/lib64/libnvidia-egl-wayland.so.1.1.13")  # says that it is libcuda
    library = root.place / "usr/lib64/libnvidia-egl-gbm.so.1.1.2"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu", "-shared", "-nostdlib"]
    source = root.place / "empty.c"
    source.write_text("")
    command += [f"-Wl,-soname,{library.name[:-4]}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    own = [f for f in root.find().files if "libnvidia-egl" in f.path]
    assert own == [DriverFile(str(library), "library", "graphics", ("libnvidia-egl-gbm.so.1",))]


def test_firmware_and_sockets(root: Root) -> None:
    root.driver("usr/lib64")
    firmware = root.place / "lib/firmware/nvidia"
    for version in ("550.1.2", "535.9"):
        (firmware / version).mkdir(parents=True)
        (firmware / version / "gsp_ga10x.bin").write_bytes(b"x")
        (firmware / version / "other.bin").write_bytes(b"x")
    (root.place / "run/nvidia-persistenced").mkdir(parents=True)
    here = os.getcwd()
    os.chdir(root.place / "run/nvidia-persistenced")  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("socket")
    finally:
        os.chdir(here)
    others = [f for f in root.find().files if f.kind not in ("library", "binary")]
    assert others == [
        DriverFile(f"{root.place}/run/nvidia-persistenced/socket", "socket", "utility"),
        DriverFile(f"{firmware}/550.1.2/gsp_ga10x.bin", "firmware", "utility"),
    ]


@pytest.mark.parametrize("change", [{"machine": 183}, {"machine": 3, "bits": 1}, {"bits": 1}])
def test_other_machines_and_32_bit_do_not_count(root: Root, change: dict[str, int]) -> None:
    root.driver("usr/lib64")
    root.add("usr/lib/libcuda.so.550.1.2", **change)
    root.add("usr/lib64/libnvidia-cfg.so.550.1.2", **change)
    assert root.find().libcuda == f"{root.place}/usr/lib64/libcuda.so.550.1.2"
    assert root.names() == {"libcuda.so.550.1.2", "libnvidia-ml.so.550.1.2"}


def test_files_that_are_no_elf_do_not_count(root: Root) -> None:
    root.driver("usr/lib64")
    (root.place / "usr/lib64/libcuda.so.560.1").write_text("not a library")
    (root.place / "usr/lib64/libnvidia-cfg.so.550.1.2").write_bytes(root.sample[:40])
    (root.place / "usr/lib64/libnvidia-nvvm.so.550.1.2").mkdir()
    assert root.names() == {"libcuda.so.550.1.2", "libnvidia-ml.so.550.1.2"}


def test_libraries_of_another_version_do_not_count(root: Root) -> None:
    root.driver("usr/lib64")
    root.add("usr/lib64/libnvidia-ptxjitcompiler.so.535.1")
    root.add("usr/lib64/libcuda.so.535.1")
    said = root.find()
    assert (said.version, {Path(f.path).name for f in said.files}) == (
        "550.1.2",
        {"libcuda.so.550.1.2", "libnvidia-ml.so.550.1.2"},
    )


def test_loaded_driver_decides_between_two_versions(root: Root) -> None:
    root.driver("usr/lib64")
    root.driver(MULTIARCH, "535.1")
    assert root.find("535.1").libcuda.endswith("libcuda.so.535.1")
    assert root.find("550.1.2").libcuda.endswith("libcuda.so.550.1.2")
    assert "the loaded driver is 560.7" in root.refused("560.7")


def test_missing_libraries_are_named(root: Root) -> None:
    assert "libcuda" in root.refused()
    root.add("usr/lib64/libcuda.so.550.1.2")
    assert "no libnvidia-ml" in root.refused()
    root.add("usr/lib64/libnvidia-ml.so.550.1.3")
    said = root.refused()
    assert "550.1.2" in said and "550.1.3" in said


def test_no_such_root(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="GH-302.*driver_root"):
        driver_files.find(str(tmp_path / "nowhere"))


def test_links_are_followed_inside_the_root_only(root: Root, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    real = root.add("opt/nvidia/real-cuda")
    for name in ("libcuda.so.550.1.2", "libnvidia-ml.so.550.1.2"):
        shutil.copy(real, outside / name)
    libs = root.place / "usr/lib64"
    libs.mkdir(parents=True)
    (libs / "libcuda.so.550.1.2").symlink_to("/opt/nvidia/real-cuda")  # absolute: from the root
    (libs / "libnvidia-ml.so.550.1.2").symlink_to(f"../../../{outside.name}/libnvidia-ml.so.550.1.2")
    assert "no libnvidia-ml" in root.refused()
    (libs / "libnvidia-ml.so.550.1.2").unlink()
    (libs / "libnvidia-ml.so.550.1.2").symlink_to(outside / "libnvidia-ml.so.550.1.2")
    assert "no libnvidia-ml" in root.refused()
    (libs / "libnvidia-ml.so.550.1.2").unlink()
    root.add("usr/lib64/libnvidia-ml.so.550.1.2")
    assert root.find().libcuda == str(real)


def test_usr_merged_places_are_looked_at_once(root: Root) -> None:
    root.driver("usr/lib64")
    (root.place / "lib64").symlink_to("usr/lib64")
    (root.place / "lib").symlink_to("usr/lib")
    assert len(root.find().files) == 2


def test_elf_reader_agrees_with_the_system(simulated: Path) -> None:
    for path, soname in ((simulated / "sim/libcuda.so.1", "libcuda.so.1"), (simulated / "sim/gpu-probe", "")):
        with open(path, "rb") as f:
            facts = elf.read(f.fileno(), elf.SONAME)
        assert facts and (facts.bits, facts.machine) == (64, elf.MACHINES[os.uname().machine])
        assert facts.texts.get(elf.SONAME, "") == soname and facts.end <= path.stat().st_size


def test_elf_reader_survives_any_cut(simulated: Path, tmp_path: Path) -> None:
    whole = (simulated / "sim/libcuda.so.1").read_bytes()
    for length in (*range(0, 1200, 13), 5000, 50000):
        (tmp_path / "cut").write_bytes(whole[:length])
        with open(tmp_path / "cut", "rb") as f:
            facts = elf.read(f.fileno(), elf.SONAME)
        assert facts is None or facts.texts.get(elf.SONAME, "") in ("", "libcuda.so.1")


@pytest.fixture(scope="session")
def debian_driver() -> Path:
    """The real libraries from Debian's non-free packages, unpacked."""
    if os.uname().machine != "x86_64":
        pytest.skip("the packages are fetched for x86-64 only")
    return nvidia()


@pytest.mark.slow
def test_real_driver_files_of_debian(debian_driver: Path) -> None:
    said = driver_files.find(str(debian_driver))
    libs = f"{debian_driver}/{MULTIARCH}/nvidia/current"
    version = said.version
    assert version.count(".") >= 1 and (said.libcuda, said.libnvml) == (
        f"{libs}/libcuda.so.{version}",
        f"{libs}/libnvidia-ml.so.{version}",
    )
    assert set(said.files) == {
        DriverFile(f"{libs}/{stem}.so.{version}", "library", capability, (f"{stem}.so.{version}", f"{stem}.so.1"))
        for stem, capability in (
            ("libcuda", "compute"),
            ("libnvidia-ptxjitcompiler", "compute"),
            ("libnvidia-ml", "utility"),
        )
    } | {DriverFile(f"{debian_driver}/usr/lib/nvidia/current/nvidia-smi", "binary", "utility")}


@pytest.mark.slow
def test_real_graphics_files_of_debian(debian_driver: Path, tmp_path: Path) -> None:
    """What its packages have, in its own layout; X modules are where Debian's alternatives lead to."""
    root = tmp_path / "root"
    shutil.copytree(debian_driver, root, symlinks=True)
    shutil.copytree(unpacked("trixie", *GRAPHICS, component="non-free"), root, symlinks=True, dirs_exist_ok=True)
    modules = root / "usr/lib/xorg/modules"
    for name in ("drivers/nvidia_drv.so", "extensions/libglxserver_nvidia.so"):
        (modules / name).parent.mkdir(parents=True)
        (modules / name).symlink_to(f"/usr/lib/nvidia/current/{Path(name).name}")
    said = driver_files.find(str(root))
    v = said.version
    found = {(f.capability, name) for f in said.files for name in f.names if f.capability not in ("compute", "utility")}
    assert found == {
        ("compute+whole", f"libnvidia-opencl.so.{v}"),
        ("compute+whole", "libnvidia-opencl.so.1"),
        ("compute+whole", "/etc/OpenCL/vendors/nvidia.icd"),
        ("video", f"libnvidia-encode.so.{v}"),
        ("video", "libnvidia-encode.so.1"),
        ("video+whole", f"vdpau/libvdpau_nvidia.so.{v}"),
        ("video+whole", "vdpau/libvdpau_nvidia.so.1"),
        ("graphics", f"libnvidia-eglcore.so.{v}"),
        ("graphics", f"libnvidia-glsi.so.{v}"),
        ("graphics", f"libEGL_nvidia.so.{v}"),
        ("graphics", "libEGL_nvidia.so.0"),
        ("graphics", f"libGLX_nvidia.so.{v}"),
        ("graphics", "libGLX_nvidia.so.0"),
        ("graphics", "libGLX_indirect.so.0"),
        ("graphics", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        ("graphics", "/usr/share/vulkan/icd.d/nvidia_icd.json"),
        ("graphics", "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json"),
        ("display", "/usr/lib/xorg/modules/drivers/nvidia_drv.so"),
        ("display", "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so"),
        ("display", f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{v}"),
    }
    assert all(Path(f.path).is_file() and not Path(f.path).is_symlink() for f in said.files)


@pytest.mark.slow
def test_real_driver_of_another_version_than_the_kernels(debian_driver: Path) -> None:
    with pytest.raises(NodeError, match=r"GH-302.*the loaded driver is 999\.1"):
        driver_files.find(str(debian_driver), "999.1")


@pytest.mark.slow
@pytest.mark.usefixtures("no_new_devices")
def test_real_nvml_without_a_gpu_says_why(debian_driver: Path) -> None:
    from oci_hook.discovery import discover

    if discover.kernel_version():
        pytest.skip("there is a driver here")
    said = driver_files.find(str(debian_driver))
    assert discover.ask_nvml(said.libnvml, dict(os.environ), 30)["error"] == "Driver Not Loaded"
