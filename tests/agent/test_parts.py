"""The agent's parts by themselves: event log, metrics, options, journal, systemd, devices, NVML's process."""

import json
import math
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from oci_hook.agent import journal, options
from oci_hook.agent.act import device_nodes, enforce, facts, protection
from oci_hook.agent.act.auditing import Auditing
from oci_hook.agent.act.response import Response
from oci_hook.agent.counters import Counters
from oci_hook.agent.judge.audit_rules import Finding, TenantProcess
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.serve import textfile
from oci_hook.agent.serve.metrics import exposition
from oci_hook.agent.serve.notify import Notifier
from oci_hook.agent.serve.view import view
from oci_hook.agent.watch import nvml_process, sampler
from oci_hook.agent.watched import Watched
from oci_hook.cli.main import cli
from oci_hook.config.settings import load
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import DeviceFile, Gpu, Inventory
from oci_hook.core.slot_page import Gate
from oci_hook.discovery import char_links
from oci_hook.errors import CODES, GhError, Problem
from oci_hook.ledger import events
from oci_hook.ledger import inventory as cache
from oci_hook.linux.proc import process_life
from oci_hook.observe.account import PageFigures
from oci_hook.observe.event_log import Follower
from testbed.stage import Stage
from tests.cli.box import Install

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NASTY = 'x"\\\n\x1b[31m{}\udcff' + "y" * 500


def inventory(simulated: bool = True, gpus: int = 2, control: tuple[DeviceFile, ...] = ()) -> Inventory:
    found = tuple(Gpu(f"GPU-{i}", i, 300 + i, 8192, simulated=simulated) for i in range(gpus))
    return Inventory("boot", "550", "/", simulated, found, control, (), "", "")


# --- events


def test_events_are_read_over_a_change_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX", 2000)
    state = str(tmp_path)
    events.record(state, "first", n=-1)
    follower, fresh = Follower(state, old=True), Follower(state, old=False)
    assert [e["n"] for e in follower.read()] == [-1] and fresh.read() == []
    seen: list[int] = []
    for n in range(100):
        events.record(state, "counted", n=n)
        if n % 7 == 0:
            seen += [e["n"] for e in follower.read()]
    seen += [e["n"] for e in follower.read()]
    assert seen == list(range(100))
    assert [e["n"] for e in fresh.read()][-1] == 99
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 5000


def test_a_line_that_comes_after_the_change_of_files(tmp_path: Path) -> None:
    """Its writer had opened the file before another one renamed it."""
    state, late = str(tmp_path), tmp_path / "events"
    events.record(state, "first")
    follower = Follower(state, old=True)
    assert len(follower.read()) == 1
    with open(late, "ab", buffering=0) as f:
        late.rename(tmp_path / "events.1")
        assert follower.read() == []
        f.write(b'{"at":1,"event":"late"}\n')
        events.record(state, "new")
        assert [e["event"] for e in follower.read()] == ["late", "new"]
        f.write(b'{"at":1,"event":"later"}\n')
        assert [e["event"] for e in follower.read()] == ["later"] and follower.read() == []


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(
        b'{"at":1,"event":"a"}\nnot json\n{"at":"x","event":"b"}\n[]\n{"event":"c"}\n\xff\n'
    )
    events.record(str(tmp_path), "whole")
    with open(tmp_path / "events", "ab") as f:
        f.write(b'{"at":1,"event":"half"')
    assert [e["event"] for e in Follower(str(tmp_path), old=True).read()] == ["a", "whole"]


def test_an_event_never_fails_its_writer(tmp_path: Path) -> None:
    for place in ("/nonexistent", str(tmp_path / "file"), "/proc"):
        events.record(place, "lost")
    (tmp_path / "events").symlink_to("/dev/full")
    events.record(str(tmp_path), "lost", what=object())
    (tmp_path / "events").unlink()
    os.mkfifo(tmp_path / "events")
    events.record(str(tmp_path), "lost")
    (tmp_path / "events").unlink()
    events.record(str(tmp_path), "long", id="c", text="x" * 9000)
    (event,) = Follower(str(tmp_path), old=True).read()
    assert (event["id"], event["cut"]) == ("c", True)


