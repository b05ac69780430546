"""The GPU page: what it says of any set of grants, and that C's header means the same bytes."""

import json
import subprocess
from pathlib import Path
from struct import Struct

from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core import gpu_page as pages
from oci_hook.core import tiers
from oci_hook.core.grant import Grant, Identity, Life, Share
from testbed.compiled import ZIG
from tests.terms import made

SHIM = Path(__file__).resolve().parents[2] / "oci_hook" / "shim"
UUID = "GPU-00000000-0000-4000-8000-000000000000"
RECORD = Struct("<BBHIII QQ".replace(" ", ""))

READER = r"""
#include <stdio.h>
#include "pages/gpu_page.h"
int main(int argc, char **argv) {
    static struct gh_gpu_page p;
    FILE *f = fopen(argv[argc - 1], "rb");
    if (!f || fread(&p, 1, sizeof p, f) != sizeof p || fseek(f, 0, SEEK_END) || ftell(f) != GH_GPU_PAGE_SIZE) return 1;
    printf("{\"magic\": %d, \"version\": %u, \"size\": %u, \"seq\": %u, \"scale\": %u, \"generation\": %llu, "
           "\"present\": %llu, \"uuid\": \"%.48s\", \"tiers\": %u, \"file\": %u, \"slots\": %u, \"slot\": [",
           p.magic == GH_GPU_MAGIC, p.version, p.size, p.seq, p.time_scale, (unsigned long long)p.generation,
           (unsigned long long)p.present, p.uuid, p.tiers, GH_SLOT_FILE_SIZE, GH_SLOTS);
    for (int i = 0, n = 0; i < (int)GH_SLOTS; i++)
        if (p.present >> i & 1)
            printf("%s[%d, %u, %u, %u, %u, %u, %llu]", n++ ? ", " : "", i, p.slot[i].share.class_,
                   p.slot[i].share.freeze, p.slot[i].share.weight, p.slot[i].share.cap, p.slot[i].share.linger,
                   (unsigned long long)p.slot[i].born);
    printf("], \"memops\": %d, \"until\": %llu, \"contexts\": [%u, %u, %u]}\n", GH_TIER_MEMOPS,
           (unsigned long long)p.counted_until, p.contexts[0], p.contexts[1], p.contexts[63]);
    return 0;
}
"""


def grant(slot: int, policy: str = "burst-share", compute: int = 0, limit: int = 100, **more: object) -> Grant:
    share = Share(UUID, 100, compute, limit, slot=slot)
    who = Identity("/r", str(slot), "/b")
    return made(Grant, f"{slot:032}", who, Life("boot"), (share,), policy=policy, **more)


def records(page: bytes) -> dict[int, tuple[int, int, int, int, int, int]]:
    """Slot number -> (class, freeze, weight, cap, linger, born) of the present ones."""
    present = int.from_bytes(page[32:40], "little")
    found = {}
    for i in range(pages.SLOTS):
        class_, freeze, weight, cap, linger, _, born, _ = RECORD.unpack_from(page, 128 + i * RECORD.size)
        if present >> i & 1:
            found[i] = (class_, freeze, weight, cap, linger, born)
        else:
            assert born == weight == 0
    return found


def test_c_reads_what_python_wrote(tmp_path: Path) -> None:
    grants = (
        grant(1, "fixed-share", 30, 30, priority_class="offline", born=11, linger=100_000_000),
        grant(64, "burst-share", 20, 80, priority_class="online", born=1 << 63, frozen=5),
        grant(3, "burst-share", 10),
        grant(4, "best-effort"),
        grant(5, "best-effort"),
        grant(2).replace(shares=(Share("GPU-other", 1, 50, slot=2),)),
        grant(6).replace(shares=(Share(UUID, 1, whole=True),), exclusive=True),
    )
    page = bytearray(pages.gpu_page(UUID, grants, 7, 10, seq=6, tiers=tiers.MEMOPS))
    counts = pages.counts({1: 0, 2: 7, 64: 300}, 1 << 60)
    assert not any(page[pages.COUNTS_OFFSET :]) and pages.COUNTS_OFFSET + len(counts) < pages.SIZE
    page[pages.COUNTS_OFFSET : pages.COUNTS_OFFSET + len(counts)] = counts
    (tmp_path / "page").write_bytes(page)
    (tmp_path / "reader.c").write_text(READER)
    subprocess.run([*ZIG, "-I", str(SHIM), "-o", tmp_path / "reader", tmp_path / "reader.c"], check=True)
    said = json.loads(subprocess.run([tmp_path / "reader", tmp_path / "page"], check=True, capture_output=True).stdout)
    assert said == {
        "magic": 1,
        "version": 1,
        "size": 4096,
        "seq": 6,
        "scale": 10,
        "generation": 7,
        "present": 1 | 4 | 8 | 16 | 1 << 63,
        "uuid": UUID,
        "tiers": 1,
        "file": pages.SLOT_FILE_SIZE,
        "slots": pages.SLOTS,
        "slot": [
            [0, 0, 0, 3000, 300_000, 100_000_000, 11],
            [2, 1, 0, 1000, 0, 0, 0],
            [3, 1, 0, 3500, 0, 0, 0],
            [4, 1, 0, 3500, 0, 0, 0],
            [63, 2, 1, 2000, 800_000, 0, 1 << 63],
        ],
        "memops": tiers.MEMOPS,
        "until": 1 << 60,
        "contexts": [1, 7, 255],
    }
    assert pages.head(pages.gpu_page(UUID, grants, 7, 10, seq=6)) == (6, 7, 10)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Grant, ...]:
    """Grants of one GPU as the ledger has them: guarantees that sum to 100 at most, those of class offline apart; each slot
    once."""
    grants, left = [], {True: 100, False: 100}
    for slot in draw(st.sets(st.integers(1, pages.SLOTS), min_size=1, max_size=64)):
        class_ = draw(st.sampled_from(("offline", "default", "online")))
        compute = draw(st.integers(0, left[class_ == "offline"]))
        policy = draw(st.sampled_from(("best-effort", "fixed-share", "burst-share")))
        limit = draw(st.integers(max(compute, 1), 100))
        free = draw(st.booleans())
        grants.append(grant(slot, policy, compute, limit, priority_class=class_, born=slot, online_competes=free))
        left[class_ == "offline"] -= compute if policy != "best-effort" else 0
    return tuple(grants)


