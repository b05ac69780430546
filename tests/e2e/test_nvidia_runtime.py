"""Modes on-top and below: beside the NVIDIA runtime, in its CDI and in its legacy mode, with real runc.

The other side is tests/e2e/nvidia/toolkit.py, which makes the edits and mounts that NVIDIA's makes, on simulated GPUs.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from oci_hook.apply import to_text
from oci_hook.config import settings as node_settings
from oci_hook.core.inventory import GpuNode
from oci_hook.discovery.save import save_inventory
from oci_hook.install import settings_edit
from oci_hook.ledger import inventory, store
from testbed import REPO
from testbed.stage import GPU_MIB, MULTIARCH, SHARE, Stage, compile_client, glibc_image, stopped_at_the_limit

pytestmark = [pytest.mark.root, pytest.mark.slow]
TOOLKIT = Path(__file__).resolve().parent / "nvidia/toolkit.py"
LIBDIR = f"/usr/lib/{MULTIARCH}"
MODES = ("on-top cdi", "on-top legacy", "below cdi", "below legacy")
MORE = ("libGLX_nvidia.so", "libnvidia-ptxjitcompiler.so")


class Beside(Stage):
    """An install and the toolkit, in one of the two orders."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.own = self.program
        self.toolkit = folder / "toolkit"
        self.toolkit.mkdir()
        for name in ("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-cdi-hook"):
            shutil.copy(TOOLKIT, self.toolkit / name)
            (self.toolkit / name).chmod(0o755)
        for name in MORE:
            (self.driver / f"{name}.{self.version}").write_text(f"driver file {name}\n")
        settings = node_settings.load(str(self.prefix))
        found = inventory.load(settings)
        self.gpus = {c.uuid: c.minor for c in found.gpus}
        nodes = [
            GpuNode(c.uuid, "graphics", f"/dev/dri/renderD{128 + c.minor}", 226, 128 + c.minor) for c in found.gpus
        ]
        save_inventory(settings, found.replace(nodes=tuple(nodes)))

    def use(self, mode: str, lower: str = "", **more: Any) -> "Beside":
        """mode: ours and theirs, "on-top cdi"; "standalone" or what is set in `more` for settings that do not fit."""
        ours, _, theirs = mode.partition(" ")
        runc = str(shutil.which("runc"))
        nvidia = str(self.toolkit / "nvidia-container-runtime")
        values = {"mode": ours, "runtime": nvidia if ours == "on-top" else runc, **more}
        settings_edit.change(str(self.prefix), **values)
        conf = {
            "mode": theirs or "cdi",
            "lower": self.own if ours == "below" else runc,
            "root": str(self.prefix / "sim/root"),
            "folder": LIBDIR,
            "version": self.version,
            "gpus": self.gpus,
            "more": MORE,
        }
        (self.toolkit / "conf.json").write_text(json.dumps(conf))
        self.program = nvidia if ours == "below" else self.own
        return self

    def grants(self) -> tuple[Any, ...]:
        return store.snapshot(str(self.state))

    def say(self, rootfs: Path, script: str, **more: Any) -> str:
        done = self.run(rootfs, "/bin/sh", "-c", script, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def stage(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    made = Beside(tmp_path_factory.mktemp("beside"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def route(stage: Beside) -> Path:
    return compile_client(stage.folder / "route", "route.c", "-ldl")


@pytest.fixture
def image(stage: Beside, route: Path, tmp_path: Path) -> Path:
    """A glibc image with a client; without libcuda, as images are."""
    root = glibc_image(tmp_path / "image")
    shutil.copy(route, root / "bin/route")
    return root


def mknod(spec: dict[str, Any]) -> None:
    for kind in ("bounding", "effective", "permitted"):
        spec["process"]["capabilities"][kind].append("CAP_MKNOD")
    spec["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "access": "m"})


# For both GPUs and a DRM node: whether the kernel lets the open reach the (missing) driver.
PROBE = """
for n in 195:0 195:1 226:128 226:129; do
    mknod /probe-$n c ${n%:*} ${n#*:}; cat /probe-$n 2>&1 | grep -q 'not permitted' && echo $n closed || echo $n open
done
"""
ALL = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"}


@pytest.mark.parametrize("mode", MODES)
def test_the_limit_holds(stage: Beside, image: Path, mode: str) -> None:
    """By every name that the other side makes, also where the image asks for all GPUs and all capabilities."""
    stage.use(mode)
    for name in ("libcuda.so.1", "libcuda.so", f"{LIBDIR}/libcuda.so.1", f"{LIBDIR}/libcuda.so.{stage.version}"):
        stopped_at_the_limit(stage.fill(image, "/bin/route", name, "cuMemAlloc_v2", env=ALL))
    assert stage.grants() == ()


@pytest.mark.parametrize("mode", MODES)
def test_what_the_container_has(stage: Beside, image: Path, mode: str) -> None:
    stage.use(mode)
    script = f"env; cd {LIBDIR}; md5sum libcuda* libnvidia-ml*; ls /dev /dev/dri; cat libGLX_nvidia*; {PROBE}"
    # "all" in below: the other side has given both GPUs, and takes none of it back itself
    said = stage.say(image, script, env=ALL, edit=mknod)
    uuid = next(iter(stage.gpus))
    named = "void" if mode == "on-top cdi" else uuid  # CDI's own word, which comes after ours
    assert f"NVIDIA_VISIBLE_DEVICES={named}\n" in said and "NVIDIA_DRIVER_CAPABILITIES=compute,utility\n" in said
    copies = {
        hash_
        for hash_, name in re.findall(r"^([0-9a-f]{32})  (lib\S+)", said, re.M)
        if name.startswith(("libcuda", "libnvidia-ml"))
    }
    shims = [stage.prefix / f"lib/shim/{name}.so.1" for name in ("libcuda", "libnvidia-ml")]
    expected = {subprocess.run(["md5sum", s], capture_output=True, text=True).stdout.split()[0] for s in shims}
    assert copies == expected
    assert "nvidia0" in said and not re.search(r"^nvidia1$", said, re.M)
    assert "195:0 open" in said and "195:1 closed" in said and "226:129 closed" in said
    assert "driver file libGLX" not in said, "graphics reach the GPU past the shims"
    assert not (image / "etc/compat-was-enabled").exists() or mode == "on-top cdi"


@pytest.mark.parametrize("mode", MODES)
def test_whole_gpus_keep_what_the_other_side_brings(stage: Beside, image: Path, mode: str) -> None:
    stage.use(mode)
    ask = {"gpu-hook.io/devices": "1", "gpu-hook.io/exclusive": "true"}
    env = ALL if "below" in mode else {}
    script = f"cat {LIBDIR}/libnvidia-ptx*; ls /dev; {PROBE}"
    said = stage.say(image, script, annotations=ask, env=env, edit=mknod)
    assert "driver file libnvidia-ptxjitcompiler" in said
    assert "nvidia1" in said and "195:1 open" in said and "195:0 closed" in said
    held = stage.fill(image, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2", annotations=ask, env=env)
    assert held.code == 2 and held.granted > GPU_MIB * 8 // 10, held


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "annotations",
    [{}, {"io.kubernetes.cri.container-type": "sandbox"}, {"io.kubernetes.cri.container-type": "sandbox", **SHARE}],
)
def test_who_asks_for_nothing_gets_no_gpu(
    stage: Beside, image: Path, mode: str, annotations: Mapping[str, str]
) -> None:
    """An image that says `all`, an old image, and a container that says it is a pause container."""
    stage.use(mode)
    script = f"ls {LIBDIR} /dev; /bin/route libcuda.so.1 cuMemAlloc_v2; {PROBE}"
    said = stage.say(image, script, annotations=annotations, env={**ALL, "CUDA_VERSION": "12.4"}, edit=mknod)
    assert "195:0 closed" in said and "195:1 closed" in said and "unopened=" in said
    assert "226:128 closed" in said and "226:129 closed" in said
    assert "libcuda.so.550" not in said and "nvidia0" not in said


@pytest.mark.parametrize("mode", MODES)
def test_a_key_written_with_escapes(stage: Beside, image: Path, mode: str) -> None:
    """JSON may write any letter as \\uXXXX; the launcher must not take that for a container of no interest."""
    stage.use(mode)
    for asks in (SHARE, {}):
        folder = stage.bundle(image, ["/bin/route", "libcuda.so.1", "cuMemAlloc_v2"], asks, ALL)
        file = folder / "config.json"
        text = file.read_text().replace("gpu-hook.io/", "gpu\\u002dhook.io\\/")
        file.write_text(text.replace("NVIDIA_VISIBLE", "NVIDIA\\u005fVISIBLE"))
        held = stage.held(["run", "--bundle", str(folder), stage.runc.new_id()])
        if asks:
            stopped_at_the_limit(held)
        else:
            assert "unopened=" in held.output, held


@pytest.mark.parametrize("mode", MODES)
def test_links_of_the_image(stage: Beside, image: Path, mode: str) -> None:
    """The image leads the other side's mount to a name that nobody would look for, or brings a copy of its own."""
    stage.use(mode)
    name = f"libcuda.so.{stage.version}"
    (image / "opt/hidden").mkdir(parents=True)
    (image / LIBDIR[1:] / name).symlink_to("/opt/hidden/harmless")
    (image / "opt/hidden/harmless").touch()
    env = {**ALL, "LD_LIBRARY_PATH": "/opt/hidden"}
    for path in (f"{LIBDIR}/{name}", "/opt/hidden/harmless"):
        stopped_at_the_limit(stage.fill(image, "/bin/route", path, "cuMemAlloc_v2", env=env))


@pytest.mark.parametrize("mode", ["on-top cdi", "below cdi", "below legacy"])
def test_create_twice_on_one_bundle(stage: Beside, image: Path, mode: str) -> None:
    stage.use(mode)
    folder = stage.bundle(image, ["/bin/route", "libcuda.so.1", "cuMemAlloc_v2"], env=ALL)
    for _ in range(2):
        stopped_at_the_limit(stage.held(["run", "--bundle", str(folder), stage.runc.new_id()]))
    assert stage.grants() == ()


def test_below_without_the_other_side(stage: Beside, image: Path) -> None:
    """No NVIDIA_VISIBLE_DEVICES: it brings nothing, and gpu-hook brings the driver itself."""
    stage.use("below cdi")
    stopped_at_the_limit(stage.fill(image, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2"))


def refused(stage: Beside, image: Path, code: str, **more: Any) -> str:
    done = stage.run(image, "/bin/true", **more)
    assert done.returncode == 1 and re.findall(r"GH-\d{3}", done.stderr) == [code], done.stderr
    assert stage.grants() == ()
    return done.stderr


def hooked(path: str, *words: str) -> Any:
    def edit(spec: dict[str, Any]) -> None:
        spec["hooks"] = {"createContainer": [{"path": path, "args": [path, *words]}]}

    return edit


def test_a_mode_that_does_not_fit_what_is_found(stage: Beside, image: Path) -> None:
    runc = str(shutil.which("runc"))
    assert "has put no driver" in refused(stage.use("on-top cdi", runtime=runc), image, "GH-409")
    cdi = hooked("/usr/bin/nvidia-cdi-hook", "update-ldcache", "--folder", LIBDIR)
    assert "mode: below" in refused(stage.use("on-top cdi"), image, "GH-409", edit=cdi)
    assert "on-top or below" in refused(stage.use("standalone"), image, "GH-409", edit=cdi)
    with pytest.raises(Exception, match="GH-501: .*on-top only"):
        stage.use("standalone", runtime=str(stage.toolkit / "nvidia-container-runtime"))
    stage.use("standalone")


@pytest.mark.parametrize("mode", ["below cdi", "below legacy"])
def test_a_hook_that_nobody_knows_is_left_out(stage: Beside, image: Path, mode: str) -> None:
    """It would fail, since there is no such program; who made the container is told."""
    stage.use(mode)
    unknown = hooked("/usr/bin/nvidia-ctk", "hook", "mount-all")
    held = stage.fill(image, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2", env=ALL, edit=unknown)
    stopped_at_the_limit(held)
    done = stage.run(image, "/bin/true", env=ALL, edit=unknown)
    assert done.returncode == 0 and "mount-all does, and left it out" in done.stderr, done


@pytest.mark.parametrize("mode", MODES)
def test_the_memory_hook_of_1_20_1(stage: Beside, image: Path, mode: str) -> None:
    """This machine's driver has no limits, so that the hook fails where it finds both of its variables."""
    stage.use(mode)
    words = {f"NVIDIA_GPU_MEMORY_{word}": "8192" for word in ("REQUEST", "REQUESTS", "LIMIT", "LIMITS")}
    asked = stage.toolkit / "asked"
    asked.unlink(missing_ok=True)
    said = stage.say(image, "env", env={**ALL, **words})
    assert "NVIDIA_GPU_MEMORY" not in said and "GPU_HOOK_MEMORY_MIB=1024\n" in said
    calls = asked.read_text().splitlines() if asked.exists() else []
    asked.unlink(missing_ok=True)
    assert calls == (["None None"] if mode == "on-top cdi" else [])
    more = stage.say(image, "env", annotations={}, env={**ALL, **words})
    assert "NVIDIA_GPU_MEMORY_LIMITS=8192\n" in more and not asked.exists(), "it asks for nothing, and has no GPU"


@pytest.mark.parametrize(("stage_", "place"), [("prestart", -1), ("createRuntime", 0)])
def test_a_new_hook_that_runs_before_ours(stage: Beside, image: Path, stage_: str, place: int) -> None:
    """It mounts libcuda over what is there, and ours mounts the shim over that."""
    use_new(stage, "on-top cdi", stage_, place)
    (stage.toolkit / "mounted").unlink(missing_ok=True)
    for name in ("libcuda.so.1", f"{LIBDIR}/libcuda.so.{stage.version}"):
        stopped_at_the_limit(stage.fill(image, "/bin/route", name, "cuMemAlloc_v2", env=ALL))
    assert (stage.toolkit / "mounted").read_text() == "xx"


@pytest.mark.parametrize("stage_", ["createRuntime", "createContainer", "startContainer", "poststart"])
def test_a_new_hook_that_runs_after_ours(stage: Beside, image: Path, stage_: str) -> None:
    """on-top, the container does not start; below, it starts without the hook."""
    use_new(stage, "on-top cdi", stage_, -1)
    assert "mount-all" in refused(stage, image, "GH-409", env=ALL)
    use_new(stage, "below cdi", stage_, -1)
    stopped_at_the_limit(stage.fill(image, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2", env=ALL))


def use_new(stage: Beside, mode: str, stage_: str, place: int) -> None:
    stage.use(mode)
    file = stage.toolkit / "conf.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "new": [stage_, place]}))


def test_another_gpu_by_flag(stage: Beside, image: Path) -> None:
    """What the user adds to the devices is refused where it is for sure not the other side's."""

    def wildcard(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "major": 195, "access": "rw"})

    for mode in MODES:
        refused(stage.use(mode), image, "GH-403", env=ALL, edit=wildcard)


def test_another_driver_version(stage: Beside, image: Path) -> None:
    def old(spec: dict[str, Any]) -> None:
        source = str(stage.driver / f"libcuda.so.{stage.version}")
        spec["mounts"].append(
            {"destination": f"{LIBDIR}/libcuda.so.535.1.1", "type": "bind", "source": source, "options": ["bind"]}
        )

    assert "inventory is of driver" in refused(stage.use("below cdi"), image, "GH-302", edit=old)


def test_explain(stage: Beside) -> None:
    """In mode on-top the plan has no shim; one line says that the hook mounts them."""
    stage.use("on-top cdi")
    command = [sys.executable, "-m", "oci_hook", "explain", "--prefix", str(stage.prefix)]
    asked = [word for key, value in SHARE.items() for word in ("--annotation", f"{key}={value}")]
    answer = subprocess.run([*command, *asked], capture_output=True, text=True, check=True).stdout
    assert f"  {to_text.LATE}\n" in answer and "lib/shim/" not in answer
    stage.use("standalone")
    answer = subprocess.run([*command, *asked], capture_output=True, text=True, check=True).stdout
    assert to_text.LATE not in answer and "lib/shim/" in answer


def test_the_page(stage: Beside, image: Path) -> None:
    """docs/guide/nvidia-runtime.md, its commands in their order, then a container in the mode that they set."""
    bin = stage.folder / "bin"
    bin.mkdir()
    (bin / "gpu-hook").write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(REPO))} exec {shlex.quote(sys.executable)} -m oci_hook "$@"\n'
    )
    (bin / "gpu-hook").chmod(0o755)
    text = (REPO / "docs/guide/nvidia-runtime.md").read_text()
    nvidia = str(stage.toolkit / "nvidia-container-runtime")
    places = {"/opt/gpu-hook": str(stage.prefix), "/usr/bin/nvidia-container-runtime": nvidia}
    places["/usr/sbin/runc"] = str(shutil.which("runc"))
    seen = []
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        for shown, here in places.items():
            block = block.replace(shown, here)
        if kind == "sh":
            script = f"set -e; export PATH={bin}:$PATH; {block}"
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
            assert done.returncode == 0, block + done.stdout + done.stderr
        else:
            stage.use("below cdi")
            (lower,) = re.findall(r'runtimes = \["(.*)"\]', block)
            assert lower == json.loads((stage.toolkit / "conf.json").read_text())["lower"]
        mode = node_settings.load(str(stage.prefix)).mode
        seen.append(mode)
        if mode == "on-top":
            values = json.loads((stage.toolkit / "conf.json").read_text()) | {"lower": str(shutil.which("runc"))}
            (stage.toolkit / "conf.json").write_text(json.dumps(values))
            stage.program = stage.own
            stopped_at_the_limit(stage.fill(image, "/bin/route", "libcuda.so", "cuMemAlloc_v2", env=ALL))
        elif kind != "sh":
            stopped_at_the_limit(stage.fill(image, "/bin/route", "libcuda.so", "cuMemAlloc_v2", env=ALL))
    assert seen == ["on-top", "below", "below", "below"]
