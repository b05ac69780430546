"""`why` and `events` without an agent: from the ledger, account pages and the event log."""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oci_hook.cli import node_now, why
from oci_hook.core.grant import Identity, Share
from oci_hook.core.layout import ACCOUNT_FILE, AGENT_LOCK
from oci_hook.core.request import GpuRequest, Request
from oci_hook.core.terms import Terms
from oci_hook.core.units import MIB
from oci_hook.errors import NoRoomError
from oci_hook.ledger import admit, events, slot_files, store
from oci_hook.observe import account, engine_names
from tests.cli.box import Install, this_process
from tests.cli.test_ps import container, page

BIG = Request((GpuRequest("0", ("mib", 20000), 50),))
ESCAPE = "\x1b[31mred"


def refused(install: Install, id: str = "big", request: Request = BIG) -> None:
    try:
        who = Identity("/run/runc", id, f"/b/{id}", namespace="ml", pod="p")
        admit.admit(request, who, this_process(), install.settings)
    except NoRoomError:
        return
    raise AssertionError("it fits")


def test_why_was_it_refused(install: Install) -> None:
    install.grant("neighbour-a", Share("GPU-0", 10000, 60))
    refused(install)
    text = install.text("why", "big")
    assert text.startswith("ml/p (big) was refused at ")
    assert "GH-201: no room: GPU 0 GPU-0 has 14576 of 24576 MiB free, 20000 MiB asked" in text
    assert "  ask for at most 14576 MiB of memory and 40 % compute\n" in text
    assert "  name no GPUs: others have room\n" in text and "  wait until neighbour-a ends\n" in text
    data = install.data("why", "big")
    assert [c["kind"] for c in data["changes"]] == ["both", "devices", "wait"] and not data["fits"]
    install.run("release", "--force", "neighbour-a")
    assert install.text("why", "big").endswith("it would fit now\n")


