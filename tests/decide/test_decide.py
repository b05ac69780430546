"""decide(): its laws one by one, and properties that hold for every input, under sanitizers."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.compiled import compiled, source
from testbed.long import long

HERE = Path(__file__).resolve().parent
SHIM = HERE.parent.parent / "oci_hook" / "shim"
CHECKS = re.findall(r"N\(([a-z_]{2,})\)", (HERE / "check_decide.c").read_text())


@pytest.mark.parametrize("check", CHECKS)
def test_law(sanitized: Callable[..., Path], check: str) -> None:
    program = sanitized("check", HERE / "check_decide.c", SHIM / "gate/decide.c")
    done = subprocess.run([program, check], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{check}\n"), done.stderr


def fuzz(program: Path, iterations: int, seed: int) -> None:
    done = subprocess.run([program, str(iterations), str(seed)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_properties(sanitized: Callable[..., Path]) -> None:
    fuzz(sanitized("fuzz", HERE / "fuzz_decide.c", SHIM / "gate/decide.c"), 40000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_properties_longer(sanitized: Callable[..., Path], seed: int) -> None:
    fuzz(sanitized("fuzz", HERE / "fuzz_decide.c", SHIM / "gate/decide.c"), 500_000 if long() else 50_000, seed)


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        ("if (share->freeze) {", "if (0) {"),
        ("if (b.level <= 0) {", "if (b.level < -1000000000000000) {"),
        ("add64(left, cost) <= window", "add64(left, 0) <= window"),
        ("!registered && cost < GH_COST_UNKNOWN", "cost < GH_COST_UNKNOWN"),
        ("after_siblings(own, cost, base, UINT64_MAX)", "0"),
        ("cost > window && own->siblings > window", "own->siblings > window"),
        ("own->waited < most", "1"),
        ("unknown ? r->recheck : UINT64_MAX", "r->recheck"),
        ("d.lone = cost > base;", ""),
        ("d.lone = !unknown && cost > r->window_open;", "d.lone = cost > r->window_open;"),
        ("if (x > patience && !(p->ignored & bit)) {", "if (0) {"),
        ("min64(t, age64(now, mine->idle_since))", "0"),
        ("last && !last->go && last->blame == i ? waited : 0", "0"),
        ("d.blame = (uint8_t)c.least;", ""),
        ("had || (gpu->share[me].cap && wants(gpu, (unsigned)i));", "had;"),
        (
            "p->beyond[i] = x = x < -surplus ? -surplus",
            "p->beyond[i] = x = x < -(int64_t)(20 * GH_S) ? -(int64_t)(20 * GH_S)",
        ),
        ("if (age64(now, mine->idle_since) < linger_of(gpu, me))", "if (0)"),
        ("if (peers && peers->drained[i] == gpu->slot[i].done + 1)", "if (0)"),
        ("return add64(began, gpu->rules.drain_max);", "return add64(now, gpu->rules.drain_max);"),
        ("min64(s->uncharged, GH_S)", "0"),
        ("if (until > now) {", "if (until > now + GH_S) {"),
        ("max64(until, add64(now, r->pacer_min))", "until + GH_S"),
        ("t.owner = c->least;", "t.owner = me;"),
        ("!registered && light(gpu, me, &least)", "0"),
        (".most = lightly ?", ".most = 0 ?"),
        ("s->want ? s->want : GH_PPM", "GH_PPM"),
        ("next.need * weights <= next.weight * (uint64_t)GH_PPM &&", ""),
        ("((lightly || (!c.saturated", "((0 || (!c.saturated"),
        ("c.saturated && !lightly ?", "c.saturated ?"),
        ("need - most <=", "need <="),
        ("one > LITTLE && gpu->slot[i].processes > 1", "0"),
        ("one > LITTLE && gpu->slot[i].processes > 1", "gpu->slot[i].processes > 1"),
        ("s->end - s->start <= max64", "s->end - s->start >= max64"),
        ("quiet(gpu, s->done_at)) > gpu->rules.silent;", "quiet(gpu, s->done_at)) > GH_S;"),
        ("quiet(gpu, gpu->slot[i].idle_since) > gpu->rules.idle_release;", "0;"),
        ("gpu->slot[me].v : max64(gpu->slot[me].v, least - bank)", "gpu->slot[me].v : least - bank"),
    ],
)
def test_properties_can_fail(law: str, broken: str) -> None:
    """Properties or checks fail for a decide() without one of its laws."""
    text = (SHIM / "gate/decide.c").read_text()
    assert text.count(law) == 1
    gcc = shutil.which("gcc")
    if not gcc:
        pytest.skip("no gcc")
    decide = source("decide.c", text.replace(law, broken))
    for name in ("check_decide", "fuzz_decide"):
        command = [gcc, "-std=c11", "-O1", f"-I{SHIM}", str(HERE / f"{name}.c"), str(decide)]
        arguments = ["100000", "1"] if name.startswith("fuzz") else []
        if subprocess.run([compiled(name, command), *arguments], capture_output=True).returncode:
            return
    pytest.fail("nothing noticed")


def test_decide_is_pure() -> None:
    """No clock, no I/O, no allocation, no floating point, no state: decide.c calls nothing but itself."""
    text = (SHIM / "gate/decide.c").read_text()
    assert re.findall(r"#include.*", text) == ['#include "gate/decide.h"', '#include "pages/arithmetic.h"']
    assert not re.search(r"\b(float|double)\b", text)
    assert not re.search(r"^static (?!const|inline)[a-z0-9_ *]+(=|;|\[)", text, re.M)


def test_object_needs_nothing(tmp_path: Path) -> None:
    gcc, nm = shutil.which("gcc"), shutil.which("nm")
    if not gcc or not nm:
        pytest.skip("no gcc or nm")
    made = tmp_path / "decide.o"
    subprocess.run([gcc, f"-I{SHIM}", "-O2", "-c", "-o", str(made), str(SHIM / "gate/decide.c")], check=True)
    undefined = subprocess.run([nm, "-u", str(made)], capture_output=True, text=True, check=True).stdout.split()
    assert set(undefined) <= {"U", "memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
