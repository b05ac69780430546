"""`gpu-hook doctor` agrees with the engine, in odd states of a node: each engine that is here, each version, with its usual files.

What an engine says itself decides: `docker info`, `containerd config dump` and CRI, `podman info`. Every fix that doctor prints is
run as it stands; afterwards the engine has our runtime, and everything else as before.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oci_hook.engines import containerd_read, toml_text
from testbed import REPO
from testbed.engines import box
from testbed.engines.box import Hideout
from testbed.engines.cri import Cri
from testbed.long import long
from testbed.packages import debian_13, debian_sid
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.slow]

PREFIX = "--prefix=/opt/gpu-hook"  # a place of its own, whatever install would choose
PROGRAM = "/opt/gpu-hook/bin/gpu-hook-runtime"
SYSTEMS: dict[str, Callable[[], Path | None]] = {
    "this machine": lambda: None,
    "Debian 13": debian_13,
    "sid": debian_sid,
}


class Node:
    """A machine with one engine, in namespaces of its own, and an install that is registered with none."""

    engine, config = "", ""
    flags: tuple[str, ...] = ()

    def __init__(self, root: Path | None, folder: Path) -> None:
        self.hideout, self.log = Hideout(root), folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.hideout.gpu_hook("install", "--no-engines", PREFIX)
        program = f'#!/bin/sh\nPYTHONPATH="{REPO}" exec "{self.hideout.python}" -m oci_hook "$@"\n'
        self.write("/run/bin/gpu-hook", program)
        self.sh("chmod 755 /run/bin/gpu-hook")

    def sh(self, line: str, editor: str = "false") -> str:
        done = self.hideout.run("sh", "-c", f"EDITOR='{editor}' PATH=/run/bin:$PATH; export PATH EDITOR; {line}")
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        self.sh(f"mkdir -p {os.path.dirname(path)} && cat >{path} <<'END'\n{text}END")

    def replace(self, path: str, old: str, new: str) -> None:
        text = self.sh(f"cat {path}")
        assert old in text
        self.write(path, text.replace(old, new))

    def install(self, *more: str) -> str:
        return self.hideout.gpu_hook("install", "--engine", self.engine, PREFIX, *more)

    def doctor(self) -> list[dict[str, str]]:
        """What is to be fixed of the engine."""
        done = self.hideout.run(self.hideout.python, "-m", "oci_hook", "doctor", "--json", PREFIX)
        findings = json.loads(done.stdout)["findings"]
        assert [f for f in findings if f["check"] == self.engine], findings
        return [f for f in findings if f["check"] == self.engine and f["state"] in ("warn", "fail")]

    def follow(self, editor: str) -> None:
        """Run what doctor prints until it prints no more."""
        for _ in range(4):
            if not (found := self.doctor()):
                return
            fix = found[0]["fix"]
            assert fix, found
            if fix.startswith("a restart of process"):
                self.stop()
                self.start()
            else:
                self.sh(fix.replace("systemctl restart", "true"), editor)
                if fix.startswith("kill -HUP"):
                    with contextlib.suppress(AssertionError):  # then it prints more
                        until(lambda: not self.doctor(), seconds=10)
        raise AssertionError(found)

    def files(self) -> None:
        """The engine's files before an install."""

    def start(self, *flags: str) -> None:
        pass

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(box.WAIT)
            self.process = None

    def has(self) -> tuple[str, str]:
        """(program of our name, the default runtime), by the engine's own word."""
        raise NotImplementedError

    def others(self) -> Any:
        """What the engine has beside us, by its own word."""

    def clean(self) -> None:
        self.stop()
        self.sh(f"gpu-hook uninstall {PREFIX} --force --engine {self.engine} || true")
        self.sh(f"rm -rf /etc/{self.config}")


