"""The runtime wrapper with real runc: what a container gets, and that everything else is as if we were not there."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from oci_hook.core.inventory import GpuNode
from oci_hook.core.layout import MARKER, PAGES_DIR
from oci_hook.discovery.save import save_inventory
from oci_hook.ledger import store
from oci_hook.ledger.life import planned_cgroup
from testbed import REPO, tiny_image
from testbed.containers import Bundle, Runc, remove_cgroup
from testbed.installs import DRIVER, MEMORY_MIB, UUIDS, Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ASK = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "4096"}


def config(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    return found


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def sums(output: str) -> dict[str, str]:
    return {name: digest for digest, name in (line.split(None, 1) for line in output.splitlines() if "  " in line)}


def start(runc: Runc, install: Install, bundle: Path) -> str:
    """Create and start a container; its id."""
    r = runc.create(bundle, install)
    assert r.returncode == 0, r.stderr
    assert runc("start", runc.ids[-1]).returncode == 0
    return runc.ids[-1]


def refused(runc: Runc, install: Install, bundle: Path, *codes: str, flags: tuple[str, ...] = ()) -> str:
    """`create` fails with exactly these codes, one line each; nothing is granted and nothing changed."""
    file = bundle / "config.json"
    before = file.read_bytes() if file.is_file() else b""
    grants, files = install.grants(), sorted(os.listdir(bundle))
    r = runc.create(bundle, install, flags=flags)
    assert r.returncode == 1, r
    assert [line[line.index("GH-") :][:6] for line in r.stderr.splitlines()] == list(codes), r.stderr
    assert "Traceback" not in r.stderr
    assert (file.read_bytes() if file.is_file() else b"") == before
    assert install.grants() == grants and sorted(os.listdir(bundle)) == files
    assert not (runc.root / runc.ids[-1]).exists()
    consistent(install)
    return r.stderr


def consistent(install: Install) -> None:
    """After a sweep the ledger and its pages agree."""
    with store.open_ledger(str(install.state)) as ledger:
        held = sorted(g.key for g in ledger.grants)
    assert sorted(os.listdir(install.state / PAGES_DIR)) == held


# --- what a container gets ---


def test_a_container_gets_its_share_and_nothing_else(prefix: Install, bundle: Bundle, runc: Runc, rootfs: Path) -> None:
    b = bundle(ASK, env=["USER=me", "NVIDIA_VISIBLE_DEVICES=all", "T9K_GPU_MEMORY=99"])
    before = config(b)
    id = start(runc, prefix, b)
    (grant,) = prefix.grants()
    assert (grant.who.root, grant.who.id, grant.who.bundle) == (str(runc.root), id, str(b))
    assert [(s.uuid, s.memory_mib) for s in grant.shares] == [(UUIDS[0], 4096)]

    found = sums(
        runc.exec(id, "sh", "-c", "cd /usr/lib64; md5sum *; md5sum /run/gpu-hook/driver/* /usr/bin/nvidia-smi").stdout
    )
    shim = prefix.prefix / "lib/shim"
    for library in ("libcuda.so", "libnvidia-ml.so"):
        for name in (library, f"{library}.1", f"{library}.{DRIVER}"):
            assert found.pop(name) == md5(shim / f"{library}.1")
    for name, path in (("cuda", "libcuda.so"), ("ml", "libnvidia-ml.so")):
        assert found.pop(f"/run/gpu-hook/driver/{name}") == md5(prefix.driver / f"usr/lib64/{path}.{DRIVER}")
    for soname in ("libnvidia-ptxjitcompiler.so", "libnvidia-cfg.so"):
        for name in (f"{soname}.1", f"{soname}.{DRIVER}"):
            assert found.pop(name) == md5(prefix.driver / f"usr/lib64/{soname}.{DRIVER}")
    assert found.pop("/usr/bin/nvidia-smi") == md5(prefix.driver / "usr/bin/nvidia-smi")
    assert found == {}

    script = "ls /dev/nvidia*; ls -ln /dev/nvidia0; ls /run/gpu-hook; cat /proc/1/mountinfo"
    out = runc.exec(id, "sh", "-c", script).stdout
    assert out.split("crw")[0].split() == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-sim:", "0"]
    assert "crw-rw-rw-" in out and "195,   0" in out
    mounts = {line.split()[4]: line.split()[5].split(",") for line in out.splitlines() if " - " in line}
    for path, options in mounts.items():
        if path.startswith("/usr") or path.startswith("/run/gpu-hook/driver"):
            assert {"ro", "nosuid", "nodev"} <= set(options), path
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(mounts["/run/gpu-hook"])
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(mounts["/run/gpu-hook/policy"])
    assert {"rw", "nosuid", "nodev", "noexec"} <= set(mounts["/run/gpu-hook/account"])

    env = runc.exec(id, "env").stdout
    assert "NVIDIA_VISIBLE_DEVICES=0\n" in env and "T9K_GPU_MEMORY=4096\n" in env  # an index, as T9k prints it
    assert f"T9K_GPU_PERCENT={4096 * 100 // MEMORY_MIB}\n" in env and "TRITON_LIBCUDA_PATH=/usr/lib64\n" in env

    after = config(b)
    assert after["process"]["env"][: len(before["process"]["env"]) - 2] == before["process"]["env"][:-2]
    assert after["mounts"][: len(before["mounts"])] == before["mounts"]
    assert after["root"] == before["root"] and after["linux"]["namespaces"] == before["linux"]["namespaces"]

    assert runc("delete", "--force", id, program=prefix.program).returncode == 0
    assert prefix.grants() == ()
    consistent(prefix)


def test_debian_layout(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    image = tiny_image.busybox(tmp_path / "debian", debian=True)
    (multiarch,) = (image / "usr/lib").iterdir()
    id = start(runc, prefix, bundle(ASK, rootfs=image))
    folder = f"/usr/lib/{multiarch.name}"
    found = sums(runc.exec(id, "md5sum", f"{folder}/libcuda.so", f"{folder}/libcuda.so.1").stdout)
    assert set(found.values()) == {md5(prefix.prefix / "lib/shim/libcuda.so.1")}
    assert f"TRITON_LIBCUDA_PATH={folder}\n" in runc.exec(id, "env").stdout


def test_run_gets_it_too_and_frees_it(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    r = runc.run(bundle(ASK, args=["sh", "-c", "env; ls /dev"]), prefix)
    assert r.returncode == 0 and "T9K_GPU_MEMORY=4096" in r.stdout and "nvidia0" in r.stdout
    assert prefix.grants() == ()


def test_bundle_in_the_current_directory(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    r = runc("create", runc.new_id(), program=prefix.program, cwd=bundle(ASK))
    assert r.returncode == 0, r.stderr
    assert len(prefix.grants()) == 1


def test_a_config_json_of_another_name(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    """crun reads it relative to the working directory. Where it is not found, the runtime may find another one."""
    prefix.set(runtime="/bin/true")
    shutil.copy(bundle(ASK) / "config.json", tmp_path / "c.json")
    words = ["create", "--bundle", str(bundle()), "-fc.json", runc.new_id()]
    assert runc(*words, program=prefix.program, cwd=tmp_path).returncode == 0
    assert MARKER in json.loads((tmp_path / "c.json").read_text())["annotations"]
    r = runc(*words, program=prefix.program, cwd=prefix.prefix)
    assert r.returncode == 1 and "GH-401" in r.stderr and f"{prefix.prefix}/c.json" in r.stderr


def test_a_bundle_that_the_runtime_alone_finds(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """crun takes a flag's beginning for the flag. A container of a bundle that nobody found would have no share."""
    prefix.set(runtime="/bin/true")
    b, away = bundle(ASK), prefix.prefix
    r = runc("create", "--new", str(b), runc.new_id(), program=prefix.program, cwd=away)
    assert r.returncode == 1 and "GH-401" in r.stderr and f"{away}/config.json" in r.stderr
    assert runc("create", "--bund", str(b), runc.new_id(), program=prefix.program, cwd=away).returncode == 0
    assert MARKER in json.loads((b / "config.json").read_text())["annotations"]


