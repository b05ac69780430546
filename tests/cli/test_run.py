"""`gpu-hook run`: the command line that it makes for each engine. (Real engines: tests/engines/test_run_line.py.)"""

import json
import os
from pathlib import Path

import pytest

from oci_hook.cli import run
from oci_hook.engines import run_line
from oci_hook.errors import SettingsError
from tests.cli.box import Install

ANSWERS = """#!/bin/sh
case "$*" in
  --version) echo "{version}" ;;
  version*) {daemon} ;;
  info*) echo '{runtimes}' ;;
  *) exit 125 ;;
esac
"""


class Machine:
    """A PATH with just these engines. The programs answer as the real ones do, and run nothing."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "engines"
        self.bin.mkdir()

    def program(self, name: str, text: str = "#!/bin/sh\nexit 125\n") -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def docker(
        self,
        client: str = "28.2.2",
        server: str = "26.1.5",
        runtimes: str = '{"gpu-hook":{},"runc":{}}',
        up: bool = True,
    ) -> None:
        daemon = f"echo {client} {server}" if up else "echo Cannot connect to the Docker daemon >&2; exit 1"
        text = ANSWERS.format(version=f"Docker version {client}, build x", daemon=daemon, runtimes=runtimes)
        self.program("docker", text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{found.bin}")
    return found


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--rm", "--annotation", "gpu-hook.io/memory=2Gi", "I"), "gpu-hook.io/memory is asked for twice"),
        (("-it", "--rm", "--annotation=gpu-hook.io/memory=2Gi", "I"), "gpu-hook.io/memory is asked for twice"),
        (("--runtime=runc", "I"), "--runtime runc would start"),
        (
            ("-itv", "/a:/b", "-e", "A=1", "-p8:8", "--name", "x", "--runtime", "nvidia", "I"),
            "--runtime nvidia would start",
        ),
        (("--runtime=gpu-hook", "I"), ""),
        (("--annotation", "a=b", "--annotation", "gpu-hook.io/compute=2", "I"), ""),
        (("--rm", "I", "tool", "--runtime=runc", "--annotation", "gpu-hook.io/memory=2Gi"), ""),
        (("-itv", "--runtime=runc", "I"), ""),
        (("--rm", "--", "--runtime=runc"), ""),
    ],
)
def test_options_of_the_engine_that_undo_ours(
    install: Install, machine: Machine, words: tuple[str, ...], problem: str
) -> None:
    """The engine takes the last of two values, and no other runtime gives a share."""
    machine.docker()
    said = install.text_last("run", "--dry-run", "-m", "4Gi", *words, status=1 if problem else 0)
    assert said.startswith(f"GH-505: {problem}" if problem else "docker run ")


@pytest.mark.parametrize(
    "words", (("-m", "4Gi", "-a", "gpu-hook.io/memory=2Gi"), ("--exclusive", "-a", "gpu-hook.io/exclusive=0"))
)
def test_an_annotation_that_has_an_option(install: Install, machine: Machine, words: tuple[str, ...]) -> None:
    machine.docker()
    assert "is asked for twice: by its own option and by --annotation" in install.text_last(
        "run", "--dry-run", *words, "I", status=2
    )


def test_docker_says_its_version_before_it_fails(install: Install, machine: Machine) -> None:
    machine.docker(up=False)
    text = (machine.bin / "docker").read_text()
    machine.program("docker", text.replace("echo Cannot", "echo '28.2.2 '; echo Cannot"))
    said = install.text_last("run", "--dry-run", "--engine", "docker", "-m", "4Gi", "I", status=1)
    assert said == "GH-505: docker does not answer: Cannot connect to the Docker daemon\n"


def test_docker_warns_beside_its_answer(install: Install, machine: Machine) -> None:
    """As it does where HOME is another user's."""
    machine.docker()
    text = (machine.bin / "docker").read_text()
    machine.program("docker", text.replace("case", "echo WARNING: a file cannot be read >&2\ncase", 1))
    assert install.text_last("run", "--dry-run", "-m", "4Gi", "IMAGE").startswith("docker run ")


def test_docker(install: Install, machine: Machine) -> None:
    machine.docker()
    said = install.text_last(
        "run", "--dry-run", "-m", "4Gi", "-c", "30", "-it", "--rm", "-m", "2g", "IMAGE", "sh", "-c", "echo $A"
    )
    assert said == (
        "docker run --runtime=gpu-hook --annotation gpu-hook.io/memory=4Gi --annotation gpu-hook.io/compute=30"
        " -it --rm -m 2g IMAGE sh -c 'echo $A'\n"
    )