@pytest.mark.root
@root_only
def test_a_full_disk_loses_events_and_the_textfile_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        assert textfile.write(str(disk / "x.prom"), b"old\n") == ""
        events.record(str(disk), "kept")
        with pytest.raises(OSError), open(disk / "fill", "wb", buffering=0) as f:
            while True:
                f.write(bytes(4096))
        for _ in range(200):
            events.record(str(disk), "lost", text="x" * 1000)
        assert Follower(str(disk), old=True).read()[0]["event"] == "kept"
        assert "No space" in textfile.write(str(disk / "x.prom"), bytes(10000))
        assert (disk / "x.prom").read_text() == "old\n"
        assert not [p for p in disk.iterdir() if p.name.endswith(".new")]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_the_owner_of_the_textfiles_folder_puts_there_is_replaced(tmp_path: Path, kind: str) -> None:
    file, there = tmp_path / "x.prom", tmp_path / "x.prom.new"
    (tmp_path / "roots").write_text("old")
    if kind == "link":
        os.link(tmp_path / "roots", there)
    else:
        os.mkfifo(there)
    reader = os.open(there, os.O_RDONLY | os.O_NONBLOCK)  # without one, an agent that opens the fifo waits for ever
    assert textfile.write(str(file), b"new\n") == ""
    os.close(reader)
    assert file.stat().st_mode == stat.S_IFREG | 0o644 and not there.exists()
    assert (tmp_path / "roots").read_text() == "old" and file.read_text() == "new\n"


# --- metrics


def node(*grants: Grant, **agent: Any) -> dict[str, Any]:
    status = {"state": "ok", "problems": {}, "started": 1.5, **agent}
    gpus = {
        "GPU-0": sampler.GpuSample(5 << 20, 1 << 30, 40, ()),
        "GPU-1": sampler.GpuSample(0, 0, -1, (), "GPU is lost"),
    }
    return view(inventory(), {g.key: g for g in grants}, gpus, {g.key: Watched() for g in grants}, (), {}, status)


def grant(key: str, id: str, **who: str) -> Grant:
    return Grant(key, Identity("/run", id, "/", **who), Life("b"), (Share("GPU-0", 1024, 30, 80), Share("GPU-1", 2)))


def test_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    counters = Counters()
    counters.follow(str(tmp_path))
    events.refused(str(tmp_path), "c", [Problem("GH-201", "no room"), Problem("GH-101", "bad")])
    events.record(str(tmp_path), "refused", codes=["GH-201", "made up", 7])
    for seconds in (0.002, 0.02, 100.0):
        events.granted(str(tmp_path), grant("k", "c"), seconds)
    counters.follow(str(tmp_path))
    same = [grant("k1", "same"), grant("k2", "same"), grant("k3", NASTY, namespace=NASTY, pod=NASTY, container=NASTY)]
    text = exposition(node(*same), counters).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found and sample.name.startswith("gpu_hook_")
            assert all(len(v) <= 64 and v.isprintable() for v in sample.labels.values())
            found[key] = sample.value
    assert found["gpu_hook_refusals_total", (("code", "GH-201"),)] == 2
    assert found["gpu_hook_refusals_total", (("code", "GH-101"),)] == 1
    # Each from the start: of a series that begins with its first refusal, Prometheus sees no increase.
    assert {labels[0][1] for name, labels in found if name == "gpu_hook_refusals_total"} == set(CODES)
    assert found["gpu_hook_refusals_total", (("code", "GH-303"),)] == 0
    assert found["gpu_hook_create_duration_seconds_bucket", (("le", "0.0025"),)] == 1
    assert found["gpu_hook_create_duration_seconds_bucket", (("le", "5.0"),)] == 2
    assert found["gpu_hook_create_duration_seconds_bucket", (("le", "+Inf"),)] == 3
    assert found["gpu_hook_gpu_memory_used_bytes", (("UUID", "GPU-0"), ("gpu", "0"))] == 5 << 20
    assert ("gpu_hook_gpu_memory_used_bytes", (("UUID", "GPU-1"), ("gpu", "1"))) not in found  # not known is not 0
    assert found["gpu_hook_gpu_error", (("UUID", "GPU-1"), ("gpu", "1"))] == 1
    entitled = [v for (name, _), v in found.items() if name == "gpu_hook_container_compute_guarantee_ratio"]
    assert sorted(entitled) == [0, 0, 0, 0.3, 0.3, 0.3]


