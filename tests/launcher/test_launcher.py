"""The native launcher: who is called with which words. Runtime and Python are recorders that write down their argv."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_hook.config.settings import Settings
from oci_hook.core import dialects
from oci_hook.core.layout import PREFIX_KEY, PRIVATE, VISIBLE_DIR
from oci_hook.oci import request_mounts
from oci_hook.oci.bundle import STARTS, read_call
from testbed import REPO
from testbed.long import draws

ASKS = '{"annotations": {"gpu-hook.io/memory": "1Gi"}}'
SANDBOX = '{"annotations": {"gpu-hook.io/memory": "1Gi", "io.kubernetes.cri.container-type":"sandbox"}}'

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="settings.yaml must belong to root")


class Place:
    """A prefix with the real launcher and two recorders."""

    def __init__(self, root: Path, native: Path) -> None:
        self.root = root
        self.prefix = root / "p"
        (self.prefix / "bin").mkdir(parents=True)
        (self.prefix / "etc").mkdir()
        self.program = self.prefix / "bin/gpu-hook-runtime"
        shutil.copy(native / "gpu-hook-runtime", self.program)
        shutil.copy(native / "oci-gpu-hook", self.prefix / "bin/oci-gpu-hook")
        for name in ("runtime", "python"):
            script = root / name
            script.write_text(f'#!/bin/sh\nprintf "%s\\0" {name} "$0" "$@" > {root}/said\nexit 7\n')
            script.chmod(0o755)
        (self.prefix / "lib/gpu-hook").mkdir(parents=True)
        for start in ("runtime.py", "hook.py"):
            shutil.copy(REPO / "oci_hook/launcher/start.py", self.prefix / "lib/gpu-hook" / start)
        shutil.copy(REPO / "oci_hook/launcher/load.py", self.prefix / "lib/gpu-hook")
        self.say()
        self.bundle = root / "b"
        self.bundle.mkdir()

    def say(self, text: str | None = None, mode: str = "standalone") -> None:
        if text is None:
            text = f"# comment\nruntime: {self.root}/runtime\npython: {self.root}/python  # of ours\nmode: {mode}\n"
        (self.prefix / "etc/settings.yaml").write_text(text)

    def spec(self, text: str | bytes) -> None:
        (self.bundle / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())

    def call(self, *args: str, **kw: object) -> tuple[list[str], "subprocess.CompletedProcess[str]"]:
        """(what the recorder was called with, result)"""
        said = self.root / "said"
        said.unlink(missing_ok=True)
        command = [str(kw.pop("program", self.program)), *args]
        r = subprocess.run(command, capture_output=True, text=True, cwd=self.bundle, **kw)  # type: ignore[call-overload]
        return (said.read_text().split("\0")[:-1] if said.exists() else []), r

    def goes_to(self, *args: str) -> str:
        """ "runtime" or "python", having checked that it got the right words."""
        said, r = self.call(*args)
        assert r.returncode == 7 and not r.stderr, r.stderr
        start = [f"{self.root}/runtime"]
        if said[0] == "python":
            start = [f"{self.root}/python", "-I", "-S", f"{self.prefix}/lib/gpu-hook/runtime.py"]
        assert said[1:] == [*start, *args]
        return said[0]


@pytest.fixture
def place(tmp_path: Path, native: Path) -> Place:
    return Place(tmp_path, native)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--version"],
        ["-v", "create"],
        ["--help", "create"],
        ["features"],
        ["state", "x"],
        ["--root", "create", "state", "x"],
        ["--root=/x", "--log", "/l", "--log-format", "json", "--systemd-cgroup", "delete", "--force", "x"],
        ["-root", "/x", "exec", "--bundle", ".", "create"],
        ["--debug", "kill", "create", "TERM"],
        ["", "create"],
        ["-", "create"],
        ["--", "create"],
        ["--cgroup-manager", "cgroupfs", "start", "a\nb", "*"],
        ["create", "--help"],
        ["run", "-b", "/x", "-h", "x"],
    ],
)
def test_what_is_no_create_goes_to_the_runtime_untouched(place: Place, args: list[str]) -> None:
    place.spec(ASKS)
    if args[:1] in (["-"], ["--"]):  # in doubt, Python; which passes it on
        assert place.goes_to(*args) == "python"
    else:
        assert place.goes_to(*args) == "runtime"


@pytest.mark.parametrize(
    "args",
    [
        ["create", "x"],
        ["run", "x"],
        ["create", "--bundle", "{b}", "x"],
        ["create", "--bundle={b}", "x"],
        ["create", "-bundle", "{b}", "x"],
        ["create", "-b", "{b}", "x"],
        ["create", "-b={b}", "x"],
        ["run", "-db{b}", "x"],
        ["--debug=false", "create", "--no-pivot=true", "--pidfd-socket", "x", "-b", "{b}", "x"],
        ["create", "x", "--bundle", "{b}"],
        ["create", "--bundle=", "x"],
        ["--log-level", "debug", "create", "x"],
        [
            "--root",
            "/r",
            "--log=/l",
            "create",
            "--no-pivot",
            "--pid-file",
            "/p",
            "--console-socket=/c",
            "-b",
            "{b}",
            "x",
        ],
        ["--rootless=auto", "run", "--detach", "--preserve-fds", "3", "--keep", "-b", "{b}", "x"],
    ],
)
def test_create_is_looked_at(place: Place, args: list[str]) -> None:
    args = [a.replace("{b}", str(place.bundle)) for a in args]
    place.spec(ASKS)
    assert place.goes_to(*args) == "python"
    place.spec('{"annotations": {}}')
    assert place.goes_to(*args) == "runtime"


@pytest.mark.parametrize(
    "args",
    [
        ["--unknown", "create", "x"],
        ["--unknown=1", "create", "x"],
        ["--help=false", "create", "x"],
        ["run", "-dh", "x"],
        ["--root"],
        ["create", "--unknown", "x"],
        ["create", "--config", "other.json", "x"],
        ["create", "-fother.json", "x"],
        ["create", "--", "x"],
        ["create", "--bundle", "/a", "--bundle", "/b", "x"],
        ["create", "--bundle"],
    ],
)
def test_doubt_goes_to_python(place: Place, args: list[str]) -> None:
    place.spec("{}")
    assert place.goes_to(*args) == "python"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("{}", "runtime"),
        ("", "runtime"),
        ("{ broken", "runtime"),
        ("{ broken gpu-hook.io/memory", "python"),
        ('{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}', "python"),
        ('{"annotations": {"T9K_GPU_PERCENT": "30"}}', "python"),
        ('{"annotations": {"tensorstack.dev/nvidia-gpu": "1"}}', "python"),
        ('{"mounts": [{"destination": "/run/gpu-hook/request/memory=4Gi"}]}', "python"),
        ('{"args": ["a \\u0026\\u0026 b \\u003c \\n \\" \\\\ \\u001b"]}', "runtime"),
        ('{"annotations": {"gpu-hook.io\\/memory": "1Gi"}}', "python"),
        ('{"annotations": {"g\\u0070u-hook.io/memory": "1Gi"}}', "python"),
        ('{"annotations": {"NVIDIA\\u005fVISIBLE_DEVICES": "1Gi"}}', "python"),
        ('{"annotations": {"x": "\\', "runtime"),
        ('{"annotations": {"x": "\\u00', "runtime"),
        ('{"annotations": {"gpuhook.io/memory": "1Gi"}}', "python"),
        ('{"annotations": {"nvidia.com/gpu.shared" : "1"}}', "python"),
        ('{"annotations": {"T9K_GPU":"1"}}', "python"),
        ('{"annotations": {"x": "gpu", "a\\"gpu\\"b":"1"}}', "python"),
        ('{"annotations": {"x": "gpu"}}', "runtime"),
        ('{"args": ["--gpu", "--gpu=1", "a gpu\\": x"], "env": ["MY_GPU=1", "X=gpu"]}', "runtime"),
        ('{"mounts": [{"destination": "/data/gpu", "source": "/gpu"}]}', "runtime"),
        ('{"mounts": [{"destination": "/run/gpuhook/request/memory=4Gi"}]}', "python"),
        ('{"annotations": {"gpu', "runtime"),
        ('{"annotations": {"gpu\\', "runtime"),
        ('{"annotations": {"gpu"', "runtime"),
        (SANDBOX, "runtime"),
        (SANDBOX.replace('":"', '" \t\r\n: "'), "runtime"),
        (SANDBOX.replace("cri.container-type", "cri-o.ContainerType"), "runtime"),
        (SANDBOX.replace("sandbox", "sandboxx"), "python"),
        (SANDBOX.replace("sandbox", "container"), "python"),
        (SANDBOX.replace("container-type", "container-type-x"), "python"),
    ],
)
def test_standalone(place: Place, spec: str, wanted: str) -> None:
    place.spec(spec)
    assert place.goes_to("create", "x") == wanted


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/run//gpu-hook/request/memory=1Gi", "python"),
        ("/run/gpu-hook//request/memory=1Gi", "python"),
        ("//run///gpu-hook/./request//memory=1Gi", "python"),
        ("/run/./gpu-hook/request/memory=1Gi", "python"),
        ("/run/././/./gpu-hook/request/memory=1Gi", "python"),
        ("/run/x/../gpu-hook/request/memory=1Gi", "python"),
        ("/run/x/..//./gpu-hook/request/memory=1Gi", "python"),
        ("/x/../run/gpu-hook/request/memory=1Gi", "python"),
        ("run/gpu-hook/request/memory=1Gi", "python"),
        ("./run/gpu-hook/request/memory=1Gi", "python"),
        ("/var/run/gpu-hook/request/memory=1Gi", "python"),
        ("/opt/gpu-hook/../../run/gpu-hook/request/memory=1Gi", "python"),
        ("/var/run//nvidia-container-devices/0", "python"),
        ("/var/run/./nvidia-container-devices//0", "python"),
        ("/opt/gpu-hook/bin/oci-gpu-hook", "runtime"),
        ("/.gpu-hook/x", "runtime"),
        ("/gpu-hook", "runtime"),
    ],
)
def test_a_request_by_mount_however_it_is_written(place: Place, path: str, wanted: str) -> None:
    """What Python reads as a request is not passed over, for its slashes."""
    spec = {"mounts": [{"destination": path, "source": "/dev/null"}]}
    place.spec(json.dumps(spec))
    assert place.goes_to("create", "x") == wanted
    assert (wanted == "python") == bool(request_mounts.mounts(spec))


ways = st.lists(st.sampled_from(["/", "run", ".", "..", "x", "gpu-hook", "request", "var", "memory=1"]), max_size=14)


@settings(max_examples=draws(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ways)
def test_launcher_and_python_read_the_same_mounts(place: Place, words: list[str]) -> None:
    spec = {"mounts": [{"destination": "/".join(words), "source": "/dev/null"}]}
    place.spec(json.dumps(spec))
    if place.goes_to("create", "x") == "runtime":
        assert request_mounts.mounts(spec) == []


@pytest.mark.parametrize(
    "label, wanted", [("gpu-hook.io/memory", "python"), ("gpuhook/x", "python"), ("gpus", "runtime")]
)
def test_a_label_of_docker(place: Place, tmp_path: Path, label: str, wanted: str) -> None:
    id = "c" * 64
    folder = tmp_path / "docker/containers" / id
    folder.mkdir(parents=True)
    (folder / "config.v2.json").write_text(json.dumps({"Config": {"Env": ["X=gpu-hook"], "Labels": {label: "4Gi"}}}))
    place.bundle = tmp_path / "io.containerd.runtime.v2.task/moby" / id
    place.bundle.mkdir(parents=True)
    place.spec(json.dumps({"mounts": [{"destination": "/etc/hostname", "source": f"{folder}/hostname"}]}))
    assert place.goes_to("create", "--bundle", str(place.bundle), id) == wanted
    other = str(folder).replace("c" * 64, "d" * 64)  # the file of the container whose network it shares
    place.spec(json.dumps({"mounts": [{"destination": "/etc/hostname", "source": f"{other}/hostname"}]}))
    assert place.goes_to("create", "--bundle", str(place.bundle), id) == "runtime"
    (folder / "config.v2.json").unlink()
    place.spec(json.dumps({"mounts": [{"destination": "/etc/hostname", "source": f"{folder}/hostname"}]}))
    assert place.goes_to("create", "--bundle", str(place.bundle), id) == "runtime"


def test_the_trigger_may_be_anywhere(place: Place) -> None:
    for size in (0, 1, 4095, 4096, 1 << 20):
        place.spec(" " * size + "gpu-hook.io/")
        assert place.goes_to("create", "x") == "python"


def test_a_sandbox_inside_a_string_is_none(place: Place) -> None:
    env = json.dumps(
        {"env": ['X="io.kubernetes.cri.container-type":"sandbox"'], "annotations": {"T9K_GPU_PERCENT": "1"}}
    )
    place.spec(env)
    assert place.goes_to("create", "x") == "python"


@pytest.mark.parametrize("mode", ["on-top", "below"])
@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("{}", "runtime"),
        (SANDBOX, "runtime"),
        (SANDBOX.replace("gpu-hook.io/memory", "NVIDIA_VISIBLE_DEVICES"), "python"),
        (SANDBOX.replace("1Gi", "\\n"), "python"),
        ('{"x": "\\n"}', "python"),
        ('{"env": ["CUDA_VERSION=11"]}', "python"),
        ('{"env": ["DOCKER_RESOURCE_GPU=0"]}', "python"),
        ('{"linux": {"devices": [{"path": "/dev/nvidia0"}]}}', "python"),
        ('{"destination": "/usr/lib64/libcuda.so.550.1.1"}', "python"),
        ('{"path": "/usr/bin/nvidia-cdi-hook"}', "python"),
        ('{"destination": "/var/run/nvidia-container-devices/0"}', "python"),
    ],
)
def test_beside_the_nvidia_runtime_nothing_it_serves_is_skipped(
    place: Place, mode: str, spec: str, wanted: str
) -> None:
    place.say(mode=mode)
    place.spec(spec)
    assert place.goes_to("create", "x") == wanted


def test_config_json_that_is_odd(place: Place) -> None:
    config = place.bundle / "config.json"
    assert place.goes_to("create", "x") == "runtime"  # none: its own error
    config.mkdir()
    assert place.goes_to("create", "x") == "python"
    config.rmdir()
    os.mkfifo(config)
    assert place.goes_to("create", "x") == "python"
    config.unlink()
    place.spec(b" " * ((16 << 20) + 1))
    assert place.goes_to("create", "x") == "python"
    place.spec("{}")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the holder of a lease is told of who waits
    with config.open("r+b") as lease:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert place.goes_to("create", "x") == "python"
    signal.signal(signal.SIGIO, before)
    assert place.goes_to("create", "-b", "/" + "x" * 5000, "x") == "runtime"


def test_every_key_that_python_reads_is_a_trigger(place: Place) -> None:
    """Without one of the byte strings the launcher never asks Python, so the two lists must agree."""
    keys = [PREFIX_KEY + "memory", PRIVATE + "/request/memory=1Gi"]
    keys += [*dialects.table(dialects.NATIVE).ENV, VISIBLE_DIR + "/0"]
    for name in dialects.NAMES:
        keys += [*dialects.table(name).KEYS, *dialects.table(name).ENV]
    for key in keys:
        place.spec(json.dumps({"annotations": {key: "1"}}))
        assert place.goes_to("create", "x") == "python", key


def test_environment_and_argv0_change_nothing(place: Place) -> None:
    place.spec(ASKS)
    env = {"PATH": "/nowhere", "PYTHONPATH": "/evil", "LD_PRELOAD": "/evil.so"}
    said, _ = place.call("create", "x", env=env)
    assert said[0] == "python"
    r = subprocess.run(["/nowhere/bin/x", "state", "y"], executable=str(place.program), env={}, capture_output=True)
    assert r.returncode == 7
    assert (place.root / "said").read_text().split("\0")[:-1] == ["runtime", f"{place.root}/runtime", "state", "y"]
    link = place.root / "link"
    link.symlink_to(place.program)
    said, _ = place.call("state", "x", program=link)
    assert said[0] == "runtime"


def test_the_hook_program(place: Place) -> None:
    said, r = place.call("prestart", program=place.prefix / "bin/oci-gpu-hook")
    assert r.returncode == 7
    assert said == ["python", f"{place.root}/python", "-I", "-S", f"{place.prefix}/lib/gpu-hook/hook.py", "prestart"]


def test_the_hook_keeps_nothing_of_its_environment(place: Place) -> None:
    """runc 1.1 gives a createContainer hook the environment of the container."""
    (place.root / "python").write_text(f"#!/bin/sh\ntr '\\0' '\\n' < /proc/$$/environ > {place.root}/said\n")
    env = {"LD_PRELOAD": "/evil.so", "PYTHONHOME": "/evil", "PATH": "/evil"}
    place.call("prestart", program=place.prefix / "bin/oci-gpu-hook", env=env)
    assert (place.root / "said").read_text().split() == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


def refused(place: Place, code: str, *args: str) -> str:
    said, r = place.call(*(args or ("state", "x")))
    assert r.returncode == 1 and said == []
    assert r.stderr.count("\n") == 1 and code in r.stderr and len(r.stderr) < 400, r.stderr
    return r.stderr


def goes_to(place: Place, *args: str) -> str:
    """ "runtime", "python", or "default": the default Python, whose own message says that there is no install."""
    said, r = place.call(*args)
    if said:
        return said[0]
    assert r.returncode == 1 and r.stderr.count("\n") == 1 and "GH-504: " in r.stderr and str(place.prefix) in r.stderr
    return "default"


def test_settings_that_are_not_roots_own_are_not_believed(place: Place) -> None:
    """Not their runtime, nor their Python: the default one says what is wrong."""
    file = place.prefix / "etc/settings.yaml"
    for args in (["state", "x"], ["create", "x"]):
        assert goes_to(place, *args) == "runtime"
        for mode in (0o664, 0o646):
            file.chmod(mode)
            assert goes_to(place, *args) == "default"
        file.chmod(0o644)
        for owner in (1, 65534):  # the latter is how root's files look in some user namespaces, which this one is not
            os.chown(file, owner, 0)
            assert goes_to(place, *args) == "default"
        os.chown(file, 0, 0)
    text = file.read_text()
    (place.root / "elsewhere").write_text(text)
    makes = [lambda: None, file.mkdir, lambda: os.mkfifo(file), lambda: file.symlink_to(place.root / "elsewhere")]
    for make in makes:
        file.rmdir() if file.is_dir() else file.unlink(missing_ok=True)
        make()
        assert goes_to(place, "state", "x") == goes_to(place, "create", "x") == "default"


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("mode: other", True),
        ("mode: below\nmode: below", True),
        ("python: python3", True),
        ("rules:", True),
        ("  placement: spread", True),
        ("junk", True),
        ("# \0", True),
        ("a: 'b", True),
        ("runtime: /bin/true", False),  # it is there twice
        ("#" * 70000, False),  # none of the file is read
    ],
)
def test_settings_that_are_not_understood(place: Place, line: str, known: bool) -> None:
    """Nothing is started; what runs can be stopped and removed, if the real runtime is known."""
    place.say()
    text = (place.prefix / "etc/settings.yaml").read_text()
    if line.startswith(("mode", "python")):
        text = "".join(t for t in text.splitlines(keepends=True) if not t.startswith(line[:4]))
    place.say(f"{text}{line}\n")
    python = "default" if line.startswith(("python", "###")) else "python"
    for spec in (ASKS, "{}"):
        place.spec(spec)
        assert goes_to(place, "create", "x") == python
    assert goes_to(place, "delete", "x") == ("runtime" if known else python)


@pytest.mark.parametrize(
    "path", ["runc", "//bin/true", "/bin/../bin/true", "/bin/./true", "/bin/true/", "[a]", "/" + "x" * 1024]
)
def test_a_path_that_is_not_one(place: Place, path: str) -> None:
    place.say(f"python: {place.root}/python\nmode: standalone\nruntime: {path}\n")
    assert goes_to(place, "create", "x") == goes_to(place, "state", "x") == "python"


def test_settings_that_the_launcher_does_not_read_are_pythons_business(place: Place) -> None:
    place.say(f"colour: red\nruntime: '{place.root}/runtime'\nlinger: never\npython: \"{place.root}/python\"\n")
    assert goes_to(place, "create", "x") == "runtime"
    place.spec(ASKS)
    assert goes_to(place, "create", "x") == "python"


def test_what_settings_do_not_say_is_the_default(place: Place) -> None:
    place.say("# nothing\n")
    place.spec("{}")
    default = Settings("/").runtime
    _, r = place.call("--version")
    if os.path.exists(default):
        assert r.stdout == subprocess.run([default, "--version"], capture_output=True, text=True).stdout
    else:
        assert "GH-503" in r.stderr and default in r.stderr
    place.spec(ASKS)
    assert goes_to(place, "create", "x") == "default"


def test_the_words_that_ask_are_those_of_the_dialects(place: Place) -> None:
    program = (place.prefix / "bin/gpu-hook-runtime").read_bytes()
    assert all(word.encode() in program for word in dialects.triggers())


def test_runtime_missing_or_itself(place: Place) -> None:
    python = f"python: {place.root}/python\nmode: standalone\n"
    place.say(f"runtime: {place.root}/none\n{python}")
    refused(place, "GH-503")
    place.say(f"runtime: {place.root}\n{python}")
    refused(place, "GH-503")
    place.say(f"runtime: {place.program}\n{python}")
    assert "itself" in refused(place, "GH-503")
    link = place.root / "hard"
    os.link(place.program, link)
    place.say(f"runtime: {link}\n{python}")
    refused(place, "GH-503")


@pytest.mark.parametrize("name", ["runtime", "python"])
def test_programs_that_others_can_change_are_not_run(place: Place, name: str) -> None:
    place.spec(ASKS)
    args, code = (["state", "x"], "GH-503") if name == "runtime" else (["create", "x"], "GH-504")
    for mode in (0o775, 0o757):
        (place.root / name).chmod(mode)
        assert "nobody else can write" in refused(place, code, *args)
    (place.root / name).chmod(0o755)
    for owner in (1, 65534):
        os.chown(place.root / name, owner, 0)
        refused(place, code, *args)


def test_errors_go_to_the_log(place: Place) -> None:
    log = place.root / "log"
    odd = place.prefix.rename(place.root / 'r"\\\x01\u00ff')  # its name is in the message
    (odd / "lib/gpu-hook/runtime.py").unlink()
    place.spec(ASKS)

    def create(*flags: str) -> "subprocess.CompletedProcess[str]":
        return place.call(*flags, "create", "x", program=odd / "bin/gpu-hook-runtime", timeout=30)[1]

    r = create("--log", str(log), "--log-format", "json")
    assert r.returncode == 1 and r.stderr.startswith("GH-504: ")
    line = json.loads(log.read_text())
    assert line["level"] == "error" and line["msg"].startswith("GH-504: ") and line["time"].endswith("Z")
    assert 'r"\\???/lib' in line["msg"]
    log.unlink()
    create(f"--log={log}")
    assert log.read_text().startswith('time="') and 'level=error msg="GH-504: ' in log.read_text()
    log.unlink()
    os.mkfifo(log)
    r = create("--log", str(log))
    assert r.returncode == 1 and 'level=error msg="GH-504: ' in r.stderr
    log.unlink()
    r = create("--log", "/nowhere/log")
    assert r.returncode == 1 and 'level=error msg="GH-504: ' in r.stderr


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("file", ["start", "load.py"])
@pytest.mark.parametrize("program", ["gpu-hook-runtime", "oci-gpu-hook"])
def test_what_python_is_to_run_is_there_and_whole(place: Place, program: str, file: str, form: str) -> None:
    """An empty file would be a success, in which no container is made; a missing one an error in no log."""
    lib, log = place.prefix / "lib/gpu-hook", place.root / "log"
    called = "runtime.py" if program == "gpu-hook-runtime" else "hook.py"
    start = lib / (called if file == "start" else file)
    text = start.read_bytes()
    place.spec(ASKS)
    flags = ["--log", str(log), "--log-format", form]

    def told() -> None:
        log.unlink(missing_ok=True)
        args = ["prestart"] if called == "hook.py" else [*flags, "create", "x"]
        said, r = place.call(*args, program=place.prefix / "bin" / program)
        assert r.returncode == 1 and said == []
        assert r.stderr.count("\n") == 1 and "GH-504: " in r.stderr and len(r.stderr) < 400, r.stderr
        if called == "runtime.py":
            (line,) = log.read_text().splitlines()
            assert (json.loads(line)["msg"] if form == "json" else line.partition('msg="')[2]).startswith("GH-504: ")

    lines = text.splitlines(keepends=True)
    for size in (0, 1, 5, *(len(b"".join(lines[:n])) for n in range(0, len(lines), 7)), len(text) - 1):
        start.write_bytes(text[:size])
        told()
    start.write_bytes(text)
    for mode in (0o664, 0o646):
        start.chmod(mode)
        told()
    start.chmod(0o644)
    for owner in (1, 65534):
        os.chown(start, owner, 0)
        told()
    start.unlink()
    makes = [lambda: None, start.mkdir, lambda: os.mkfifo(start), lambda: start.symlink_to(place.root / "python")]
    for make in makes:
        make()
        told()
        if os.path.lexists(start):
            start.rmdir() if start.is_dir() else start.unlink()
    shutil.rmtree(lib)
    told()


def test_an_interpreter_that_is_missing(place: Place) -> None:
    """Told in the log, also where a word that is not understood comes before --log."""
    place.spec(ASKS)
    log = place.root / "log"
    (place.root / "python").unlink()
    for flags in (["--log", str(log)], ["--new-flag", f"--log={log}", "--log-format", "text"]):
        refused(place, "GH-504", *flags, "create", "x")
        assert 'msg="GH-504: python ' in log.read_text()
        log.unlink()


@pytest.mark.parametrize(
    "args",
    [
        ["restore", "x"],
        ["restore", "--bundle", "{b}", "--image-path", "/i", "--work-path=/w", "--detach", "x"],
        ["restore", "--tcp-established", "--ext-unix-sk", "--shell-job", "--file-locks", "-b", "{b}", "x"],
        ["--root", "/r", "restore", "--empty-ns", "network", "--manage-cgroups-mode", "soft", "--lazy-pages", "x"],
    ],
)
def test_restore_is_looked_at(place: Place, args: list[str]) -> None:
    args = [a.replace("{b}", str(place.bundle)) for a in args]
    place.spec(ASKS)
    assert place.goes_to(*args) == "python"
    place.spec("{}")
    assert place.goes_to(*args) == "runtime"


def test_outside_of_an_install(native: Path, tmp_path: Path) -> None:
    alone = tmp_path / "gpu-hook-runtime"
    shutil.copy(native / "gpu-hook-runtime", alone)
    r = subprocess.run([alone, "state", "x"], capture_output=True, text=True)
    assert r.returncode == 1 and "GH-504" in r.stderr


WORDS = [
    "create",
    "run",
    "restore",
    "--image-path",
    "--image-path=i",
    "--shell-job",
    "state",
    "x",
    "--",
    "-",
    "--root",
    "--root=create",
    "--log",
    "--debug",
    "--systemd-cgroup",
]
WORDS += [
    "--bundle",
    "-b",
    "-bELSE",
    "-dbASKS",
    "-bundle=ASKS",
    "--bundle=ELSE",
    "ASKS",
    "ELSE",
    "--no-pivot",
    "--pid-file",
    "--detach",
]
WORDS += ["--keep", "", "-d", "--unknown", "--unknown=v", "--config", "--config=c", "--debug=false"]


@settings(max_examples=draws(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_launcher_and_python_read_the_same_command_line(place: Place, words: list[str]) -> None:
    """What the launcher lets pass, Python (oci/bundle.py) would not take for a container that asks."""
    asks, other = place.root / "asks", place.root / "else"
    for folder, text in ((asks, ASKS), (other, "{}")):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(text)
    place.spec("{}")  # the current directory's
    args = [w.replace("ASKS", str(asks)).replace("ELSE", str(other)) for w in words]
    call = read_call(args)
    wanted = call.command in STARTS and call.bundle == str(asks)
    if place.goes_to(*args) == "runtime":
        assert not wanted
