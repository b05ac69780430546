"""What the hot path loads, exactly: one more import costs every container start. (Times are scripts/bench's.)"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from oci_hook.core.decision import DecidedShare
from oci_hook.install import prefix as installs
from oci_hook.ledger import slot_files
from testbed.containers import Bundle
from testbed.installs import UUIDS, Install
from tests.decisions import decided, pod, write_keys

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
# Runs a start file as the launcher does, and prints the names of the loaded modules instead of becoming the runtime.
MODULES = """
import posix, sys
def end(*_):
    posix.write(1, " ".join(sys.modules).encode())
    posix._exit(0)
posix.execve = end  # before `os` takes it from there
sys.argv = sys.argv[1:]
try:
    exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"), {"__name__": "__main__"})
except SystemExit:
    pass
end()
"""
PYTHON = ["/usr/bin/python3", "-I", "-S", "-c", MODULES]
ASK = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "4096"}

# Modules of the standard library, less those that the interpreter loads for an empty program.
STANDARD = {
    "_blake2",
    "_collections_abc",
    "_json",
    "_operator",
    "_signal",
    "_stat",
    "_struct",
    "binascii",
    "errno",
    "fcntl",
    "gc",
    "genericpath",
    "os",
    "posixpath",
    "resource",
    "stat",
}
CLUSTER = {"config.cluster", "core.decided", "core.decision", "core.hmac_sha256"}  # more, where the setting is not off
OURS = {
    "",
    "apply",
    "apply.bundle_plan",
    "apply.to_spec",
    "core",
    "core.allocate",
    "core.boundary",
    "core.gpu_page",
    "core.collect",
    "core.device_rules",
    "core.dialects",
    "core.dialects.native",
    "core.dialects.t9k",
    "core.grant",
    "core.inventory",
    "core.validate",
    "core.layout",
    "core.policy_page",
    "core.plan",
    "core.request",
    "core.rules",
    "core.terms",
    "core.units",
    "core.value",
    "core.value_parsers",
    "errors",
    "giving",
    "linux",
    "linux.elf",
    "linux.label",
    "linux.limits",
    "linux.walk",
    "config",
    "ledger",
    "ledger.admit",
    "ledger.gpu_owner",
    "ledger.deliver",
    "ledger.events",
    "ledger.exec_env",
    "ledger.grant_file",
    "apply.image",
    "apply.image_search",
    "apply.image_tree",
    "apply.image_copies",
    "ledger.inventory",
    "linux.cgroup_tree",
    "linux.proc",
    "ledger.proof",
    "ledger.life",
    "linux.lock",
    "config.flat_yaml",
    "config.keys",
    "config.settings",
    "ledger.slot_files",
    "apply.sources",
    "ledger.store",
    "ledger.messages",
    "oci",
    "oci.annotations",
    "oci.request_mounts",
    "oci.bundle",
    "oci.fastjson",
    "oci.log",
    "oci.nvidia_hooks",
    "oci.spec",
    "program",
    "runtime",
}
NEVER = {"argparse", "collections", "ctypes", "dataclasses", "enum", "importlib", "json", "logging", "pathlib", "re"}
NEVER |= {"shutil", "socket", "subprocess", "tempfile", "traceback", "typing", "yaml", "click"}


def imported(*args: str, says: str = "") -> set[str]:
    r = subprocess.run([*PYTHON, *args], capture_output=True, text=True, check=True)
    assert says in r.stderr and bool(says) == bool(r.stderr), r.stderr
    return set(r.stdout.split()) - {"os.path"}  # another name of posixpath


@pytest.fixture
def install(prefix: Install) -> Install:
    prefix.set(runtime="/bin/true")
    for uuid in UUIDS:
        slot_files.ready(str(prefix.state), uuid)  # a mount of the first container on a GPU
    return prefix


def loaded(install: Install, *args: str, says: str = "") -> set[str]:
    start = install.prefix / "lib/gpu-hook/runtime.py"
    return imported(str(start), *args, says=says) - imported("/dev/null")


def test_a_container_with_a_share(install: Install, bundle: Bundle) -> None:
    found = loaded(install, "create", "--bundle", str(bundle(ASK)), "x")
    ours = {m.removeprefix("oci_hook").removeprefix(".") for m in found if m.split(".")[0] == "oci_hook"}
    assert ours == OURS
    assert {m for m in found if not m.startswith("oci_hook")} <= STANDARD
    assert not found & NEVER


def test_a_container_of_a_cluster(install: Install, bundle: Bundle) -> None:
    """Nothing of it is loaded where the setting is off; the interpreter's own SHA-256 is part of it or a module."""
    install.set(cluster="required")
    write_keys(install.prefix)
    alloc = decided({"a": [DecidedShare(UUIDS[0], 4096)]})
    found = loaded(install, "create", "--bundle", str(bundle(pod(alloc, {"gpu-hook.io/memory.a": "4Gi"}))), "x")
    ours = {m.removeprefix("oci_hook").removeprefix(".") for m in found if m.split(".")[0] == "oci_hook"}
    assert ours - OURS == CLUSTER
    assert {m for m in found if not m.startswith("oci_hook")} <= {*STANDARD, "_sha256", "_sha2"}
    assert not found & NEVER