def test_the_gates_waits_are_a_histogram() -> None:
    held = grant("k", "c")
    watched = Watched()
    watched.set_gate("GPU-0", Gate(waits=(1, 2, 1, *[0] * 11, 3, 4), waited=9.5))
    watched.set_gate("GPU-1", Gate())  # a shim that does not count them
    status = {"state": "ok", "problems": {}, "started": 1.5}
    text = exposition(view(inventory(), {"k": held}, {}, {"k": watched}, (), {}, status), Counters()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    waits = families["gpu_hook_container_gate_wait_seconds"]
    assert waits.type == "histogram" and {s.labels["UUID"] for s in waits.samples} == {"GPU-0"}
    bins = {float(s.labels["le"]): s.value for s in waits.samples if "le" in s.labels}
    assert list(bins.values()) == [1, 4, 4, 4, 4, 4, 4, 7, 11] and list(bins)[:2] == [64e-6, 256e-6]
    assert [s.value for s in waits.samples if "le" not in s.labels] == [9.5, 11]
    assert len(families["gpu_hook_container_gate_launches"].samples) == 2


def test_two_looks_within_a_tenth_of_a_second_are_one_point(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    for at, used in ((10.01, 1), (10.04, 2), (10.06, 3), (9.0, 4)):  # the clock was set back
        monkeypatch.setattr("time.time", lambda at=at: at)
        watched.note("GPU-0", used, 50)
    assert watched.history == {"GPU-0": [(10.0, 2, 50), (10.1, 3, 50), (9.0, 4, 50)]}


# --- who may read it


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert (
        options.token(AgentOptions())
        == options.token(AgentOptions("[::1]:9"))
        == options.token(AgentOptions("none"))
        == ""
    )
    for address in ("0.0.0.0:9409", "10.0.0.1:9409", "[::]:9409"):
        with pytest.raises(GhError, match="GH-501.*not loopback"):
            options.token(AgentOptions(address))
    with pytest.raises(GhError, match="No such file"):
        options.token(AgentOptions("0.0.0.0:1", str(file)))
    file.write_text("short\n")
    file.chmod(0o600)
    with pytest.raises(GhError, match="16 or more"):
        options.token(AgentOptions("0.0.0.0:1", str(file)))
    file.write_text("0123456789abcdef\n")
    assert options.token(AgentOptions("0.0.0.0:1", str(file))) == "0123456789abcdef"
    file.chmod(0o644)
    with pytest.raises(GhError, match="can be read or changed by others"):
        options.token(AgentOptions("0.0.0.0:1", str(file)))


def test_settings(tmp_path: Path) -> None:
    install = Install(tmp_path)
    assert options.load(str(tmp_path)) == AgentOptions()
    yaml = (tmp_path / "etc/settings.yaml").read_text()
    install.say(yaml.replace("policy: protect  ", "policy: freeze ").replace("interval: 5 ", "interval: 9 "))
    assert options.load(str(tmp_path)) == AgentOptions(policy="freeze", interval=9)
    assert load(str(tmp_path)).state_dir == str(install.state)
    install.say(
        yaml.replace("127.0.0.1:9409", "localhost:9409").replace("interval: 5 ", "interval: 0 ") + "agent.color: red\n"
    )
    said = install.text("settings", "check", status=1)
    assert "agent.address" in said and "agent.interval" in said and "'agent.color' is not a setting" in said


def test_flags_are_checked(tmp_path: Path) -> None:
    Install(tmp_path)
    for flags, said in (
        (["--address", "here"], "is not an address"),
        (["--tolerance", "x"], "is not a size"),
        (["--textfile", "/tmp/metrics.txt"], "its name ends in .prom"),
    ):
        r = CliRunner().invoke(cli, ["agent", "--prefix", str(tmp_path), *flags])
        assert r.exit_code == 2 and said in r.output


# --- systemd and the journal


def test_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        n = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
        n.say("READY=1", "STATUS=well")
        assert s.recv(100) == b"READY=1\nSTATUS=well" and n.watchdog == 30
        assert [n.alive(t) for t in (100.0, 105.0, 110.5)] == [110, 110, 120.5]
        s.setblocking(False)
        assert s.recv(100) == s.recv(100) == b"WATCHDOG=1"
        with pytest.raises(BlockingIOError):
            s.recv(100)
    n.say("READY=1")  # nobody listens any more
    assert Notifier({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog == 0
    Notifier({}).say("x")
    assert Notifier({}).alive(5) == math.inf


def test_journal_lines_carry_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    st = os.fstat(sys.stderr.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{st.st_dev}:{st.st_ino}")
    monkeypatch.setattr(journal, "SOCKET", str(tmp_path / "journal"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "journal"))
        journal.write("found\nMESSAGE=forged", journal.WARNING, container="a\nb", finding="")
        entry = s.recv(4096)
    lines = entry.split(b"\n")
    assert b"MESSAGE=found; MESSAGE=forged" in lines and b"PRIORITY=4" in lines
    assert b"GPU_HOOK_CONTAINER\n" + (3).to_bytes(8, "little") + b"a\nb\n" in entry and b"FINDING" not in entry
    journal.write("nobody reads the socket any more", journal.WARNING)
    assert capfd.readouterr().err == "<4>nobody reads the socket any more\n"


def test_lines_for_a_file_or_a_terminal_have_no_prefix(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")  # inherited, and standard error redirected since
    journal.write("GH-501: one\nGH-501: two\x1b[1m\n", journal.WARNING, container="a")
    monkeypatch.delenv("JOURNAL_STREAM")
    journal.write("started")
    assert capfd.readouterr().err == "GH-501: one; GH-501: two?[1m\nstarted\n"


# --- devices


@pytest.mark.root
@root_only
def test_missing_nodes_and_links_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(char_links, "FOLDER", str(tmp_path / "char"))
    nodes = (DeviceFile(str(tmp_path / "nvidiactl"), 195, 255), DeviceFile(str(tmp_path / "uvm"), 510, 0))
    (tmp_path / "uvm").write_text("in its place")
    made, wrong = device_nodes.repair(inventory(False, 0, nodes))
    assert made == [str(tmp_path / "nvidiactl"), str(tmp_path / "char/195:255")]
    assert wrong == [f"{tmp_path}/uvm is not the device 510:0; remove it"]
    st = os.stat(tmp_path / "nvidiactl")
    assert (os.major(st.st_rdev), os.minor(st.st_rdev), st.st_mode & 0o777) == (195, 255, 0o666)
    assert os.path.lexists(tmp_path / "char/195:255")
    assert device_nodes.repair(inventory(False, 0, nodes))[0] == []
    assert device_nodes.repair(inventory(True, 2, nodes)) == ([], [])


# --- NVML's process


def sampled(asker: sampler.Sampler, seconds: float = 20) -> dict[str, sampler.GpuSample]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asker.ask(time.monotonic())
        if asker.fd >= 0 and (found := asker.receive(time.monotonic())) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("no sample")


@pytest.mark.root
@root_only
def test_a_hanging_nvml_is_given_up_and_tried_again(box: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "RETRY_SECONDS", 0.1)
    asker = sampler.Sampler(answer_seconds=0.5)
    assert not asker.ask(time.monotonic())  # no inventory yet
    asker.use(cache.load(load(str(box.prefix))))
    asker._answer_seconds = 20
    gpus = sampled(asker)
    assert asker.state == "ok" and len(gpus) == 2 and not any(c.error for c in gpus.values())
    asker._answer_seconds = 0.5
    pid = asker.pid
    os.kill(pid, signal.SIGSTOP)  # as in a driver call that does not return
    asker.ask(time.monotonic())
    states = set()
    for _ in range(100):
        asker.check(time.monotonic())
        states.add(asker.state)
        if asker.state == "down":
            break
        time.sleep(0.02)
    assert {"slow", "down"} <= states and "no answer within" in asker.error
    assert not os.path.exists(f"/proc/{pid}") or b"Z" in Path(f"/proc/{pid}/stat").read_bytes()
    asker._answer_seconds = 20
    assert len(sampled(asker)) == 2 and asker.pid != pid
    asker.stop()


@pytest.mark.root
@root_only
def test_a_hanging_nvml_that_is_told_much_does_not_hang_the_agent(box: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the cgroups of some hundreds of containers. They are no burden where it does not hang."""
    monkeypatch.setattr(sampler, "RETRY_SECONDS", 0.1)
    asker = sampler.Sampler()
    asker.use(cache.load(load(str(box.prefix))))
    many = [{"GPU": {f"{n}{key}": ["/" * 200] for key in range(1000)}} for n in range(9)]
    sampled(asker)
    pid = asker.pid
    for cgroups in many:
        asker.charge(cgroups)
        sampled(asker)
    assert asker.pid == pid and asker.state == "ok"
    os.kill(pid, signal.SIGSTOP)
    tell = threading.Thread(target=lambda: [asker.charge(cgroups) for cgroups in many], daemon=True)
    tell.start()
    tell.join(20)
    try:
        assert not tell.is_alive()
    finally:
        os.kill(pid, signal.SIGKILL)
    asker.check(time.monotonic())
    assert (asker.state, asker.error, asker.pid) == ("down", "its process ended or hangs", 0)
    assert len(sampled(asker)) == 2
    asker.stop()


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", b'{"gpus":{"a":1},"error":""}', b'{"gpus":{"a":{"used":"x"}},"error":""}', b"\xff"],
)
def test_an_answer_that_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):
        sampler.parse(line)


def test_utilization_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver stamps its samples by that clock, and is asked for those since the last one seen."""
    nvml, now = nvml_process.Nvml(), 9_000_000.0
    samples = [(1, now, 40), (2, now + 3600, 50)]  # the second stamp is not valid

    def utilization(handle: object, since: int) -> list[SimpleNamespace]:
        found = [(pid, int(at * 1e6), load) for pid, at, load in samples if at * 1e6 > since]
        return [SimpleNamespace(pid=pid, timeStamp=at, smUtil=load) for pid, at, load in found]

    monkeypatch.setattr(nvml_process.pynvml, "nvmlDeviceGetProcessUtilization", utilization)
    monkeypatch.setattr(nvml_process.time, "time", lambda: now)
    assert nvml.busy("GPU-0", None) == {1: 40}
    now -= 3600
    samples = [(1, now - 1, 30)]
    assert nvml.busy("GPU-0", None) == {1: 30}


def test_a_mig_device_without_a_uuid_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is destroyed just now."""

    def uuid(part: int) -> str:
        if part == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return f"MIG-{part}"

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxMigDeviceCount", lambda _: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", lambda _, i: i)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", uuid)
    assert nvml_process.Nvml().parts_of(None) == [("MIG-0", 0), ("MIG-2", 2)]


def test_a_lost_gpu_is_no_reason_to_lose_the_others() -> None:
    good = {"used": 1, "total": 2, "busy": 3, "processes": [[1, None, 4]], "error": "", "at": 5.5, "steady": True}
    good["charged"] = {"a": 7}
    bad = {"used": 0, "total": 0, "busy": -1, "processes": [], "error": "GPU is lost", "at": 5.5, "steady": False}
    bad["charged"] = {}
    gpus, error = sampler.parse(json.dumps({"gpus": {"a": good, "b": bad}, "error": ""}).encode())
    assert not error and gpus["a"].processes == ((1, None, 4),) and sampler.lost(gpus["b"].error)


# --- who it was


def test_a_finding_says_who_a_process_is() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            told = facts.describe(process.pid)
            assert told.startswith(f"user {os.geteuid()}, 0 s old, parent {os.getpid()}") or " s old" in told
            assert told.endswith(": sleep 600")
        finally:
            process.kill()
    assert facts.describe(process.pid) == ""


def test_a_wrong_clock_makes_no_process_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set while the agent runs."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e9)
    age = int(facts.describe(os.getpid()).partition(" s old")[0].rpartition(" ")[2])
    assert age < 1e6


MAPPED = """
import mmap, sys, time
for path in sys.argv[1:]:
    with open(path) as file:
        held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        globals()[path] = held
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "names", [(), ("libcuda.so.1",), ("libcuda.so.1", "libcuda.so.5", "libcuda.so.7", "libcuda.so.9")]
)
def test_a_finding_says_which_driver_library_a_process_has(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Three of them at most, however a path is written."""
    folder = tmp_path / "odd \n ; name"
    folder.mkdir()
    paths = [folder / name for name in (*names, "other.so")]
    for path in paths:
        path.write_text("x")
    command = [sys.executable, "-c", MAPPED, *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            told = facts.describe(process.pid)
        finally:
            process.kill()
    head, _, tail = told.partition("; libcuda: ")
    assert "\n" not in told and head and tail.count("/libcuda.so.") == min(len(names), 3) and "other.so" not in tail


def test_mappings_that_never_come_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    never = tmp_path / "never"
    os.mkfifo(never)
    monkeypatch.setattr(facts, "MAPS", str(never))
    for _ in range(3):
        told = facts.describe(os.getpid())
        assert " s old" in told and "libcuda" not in told
    assert sum(t.name == "patience" for t in threading.enumerate()) == 1
    fd = os.open(never, os.O_WRONLY)
    os.close(fd)


# Moves where the kernel finds its arguments to 64 MiB of its memory: prctl(2), PR_SET_MM_MAP, which asks for no right.
# It shows more than a page of them only where they end with a zero.
LONG = """
import ctypes, struct, time
libc, size = ctypes.CDLL(None, use_errno=True), 64 << 20
libc.sbrk.restype = ctypes.c_void_p
place = ctypes.create_string_buffer(b"x" * size)
at = ctypes.addressof(place)
f = [int(n) for n in open("/proc/self/stat").read().rpartition(")")[2].split()[1:]]
code, end, stack, data, end_data, heap = f[22], f[23], f[24], f[41], f[42], f[43]
words = (code, end, data, end_data, heap, libc.sbrk(0), stack, at, at + size + 1, f[46], f[47], 0)
map = struct.pack("=12QIi", *words, 0, -1)
if libc.prctl(35, 14, map, ctypes.c_ulong(len(map)), 0):
    print(ctypes.get_errno(), flush=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.root
@root_only
def test_a_command_line_as_long_as_a_process_likes_costs_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            if (said := process.stdout.readline()) != "ready\n":
                pytest.skip(f"this kernel moves no arguments: error {said}")
            facts.describe(os.getpid())  # what it loads is not counted
            tracemalloc.start()
            try:
                told = facts.describe(process.pid)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert told.endswith(": " + "x" * facts.COMMAND_MAX) and peak < 1 << 20
        finally:
            process.kill()


def test_a_command_line_that_never_comes_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page of it may be of a file system that never answers, which a reader of it waits for."""
    never = tmp_path / "never"
    os.mkfifo(never)
    monkeypatch.setattr(facts, "CMDLINE", str(never))
    for _ in range(3):
        told = facts.describe(os.getpid())
        assert " s old" in told
    assert sum(t.name == "patience" for t in threading.enumerate()) == 1  # no more wait with the first
    fd = os.open(never, os.O_WRONLY)
    os.close(fd)


@pytest.mark.parametrize("wrong", [None, MemoryError, ValueError, UnicodeError, RuntimeError])
@pytest.mark.parametrize("policy", ["kill", "freeze"])
def test_first_it_acts_and_then_it_describes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str, wrong: type[Exception] | None
) -> None:
    done: list[str] = []

    def describe(pid: int) -> str:
        done.append("describe")
        if wrong:
            raise wrong
        return "somebody"

    monkeypatch.setattr(facts, "describe", describe)
    monkeypatch.setattr(enforce, "kill", lambda *_: (done.append("kill"), "")[1])
    monkeypatch.setattr(enforce, "freeze", lambda *_: (done.append("freeze"), "")[1])
    install = Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none", policy=policy))
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    Response(node).answer(Finding("over-memory", "k", "GPU-0", 7, 8, "too much"))
    assert done == [policy, "describe"]
    (told,) = Follower(str(install.state), old=True).read()
    assert told["evidence"] == f"too much ({f'not described: {wrong.__name__}' if wrong else 'somebody'})"


def test_processes_that_are_slow_to_describe_hold_the_agent_up_for_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of one container or of many, at each tick; each of them once."""
    install = Install(tmp_path)
    node, asked = NodeState(str(tmp_path), AgentOptions("none")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(facts, "describe", lambda pid: (asked.append(pid), time.sleep(0.4), "somebody")[-1])
    response = Response(node)
    for _ in range(2):
        for pid in range(1, 9):
            for uuid in ("GPU-0", "GPU-1"):
                response.answer(Finding("no-shim", "k", uuid, pid, 8, "past it"))
        response.tick()
    assert asked == [1, 2, 3] * 2
    told = [e["evidence"] for e in Follower(str(install.state), old=True).read()]
    assert told == (["past it (somebody)"] * 6 + ["past it"] * 10) * 2


def test_one_that_cannot_be_killed_is_waited_for_once_at_each_tick(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many of its processes are found: the next tick kills them all."""
    Install(tmp_path)
    node, hit = NodeState(str(tmp_path), AgentOptions("none", policy="kill")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(enforce, "kill", lambda _, others: (hit.append(others), "1 of its processes still runs")[1])
    response = Response(node)
    for pid in range(7, 10):
        response.answer(Finding("no-shim", "k", "GPU-0", pid, 8, "past it"))
    assert hit == [((7, 8),)] and not node.watched["k"].stopped
    response.tick()
    assert hit[1:] == [((7, 8), (8, 8), (9, 8))]


def test_who_was_to_be_killed_and_lives_is_killed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And is not called killed before it is gone."""
    install = Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none", policy="kill"))
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    response = Response(node)
    answers = iter(["2 of its processes still run", "2 of its processes still run", "", "", "one is back", ""])
    hit: list[Any] = []
    monkeypatch.setattr(enforce, "kill", lambda _, others: (hit.append(others), next(answers))[1])
    response.answer(Finding("over-memory", "k", "GPU-0", 7, 8, "too much"))
    stopped = [node.watched["k"].stopped]
    for _ in range(5):
        response.tick()
        stopped.append(node.watched["k"].stopped)
    assert stopped == ["", "", "killed", "killed", "", "killed"] and hit == [((7, 8),)] * 6
    told = [e["action"] for e in Follower(str(install.state), old=True).read()]
    assert told == ["killed failed: 2 of its processes still run", "killed", "killed failed: one is back", "killed"]
    response.forget({"k"})
    response.tick()
    assert len(hit) == 6


def test_who_was_frozen_and_goes_on_is_watched_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who could not be frozen is frozen at the next tick, if that is still to be."""
    install = Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none", policy="freeze"))
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    response, watched, finding = Response(node), node.watched["k"], Finding("over-memory", "k", "GPU-0", 0, 0, "9 MiB")
    answers, thawed = iter(["busy", "", "busy"]), iter([False, True])
    monkeypatch.setattr(enforce, "freeze", lambda _: next(answers))
    monkeypatch.setattr(enforce, "is_thawed", lambda _: next(thawed))
    watched.answered = {"GPU-0"}
    response.answer(finding)
    stopped = [watched.stopped]
    for _ in range(4):
        response.tick()
        stopped.append(watched.stopped)
    assert stopped == ["", "frozen", "frozen", "", ""] and not watched.answered and watched.resumed == 1
    response.answer(finding)
    response.clear(finding)
    response.tick()
    told = [e["action"] for e in Follower(str(install.state), old=True).read()]
    assert told == ["frozen failed: busy", "frozen", "resumed", "frozen failed: busy", "is over"]


def test_who_could_not_be_frozen_is_frozen_while_one_reason_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Install(tmp_path)
    node, tried = NodeState(str(tmp_path), AgentOptions("none", policy="freeze")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(enforce, "freeze", lambda _: tried.append(1) or "busy")
    first, second = (Finding(kind, "k", "GPU-0", 0, 0, "") for kind in ("over-memory", "over-compute"))
    response = Response(node)
    response.answer(first)
    response.answer(second)
    response.clear(second)
    response.tick()
    assert len(tried) == 2
    response.clear(first)
    response.tick()
    assert len(tried) == 2


@pytest.mark.parametrize("looks", [1, 3])
def test_who_harmed_others_and_could_not_be_frozen_is_left_when_that_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looks: int
) -> None:
    """Also where the audit never had it: that takes two looks. If it harms them once more, it is answered once more."""
    Install(tmp_path)
    node, tried = NodeState(str(tmp_path), AgentOptions("none", policy="freeze")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(enforce, "freeze", lambda _: tried.append(1) or "busy")
    response, watched = Response(node), node.watched["k"]
    auditing = Auditing(
        node,
        SimpleNamespace(find=lambda _: {7: ("k", TenantProcess(7, 8, "x", 7))}),  # type: ignore[arg-type]
        SimpleNamespace(read=lambda *_: ({}, frozenset())),  # type: ignore[arg-type]
        SimpleNamespace(by_process=list, look=lambda *_: None),  # type: ignore[arg-type]
        response,
    )
    watched.answered.add("GPU-0")
    response.answer(Finding("over-memory", "k", "GPU-0", 0, 0, "too much"), harm=True)
    tries = []
    for processes in (*[((7, 2 << 30, 0),)] * looks, (), (), ()):
        auditing.audit({"GPU-0": sampler.GpuSample(2 << 30, 8 << 30, 0, processes)})
        response.tick()
        tries.append(len(tried))
    assert len(set(tries[looks - 1 :])) == 1 and not watched.answered


@pytest.mark.parametrize(("back", "limit", "pages"), [("k", 8000, (7, 6)), ("n", 6000, (7, 7))])
def test_nobody_is_judged_as_if_one_that_has_come_back_to_its_gpu_were_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, back: str, limit: int, pages: tuple[int, int]
) -> None:
    """The ledger was read before that. The GPU's memory is lent: a neighbour was granted what is not free."""
    Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none"))
    node.inventory, init = inventory(gpus=1), process_life(os.getpid())
    now = {
        key: grant(key, key).replace(life=Life("b", None, init), shares=(Share("GPU-0", mib),))
        for key, mib in (("k", limit), ("n", 8000))
    }
    late = {"suspended": 7} if back == "k" else {"moving": 7}
    node.grants, node.watched = {**now, back: now[back].replace(**late)}, {key: Watched() for key in now}
    monkeypatch.setattr(protection.store, "peek", lambda _: tuple(now.values()))
    read = {k: PageFigures((n << 30,), (0,), frozenset({(1, 1)})) for k, n in zip("kn", pages, strict=True)}
    killed: list[Finding] = []
    judge = protection.Protection(
        node,
        SimpleNamespace(take=lambda living, _: setattr(node, "grants", {g.key: g for g in living})),  # type: ignore[arg-type]
        SimpleNamespace(look=lambda uuid: None),  # type: ignore[arg-type]
        SimpleNamespace(find=lambda *_, **__: {1: ("k", TenantProcess(1, 1, "x", 1))}),  # type: ignore[arg-type]
        SimpleNamespace(read=lambda *_: (read, frozenset())),  # type: ignore[arg-type]
        SimpleNamespace(answer=lambda finding, **_: killed.append(finding)),  # type: ignore[arg-type]
    )
    for _ in range(4):
        judge.look("GPU-0", sampler.GpuSample(7 << 30, 8 << 30, 0, ((1, 7 << 30, 0),), at=time.monotonic()))
        time.sleep(0.31)
    assert not killed and node.grants == now


def test_the_agent_loads_neither_openssl_nor_archives() -> None:
    """They take 4 MB of its memory (scripts/bench agent: rss_mb)."""
    program = "import sys, oci_hook.cli.agent, oci_hook.agent.agent; print({'_hashlib', 'lzma'} & {*sys.modules})"
    repo = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([repo, *(p for p in sys.path if p.endswith("site-packages"))])
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
