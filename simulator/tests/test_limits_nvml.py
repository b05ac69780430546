"""NVML's functions for memory limits of cgroups: what they refuse."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_hook_simulator import driver_root, release
from gpu_hook_simulator import mig as sim_mig
from testbed.sim import cgroups
from testbed.sim.cgroups import Groups
from testbed.sim.gpus import Sim

pytestmark = pytest.mark.root
TOP = cgroups.top()
if TOP is None:
    pytest.skip("cgroup v2 is not mounted", allow_module_level=True)
INVALID, NOT_SUPPORTED, NO_PERMISSION, NO_FUNCTION, LOST = 2, 3, 4, 13, 15


@pytest.fixture(params=["dmem", "misc"])
def groups(request: pytest.FixtureRequest, tmp_path: Path, simulated: Path) -> Iterator[Groups]:
    sim = Sim(tmp_path, simulated, release=release.release("615", request.param))
    assert TOP
    made = Groups(sim, TOP)
    made.make("a")
    yield made
    sim.close()
    made.close()


BOTH = "def both(path): return nvml_code(set_limit, path, MIB), nvml_code(get_limit, path)\nnvml.nvmlInit()\n"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "{relative}",
        "/tmp",
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/",
        "/sys/fs/cgroup-other",
        "/sys/fs/cgroup{name}/a/cgroup.procs",
        "/sys/fs/cgroup{name}/missing",
        "/sys/fs/cgroup{name}/a/../a",
        "/sys/fs/cgroup{name}/./a",
        "/sys/fs/cgroup{name}/" + "x" * 300,
        "/sys/fs/cgroup{name}" + "/x" * 3000,
    ],
)
def test_no_path_of_a_cgroup(groups: Groups, path: str) -> None:
    path = path.format(relative=groups.path("a")[1:], name=groups.name)
    assert groups.python(None, f"{BOTH}print(both({path!r}))") == f"({INVALID}, {INVALID})\n"


@pytest.mark.parametrize("path", ["{}/a/", "{}//a", "/{}/a//"])
def test_spellings_of_one_path(groups: Groups, path: str) -> None:
    groups.set("a", 5)
    spelt = "/sys/fs/cgroup" + path.format(groups.name)
    code = f"nvml.nvmlInit(); print(get_limit({spelt!r})[1] >> 20); set_limit({spelt!r}, 7 * MIB)"
    assert groups.python(None, code) == "5\n"
    assert groups.get("a") == [0, 7, 0]


def test_other_arguments(groups: Groups) -> None:
    code = f"""
library = ctypes.CDLL("libnvidia-ml.so.1"); path = {groups.path("a")!r}; set = library.nvmlDeviceSetMemoryLimits_v1
get = library.nvmlDeviceGetMemoryLimits_v1
class Limits(ctypes.Structure):
    _fields_ = [("path", c_char_p), ("soft", c_uint64), ("hard", c_uint64), ("used", c_uint64)]
def both(device, path, soft=0, hard=5, limits=True):
    l = byref(Limits(path and path.encode(), soft, hard, 0)) if limits else None
    return set(device, l), get(device, l)