class Docker(Node):
    engine, config = "docker", "docker"
    flags = ("--iptables=false", "--ip-forward=false", "--bridge=none", "--storage-driver=vfs")

    def files(self) -> None:
        self.write("/etc/docker/daemon.json", '{"debug": false, "runtimes": {"other": {"path": "/usr/sbin/runc"}}}\n')

    def start(self, *flags: str) -> None:
        command = self.hideout.command("dockerd", *self.flags, *flags)
        self.process = box.serve(command, self.log, lambda: self.hideout.run("docker", "version").returncode == 0)

    def reload(self) -> None:
        assert self.process is not None
        before = self.log.read_text().count("eload")
        os.kill(self.process.pid, signal.SIGHUP)
        until(lambda: self.log.read_text().count("eload") > before)

    def info(self) -> Any:
        return json.loads(self.sh("docker info --format '{{json .}}'"))

    def has(self) -> tuple[str, str]:
        info = self.info()
        return info["Runtimes"].get("gpu-hook", {}).get("path", ""), info["DefaultRuntime"]

    def others(self) -> Any:
        info = self.info()
        # docker 20.10 forgets the names of its shims at a reload.
        found = {name: each for name, each in info["Runtimes"].items() if not name.startswith("io.containerd.")}
        return {name: each for name, each in found.items() if name != "gpu-hook"}, info["Debug"]


V1, V2 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
RUNC = """[plugins."{plugin}".containerd.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
  [plugins."{plugin}".containerd.runtimes.{name}.options]
    SystemdCgroup = true
"""


class Containerd(Node):
    engine, config = "containerd", "containerd"

    def __init__(self, root: Path | None, folder: Path) -> None:
        super().__init__(root, folder)
        self.newer = " 2." in self.sh("containerd --version").replace("v2.", "2.")
        self.version, self.plugin = (3, V2) if self.newer else (2, V1)
        self.cri = Cri(f"/proc/{self.hideout.keeper.pid}/root/run/containerd/containerd.sock")
        self.file = "/etc/containerd/config.toml"

    def text(self, imports: str = "conf.d") -> str:
        sandbox = f'[plugins."{V1}"]\n  sandbox_image = "registry.example/pause:3.10"\n' if not self.newer else ""
        head = f'version = {self.version}\nimports = ["/etc/containerd/{imports}/*.toml"]\n'
        return head + sandbox + RUNC.format(plugin=self.plugin, name="runc")

    def files(self) -> None:
        self.write("/etc/containerd/config.toml", self.text())
        self.sh("mkdir -p /etc/containerd/conf.d")

    def tool(self, name: str = "99-other.toml", default: str = "") -> None:
        """The drop-in of another tool; default: its runtime, which it makes the default."""
        text = f'[plugins."{self.plugin}"]\n  max_container_log_line_size = 4096\n'
        if default:
            text = f'[plugins."{self.plugin}".containerd]\n  default_runtime_name = "{default}"\n'
            text += RUNC.format(plugin=self.plugin, name=default)
        self.write(f"/etc/containerd/conf.d/{name}", f"version = {self.version}\n{text}")

    def start(self, *flags: str) -> None:
        command = self.hideout.command("containerd", *flags)
        self.process = box.serve(command, self.log, self.cri.answers)
        self.file = flags[-1] if flags else "/etc/containerd/config.toml"

    def again(self) -> None:
        self.stop()
        self.start()

    def dump(self) -> Any:
        """By its files, in the names of its own version."""
        data = toml_text.parse(self.sh(f"containerd --config {self.file} config dump"), Path("dump"))
        return toml_text.get(data, ("plugins", self.plugin))

    def has(self) -> tuple[str, str]:
        table = self.dump()["containerd"]
        by_files = (
            containerd_read.option(table["runtimes"].get("gpu-hook"), "BinaryName") or "",
            table["default_runtime_name"],
        )
        if self.process is None:
            return by_files
        runs = self.cri.config()["containerd"]
        program = containerd_read.option(runs["runtimes"].get("gpu-hook"), "BinaryName") or ""
        by_cri = program, runs["defaultRuntimeName"]
        return by_files if by_files == by_cri else ("", "files and process differ")

    def others(self) -> Any:
        table = self.dump()
        table["containerd"]["runtimes"].pop("gpu-hook", None)
        return stated({**table, "containerd": {**table["containerd"], "default_runtime_name": ""}})


