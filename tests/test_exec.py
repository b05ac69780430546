"""`exec` in real containers: a second process has the environment of the first."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.containers import Bundle, Runc
from testbed.installs import UUIDS, Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ASK = {"gpu-hook.io/memory": "4Gi", "gpu-hook.io/devices": "1", "gpu-hook.io/compute": "30"}
IMAGE = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0", "T9K_GPU_MEMORY=9")
ENGINES = {"args": ["/bin/env"], "cwd": "/", "user": {"uid": 0, "gid": 0}, "capabilities": {}}


def started(runc: Runc, bundle: Path, program: str) -> str:
    id = runc.new_id()
    done = runc("run", "--detach", "--bundle", str(bundle), id, program=program)
    assert done.returncode == 0, done.stderr
    return id


def started_again(runc: Runc, bundle: Path, id: str, program: str) -> bool:
    return runc("run", "--detach", "--bundle", str(bundle), id, program=program).returncode == 0


def table(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_as_engines_call_it(prefix: Install, runc: Runc, bundle: Bundle, tmp_path: Path) -> None:
    """The process file has the image's environment."""
    id = started(runc, bundle(ASK, env=IMAGE), prefix.program)
    process = tmp_path / "process.json"
    process.write_text(json.dumps({**ENGINES, "env": ["PATH=/bin", *IMAGE, "MINE=1"]}))
    written = process.read_bytes()
    done = runc("exec", "--process", str(process), id, program=prefix.program)
    assert done.returncode == 0, done.stderr
    env = table(done.stdout)
    first = table(Path(f"/proc/{prefix.grants()[0].life.init[0]}/environ").read_text().replace("\0", "\n"))  # type: ignore[index]
    ours = {k: v for k, v in first.items() if k.startswith(("NVIDIA_", "T9K_", "GPU_HOOK_", "TRITON_"))}
    assert ours["NVIDIA_VISIBLE_DEVICES"] == UUIDS[1] and ours["GPU_HOOK_COMPUTE"] == "30" and "T9K_GPU_MEMORY" in ours
    assert {k: v for k, v in env.items() if k in ours} == ours
    assert "NVIDIA_IMEX_CHANNELS" not in env and env["MINE"] == "1"
    assert process.read_bytes() == written
    assert sorted(p.name for p in tmp_path.iterdir() if "process" in p.name) == ["process.json"]


@pytest.mark.parametrize("flag", ("--env", "-e"))
def test_a_command_of_the_command_line(prefix: Install, runc: Runc, bundle: Bundle, flag: str) -> None:
    """runc refuses a call with both spellings of a flag."""
    id = started(runc, bundle(ASK, env=IMAGE), prefix.program)
    done = runc("exec", flag, "NVIDIA_VISIBLE_DEVICES=all", flag, "MINE=1", id, "env", program=prefix.program)
    assert done.returncode == 0, done.stderr
    env = table(done.stdout)
    assert env["NVIDIA_VISIBLE_DEVICES"] == UUIDS[1] and env["GPU_HOOK_MEMORY_MIB"] == "4096" and env["MINE"] == "1"
    assert "NVIDIA_IMEX_CHANNELS" not in env


def test_nothing_of_ours_is_open_in_the_new_process(
    prefix: Install, runc: Runc, bundle: Bundle, tmp_path: Path
) -> None:
    id = started(runc, bundle(ASK), prefix.program)
    process = tmp_path / "process.json"
    process.write_text(json.dumps({**ENGINES, "args": ["ls", "-l", "/proc/self/fd"], "env": ["PATH=/bin"]}))
    done = runc("exec", "--process", str(process), id, program=prefix.program)
    assert done.returncode == 0 and "gpu-hook-exec" not in done.stdout and "memfd" not in done.stdout, done.stdout
    assert " 1 -> " in done.stdout