def test_a_container_that_is_refused_or_asks_for_nothing(install: Install, bundle: Bundle) -> None:
    nothing = loaded(install, "create", "--bundle", str(bundle({"x": "gpu-hook.io/"})), "x")
    assert nothing <= {f"oci_hook.{m}".rstrip(".") for m in OURS} | STANDARD
    refused = loaded(install, "create", "-b", str(bundle({"gpu-hook.io/memory": "x"})), "x", says="GH-101")
    assert "oci_hook.runtime" in refused and not refused & NEVER


def test_the_pack_is_used_and_does_without(install: Install, bundle: Bundle) -> None:
    """With the pack no source is opened; without it the same modules come from the files beside it."""
    lib = install.prefix / "lib/gpu-hook"
    (pack,) = lib.glob("*.pack")
    sources = lib / "oci_hook"
    sources.rename(lib / "away")
    (lib / "load.py").rename(lib / "away.py")  # it is longer than the start file, and takes a millisecond to compile
    with_pack = loaded(install, "create", "--bundle", str(bundle(ASK)), "x")
    (lib / "away").rename(sources)
    (lib / "away.py").rename(lib / "load.py")
    pack.rename(lib / "cpython-00.pack")
    with_pack |= {"oci_hook.ledger.holders"}  # loaded to see whether the container before it still lives
    assert with_pack == loaded(install, "create", "--bundle", str(bundle(ASK)), "y")
    (lib / "cpython-00.pack").rename(pack)
    pack.write_bytes(b"\0\0\0\0" + pack.read_bytes()[4:])  # of another Python
    assert with_pack == loaded(install, "create", "--bundle", str(bundle(ASK)), "z")


