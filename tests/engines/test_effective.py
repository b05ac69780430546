"""What we read out of an engine's files is what the engine itself makes of them, version by version."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.engines import containerd, containerd_read, crio, podman, toml_text
from oci_hook.engines.edits import Registration
from testbed.engines.box import Hideout
from tests.engines.test_doctor_agrees import RUNC, SYSTEMS, V1, V2

pytestmark = [pytest.mark.root, pytest.mark.slow]

OURS = RUNC.replace("SystemdCgroup = true", 'BinaryName = "{name}"').replace("runtimes.{name}", "runtimes.gpu-hook")
OTHER = '[plugins."{plugin}".containerd]\n  default_runtime_name = "other"\n' + RUNC.replace("{name}", "other")
EMPTY = '[plugins."{plugin}"]\n  max_container_log_line_size = 4096\n'
HEAD = 'version = {version}\nimports = ["{folder}/conf.d/*.toml"]\n'


def of(plugin: str, *texts: str, version: int | None, name: str = "/a") -> str:
    stated = f"version = {version}\n" if version else ""
    return stated + "".join(text.format(plugin=plugin, name=name) for text in texts)


# The root file after its head, then drop-ins in their order; those of version 3 are for containerd 2.
FILES: dict[str, tuple[int, list[str]]] = {
    "alone": (2, [of(V1, OURS, version=None)]),
    "another plugin table later": (2, [of(V1, OURS, version=None), of(V1, EMPTY, version=2)]),
    "without a version": (2, [of(V1, OURS, version=None), of(V1, OTHER, version=None)]),
    "default later": (2, [of(V1, OURS, version=None), of(V1, OTHER, version=2)]),
    "ours twice": (2, [of(V1, OURS, version=None), of(V1, OURS, version=2, name="/b"), of(V1, OTHER, version=2)]),
    "ours only later": (2, [of(V1, OTHER, version=None), of(V1, OURS, version=2)]),
    "of version 1": (2, [of(V1, OURS, version=None), of("cri", OTHER, version=1)]),
    "another case": (2, [of(V1, OURS.replace("BinaryName", "binaryName"), version=None)]),
    "version 3": (3, [of(V2, OURS, version=None), of(V2, OTHER, version=3), of(V2, EMPTY, version=3)]),
    "version 3, ours twice": (3, [of(V2, OURS, version=None), of(V2, OURS, version=3, name="/b")]),
}


@pytest.fixture(scope="module", params=SYSTEMS)
def hideout(request: pytest.FixtureRequest) -> Iterator[Hideout]:
    hideout = Hideout(SYSTEMS[request.param]())
    yield hideout
    hideout.close()


@pytest.mark.parametrize("name", FILES)
def test_containerd(hideout: Hideout, tmp_path: Path, name: str) -> None:
    version, texts = FILES[name]
    newer = "2." in hideout.run("containerd", "--version").stdout.split()[2][:3]
    if version == 3 and not newer:
        pytest.skip("containerd 1 does not know version 3")
    root = tmp_path / "config.toml"
    (tmp_path / "conf.d").mkdir()
    root.write_text(HEAD.format(version=version, folder=tmp_path) + texts[0])
    for n, text in enumerate(texts[1:]):
        (tmp_path / f"conf.d/{n}.toml").write_text(text)
    said = hideout.run("containerd", "--config", str(root), "config", "dump")
    assert said.returncode == 0, said.stderr
    plugins = toml_text.parse(said.stdout, root)["plugins"]
    table = next(plugins[name]["containerd"] for name in (V2, V1) if "containerd" in plugins.get(name, {}))
    program = containerd_read.option(table["runtimes"].get("gpu-hook"), "BinaryName") or ""
    files = [(file.path, file.data) for file in containerd.load(Registration(str(tmp_path), config=str(root)))]
    has = containerd_read.has(files, newer, "")
    assert (has.program, has.default) == (program, table["default_runtime_name"])


CONF = {
    "nothing": {},
    "main": {"containers.conf": 'runtime = "runc"\n[engine.runtimes]\ngpu-hook = ["/bin/true"]'},
    "later": {"containers.conf.d/1.conf": 'runtime = "crun"', "containers.conf.d/z.conf": 'runtime = "runc"'},
    "runtimes add up": {
        "containers.conf": '[engine.runtimes]\ngpu-hook = ["/bin/true"]',
        "containers.conf.d/z.conf": '[engine.runtimes]\nother = ["/bin/false"]',
    },
    "ours twice": {
        "containers.conf": '[engine.runtimes]\ngpu-hook = ["/bin/true"]',
        "containers.conf.d/z.conf": '[engine.runtimes]\ngpu-hook = ["/nonexistent", "/bin/echo"]',
    },
    "not a drop-in": {
        "containers.conf.d/z.toml": 'runtime = "runc"',
        "containers.conf.d/sub/z.conf": 'runtime = "runc"',
    },
}


@pytest.mark.parametrize("name", CONF)
def test_podman(hideout: Hideout, name: str) -> None:
    hideout.run(
        "sh", "-c", "rm -rf /etc/containers/containers.conf /etc/containers/containers.conf.d; mkdir -p /etc/containers"
    )
    for file, text in CONF[name].items():
        path = f"/etc/containers/{file}"
        hideout.run("sh", "-c", f"mkdir -p {os.path.dirname(path)}; cat >{path} <<'END'\n[engine]\n{text}\nEND")

    def ask(form: str, *flags: str) -> str:
        done = hideout.run("podman", "--root=/run/s", "--runroot=/run/r", *flags, "info", "--format", form)
        return done.stdout.strip() if done.returncode == 0 else ""

    said = ask("{{.Host.OCIRuntime.Path}}", "--runtime=gpu-hook"), ask("{{.Host.OCIRuntime.Name}}")
    has = hideout.call(podman.has, Registration("/opt/gpu-hook"), {})
    assert (has.program, has.default) == said


HANDLER = '[crio.runtime.runtimes.{name}]\nruntime_path = "{path}"\n'
CRIO = {
    "main": {"crio.conf": HANDLER.format(name="gpu-hook", path="/bin/true")},
    "later default": {
        "crio.conf": '[crio.runtime]\ndefault_runtime = "gpu-hook"\n'
        + HANDLER.format(name="gpu-hook", path="/bin/true"),
        "crio.conf.d/99-nvidia.conf": '[crio.runtime]\ndefault_runtime = "nvidia"\n'
        + HANDLER.format(name="nvidia", path="/bin/echo"),
    },
    "ours twice": {
        "crio.conf.d/1.conf": HANDLER.format(name="gpu-hook", path="/bin/true"),
        "crio.conf.d/sub/2.conf": HANDLER.format(name="gpu-hook", path="/bin/echo"),
    },
}


@pytest.mark.parametrize("folder", os.environ.get("GPU_HOOK_CRIO", "").split(":"))
@pytest.mark.parametrize("name", CRIO)
def test_crio(tmp_path: Path, name: str, folder: str) -> None:
    if not folder:
        pytest.skip("GPU_HOOK_CRIO names no folder with CRI-O's programs")
    etc = tmp_path / "etc/crio"
    (etc / "crio.conf.d").mkdir(parents=True)
    for file, text in {"crio.conf": "", **CRIO[name]}.items():
        (etc / file).parent.mkdir(exist_ok=True)
        (etc / file).write_text(text)
    command = [f"{folder}/crio", "--config", str(etc / "crio.conf"), "--config-dir", str(etc / "crio.conf.d"), "config"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = toml_text.parse(done.stdout, etc)["crio"]["runtime"]
    has = crio.has(Registration("/opt/gpu-hook", host_root=str(tmp_path)), {})
    default = said.get("default_runtime", has.default)  # a comment where no file says it
    assert (has.program, has.default) == (said["runtimes"].get("gpu-hook", {}).get("runtime_path", ""), default)