print(both(c_void_p(), path)); nvml.nvmlInit(); h = gpu(0)
print(both(c_void_p(), path), both(c_void_p(8), path), both(h, None), both(h, path, limits=False))
print([both(h, path, *limits) for limits in ((6, 5), (2**64 - 1, 5), (5, 5), (0, 0), (0, 1), (2**64 - 1, 2**64 - 1))])
"""
    assert groups.python(None, code).splitlines() == [
        "(1, 1)",
        "(2, 2) (2, 2) (2, 2) (2, 2)",
        "[(2, 0), (2, 0), (0, 0), (0, 0), (0, 0), (0, 0)]",
    ]


@pytest.mark.parametrize(
    ("way", "first"),
    [
        ((), "import os; os.setgroups([]); os.setuid(1234)"),
        (("unshare", "--user", "--map-root-user"), ""),
        (("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"), ""),
    ],
    ids=["another user", "user namespace", "a container's root"],
)
def test_only_root_may_set(groups: Groups, way: tuple[str, ...], first: str) -> None:
    """Who may not set may ask; a limit that root has set stays."""
    groups.set("a", 5)
    groups.sim.open_for_all()
    code = f"{first}\n{BOTH}print(both({groups.path('a')!r}), nvml_code(set_limit, {groups.path('a')!r}, 2**64 - 1))"
    r = groups.run("a", *way, *groups.program(code))
    assert r.stdout == f"({NO_PERMISSION}, 0) {NO_PERMISSION}\n", r.stderr
    assert groups.get("a") == [0, 5, 0]


@pytest.mark.parametrize("where", ["tmpfs", "version 1", "nothing"])
def test_without_version_2_at_sys_fs_cgroup(groups: Groups, where: str) -> None:
    """As on hosts with both versions, where version 2 is at /sys/fs/cgroup/unified."""
    groups.set("a", 5)
    mount = {"tmpfs": "mount -t tmpfs none", "version 1": "mount -t cgroup -o cpuacct none", "nothing": "true"}[where]
    script = f'umount -R /sys/fs/cgroup; {mount} /sys/fs/cgroup || exit 99; exec "$@"'
    inside = ("unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh")
    code = f"{BOTH}print(both({groups.path('a')!r}), both('/sys/fs/cgroup/unified{groups.name}/a'))"
    r = groups.sim.run(*inside, *groups.program(code))
    if r.returncode == 99:
        pytest.skip("cgroup v1 cannot be mounted")
    assert r.stdout == f"({NOT_SUPPORTED}, {NOT_SUPPORTED}) ({NOT_SUPPORTED}, {NOT_SUPPORTED})\n", r.stderr


def test_a_gpu_that_is_lost(groups: Groups) -> None:
    driver_root.set_faults(groups.sim.gpus / "0", {"lost": 1})
    code = f"{BOTH}print(nvml_code(gpu, 0), nvml_code(set_limit, {groups.path('a')!r}, 5, 0, 1))"
    code += "\nlibrary = ctypes.CDLL('libnvidia-ml.so.1'); h = c_void_p()"
    code += "\nlibrary.nvmlDeviceGetHandleByIndex_v2(0, byref(h)); print(library.nvmlDeviceGetMemoryLimits_v1(h, None))"
    assert groups.python(None, code).split() == [str(LOST), "0", str(LOST)]


def test_mig(tmp_path: Path, simulated: Path) -> None:
    """Neither the GPU that is split nor its devices; another GPU of the machine has limits."""
    sim = Sim(tmp_path / "sim", simulated)
    sim.root = driver_root.make(
        str(sim.prefix),
        str(sim.state),
        2,
        40960,
        mig=sim_mig.profiles("3g.20gb,1g.5gb", 40960),
        release=release.release("615"),
    )
    assert TOP
    groups = Groups(sim, TOP)
    code = f"""
{BOTH}path = {groups.make("a")!r}; limits = nvml.c_nvmlSetMemoryLimits_v1_t(path.encode(), 0, MIB)
parts = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), i) for i in (0, 1)]
print([nvml_code(nvml.nvmlDeviceSetMemoryLimits_v1, h, limits) for h in (gpu(0), *parts, gpu(1))])
print([nvml_code(nvml.nvmlDeviceGetMemoryLimits_v1, h, nvml.c_nvmlGetMemoryLimits_v1_t(path.encode()))
       for h in (gpu(0), *parts, gpu(1))])
"""
    try:
        assert groups.python(None, code).splitlines() == ["[3, 3, 3, 0]", "[3, 3, 3, 0]"]
    finally:
        groups.close()


@pytest.mark.parametrize(("version", "there"), [("535", False), ("595.45.04", False), ("615", True), ("615.71", True)])
def test_drivers_before_615_do_not_have_the_functions(
    tmp_path: Path, simulated: Path, version: str, there: bool
) -> None:
    sim = Sim(tmp_path / "sim", simulated, release=release.release(version))
    assert TOP
    groups = Groups(sim, TOP)
    path = groups.make("a")
    code = f"{BOTH}print(both({path!r}), nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion())"
    code += "\nv = c_int(); cuda.cuInit(0); cuda.cuDriverGetVersion(byref(v)); print(v.value)"
    made = release.release(version)
    try:
        said = groups.python("a", code).splitlines()
    finally:
        groups.close()
    result = 0 if there else NO_FUNCTION
    assert said == [f"({result}, {result}) {made.version} {made.cuda_version}", str(made.cuda_version)]
    exports = subprocess.run(
        ["grep", "-c", "MemoryLimits_v1", sim.libraries / "libnvidia-ml.so.1"], capture_output=True
    )
    assert (exports.returncode == 0) == there