@pytest.mark.parametrize(
    ("words", "noted"),
    [(("--rm", "-m", "4g"), True), (("-it", "--memory=4g"), True), (("--rm",), False), (("--name", "-m"), False)],
)
def test_memory_of_the_host(install: Install, machine: Machine, words: tuple[str, ...], noted: bool) -> None:
    """-m behind docker's first option is docker's own, which is not what most people mean by it here."""
    machine.docker()
    said = install.text_last("run", "--dry-run", "-c", "30", *words, "I", "sh", "-m")
    assert ("is memory of the host" in said) == noted
    assert "is memory of the host" not in install.text_last("run", "--dry-run", "-m", "4Gi", *words, "I")


@pytest.mark.parametrize(
    ("client", "server"), [("20.10.24+dfsg1", "20.10.24"), ("28.2.2", "20.10.24"), ("23.0.6", "26.1.5")]
)
def test_a_docker_without_annotations(install: Install, machine: Machine, client: str, server: str) -> None:
    """The older one of client and daemon decides."""
    machine.docker(client, server)
    asked = ("--memory=4Gi", "-c30", "--devices", "0,1", "--class", "online")
    assert install.text_last("run", "--dry-run", *asked, "IMAGE") == (
        "docker run --runtime=gpu-hook -v /dev/null:/run/gpu-hook/request/memory=4Gi -v /dev/null:/run/gpu-hook/request/compute=30"
        " -v /dev/null:/run/gpu-hook/request/devices=0,1 -v /dev/null:/run/gpu-hook/request/class=online IMAGE\n"
    )
    said = install.text_last("run", "--dry-run", "--devices", "0:0,0:1", "IMAGE")
    assert said == (
        "docker run --runtime=gpu-hook --mount 'type=bind,source=/dev/null,\"target=/run/gpu-hook/request/devices=0:0,0:1\"' IMAGE\n"
    )
    said = install.text_last("run", "--dry-run", "-a", "NVIDIA_VISIBLE_DEVICES=0", "IMAGE", status=1)
    assert (
        said
        == f"GH-505: docker {server} passes no annotations, and NVIDIA_VISIBLE_DEVICES has no form as a mount; use docker 24\n"
    )


def test_podman(install: Install, machine: Machine) -> None:
    machine.program("podman")
    line = "podman --runtime gpu-hook run --annotation gpu-hook.io/exclusive=true --name x IMAGE\n"
    assert install.text_last("run", "--dry-run", "--exclusive", "--name", "x", "IMAGE") == line
    machine.docker()
    assert install.text_last("run", "--dry-run", "--engine", "podman", "--exclusive", "--name", "x", "IMAGE") == line
    machine.docker(up=False)  # then podman, if there is no word which engine
    said = install.text_last("run", "--dry-run", "--exclusive", "--name", "x", "IMAGE")
    why = "note: podman is taken: docker does not answer: Cannot connect to the Docker daemon; --engine names one\n"
    assert said == why + line
    assert install.text_last("run", "--dry-run", "--engine", "podman", "--exclusive", "--name", "x", "IMAGE") == line
    machine.program("docker", "#!/bin/sh\necho podman version 4.3.1\n")  # the package podman-docker
    said = install.text_last("run", "--dry-run", "--exclusive", "--name", "x", "IMAGE")
    assert said == line.replace("podman", "docker", 1)


def test_a_docker_that_this_user_may_not_use(install: Install, machine: Machine) -> None:
    machine.docker(up=False)
    text = (machine.bin / "docker").read_text()
    said = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
    machine.program("docker", text.replace("Cannot connect to the Docker daemon", said))
    why = "this user may not use docker's socket; use sudo, or have root add this user to the group docker"
    machine.program("podman")  # rootless for such a user, so it could give no share
    assert install.text_last("run", "--dry-run", "-m", "1Gi", "IMAGE", status=1) == f"GH-505: {why}\n"


@pytest.mark.parametrize("key", ("memory", "memory-request", "class"))
@pytest.mark.parametrize("command", ("run", "why"))
def test_an_annotation_without_our_prefix(install: Install, machine: Machine, command: str, key: str) -> None:
    machine.docker("20.10.24", "20.10.24")
    more = ("-m", "4Gi", "IMAGE") if command == "run" else ()
    said = install.text_last(command, "-a", f"{key}=2Gi", *more, status=1)
    assert said == f"GH-108: '{key}' is no key of gpu-hook without the prefix gpu-hook.io/; add it\n"