def test_a_damaged_install_is_one_line(install: Install, bundle: Bundle, tmp_path: Path) -> None:
    lib = install.prefix / "lib/gpu-hook"
    (pack,) = lib.glob("*.pack")
    data = pack.read_bytes()
    pack.write_bytes(data[: len(data) // 2])
    b, log = bundle(ASK), tmp_path / "log"
    flags = ["--log", str(log), "--log-format=json", "create", "-b", str(b), "x"]
    before = (b / "config.json").read_text()
    r = subprocess.run([install.program, *flags], capture_output=True, text=True)
    assert r.returncode == 1 and r.stderr.count("\n") == 1 and "GH-504" in r.stderr
    assert json.loads(log.read_text())["msg"].startswith("GH-504: ")
    assert (b / "config.json").read_text() == before
    for damage in (b"\xe3" * 99, data[:16] + b"\xff" * 999, data[:16] + data[-999:]):
        pack.write_bytes(damage)
        r = subprocess.run([install.program, *flags], capture_output=True, text=True)
        assert r.returncode in (0, 1) and ("GH-504" in r.stderr or damage[:1] == b"\xe3")  # of no Python: not used
    pack.unlink()
    pack.mkdir()
    r = subprocess.run([install.program, *flags], capture_output=True, text=True)
    assert r.returncode == 1 and r.stderr.count("\n") == 1 and "GH-504" in r.stderr
    log.unlink()
    os.mkfifo(log)  # that nobody reads
    r = subprocess.run([install.program, *flags], capture_output=True, text=True, timeout=30)
    assert r.returncode == 1 and "GH-504" in r.stderr
    pack.rmdir()
    (lib / "oci_hook/core/plan.py").unlink()
    r = subprocess.run([install.program, "create", "-b", str(b), "x"], capture_output=True, text=True)
    assert r.returncode == 1 and r.stderr.count("\n") == 1 and "GH-504" in r.stderr


def test_closed_standard_files(install: Install, bundle: Bundle) -> None:
    """With standard files closed, no message is written into a file that got their descriptor."""
    b = bundle({"gpu-hook.io/memory": "x"})
    before = (b / "config.json").read_bytes()
    for closed in ("<&-", ">&- 2>&-", "<&- >&- 2>&-"):
        command = f"exec {install.program} create -b {b} x {closed}"
        assert subprocess.run(["sh", "-c", command], stderr=subprocess.DEVNULL).returncode == 1
    assert (b / "config.json").read_bytes() == before
    files = [p for p in install.state.rglob("*") if p.is_file() and p.name != "events"]
    assert not [p for p in files if b"GH-101" in p.read_bytes()]


def test_the_launcher_alone_handles_the_rest(install: Install, bundle: Bundle) -> None:
    """A container that asks for nothing starts no Python, which would fail here."""
    file = install.prefix / "etc/settings.yaml"
    text = file.read_text().replace("python: auto", "python: /bin/false")
    assert "/bin/false" in text
    file.write_text(text)
    plain = bundle(edit=lambda s: s["process"].update(args=["sh", "-c", "a && b > c"]))
    for args in (["state", "x"], ["create", "-b", str(plain), "x"], ["delete", "x"], ["--version"]):
        assert subprocess.run([install.program, *args]).returncode == 0
    assert subprocess.run([install.program, "create", "-b", str(bundle(ASK)), "x"]).returncode == 1


def pythons() -> list[str]:
    """Other supported interpreters of this machine, the system's and pyenv's, one per minor version."""
    found = [shutil.which(f"python3.{minor}", path="/usr/local/bin:/usr/bin") for minor in range(10, 15)]
    found += sorted(map(str, Path.home().glob(".pyenv/versions/3.1?.*/bin/python3")))
    return list({Path(p).resolve().name: p for p in found if p}.values())


@pytest.mark.parametrize("python", pythons())
def test_every_supported_python(install: Install, bundle: Bundle, python: str) -> None:
    """An install made for this Python has a pack for it; one made for another runs from the sources."""
    docs = []
    for laid in (True, False):
        if laid:
            install.set(python=python)
            installs.lay(str(install.prefix))
        else:
            for pack in (install.prefix / "lib/gpu-hook").glob("*.pack"):
                pack.unlink()
        b = bundle(ASK)
        r = subprocess.run([install.program, "create", "-b", b, "x"], capture_output=True, text=True)
        assert r.returncode == 0 and r.stderr == ""
        docs.append(json.loads((b / "config.json").read_text()))
        assert len(docs[-1]["mounts"]) > 15
        r = subprocess.run(
            [install.program, "create", "-b", bundle({"gpu-hook.io/memory": "x"}), "y"], capture_output=True
        )
        assert r.returncode == 1 and b"GH-101" in r.stderr
        (b / "config.json").write_text("{gpu-hook.io/")
        r = subprocess.run([install.program, "create", "-b", b, "z"], capture_output=True)
        assert r.returncode == 1 and b"GH-401" in r.stderr and r.stderr.count(b"\n") == 1
    assert docs[0] == docs[1]


def test_a_newer_python_without_its_json_core(install: Install, bundle: Bundle, tmp_path: Path) -> None:
    """Without `_json`, which is no API of CPython's, the fallback gives the same document."""
    hide = "import sys; sys.modules['_json'] = None; sys.argv[0] = sys.argv[1]; del sys.argv[1]; "
    hide += "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'), {'__name__': '__main__'})"
    docs = []
    for flags in ([], ["-c", hide]):
        b = bundle(ASK)
        start = str(install.prefix / "lib/gpu-hook/runtime.py")
        command = ["/usr/bin/python3", "-I", "-S", *flags, start, "create", "-b", str(b), "x"]
        subprocess.run(command, check=True)
        docs.append(json.loads((b / "config.json").read_text()))
    assert docs[0] == docs[1]