def test_why_is_it_kept_off_each_gpu(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """By who it is, for apart-from, and by how soon the others let go."""
    for n, uid in enumerate(("u1", "u2")):
        who = {"namespace": "ml", "pod": f"q{n}", "pod_uid": uid}
        install.grant(f"web-{n}", Share(f"GPU-{n}", 1024, slot=1), who=who, apart_from="web")
    wish = Request((GpuRequest(None, ("mib", 1024)),), Terms(apart_from="web"))
    refused(install, "apart", wish)
    text = install.text("why", "apart")
    assert "has another container with apart-from=web" in text and "would fit" not in text
    assert {c["kind"] for c in install.data("why", "apart")["changes"]} == {"wait"}
    keys = [store.grant_key("/run/runc", f"web-{n}") for n in range(2)]
    late = tuple((key, f"GPU-{n}", 5000) for n, key in enumerate(keys))
    monkeypatch.setattr(slot_files, "preempt_bounds", lambda *_: late)
    monkeypatch.setattr(admit, "preempt_bounds", lambda *_: late)
    refused(install, "hasty", wish.replace(terms=Terms(priority_class="online", preempt_tolerance_us=1000)))
    text = install.text("why", "hasty")
    assert "lets go after 5000 us, 1000 are tolerated" in " ".join(text.split()) and "would fit" not in text


def test_why_would_it_be_refused(install: Install) -> None:
    assert install.text("why", "-a", "gpu-hook.io/memory=4Gi") == "it would fit now\n"
    assert "no GPU" in install.text("why", "-a", "x=y")
    text = install.text("why", "-a", "gpu-hook.io/memory=30Gi", "-a", "gpu-hook.io/devices=0")
    assert text.startswith("it would be refused:\n  GPU 0 ") and "ask for at most 24576 MiB" in text
    assert install.run("why").exit_code == 2
    assert install.data("why", "nobody", status=1)["errors"][0]["code"] == "GH-410"
    events.record(str(install.state), "granted", id="bygone", shares=[["GPU-0", 4096, 30]], seconds=0.01)
    assert "bygone got its share at " in install.text("why", "bygone")


def test_why_is_it_slow(install: Install) -> None:
    install.grant(
        "slow-one", Share("GPU-0", 100, 10, 30), policy="fixed-share", who={"namespace": "ml", "pod": "train"}
    )
    install.grant("quick-one", Share("GPU-0", 100, 80), priority_class="online")
    install.grant("idle-one", Share("GPU-0", 100, 70), priority_class="offline")
    text = install.text("why", "slow-one")
    assert "10 % compute is guaranteed; 2 other containers share the GPU, with 80 % guaranteed" in text
    idle = install.text("why", "idle-one")
    assert "70 % offline compute is guaranteed; 2 other containers share the GPU, with 0 % guaranteed" in idle
    assert "a higher class come first: quick-one; while they have work, its guarantee is not in force" in " ".join(
        text.split()
    )
    assert "come first" not in install.text("why", "quick-one")
    assert (
        "its compute ceiling is 30 %, also when the GPU is idle (policy fixed-share)" in text
        and "no agent runs" in text
    )
    assert install.data("why", "quick-")["id"] == "quick-one"


def test_a_share_released_by_force(install: Install) -> None:
    """Its container lives, so nothing has ended."""
    for id, how in (("by-name", ("by-name",)), ("by-key", ("--key", store.grant_key("/run/runc", "by-key")))):
        install.grant(id, Share("GPU-0", 1024), who={"container": f"{id}-1"})
        install.run("release", "--force", *how)
        text = install.text("why", f"{id}-1")
        assert text.startswith(f"{id}-1 ({id}) lost its share at ")
        assert " by `gpu-hook release --force`; what of it still runs is unaccounted\n" in text
        assert install.data("why", id)["state"] == "released"
        assert "released" in install.text("events", "-c", id)


def test_a_name_of_several_that_ended(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    state, one, two = str(install.state), "abc123" + "0" * 58, "abc123" + "f" * 58
    for id, name in ((one, ""), (two, "job"), ("c" * 64, "abc123"), ("d" * 64, "job"), ("e" * 64, "ns/p/web")):
        events.record(state, "ended", id=id, name=name)
    events.record(state, "ended", id="f" * 64, name="ns/q/web")
    assert install.text("why", "job").startswith(f"job ({'d' * 12}) ended")  # one after the other
    assert all(install.text("why", id).startswith(f"{one[:12]} ended") for id in (one, one[:12]))
    several = "GH-410: 3 containers that do not run match abc123: abc123000000, job (abc123ffffff), abc123 (cccccccccccc); name one"
    assert install.text("why", "abc123", status=1).startswith(several)
    assert "2 containers that do not run match web: ns/p/web (" in install.text("why", "web", status=1)
    monkeypatch.setattr(engine_names, "ids_of", lambda name: {two, "d" * 64})  # docker has one, and podman the other
    assert "2 containers that do not run match job: " in install.text("why", "job", status=1)


def test_a_name_that_nobody_kept(install: Install) -> None:
    events.record(str(install.state), "granted", id="a" * 64, name="", shares=[], seconds=0.01)
    none = "no event has this name or id; without an agent no names of containers that ended are kept"
    assert none in install.text("why", "gone", status=1)


def test_an_event_that_says_nothing_useful(install: Install) -> None:
    """A request of another version, or none: `why` repeats the refusal and proposes nothing."""
    for n, request in enumerate(("x", {"gpus": 7}, {"gpus": [{"wings": 2}]}, None)):
        events.record(
            str(install.state), "refused", id=f"odd-{n}", codes=["GH-201"], messages=["GH-201: x"], request=request
        )
        text = install.text("why", f"odd-{n}")
        assert "GH-201: x" in text and "change" not in text
    events.record(str(install.state), "refused", id="odd-5", messages=[ESCAPE])
    assert "\x1b" not in install.text("why", "odd-5") + install.text("events")


def test_events(install: Install) -> None:
    nothing = install.run("events")
    assert (nothing.stdout, nothing.stderr) == ("", "no events yet\n")
    install.grant("first", Share("GPU-0", 20000))
    refused(install)
    events.record(str(install.state), "ended", id="f" * 64, peak_mib=2048)
    events.record(
        str(install.state), "finding", id="first", kind="over-memory", uuid="GPU-0", evidence="e", action="frozen"
    )
    lines = install.text("events").splitlines()
    assert [line.split()[2:4] for line in lines] == [
        ["refused", "ml/p"],
        ["ended", "ffffffffffff"],
        ["finding", "first"],
    ]
    assert lines[1].endswith("its share was released; the agent saw it use at most 2Gi")
    assert lines[2].endswith("over-memory on GPU-0: e; frozen")
    assert [json.loads(line)["event"] for line in install.text("events", "--json", "-c", "first").splitlines()] == [
        "finding"
    ]
    assert install.text("events", "-c", "ml/p").count("\n") == 1


def test_events_as_they_come(install: Install) -> None:
    command = [sys.executable, "-m", "oci_hook", "events", "--follow", "--prefix", str(install.prefix)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    repo = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repo, env=environment) as p:
        assert p.stdout
        try:
            events.record(str(install.state), "ended", id="one")
            assert "one" in p.stdout.readline()
            time.sleep(0.1)
            events.record(str(install.state), "ended", id="two")
            assert "two" in p.stdout.readline()
            for n in range(300):  # the files change meanwhile
                events.record(str(install.state), "ended", id=f"n{n}", text="x" * 3900)
            assert (install.state / "events.1").exists()
            told = [p.stdout.readline().split()[3] for _ in range(300)]
            assert told == [f"n{n}" for n in range(300)]  # nothing lost, nothing twice
        finally:
            p.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees who holds the agent's lock")
def test_who_made_room_for_others_comes_back_by_an_agent(install: Install) -> None:
    """Where none runs, `why` and `ps` say so."""
    share = Share("GPU-0", 4096, request_mib=1024, slot=1)
    install.grant("a" * 64, share, suspended=1_800_000_000, lent_to="b" * 64, host_mib=2048)
    install.grant("b" * 64, Share("GPU-0", 4096, slot=2), who={"container": "server"})
    server = "server (bbbbbbbbbbbb)"
    assert f" for {server} " in install.text("ps")
    said = install.text("why", "a" * 64)
    assert (
        said.startswith("aaaaaaaaaaaa is suspended, with policy ") and f", and container {server} needed it: " in said
    )
    assert f" is suspended for {server}, and an agent" in install.text("set", "a" * 64, "--memory", "1Gi", status=1)
    alone = "no agent runs to bring it back: start one (`gpu-hook agent`), or run `gpu-hook resume aaaaaaaaaaaa`"
    assert alone in install.text("why", "a" * 64)
    assert f"aaaaaaaaaaaa: it made room for another container, and {alone}\n" in install.text("ps")
    with open(install.state / AGENT_LOCK, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "the agent brings it back once there is room, or at its turn" in install.text("why", "a" * 64)
        assert "no agent runs to" not in install.text("ps")


@pytest.mark.root
def test_an_allocation_that_waits_without_an_agent(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again and again; one that was killed while it waited does not."""
    file, waits = tmp_path / "page", account.GPU.pack(0, 0, 0, 0, 3000 * MIB // account.UNIT, 7)
    file.write_bytes(page(7)[: account.GPUS_OFFSET] + waits + page(7)[account.GPUS_OFFSET + account.GPU.size :])
    text = "an allocation of 3000 MiB waits for room, and no agent runs to make it; start one by `gpu-hook agent`"
    with container(f"cp {file} page") as life:
        assert life.init
        install.grant("c", Share("GPU-0", 4096), life=life)
        assert "waits for room" not in install.text("why", "c")

        tries = iter((8, 9))

        def again(seconds: float) -> None:
            with open(f"/proc/{life.init[0]}/root{ACCOUNT_FILE}", "r+b") as f:  # type: ignore[index]
                f.seek(account.GPUS_OFFSET + 5 * account.WORD.size)
                f.write(account.WORD.pack(next(tries)))

        monkeypatch.setattr(node_now.time, "sleep", again)
        assert text in install.text("why", "c")
        assert f"c: {text}\n" in install.text("ps")


def test_a_container_beyond_its_limit() -> None:
    def said(used: int, accounted: int, *found: str) -> str:
        share = {"uuid": "G", "whole": False, "memory_mib": 1024, "used_mib": used, "accounted_mib": accounted}
        findings = [{"kind": kind, "uuid": "G"} for kind in found]
        return "".join(why.memory({"findings": findings}, {**share, "surcharge_mib": 0, "kept_mib": 0}, {}))

    assert said(5064, 0, "no-shim", "over-memory") == "it uses 5064 MiB, 4040 more than its limit, past the shim"
    lowered = "as `set` lowered that: it keeps them, and gets no more until it is below"
    assert (
        said(2048, 2000) == said(2048, 2000, "over-memory") == f"it uses 2048 MiB, 1024 more than its limit, {lowered}"
    )
    full = "used up: {} of 1024 MiB; allocations beyond the limit are refused"
    assert said(1000, 1000) == "memory is nearly " + full.format(1000)
    assert said(1100, 1000) == "memory is " + full.format(1100)  # within the tolerance


def test_what_stopped_a_container() -> None:
    killed = "the agent killed it: over-memory on GPU-0: e"
    frozen = killed.replace("killed", "froze")

    def said(state: str, agent: str = "", since: int | None = None) -> str:
        return "; ".join(why.by_state({"state": state, "frozen_since": since}, agent))

    assert said("running") == said("running", frozen) == ""  # it was resumed
    assert said("frozen", since=1) == time.strftime(
        "it is frozen since %H:%M:%S; `gpu-hook resume` continues it", time.localtime(1)
    )
    assert said("frozen", frozen) == said("paused", frozen) == f"{frozen}; `runc resume` continues it"
    assert said("killed", killed) == killed and said("killed") == "the agent killed it"
    assert said("paused").startswith("it is paused by its engine or runtime; unpause it there")