def stated(data: Any) -> Any:
    """Without what a file need not say: what is left empty or false, and the usual sandbox."""
    inner = {key: stated(value) for key, value in data.items()} if isinstance(data, dict) else data
    return (
        {key: value for key, value in inner.items() if value and value != "podsandbox"}
        if isinstance(inner, dict)
        else inner
    )


class Podman(Node):
    engine, config = "podman", "containers/containers.conf.d"

    def files(self) -> None:
        self.sh("mkdir -p /etc/containers/containers.conf.d")

    def conf(self, name: str, text: str) -> None:
        self.write(f"/etc/containers/containers.conf.d/{name}.conf", f"[engine]\n{text}\n")

    def ask(self, form: str, *flags: str) -> str:
        done = self.hideout.run("podman", "--root=/run/s", "--runroot=/run/r", *flags, "info", "--format", form)
        return done.stdout.strip() if done.returncode == 0 else ""

    def has(self) -> tuple[str, str]:
        path = self.ask("{{.Host.OCIRuntime.Path}}", "--runtime=gpu-hook")
        return path, self.ask("{{.Host.OCIRuntime.Name}}")


def docker_other_file(node: Docker) -> None:
    node.stop()
    node.write("/etc/docker/other.json", "{}\n")
    node.start("--config-file=/etc/docker/other.json")
    assert "reads /etc/docker/other.json (--config /etc/docker/other.json)" in node.install()


def docker_written(text: str) -> Callable[[Docker], None]:
    def state(node: Docker) -> None:
        node.sh(f"gpu-hook uninstall {PREFIX} --engine docker")
        node.write("/etc/docker/daemon.json", text)
        node.install()
        node.stop()
        node.start()

    return state


def other_default(node: Docker) -> None:
    node.install("--set-default", "--restart")
    node.replace("/etc/docker/daemon.json", '"default-runtime": "gpu-hook"', '"default-runtime": "other"')
    node.reload()


def docker_forgot(node: Docker) -> None:
    node.stop()
    node.files()
    node.start()


def docker_another(node: Docker) -> None:
    node.sh("cp /etc/docker/daemon.json /run/before")
    node.replace("/etc/docker/daemon.json", PROGRAM, "/usr/sbin/runc")
    node.reload()


def docker_late(node: Docker) -> None:
    docker_forgot(node)
    node.install()


def shadowed(node: Containerd) -> None:
    node.tool()
    node.again()


def its_place_is_gone(node: Containerd) -> None:
    node.sh(f"gpu-hook uninstall {PREFIX} --engine containerd")
    node.tool()
    node.install()
    node.sh("rm -f /etc/containerd/conf.d/*.toml")
    node.again()


def overruled(node: Containerd) -> None:
    node.install("--set-default")
    node.tool("99-nvidia.toml", default="nvidia")
    node.again()


def containerd_late(node: Containerd) -> None:
    node.sh(f"gpu-hook uninstall {PREFIX} --engine containerd")
    node.again()
    node.install()


def containerd_other_file(node: Containerd) -> None:
    node.stop()
    node.write("/etc/containerd/other.toml", node.text("other.d"))
    node.start("--config", "/etc/containerd/other.toml")


def other_case(node: Containerd) -> None:
    place = node.sh("grep -rl BinaryName /etc/containerd").split()[0]
    node.replace(place, "BinaryName", "binaryName")
    node.again()


def another_program(node: Containerd) -> None:
    place = node.sh("grep -rl BinaryName /etc/containerd").split()[0]
    node.sh(f"cp {place} /run/before; sed -i /BinaryName/d {place}")
    node.again()


def podman_default(node: Podman) -> None:
    node.install("--set-default")
    node.conf("nvidia", 'runtime = "runc"')