def test_memory_that_is_lent(install: Install, machine: Machine) -> None:
    machine.docker()
    said = install.text_last("run", "--dry-run", "-m", "4Gi", "--memory-request", "2Gi", "IMAGE")
    assert "--annotation gpu-hook.io/memory=4Gi --annotation gpu-hook.io/memory-request=2Gi" in said
    assert said.startswith("warning: GH-103: memory-request says ") and "driver 1.2 cannot move memory" in said
    (install.state / "inventory.json").unlink()
    assert "warning" not in install.text_last("run", "--dry-run", "-m", "4Gi", "--memory-request", "2Gi", "IMAGE")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("IMAGE",), "say what the container may have of a GPU, before the engine's options"),
        (("--mem=4Gi", "IMAGE"), "'--mem' is no option of gpu-hook; did you mean --memory?"),
        (("--rm", "--mem=4Gi", "IMAGE"), "say what the container may have of a GPU, before the engine's options"),
        (("-m", "0.5", "IMAGE"), "did you mean 512Mi or 50%?"),
        (("-it", "-m", "4Gi", "IMAGE"), "say what the container may have of a GPU, before the engine's options"),
        ((), "say what the container may have"),
        (("-m", "4Gi"), "name the IMAGE"),
        (("-m", "4G", "IMAGE"), "GH-101: gpu-hook.io/memory='4G' is not a size"),
        (("-m", "", "IMAGE"), "GH-101: "),
        (("-c", "0", "IMAGE"), "GH-101: "),
        (("-m", "1Gi", "--exclusive", "IMAGE"), "GH-103: "),
        (("-a", "x", "IMAGE"), "x"),
        (("-m",), "requires an argument"),
        (("--json", "-m", "1Gi", "IMAGE"), "--json goes with --dry-run"),
        (("-m", "1Gi", "--engine", "podman", "IMAGE"), "GH-505: podman is not on this machine"),
    ],
)
def test_what_is_wrong(install: Install, machine: Machine, args: tuple[str, ...], says: str) -> None:
    machine.docker()
    result = install.run_last("run", *args)
    assert result.exit_code in (1, 2) and says in result.output, result.output


def test_no_engine(install: Install, machine: Machine) -> None:
    assert "GH-505: neither docker nor podman is on this machine" in install.text_last(
        "run", "-m", "1Gi", "IMAGE", status=1
    )
    machine.docker(up=False)
    said = install.text_last("run", "-m", "1Gi", "IMAGE", status=1)
    assert "GH-505: docker does not answer: Cannot connect to the Docker daemon" in said
    for runtimes in ("{}", '{"runc":{}}', "junk", "", "null", "3"):
        machine.docker(runtimes=runtimes)
        said = install.text_last("run", "-m", "1Gi", "IMAGE", status=1)
        assert (
            said == "GH-510: docker does not know the runtime gpu-hook; `gpu-hook install --engine docker --restart`\n"
        )


def test_json_and_a_separator(install: Install, machine: Machine) -> None:
    machine.program("podman")
    said = json.loads(install.text_last("run", "--dry-run", "--json", "-m", "1Gi", "--", "IMAGE", "--", "-m"))
    command = ["podman", "--runtime", "gpu-hook", "run", "--annotation", "gpu-hook.io/memory=1Gi", "IMAGE", "--", "-m"]
    assert said == {"command": command}


def test_the_engine_takes_over(install: Install, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.program("podman")
    called: list[list[str]] = []

    def execvp(program: str, line: list[str]) -> None:
        called.append([program, *line])

    monkeypatch.setattr(os, "execvp", execvp)
    assert install.text_last("run", "-m", "1Gi", "IMAGE") == ""
    assert called == [
        ["podman", "podman", "--runtime", "gpu-hook", "run", "--annotation", "gpu-hook.io/memory=1Gi", "IMAGE"]
    ]


@pytest.mark.parametrize(
    ("version", "major"), [("24.0.7", 24), ("20.10.24+dfsg1", 20), ("", 0), ("master-dev", 0), ("v24", 0)]
)
def test_versions(version: str, major: int) -> None:
    assert run_line._major(version) == major


def test_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_line, "SECONDS", 0.1)
    assert run_line.ask(("sleep", "60"))[0] == 1
    assert run_line.ask(("/no/such/program",))[0] == 1
    with pytest.raises(SettingsError, match="GH-505: docker does not answer: late"):
        run_line.choose(
            "docker",
            lambda command: (0, "Docker version") if "--version" in command else (1, "late"),
            lambda name: name,
        )


def test_every_option_is_an_annotation() -> None:
    """None is forgotten by the words that it becomes."""
    from oci_hook.core.dialects import native

    names = {p.name.rstrip("_").replace("_", "-") for p in run.run.params if p.name}
    other = {"prefix", "annotation", "engine", "dry-run", "as-json", "words"}
    assert names - other <= set(native.KEYS)