def test_a_container_without_a_grant(prefix: Install, runc: Runc, bundle: Bundle, tmp_path: Path) -> None:
    id = started(runc, bundle(), prefix.program)
    process = tmp_path / "process.json"
    process.write_text(json.dumps({**ENGINES, "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"]}))
    done = runc("exec", "--process", str(process), id, program=prefix.program)
    assert table(done.stdout)["NVIDIA_VISIBLE_DEVICES"] == "all" and "GPU_HOOK" not in done.stdout


def test_the_variables_go_with_the_grant(prefix: Install, runc: Runc, bundle: Bundle) -> None:
    """A refused container leaves none, and the next container of the id has its own."""
    id = started(runc, bundle(ASK), prefix.program)
    (folder,) = (prefix.state / "pages").iterdir()
    assert (folder / "env").stat().st_mode & 0o777 == 0o600
    runc("delete", "--force", id, program=prefix.program)
    assert prefix.grants() == ()
    again = runc("run", "--detach", "--bundle", str(bundle({"gpu-hook.io/memory": "1Gi"})), id, program=prefix.program)
    assert again.returncode == 0, again.stderr
    assert "GPU_HOOK_MEMORY_MIB=1024" in runc("exec", id, "env", program=prefix.program).stdout
    bad = bundle(ASK, edit=lambda spec: spec["process"].update(args=["/nowhere"]))
    assert runc("run", "--bundle", str(bad), runc.new_id(), program=prefix.program).returncode != 0
    runc("delete", "--force", id, program=prefix.program)
    assert prefix.grants() == ()
    prefix.set(linger="10ms")  # any transaction sweeps
    subprocess.run(
        [prefix.program, "--root", str(runc.root), "create", "--bundle", str(bundle(ASK)), runc.new_id()],
        stdout=-3,
        stderr=-3,
    )
    assert len(list((prefix.state / "pages").iterdir())) == 1


def test_an_earlier_container_of_the_id(prefix: Install, runc: Runc, bundle: Bundle, tmp_path: Path) -> None:
    """Plain runc deleted it, so its grant remains until the next sweep; the next container of the id asked for nothing."""
    id = started(runc, bundle(ASK, env=IMAGE), prefix.program)
    runc("delete", "--force", id)
    assert started_again(runc, bundle(env=("MINE=2",)), id, prefix.program)
    assert list((prefix.state / "pages").glob("*/env"))
    process = tmp_path / "process.json"
    process.write_text(json.dumps({**ENGINES, "env": ["PATH=/bin", "MINE=1"]}))
    for args in (("--process", str(process), id), ("--env", "MINE=1", id, "env")):
        done = runc("exec", *args, program=prefix.program)
        assert done.returncode == 0, done.stderr
        assert "MINE=1" in done.stdout and "NVIDIA_" not in done.stdout and "GPU_HOOK" not in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("crun"), reason="no crun")
def test_crun(prefix: Install, runc: Runc, bundle: Bundle, tmp_path: Path) -> None:
    """crun 1.8 needs a machine that is all cgroup v1 or all v2."""
    prefix.set(runtime=shutil.which("crun"))
    process = tmp_path / "process.json"
    process.write_text(json.dumps({**ENGINES, "env": ["PATH=/bin", *IMAGE]}))
    call = f"{prefix.program} --root {tmp_path}/crun"
    id = runc.new_id()
    script = f"""
        if [ -d /sys/fs/cgroup/unified ]; then umount /sys/fs/cgroup/unified; fi
        {call} run --detach --bundle {bundle(ASK, env=IMAGE)} {id} </dev/null >{tmp_path}/log 2>&1 || exit 1
        {call} exec --process {process} {id}
        echo NEXT
        {call} exec {id} /bin/env
        echo NEXT
        {call} exec --env NVIDIA_VISIBLE_DEVICES=all {id} /bin/env
        {call} delete --force {id}
    """
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
    assert not done.stderr
    for part in done.stdout.split("NEXT"):
        env = table(part)
        assert env["NVIDIA_VISIBLE_DEVICES"] == UUIDS[1] and env["GPU_HOOK_MEMORY_MIB"] == "4096", part
        assert "NVIDIA_IMEX_CHANNELS" not in env