# (engine, state): how the node comes to it, the words of what doctor finds ("" for nothing), what a person does to the file that
# the fix names
STATES: dict[tuple[type[Node], str], tuple[Callable[[Any], None], str, str]] = {
    (Docker, "started before"): (docker_late, "has not read /etc/docker/daemon.json", "false"),
    (Docker, "lines gone"): (docker_forgot, "its lines are not in", "false"),
    (Docker, "another program"): (
        docker_another,
        "already has gpu-hook, which is '/usr/sbin/runc'",
        "cp /run/before",
    ),
    (Docker, "reads another file"): (
        docker_other_file,
        "reads /etc/docker/other.json instead of /etc/docker/daemon.json",
        "false",
    ),
    (Docker, "default changed"): (other_default, "differs from the lines", "false"),
    (Docker, "runtimes: null"): (docker_written('{"debug": false, "runtimes": null}\n'), "", "false"),
    (Docker, "doubled keys"): (
        docker_written('{"runtimes": {"x": {"path": "/x"}}, "debug": false, "runtimes": {"y": {"path": "/y"}}}\n'),
        "",
        "false",
    ),
    (Containerd, "shadowed by a later drop-in"): (
        shadowed,
        "has no lines of gpu-hook, and is the file that counts",
        "false",
    ),
    (Containerd, "its drop-in is gone"): (its_place_is_gone, "its lines are not in", "false"),
    (Containerd, "default overruled"): (overruled, "", "false"),
    (Containerd, "started before"): (containerd_late, "has not read", "false"),
    (Containerd, "reads another file"): (
        containerd_other_file,
        "its lines are not in /etc/containerd/other.toml",
        "false",
    ),
    (Containerd, "binaryName"): (other_case, "", "false"),
    (Containerd, "not our program"): (another_program, "already has a runtime gpu-hook", "cp /run/before"),
    (Podman, "default overruled"): (podman_default, "is missing", "false"),
    (Podman, "another program"): (
        lambda node: node.conf("zz", '[engine.runtimes]\ngpu-hook = ["/usr/sbin/runc"]'),
        "its runtime gpu-hook is /usr/sbin/runc by /etc/containers/containers.conf.d/zz.conf",
        "rm",
    ),
    (Podman, "lines gone"): (
        lambda node: node.sh("rm /etc/containers/containers.conf.d/*.conf"),
        "is missing",
        "false",
    ),
    (Podman, "hooks elsewhere"): (
        lambda node: node.conf("zz", 'hooks_dir = ["/etc/zz"]'),
        "/etc/zz/gpu-hook-createRuntime.json",
        "false",
    ),
    (Podman, "a hook is gone"): (
        lambda node: node.sh("rm /etc/containers/oci/hooks.d/gpu-hook-poststop.json"),
        "gpu-hook-poststop.json: is missing",
        "false",
    ),
}


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    system, kind = request.param
    node: Node = kind(SYSTEMS[system](), tmp_path_factory.mktemp(kind.engine))
    yield node
    node.stop()
    node.hideout.close()


# Each state on one system, in turn; with --long on all.
CASES = [
    pytest.param((system, kind), state, id=f"{system}-{kind.engine}-{state}")
    for n, (kind, state) in enumerate(STATES)
    for m, system in enumerate(SYSTEMS)
    if long() or m == n % len(SYSTEMS)
]


@pytest.mark.parametrize("node, state", CASES, indirect=["node"])
def test_in_each_odd_state(node: Node, state: str) -> None:
    come, words, editor = STATES[type(node), state]
    try:
        node.files()
        node.install()
        node.start()
        assert node.doctor() == [] and node.has()[0] == PROGRAM
        usual = node.has()[1]
        come(node)
        found = node.doctor()
        others = node.others()
        wanted = "gpu-hook" if "default" in state else usual
        assert bool(found) == (node.has() != (PROGRAM, wanted) or "hook" in state), found
        if not (state.startswith("shadowed") and getattr(node, "newer", False)):  # containerd 2 merges tables
            assert words in "; ".join(f["message"] for f in found), found
        node.follow(editor)
        assert node.has() == (PROGRAM, wanted)
        assert node.others() == others
    finally:
        node.clean()