@given(crowds(), st.booleans())
def test_guarantees_hold_and_nobody_starves(everybody: tuple[Grant, ...], offline: bool) -> None:
    """Of class offline, and of the other classes, each as though those of the other part were not there."""
    said = records(pages.gpu_page(UUID, everybody, 1))
    assert set(said) == {g.shares[0].slot - 1 for g in everybody}
    grants = [g for g in everybody if (g.terms.priority_class == "offline") == offline]
    free = any(g.competes for g in grants)  # then class online has weights of its own: the next test
    weighted = [g for g in grants if not free or g.terms.priority_class != "online"]
    firm = {g.shares[0].slot - 1: pages.guaranteed(g, g.shares[0]) for g in weighted}
    booked = sum(pages.guaranteed(g, g.shares[0]) for g in grants)
    total = sum(said[i][2] for i in firm)
    assert total <= 101 * pages.ONE_PERCENT
    for i, percent in firm.items():
        _, _, weight, cap, _, _ = said[i]
        assert 1 <= weight <= 10_000 and 0 <= cap < 1_000_000
        # Of what it competes for it has its guarantee, to within a point, whoever else is there.
        assert 100 * weight / total >= percent - 1
        assert not cap or cap >= percent * pages.PPM
    rest = {said[i][2] for i, percent in firm.items() if not percent}
    assert len(rest) <= 1
    if rest:
        count = sum(not pages.guaranteed(g, g.shares[0]) for g in grants)
        assert rest == {max(1, max(1, 100 - booked) * pages.ONE_PERCENT // count)}


@given(crowds())
def test_online_containers_that_compete_have_equal_weights_and_no_ceiling_but_a_stated_one(
    grants: tuple[Grant, ...],
) -> None:
    said = records(pages.gpu_page(UUID, grants, 1))
    free = {g.shares[0].slot - 1: g for g in grants if g.online_competes and g.terms.priority_class == "online"}
    others = [g for g in grants if g.terms.priority_class == "online" and g.shares[0].slot - 1 not in free]
    assert len({said[i][2] for i in free}) <= 1
    for i, g in free.items():
        share = g.shares[0]
        stated = share.compute_limit if share.compute and g.terms.policy != "best-effort" else 0
        assert said[i][3] == (stated if stated < 100 else 0) * pages.PPM
        assert pages.promised(g, share, grants) <= min(share.compute, 100 // (len(free) + len(others)))
    # Beside them, one that does not compete (granted under the former setting) keeps what it was guaranteed.
    total = sum(said[g.shares[0].slot - 1][2] for g in others) + sum(said[i][2] for i in free)
    for g in others:
        percent = pages.guaranteed(g, g.shares[0])
        assert 100 * said[g.shares[0].slot - 1][2] / total >= percent - 1


@given(crowds())
def test_the_page_depends_on_the_set_of_grants_alone(grants: tuple[Grant, ...]) -> None:
    assert pages.gpu_page(UUID, grants, 1) == pages.gpu_page(UUID, grants[::-1], 1)
    free = pages.free_slot(UUID, grants)
    taken = {g.shares[0].slot for g in grants}
    assert free not in taken
    assert free == 0 if len(taken) == pages.SLOTS else set(range(1, free)) <= taken


def test_online_30_and_70_compete_equally_and_a_lower_class_has_its_weights() -> None:
    def page(free: bool, limit: int = 100) -> dict[int, tuple[int, int]]:
        grants = (
            grant(1, "fixed-share", 30, limit, priority_class="online", online_competes=free),
            grant(2, "burst-share", 60, priority_class="online", online_competes=free),
            grant(3, "fixed-share", 8, 8, priority_class="offline", online_competes=free),
            grant(4, "best-effort", priority_class="offline", online_competes=free),
        )
        return {i: record[2:4] for i, record in records(pages.gpu_page(UUID, grants, 1)).items()}

    lower = {2: (800, 80_000), 3: (9200, 0)}
    assert page(True) == {0: (5000, 0), 1: (5000, 0), **lower}
    assert page(True, limit=40) == {0: (5000, 400_000), 1: (5000, 0), **lower}
    assert page(False) == {0: (3000, 300_000), 1: (6000, 0), **lower}


def test_a_whole_gpu_beside_others_is_best_effort() -> None:
    """With `whole_gpus: shared`: no memory limit, an equal part of the time."""
    whole = grant(1).replace(shares=(Share(UUID, 100, whole=True, slot=1),))
    said = records(pages.gpu_page(UUID, (whole, grant(2)), 1))
    assert [said[i][2:4] for i in (0, 1)] == [(5000, 0), (5000, 0)]


@given(st.binary(max_size=200))
def test_whatever_is_in_a_pages_place_is_not_believed(data: bytes) -> None:
    assert pages.head(data) == (1, 0, 1)
