"""The gate under gcc's sanitizers: parallel threads and processes, and any bytes as a slot file."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.tiers import MEMOPS
from testbed.compiled import compiled, source
from testbed.long import long
from testbed.sanitize import BUILDS, SHIM, SMALL, gcc, name, shim_library
from tests.gate.gpus import LONG, OFFLINE, ONLINE, Tenant, measure

HERE = Path(__file__).parent


@pytest.mark.parametrize("build", SMALL, ids=name)
def test_any_bytes_are_a_slot_file(build: tuple[str, ...]) -> None:
    flags = ["-std=c11", "-g", *build, "-fno-sanitize-recover=all", f"-I{SHIM}"]
    sources = [str(HERE / "fuzz_slot.c"), str(SHIM / "pages/slot_view.c"), str(SHIM / "gate/decide.c")]
    out = compiled("fuzz_slot", [gcc(build), *flags, "-DGH_FUZZ_MAIN", *sources])
    inputs = "20000" if long() else "7000"
    for seed in "12":
        done = subprocess.run([str(out), seed, inputs], capture_output=True, text=True, timeout=LONG, check=False)
        assert (done.returncode, done.stdout) == (0, f"{inputs}\n"), done.stderr


@pytest.fixture(scope="module", params=BUILDS[:1], ids=name)
def check_slot(request: pytest.FixtureRequest) -> Path:
    """The program; its private directory is `run` in the working directory."""
    flags = ["-std=c11", "-g", *request.param, "-fno-sanitize-recover=all", f"-I{SHIM}", '-DGH_PRIVATE="run"']
    sources = [
        str(HERE / "check_slot.c"),
        *(
            str(SHIM / f"{n}.c")
            for n in ("gate/slot_file", "gate/slot_own", "gate/slot_peer", "pages/slot_view", "gate/decide")
        ),
    ]
    return compiled("check_slot", [gcc(request.param), *flags, "-Wall", "-Werror", "-Wl,--wrap=syscall", *sources])


@pytest.mark.parametrize(
    ("what", "odd"),
    [(what, "") for what in ("missing", "slow", "quick", "dead", "crowd", "counts", "unknown call", "forbidden call")]
    + [("finishes", ""), ("one by one", "")]
    + [(what, odd) for what in ("account/slots", "slot/0") for odd in ("fifo", "directory", "link", "short")],
)
def test_what_others_make_costly_is_asked_for_rarely(check_slot: Path, tmp_path: Path, what: str, odd: str) -> None:
    """odd: what is in the place of the container's own file."""
    private = tmp_path / "run"
    for folder in ("account", "slot", "share/0/slot"):
        (private / folder).mkdir(parents=True)
    (private / "slot" / "0").write_bytes(bytes(8192))
    path = private / what
    if odd:
        path.unlink(missing_ok=True)
        if odd == "fifo":
            os.mkfifo(path)
        elif odd == "directory":
            path.mkdir()
        elif odd == "link":
            path.symlink_to("/dev/zero")
        else:
            path.write_bytes(b"x")
        what = f"run/{what}"
    command = [str(check_slot), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("what", ["quick", "slow", "dead"])
def test_locks_are_asked_for_rarely_whatever_others_write(tmp_path: Path, what: str) -> None:
    """63 hostile containers: each one's locks at most every 50 ms, all of them in a hundredth of the time, in turns."""
    peers(tmp_path, what)


def test_no_more_processes_are_believed_than_the_host_counts(tmp_path: Path) -> None:
    peers(tmp_path, "counts")


def peers(tmp_path: Path, what: str) -> None:
    (tmp_path / "run/share/0/slot").mkdir(parents=True)
    build = BUILDS[0]
    flags = ["-std=c11", "-g", *build, "-fno-sanitize-recover=all", f"-I{SHIM}", '-DGH_PRIVATE="run"']
    files = ("gate/peers", "gate/belief", "gate/slot_file", "gate/slot_peer", "pages/slot_view", "gate/decide")
    sources = [str(HERE / "check_peers.c"), *(str(SHIM / f"{file}.c") for file in files)]
    program = compiled("check_peers", [gcc(build), *flags, "-Wall", "-Werror", "-Wl,--wrap=syscall", *sources])
    command = [str(program), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_what_a_container_is_said_to_want() -> None:
    build = BUILDS[0]
    flags = ["-std=c11", "-g", *build, "-fno-sanitize-recover=all", f"-I{SHIM}"]
    sources = [
        str(HERE / "check_usage.c"),
        *(f"{SHIM}/gate/{file}.c" for file in ("usage", "usage_duty", "cost", "decide")),
    ]
    program = compiled("check_usage", [gcc(build), *flags, "-Wall", "-Werror", *sources])
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


BELIEF = ("gate/belief", "gate/usage", "gate/usage_duty", "gate/cost", "gate/decide")


def test_no_word_of_others_makes_a_charge_less_than_it_may_be() -> None:
    build = BUILDS[0]
    flags = ["-std=c11", "-g", "-O1", *build, "-fno-sanitize-recover=all", f"-I{SHIM}"]
    sources = [str(HERE / "check_belief.c"), *(str(SHIM / f"{file}.c") for file in BELIEF)]
    program = compiled("check_belief", [gcc(build), *flags, "-Wall", "-Wextra", "-Werror", *sources])
    for seed in range(8 if long() else 2):
        done = subprocess.run([str(program), "200" if long() else "30", str(seed)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), seed


@pytest.mark.parametrize(
    ("file", "law", "broken"),
    [
        ("gate/belief", "b->part[i] = (uint32_t)min64(part, b->owed[i]);", "b->part[i] = (uint32_t)part;"),
        ("gate/belief", "if (b->room[i] <= 0)", "if (0)"),
        ("gate/belief", "contexts += claimed[i];", "contexts += 1;"),
        ("gate/belief", "rest * weight / resting", "weight * GH_PPM / (w.weights + weight)"),
        ("gate/belief", "min64(b->part[i], GH_PPM / (ours + claiming))", "b->part[i]"),
        ("gate/usage", ".clean = last->clear_at <= begin", ".clean = then->clear_at <= begin"),
        ("gate/cost", "c->varies <= mean / 16 ?", "1 ?"),
        ("gate/cost", "? max64(own, mean) : most;", "? max64(own, mean) : own;"),
        ("gate/cost", "!holds_slice(c, most) ? most : own;", "!holds_slice(c, most) ? own : own;"),
        ("gate/cost", "return max64(own, min64(age64(mean, 2 * c->varies), most));", "return own;"),
    ],
)
def test_a_charge_without_one_of_its_laws_is_noticed(file: str, law: str, broken: str) -> None:
    text = (SHIM / f"{file}.c").read_text()
    assert text.count(law) == 1
    changed = source(f"{Path(file).name}.c", text.replace(law, broken))
    sources = [str(HERE / "check_belief.c"), *(str(SHIM / f"{f}.c") for f in BELIEF if f != file), str(changed)]
    cc = shutil.which("gcc")
    if not cc:
        pytest.skip("no gcc")
    program = compiled("check_belief", [cc, "-std=c11", "-O1", "-w", f"-I{SHIM}", f"-I{HERE}", *sources])
    seeds = (subprocess.run([str(program), "200", str(seed)], capture_output=True).returncode for seed in range(4))
    assert any(seeds)


@pytest.fixture(scope="module", params=BUILDS, ids=name)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shim: Path) -> Path:
    """Shim and load program built with a sanitizer."""
    library, command = shim_library(request.param, shim)
    out = tmp_path_factory.mktemp("sanitized")
    shutil.copy(library, out)
    load = ["-D_GNU_SOURCE", "-std=gnu11", str(HERE / "load.c"), str(library), "-ldl", "-lpthread"]
    (out / "load").symlink_to(compiled("load", [*command, *load, "-Wl,--allow-shlib-undefined"]))
    return out


@pytest.mark.root
@pytest.mark.slow
def test_threads_and_processes(place: Callable[..., Any], sanitized: Path) -> None:
    p = place(Tenant(cap=0.6), Tenant(), libraries=sanitized)
    p.load = str(sanitized / "load")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"}
    us = str(80 * p.gpu.scale)
    loads = [p.boxes[0].start([p.load, "threads", us], **options), p.boxes[1].start([p.load, "threads", us], **options)]
    loads.append(p.boxes[1].start([p.load, "graph", us], **options))
    loads += [p.boxes[1].start([p.load, way, us], **options) for way in ("contexts", "reset")]
    counts = measure(loads, 2, 1)
    alive = [load.process.poll() is None for load in loads]
    said = "".join(load.said() for load in loads)
    assert all(alive) and min(counts) > 0 and "ERROR" not in said and "WARNING" not in said, said


@pytest.mark.root
@pytest.mark.slow
def test_what_is_held_on_the_gpu(place: Callable[..., Any], sanitized: Path) -> None:
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=500_000), libraries=sanitized)
    p.gpu.let(MEMOPS)
    p.load = str(sanitized / "load")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"}
    offline = p.boxes[0].start([p.load, "plain", "350"], **options)
    offline.ready()
    online = p.boxes[1].start([p.load, "plain", "80", "40", str(3000 * p.gpu.scale)], **options)
    counts = measure([offline, online], 0.5, 0.3)
    alive = [load.process.poll() is None for load in (offline, online)]
    said = offline.said() + online.said()
    assert all(alive) and counts[1] > 0 and "ERROR" not in said and "WARNING" not in said, said