def test_no_gpu_but_the_driver(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    script = "ls /usr/lib64; env; ls /dev"
    r = runc.run(bundle({"NVIDIA_VISIBLE_DEVICES": "none"}, args=["sh", "-c", script]), prefix)
    assert r.returncode == 0, r.stderr
    assert "libcuda.so.1" in r.stdout and "NVIDIA_VISIBLE_DEVICES=none\n" in r.stdout
    assert "nvidia0" not in r.stdout and "nvidiactl" not in r.stdout


def test_a_whole_gpu(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    id = start(runc, prefix, bundle({"gpu-hook.io/gpus": "1", "gpu-hook.io/exclusive": "true"}))
    (grant,) = prefix.grants()
    assert grant.exclusive and [s.whole for s in grant.shares] == [True]
    found = sums(runc.exec(id, "md5sum", "/usr/lib64/libcuda.so.1").stdout)
    assert found["/usr/lib64/libcuda.so.1"] == md5(prefix.prefix / "lib/shim/libcuda.so.1")
    refused(runc, prefix, bundle({"NVIDIA_VISIBLE_DEVICES": grant.shares[0].uuid, "T9K_GPU_MEMORY": "1"}), "GH-201")


def test_who_is_who_in_kubernetes(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    cri = "io.kubernetes.cri."
    pod = {
        cri + "container-type": "container",
        cri + "container-name": "train",
        cri + "sandbox-name": "pod-1",
        cri + "sandbox-namespace": "ns",
        cri + "sandbox-uid": "uid-1",
    }
    assert runc.create(bundle({**pod, "gpu-hook.io/memory.train": "1Gi"}), prefix).returncode == 0
    who = prefix.grants()[0].who
    assert (who.pod_uid, who.namespace, who.pod, who.container) == ("uid-1", "ns", "pod-1", "train")
    sandbox = bundle({**ASK, cri + "container-type": "sandbox"})
    before = config(sandbox)
    assert runc.create(sandbox, prefix).returncode == 0
    assert config(sandbox) == before and len(prefix.grants()) == 1
    # the same where the launcher leaves the decision to Python
    odd = bundle({**ASK, cri + "container-type": "sandbox"})
    assert runc("create", "--bundle", str(odd), "--", runc.new_id(), program=prefix.program).returncode == 0
    assert len(prefix.grants()) == 1


def test_an_edited_bundle_again(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    b = bundle(ASK, env=["NVIDIA_VISIBLE_DEVICES=0"])
    assert runc.create(b, prefix).returncode == 0
    first, id = config(b), runc.ids[-1]
    runc("delete", "--force", id)
    assert runc.create(b, prefix, id=id).returncode == 0  # the mount points of the first are in the image now
    assert config(b) == first
    assert len(prefix.grants()) == 1


def test_an_edited_bundle_that_asks_no_more(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    b = bundle(ASK, args=["ls", "/dev", "/usr/lib64"])
    before = config(b)
    assert "nvidia0" in runc.run(b, prefix).stdout
    prefix.set(dialects=[], near_misses="warn")
    r = runc.run(b, prefix)
    assert r.returncode == 0 and "nvidia0" not in r.stdout
    assert config(b)["mounts"] == before["mounts"] and MARKER not in config(b)["annotations"]


def test_env_baked_into_an_image_grants_nothing(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    b = bundle(env=["NVIDIA_VISIBLE_DEVICES=all", "T9K_GPU_MEMORY=100"], args=["sh", "-c", "ls /dev /usr/lib64"])
    before = config(b)
    r = runc.run(b, prefix)
    assert r.returncode == 0 and "nvidia" not in r.stdout and "libcuda" not in r.stdout
    assert config(b) == before and prefix.grants() == ()


def test_trust_env(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    prefix.set(trust_env=True)
    r = runc.run(bundle(env=["NVIDIA_VISIBLE_DEVICES=0", "T9K_GPU_MEMORY=100"], args=["ls", "/dev"]), prefix)
    assert r.returncode == 0 and "nvidia0" in r.stdout


# --- as if we were not there ---


def test_other_calls_are_runcs_own(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    id = start(runc, prefix, bundle(ASK))
    for args in (
        ["state", id],
        ["list"],
        ["--version"],
        ["features"],
        ["exec", id, "env"],
        ["state", "none"],
        ["bogus"],
    ):
        ours, plain = runc(*args, program=prefix.program), runc(*args)
        assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), args
        assert _untimed(ours.stderr) == _untimed(plain.stderr)
    assert runc("kill", id, "KILL", program=prefix.program).returncode == 0


def _untimed(text: str) -> str:
    return "\n".join(line.partition(" ")[2] for line in text.splitlines())


def test_a_container_that_asks_nothing(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    b = bundle({"other": "x"})
    before = (b / "config.json").stat()
    id = start(runc, prefix, b)
    after = (b / "config.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert "nvidia" not in runc.exec(id, "ls", "/dev").stdout


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ociVersion": "1.0.2"}'])
def test_a_broken_config_without_our_keys_is_runcs_business(
    prefix: Install, bundle: Bundle, runc: Runc, text: str
) -> None:
    b = bundle()
    (b / "config.json").write_text(text)
    ours, plain = runc.create(b, prefix), runc.create(b)
    assert (ours.returncode, _untimed(ours.stderr)) == (plain.returncode, _untimed(plain.stderr))
    assert ours.returncode != 0 and "GH-" not in ours.stderr
    (b / "config.json").unlink()
    assert "GH-" not in runc.create(b, prefix).stderr
    # The launcher leaves an unknown flag to Python.
    odd = runc("create", "--unknown", "--bundle", str(b), runc.new_id(), program=prefix.program)
    assert odd.returncode != 0 and "GH-" not in odd.stderr and "flag provided but not defined" in odd.stderr


def test_the_runtime_gets_signals_and_environment_as_given(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """Python ignores SIGPIPE and may add LC_CTYPE to its environment; the runtime gets neither."""
    seen = prefix.prefix.parent / "seen"
    script = prefix.prefix.parent / "runtime"
    script.write_text(
        f"#!/bin/sh\ntr '\\0' '\\n' < /proc/$$/environ > {seen}\ngrep Sig /proc/$$/status >> {seen}\n"
        f"cat /proc/$$/cmdline | tr '\\0' '\\n' >> {seen}\n"
    )
    script.chmod(0o755)
    prefix.set(runtime=str(script))
    b = bundle(ASK)
    odd = os.fsdecode(b"\xff\xfe")
    env = {"A": "1", "ODD": odd, "PYTHONPATH": "/evil", "LD_LIBRARY_PATH": ""}
    command = [prefix.program, "--root", "/nowhere", "create", "--bundle", str(b), "--pid-file", odd, "some-id"]
    assert subprocess.run(command, env=env).returncode == 0
    said = os.fsdecode(seen.read_bytes())
    assert sorted(said.split("Sig")[0].split()) == sorted(f"{k}={v}" for k, v in env.items())
    ignored = int(said.split("SigIgn:")[1].split()[0], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1)) and not ignored & (1 << (signal.SIGXFSZ - 1))
    assert said.splitlines()[-8:] == command[1:]


# --- what is refused ---


@pytest.mark.parametrize("form", ["json", "text"])
def test_refusals_reach_the_log(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path, form: str) -> None:
    log = tmp_path / "log"
    b = bundle({"gpu-hook.io/memory": "much", "gpu-hook.io/compute": "7x", "gpu-hook.io/unknown": "1"})
    flags = ("--log", str(log), "--log-format", form)
    r = runc.create(b, prefix, flags=flags)
    assert r.returncode == 1
    lines = log.read_text().splitlines()
    assert len(lines) == len(r.stderr.splitlines()) == 3
    for line, shown in zip(lines, r.stderr.splitlines(), strict=True):
        if form == "json":
            entry = json.loads(line)
            assert entry["level"] == "error" and entry["msg"] == shown and "time" in entry
        else:
            assert "level=error" in line and shown.replace('"', '\\"') in line
    assert {line[:6] for line in r.stderr.splitlines()} == {"GH-101", "GH-102"}
    assert prefix.grants() == ()


@pytest.mark.parametrize(
    "annotations",
    [
        {"gpu-hook.io/memory": "0"},
        {"gpu-hook.io/memory": "9" * 5000},
        {"gpu-hook.io/memory": "1Gi\n"},
        {"gpu-hook.io/memory": "1Gi\0"},
        {"gpu-hook.io/memory": "1Gi", "gpu-hook.io/x": "y" * (1 << 20)},
        {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "-1"},
        {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "1", "T9K_GPU_PERCENT": "99"},
        {"NVIDIA_VISIBLE_DEVICES": "7", "T9K_GPU_MEMORY": "1"},
        {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": str(MEMORY_MIB + 1)},
        {"gpu-hook.io/gpus": "9"},
    ],
)
def test_bad_requests(prefix: Install, bundle: Bundle, runc: Runc, annotations: dict[str, str]) -> None:
    b = bundle(annotations)
    r = runc.create(b, prefix)
    assert r.returncode == 1
    for line in r.stderr.splitlines():
        assert 'msg="GH-1' in line or 'msg="GH-2' in line
        assert len(line) < 500
    assert prefix.grants() == () and MARKER not in config(b)["annotations"]


def _truncate(b: Path) -> None:
    data = (b / "config.json").read_bytes()
    (b / "config.json").write_bytes(data[: len(data) - 3])


def _link(b: Path) -> None:
    (b / "config.json").rename(b / "other.json")
    (b / "config.json").symlink_to("other.json")


def _big(b: Path) -> None:
    with open(b / "config.json", "ab") as f:
        f.write(b" " * (17 << 20))


def _directory(b: Path) -> None:
    (b / "config.json").unlink()
    (b / "config.json").mkdir()


def _fifo(b: Path) -> None:
    (b / "config.json").unlink()
    os.mkfifo(b / "config.json")


def _wrong_types(b: Path) -> None:
    (b / "config.json").write_text('{"annotations": {"gpu-hook.io/memory": 5}}')


def _read_only(b: Path) -> None:
    (b / "config.json").chmod(0o444)


BREAK: list[Callable[[Path], None]] = [_truncate, _link, _big, _directory, _fifo, _wrong_types, _read_only]


@pytest.mark.parametrize("how", BREAK)
def test_hostile_config_json(prefix: Install, bundle: Bundle, runc: Runc, how: Callable[[Path], None]) -> None:
    b = bundle(ASK)
    how(b)
    refused(runc, prefix, b, "GH-401")


OPEN = '{"resources": {"devices": [{"allow": true, "access": "rwm"}]}}'


@pytest.mark.parametrize("name", ["Linux", "LINUX", "linux", "lin\\u0075x"])
def test_what_runc_would_read_beside_us(prefix: Install, bundle: Bundle, runc: Runc, name: str) -> None:
    """Go matches names in any case, and the last of two counts: plain runc opens every GPU to this container."""

    def twice(b: Path) -> Path:
        text = (b / "config.json").read_text().rstrip()
        (b / "config.json").write_text(f'{text[:-1]}, "{name}": {OPEN}' + "}")
        return b

    plain = twice(bundle())
    assert runc.create(plain).returncode == 0
    runc("start", runc.ids[-1])
    assert reach(runc, runc.ids[-1]) == [True, True, True]
    refused(runc, prefix, twice(bundle(ASK)), "GH-401")


@pytest.mark.parametrize("name", ["RESOURCES", "re\u017fources", "re\\u017fources"])
def test_what_runc_folds(prefix: Install, bundle: Bundle, runc: Runc, name: str) -> None:
    """Go's decoder takes a long s for an s, raw and escaped: only runc would see the rules in this object."""

    def renamed(b: Path) -> Path:
        text = (b / "config.json").read_text()
        assert text.count('"resources": {') == 1
        opened = text.replace(
            '"devices": [{"allow": false, "access": "rwm"}', '"devices": [{"allow": true, "access": "rwm"}'
        )
        assert opened != text
        (b / "config.json").write_text(opened.replace('"resources": {', f'"{name}": {{'))
        return b

    plain = renamed(bundle())
    assert runc.create(plain).returncode == 0
    runc("start", runc.ids[-1])
    assert reach(runc, runc.ids[-1]) == [True, True, True]
    refused(runc, prefix, renamed(bundle(ASK)), "GH-401")


@pytest.mark.parametrize(
    "path",
    [
        "/run//gpu-hook/request/memory=4Gi",
        "/run/./gpu-hook/x/../request//memory=4Gi",
        "/var/run/gpu-hook/request/memory=4Gi",
    ],
)
def test_a_request_by_mount_however_it_is_written(prefix: Install, bundle: Bundle, runc: Runc, path: str) -> None:
    """A message, and not a container that silently has no GPU."""
    mount = {"destination": path, "source": "/dev/null", "type": "bind", "options": ["bind", "ro"]}
    assert runc.create(bundle(edit=lambda s: s["mounts"].append(mount)), prefix).returncode == 0
    assert [g.shares[0].memory_mib for g in prefix.grants()] == [4096]


def test_read_only_bundle(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    b = bundle(ASK)
    subprocess.run(["mount", "--bind", str(b), str(b)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(b)], check=True)
        r = runc.create(b, prefix)
        assert r.returncode == 1 and "GH-401" in r.stderr and "put the bundle where root can write" in r.stderr
        assert prefix.grants() == ()
    finally:
        subprocess.run(["umount", str(b)], check=True)


def test_unknown_fields_are_kept(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    b = bundle(ASK, edit=lambda s: s.update({"x-new": {"deep": [1, 18446744073709551615, 1.5, None]}}))
    assert runc.create(b, prefix).returncode == 0
    assert config(b)["x-new"] == {"deep": [1, 18446744073709551615, 1.5, None]}


def test_privileged_containers_are_refused(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    def rule(spec: dict[str, Any], **more: Any) -> None:
        spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm", **more})

    node = GpuNode(UUIDS[1], "graphics", "/dev/dri/renderD129", 226, 129)
    save_inventory(prefix.settings, prefix.inventory.replace(nodes=(node,)))
    for more in ({}, {"type": "c", "major": 195}, {"type": "c", "major": 195, "minor": 1}, {"type": "c", "minor": 1}):
        said = refused(runc, prefix, bundle(ASK, edit=lambda s, more=more: rule(s, **more)), "GH-403")
        assert "195:1" in said or "every GPU" in said
    said = refused(runc, prefix, bundle(ASK, edit=lambda s: rule(s, type="c", major=226, minor=129)), "GH-403")
    assert "226:129" in said
    assert runc.create(bundle(ASK, edit=lambda s: rule(s, type="c", major=195, minor=0)), prefix).returncode == 0


def test_node_faults(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """In each case the container is refused with the code of what is wrong, and starts once that is fixed."""
    shim = prefix.prefix / "lib/shim/libcuda.so.1"
    driver = prefix.driver / "usr/lib64" / f"libnvidia-cfg.so.{DRIVER}"
    inventory = prefix.state / "inventory.json"
    for file, code in ((shim, "GH-305"), (driver, "GH-302"), (inventory, "GH-301")):
        away = file.with_name(file.name + ".away")
        file.rename(away)
        refused(runc, prefix, bundle(ASK), code)
        away.rename(file)
    shim.chmod(0o666)
    refused(runc, prefix, bundle(ASK), "GH-305")
    shim.chmod(0o644)
    settings = prefix.prefix / "etc/settings.yaml"
    text = settings.read_text()
    settings.write_text("{")
    refused(runc, prefix, bundle(ASK), "GH-501")
    settings.write_text(text)
    assert runc.create(bundle(ASK), prefix).returncode == 0


def test_places_to_mount_on_that_the_install_lacks(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """Missing mount points are noticed before config.json is edited, and not first by runc."""
    skeleton = prefix.prefix / "lib/private/container"
    for name in ("driver/cuda", "driver/ml", "policy", "account", "share/0", "slot/0"):
        place = skeleton / name
        folder = place.is_dir()
        place.rename(skeleton / "away")
        refused(runc, prefix, bundle(ASK), "GH-305")
        place.touch() if folder else place.mkdir()
        refused(runc, prefix, bundle(ASK), "GH-305")
        place.unlink() if folder else place.rmdir()
        place.symlink_to("away")
        refused(runc, prefix, bundle(ASK), "GH-305")
        place.unlink()
        (skeleton / "away").rename(place)
    skeleton.rename(prefix.prefix / "away")
    refused(runc, prefix, bundle(ASK), "GH-305")
    (prefix.prefix / "away").rename(skeleton)
    assert runc.create(bundle(ASK), prefix).returncode == 0


def test_an_install_without_its_programs(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    """The launcher reports it in the log, since no Python code of ours is left that could."""
    lib = prefix.prefix / "lib/gpu-hook"
    log = tmp_path / "log"
    flags = ("--log", str(log), "--log-format", "json")
    (lib / "runtime.py").rename(tmp_path / "runtime.py")
    (lib / "runtime.py").touch()
    refused(runc, prefix, bundle(ASK), "GH-504", flags=flags)
    lib.rename(tmp_path / "away")
    refused(runc, prefix, bundle(ASK), "GH-504", flags=flags)
    assert [json.loads(line)["msg"][:7] for line in log.read_text().splitlines()] == ["GH-504:"] * 2
    assert runc.create(bundle(), prefix).returncode == 0  # a container that asks for nothing starts


def test_ledger_disk_full(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    state = prefix.state
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k,mode=700", "tmpfs", str(state)], check=True)
    try:
        (state / "sim/gpus").mkdir(parents=True)
        (state / "sim/gpus/0").write_text("x")
        save_inventory(prefix.settings, prefix.inventory)
        assert runc.create(bundle(ASK), prefix).returncode == 0
        filler = os.open(state / "filler", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while os.write(filler, bytes(4096)):
                pass
        os.close(filler)
        refused(runc, prefix, bundle(ASK), "GH-303")
        (state / "filler").unlink()
        assert runc.create(bundle(ASK), prefix).returncode == 0
        runc.close()
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def test_the_real_runtime_is_missing_or_not_to_be_used(
    prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path
) -> None:
    settings = prefix.prefix / "etc/settings.yaml"
    text = settings.read_text()
    loose = tmp_path / "loose"
    shutil.copy("/bin/true", loose)
    loose.chmod(0o757)
    for runtime in ("/nowhere/runc", prefix.program, "/etc/passwd", loose):
        settings.write_text(text.replace(f"runtime: {prefix.settings.runtime}", f"runtime: {runtime}"))
        refused(runc, prefix, bundle(ASK), "GH-503")
        assert prefix.grants() == ()


def test_changed_settings_are_in_effect_at_the_next_start(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    yaml = prefix.prefix / "etc/settings.yaml"
    text = yaml.read_text()
    yaml.write_text(text.replace("memory_step: 1 ", "memory_step: 1000 "))
    assert runc.create(bundle(ASK), prefix).returncode == 0
    assert [grant.shares[0].memory_mib % 1000 for grant in prefix.grants()] == [0]
    yaml.write_text(text.replace("memory_step: 1 ", "memory_stop: 1 "))
    r = runc.create(bundle(ASK), prefix)
    line = text[: text.index("\nmemory_step")].count("\n") + 2
    assert r.returncode == 1 and r.stderr.count("GH-501") == 1 and f"etc/settings.yaml:{line}: " in r.stderr
    assert "did you mean memory_step?" in r.stderr
    assert runc.create(bundle(), prefix).returncode == 0 and runc("delete", "--force", runc.ids[0]).returncode == 0


def test_an_unexpected_exception_is_one_line(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    lib = prefix.prefix / "lib/gpu-hook"
    (pack,) = lib.glob("*.pack")
    pack.unlink()  # now the sources are run, and this test can break one
    assert runc.create(bundle(ASK), prefix).returncode == 0
    file = lib / "oci_hook/core/plan.py"
    file.write_text(file.read_text() + "\ndef make_plan(*_):\n    raise RuntimeError('secret\\nplan')\n")
    held = prefix.grants()
    r = runc.create(bundle(ASK), prefix)
    assert r.returncode == 1 and prefix.grants() == held
    assert r.stderr.count("\n") == 1 and "GH-405" in r.stderr and "RuntimeError" in r.stderr


def test_a_checkpoint_of_a_container_with_a_share(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """The grant, the pages and the GPU's contents are gone: a container with a share is not restored."""

    def restore(b: Path) -> "subprocess.CompletedProcess[str]":
        args = ("restore", "--image-path", str(b), "--work-path", str(b), "--bundle", str(b), runc.new_id())
        ours = runc(*args, program=prefix.program)
        assert ours.returncode != 0 and prefix.grants() == ()
        return ours

    asks = bundle(ASK)
    edited = bundle(ASK)
    assert runc.create(edited, prefix).returncode == 0
    runc("delete", "--force", runc.ids[-1])
    prefix.set(dialects=[])  # even if its annotations ask no more, the marker shows that it had a share
    before = (edited / "config.json").read_bytes()
    assert "GH-413" in restore(edited).stderr and (edited / "config.json").read_bytes() == before
    prefix.set(dialects=["t9k"])
    before = (asks / "config.json").read_bytes()
    assert "GH-413" in restore(asks).stderr and (asks / "config.json").read_bytes() == before
    assert "GH-101" in restore(bundle({"gpu-hook.io/memory": "much"})).stderr
    other = restore(bundle())
    assert "GH-" not in other.stderr and "criu" in other.stderr.lower()  # runc's own answer


@pytest.mark.parametrize("word", ["/a\0b", "/a\ud800b", "/" + "x" * 300, "/" + "x/" * 3000])
def test_paths_that_are_none(prefix: Install, bundle: Bundle, runc: Runc, word: str) -> None:
    """Such a path in a mount, as the root, in LD_LIBRARY_PATH."""
    mount = {"destination": word, "source": "tmpfs", "type": "tmpfs"}
    refused(runc, prefix, bundle(ASK, edit=lambda s: s["mounts"].append(mount)), "GH-402")
    refused(runc, prefix, bundle(ASK, edit=lambda s: s["root"].update(path=word)), "GH-402")
    b = bundle(ASK, env=[f"LD_LIBRARY_PATH={word}:/usr/lib64"])
    if len(word) > 4095:  # the loader ignores it, and so do we
        assert runc.create(b, prefix).returncode == 0
    else:
        refused(runc, prefix, b, "GH-402")


def test_a_log_that_nobody_reads(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused(runc, prefix, bundle({"gpu-hook.io/memory": "x"}), "GH-101", flags=("--log", str(tmp_path / "fifo")))


# --- hostile images ---


def test_image_environment_runs_nothing(prefix: Install, bundle: Bundle, runc: Runc, rootfs: Path) -> None:
    mark = rootfs / "ran"
    (rootfs / "evil").mkdir()
    (rootfs / "evil/os.py").write_text(f"open({str(mark)!r}, 'w')")
    (rootfs / "evil/runc").write_text(f"#!/bin/sh\necho > {mark}\n")
    (rootfs / "evil/runc").chmod(0o755)
    env = [
        "LD_PRELOAD=/evil/x.so",
        f"PYTHONPATH={rootfs}/evil",
        f"PATH={rootfs}/evil:/bin",
        "PYTHONSTARTUP=/evil/os.py",
    ]
    id = start(runc, prefix, bundle(ASK, env=env))
    assert not mark.exists()
    assert "LD_PRELOAD=/evil/x.so" in runc.exec(id, "env").stdout


def links(prefix: Install) -> list[str]:
    return [
        "/usr/lib64/libcuda.so.1",
        "/usr/lib64/libcuda.so",
        f"/usr/lib64/libcuda.so.{DRIVER}",
        "/usr/lib64/libnvidia-ml.so.1",
        "/usr/lib64/libnvidia-cfg.so.1",
        "/usr/bin/nvidia-smi",
        "/run/gpu-hook",
        "/run/gpu-hook/driver/cuda",
        "/dev/nvidia-sim/0",
    ]


@pytest.mark.slow
def test_every_destination_as_a_link(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    """Refused with GH-402, or the program finds the shim under every name; the host's files are as before."""
    outside = tmp_path / "outside"
    outside.write_text("host")
    ours = md5(prefix.prefix / "lib/shim/libcuda.so.1")
    targets = [
        *links(prefix),
        "../../../..",
        str(outside),
        "/proc/1/root/dev",
        "/proc/self/exe",
        "/",
        "/dev/null",
        "/etc",
    ]
    started = 0
    for n, (at, to) in enumerate((at, to) for at in links(prefix) for to in targets if at != to):
        image = tiny_image.busybox(tmp_path / f"image{n}")
        place = image / at.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(to)
        names = ["/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so", f"/usr/lib64/libcuda.so.{DRIVER}"]
        r = runc.run(bundle(ASK, rootfs=image, args=["md5sum", *names]), prefix)
        if r.returncode == 0:
            started += 1
            assert set(sums(r.stdout).values()) == {ours}, (at, to)
        else:
            assert "GH-402" in r.stderr, (at, to, r.stderr)
        assert outside.read_text() == "host" and prefix.grants() == ()
    assert 10 < started < n


def test_copies_in_the_image_are_covered(prefix: Install, bundle: Bundle, runc: Runc, rootfs: Path) -> None:
    compat = rootfs / "usr/local/cuda-12.4/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.999.1").write_text("another driver")
    (compat / "libcuda.so.1").symlink_to("libcuda.so.999.1")
    (rootfs / "usr/local/cuda").symlink_to("cuda-12.4")
    id = start(runc, prefix, bundle(ASK))
    found = sums(runc.exec(id, "md5sum", "/usr/local/cuda/compat/libcuda.so.1").stdout)
    assert set(found.values()) == {md5(prefix.prefix / "lib/shim/libcuda.so.1")}
    assert (compat / "libcuda.so.999.1").read_text() == "another driver"


# --- isolation of GPUs ---


def reach(runc: Runc, id: str, program: str = "runc") -> list[bool]:
    """For GPUs 0, 1 and the control node: whether the device rules permit it, so that open finds no driver."""
    script = """
    for n in 0 1 255; do
        [ -e /probe$n ] || mknod /probe$n c 195 $n || echo no mknod
        for how in '<' '>'; do sh -c ": $how /probe$n" 2>&1; done
    done
    """
    said = [
        line.rpartition(": ")[2] for line in runc("exec", id, "sh", "-c", script, program=program).stdout.splitlines()
    ]
    assert len(said) == 6, said
    assert set(said) <= {"No such device or address", "Operation not permitted"}, said
    assert said[0::2] == said[1::2]
    return [line == "No such device or address" for line in said[0::2]]


def test_the_other_gpu_is_out_of_reach(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    id = start(runc, prefix, bundle(ASK))
    assert reach(runc, id) == [True, False, True]
    assert runc("update", "--memory", "200000000", id, program=prefix.program).returncode == 0
    assert reach(runc, id) == [True, False, True]
    plain = bundle()
    assert runc.create(plain).returncode == 0
    runc("start", runc.ids[-1])
    assert reach(runc, runc.ids[-1]) == [False, False, False]


def test_rules_that_the_spec_lacks_are_closed(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    def none(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"].pop("devices")

    assert reach(runc, start(runc, prefix, bundle(ASK, edit=none))) == [True, False, True]


def test_a_cgroup_that_holds_another_container_is_refused(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """The rules of one would open its GPU to both. An empty cgroup that somebody left is no obstacle."""
    path = f"/gh-test-{os.getpid()}-shared"

    def there(spec: dict[str, Any]) -> None:
        spec["linux"]["cgroupsPath"] = path

    def other(spelled: str) -> Path:
        return bundle(ASK, edit=lambda spec: spec["linux"].update(cgroupsPath=spelled))

    first = start(runc, prefix, bundle(edit=there))
    for spelled in (path, f"/none/..{path}", f"//..{path}/."):
        assert path in refused(runc, prefix, other(spelled), "GH-403")
    for top in ("/", "/none/.."):
        assert "/sys/fs/cgroup" in refused(runc, prefix, other(top), "GH-403")
    assert reach(runc, first) == [False, False, False]
    assert runc("delete", "--force", first).returncode == 0
    left = Path(planned_cgroup(path, ""))
    left.mkdir()
    try:
        assert reach(runc, start(runc, prefix, bundle(ASK, edit=there))) == [True, False, True]
    finally:
        runc.close()
        remove_cgroup(str(left))


def in_namespace(script: str, code: str, *args: object) -> list[str]:
    """The lines that Python `code` prints in a mount namespace of its own, prepared by shell `script`."""
    imports = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); from tests.test_runtime import *\n"
    command = ["unshare", "-m", "sh", "-c", f'set -e\n{script}\nexec "$@"', "sh", sys.executable, "-c", imports + code]
    r = subprocess.run([*command, str(REPO), *map(str, args)], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout.splitlines()


# Starts a container, and prints which devices it can open, before and after an update.
THERE = """
runc, program, b = Runc(pathlib.Path(sys.argv[2])), sys.argv[3], sys.argv[4]
id = runc.new_id()
try:
    r = runc("create", "--bundle", b, id, program=program)
    assert r.returncode == 0, r.stderr
    assert runc("start", id, program=program).returncode == 0
    print(reach(runc, id, program))
    runc("update", "--pids-limit", "100", id, program=program)  # fails where v1 has the pids controller
    print(reach(runc, id, program))
finally:
    runc("delete", "--force", id, program=program)
"""


@pytest.mark.slow
def test_cgroup_v2(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    if "cgroup2" not in Path("/proc/filesystems").read_text():
        pytest.skip("no cgroup v2")
    script = "umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    lines = in_namespace(script, THERE, runc.folder, prefix.program, bundle(ASK))
    assert lines == ["[True, False, True]"] * 2


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("crun"), reason="no crun")
def test_crun(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """crun 1.8 needs a machine that is all cgroup v1 or all v2."""
    prefix.set(runtime=shutil.which("crun"))

    def mknod(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "access": "m"})

    script = "if [ -d /sys/fs/cgroup/unified ]; then umount /sys/fs/cgroup/unified; fi"
    lines = in_namespace(script, THERE, runc.folder, prefix.program, bundle(ASK, edit=mknod))
    assert lines == ["[True, False, True]"] * 2
    assert prefix.grants() == ()


# --- many at once, and killed ones ---


@pytest.mark.slow
def test_32_creates_at_once_with_room_for_10(prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    ask = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": str(MEMORY_MIB // 10)}
    jobs = []
    for n in range(32):
        out = open(tmp_path / f"err{n}", "w+")  # noqa: SIM115
        b = bundle(ask, args=["sleep", "1000"])
        p = runc.popen("create", "--bundle", str(b), runc.new_id(), program=prefix.program, stdout=out, stderr=out)
        jobs.append((p, out))
    said = []
    for p, out in jobs:
        p.wait(timeout=120)
        out.seek(0)
        said.append((p.returncode, out.read()))
        out.close()
    good = [text for status, text in said if status == 0]
    bad = [text for status, text in said if status != 0]
    assert len(good) == 10 and all("GH-201" in text for text in bad), bad
    grants = prefix.grants()
    assert len(grants) == 10 and {g.who.id for g in grants} == runc.living()
    assert sum(s.memory_mib for g in grants for s in g.shares) <= MEMORY_MIB
    consistent(prefix)


# Runs the wrapper's Python half and kills it at the Nth line that it executes (or says how many there were).
KILLER = """
import os, signal, sys
prefix, limit, *args = sys.argv[1:]
sys.path.insert(0, prefix + "/lib/gpu-hook")
import oci_hook.runtime as runtime
from oci_hook.ledger import admit
from oci_hook.ledger import inventory
from oci_hook.apply import image
lines, limit = 0, int(limit)
def trace(frame, event, arg):
    global lines
    if event == "line" and "oci_hook" in frame.f_code.co_filename:
        lines += 1
        if lines == limit:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
def execve(path, argv, env):
    sys.settrace(None)
    print(lines, flush=True)
    real(path, argv, env)
real, os.execve = os.execve, execve
sys.settrace(trace)
sys.exit(runtime.main(prefix, args))
"""


@pytest.mark.slow
def test_killed_at_any_step(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """kill -9 at some forty of the wrapper's lines: nothing stays booked, and a second create works."""

    def go(limit: int, b: Path) -> "subprocess.CompletedProcess[str]":
        args = ["--root", str(runc.root), "create", "--bundle", str(b), runc.ids[-1]]
        command = ["/usr/bin/python3", "-I", "-S", "-c", KILLER, str(prefix.prefix), str(limit), *args]
        with open(runc.folder / "out", "w+") as out:
            r = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
            out.seek(0)
            return subprocess.CompletedProcess(command, r.returncode, out.read())

    runc.new_id()
    first = go(0, bundle(ASK))
    assert first.returncode == 0, first.stdout
    total = int(first.stdout.split()[0])
    assert total > 300
    runc("delete", "--force", runc.ids[-1])
    killed = 0
    # The interesting lines are after the grant is written, the last two thirds.
    for limit in [*range(1, total, total // 40), *range(total - 8, total + 1)]:
        b = bundle(ASK)
        runc.new_id()
        done = go(limit, b)
        if done.returncode == 0:  # fewer mounts on this machine than before, thus fewer lines
            assert int(done.stdout.split()[0]) < limit
            runc("delete", "--force", runc.ids[-1])
            continue
        assert done.returncode == -signal.SIGKILL, limit
        killed += 1
        assert prefix.grants() == (), limit
        consistent(prefix)
        r = runc.create(b, prefix, id=runc.ids[-1])
        assert r.returncode == 0, (limit, r.stderr)
        assert [g.who.id for g in prefix.grants()] == [runc.ids[-1]]
        assert [f for f in os.listdir(b) if f != "config.json"] in ([], [".gpu-hook.config.json"]), limit
        runc("delete", "--force", runc.ids[-1])
        assert prefix.grants() == ()
    assert killed > 20


@pytest.mark.slow
def test_runc_killed_after_the_exec(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    """kill -9 of the process during runc's own work: no grant outlives its container, and a second create works."""
    for n in range(12):
        b = bundle(ASK)
        p = runc.popen("create", "--bundle", str(b), runc.new_id(), program=prefix.program, stdout=subprocess.DEVNULL)
        time.sleep(0.02 + 0.01 * n)
        p.kill()
        p.wait()

        def settled(n: int = n) -> bool:
            """What runc had made of the container ends without runc. Its grant counts until then."""
            held = {g.who.id for g in prefix.grants()}
            alive = {id for id in runc.ids if (runc.root / id / "state.json").exists() and _runs(runc.pid(id))}
            assert held >= alive, n
            return held == alive

        _until(settled)
        runc("delete", "--force", runc.ids[-1])
        _until(lambda: prefix.grants() == ())
        assert runc.create(b, prefix).returncode == 0
        runc("delete", "--force", runc.ids[-1])
        consistent(prefix)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_failing_runc_leaves_no_grant(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    b = bundle(ASK, edit=lambda s: s["process"].update(cwd="relative"))
    r = runc.create(b, prefix)
    assert r.returncode != 0 and "GH-" not in r.stderr
    assert prefix.grants() == ()


def test_the_same_id_twice(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    assert runc.create(bundle(ASK), prefix).returncode == 0
    b = bundle(ASK)
    r = runc.create(b, prefix, id=runc.ids[-1])
    assert r.returncode == 1 and "GH-407" in r.stderr
    assert [g.who.id for g in prefix.grants()] == [runc.ids[-1]]


def test_delete_of_a_running_container_frees_nothing(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    id = start(runc, prefix, bundle(ASK))
    assert runc("delete", id, program=prefix.program).returncode != 0
    assert [g.who.id for g in prefix.grants()] == [id]
