"""`gpu-hook set`, `freeze` and `resume`: a change that fits is in all pages at once, another changes nothing."""

import json
import mmap
import os
from errno import ENOSPC
from pathlib import Path

import pytest

from oci_hook.core.gpu_page import gpu_page, head
from oci_hook.core.grant import Grant, Share
from oci_hook.core.policy_page import policy_page
from oci_hook.discovery.save import save_inventory
from oci_hook.ledger import slot_files, store
from tests.cli.box import Install
from tests.cli.test_ps import container, page
from tests.terms import changed

NO_ROOM = "GH-201: no room: GPU 0 GPU-0 has "
POD = {"namespace": "ns", "pod": "shop", "container": "web"}


@pytest.fixture
def two(install: Install) -> tuple[Grant, Grant]:
    """30 % and 4 GiB beside 50 % and 16 GiB, on a GPU of 24 GiB."""
    web = install.grant("a" * 64, Share("GPU-0", 4096, 30, 80, slot=1), who=POD)
    return web, install.grant("batch", Share("GPU-0", 16384, 50, 50, slot=2), policy="fixed-share")


def now(install: Install, grant: Grant) -> Grant:
    """The grant as the ledger has it, once its pages say the same."""
    grants = store.snapshot(str(install.state))
    (found,) = [g for g in grants if g.key == grant.key]
    page = Path(install.state, "pages", grant.key, "policy").read_bytes()[:4096]
    assert page == policy_page(found, install.inventory, seq=page[16]) and page[16] % 2 == 0
    gpu = slot_files.page(str(install.state), "GPU-0")
    assert Path(install.state, "pages", grant.key, "policy").read_bytes()[4096:] == gpu
    assert gpu == gpu_page("GPU-0", grants, *head(gpu)[1:], head(gpu)[0]) and head(gpu)[0] % 2 == 0
    return found


def test_limits_policy_and_class(install: Install, two: tuple[Grant, Grant]) -> None:
    web, batch = two
    page = Path(install.state, "pages", web.key, "policy")
    with page.open("rb") as f, mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ) as seen:  # as the container has it
        said = install.text("set", "shop/web", "--memory", "8Gi", "--compute", "40", "--class", "online")
        assert said == (
            "container ns/shop/web (aaaaaaaaaaaa): memory 8Gi, compute 40% up to 80%; burst-share; class online\n"
            "  was: memory 4Gi, compute 30% up to 80%; burst-share; class default\n"
        )
        assert seen[:] == policy_page(now(install, web), install.inventory, seq=seen[16]) == page.read_bytes()[:4096]
    assert now(install, web) == changed(web, shares=(Share("GPU-0", 8192, 40, 80, slot=1),), priority_class="online")
    assert now(install, batch) == batch

    steps = [
        (("--policy", "fs"), (40, 40), "fixed-share"),
        (("--policy", "bs"), (40, 100), "burst-share"),
        (("--compute-limit", "60"), (40, 60), "burst-share"),
        (("--compute", "50"), (50, 60), "burst-share"),
        (("--policy", "be"), (50, 100), "best-effort"),  # what was guaranteed stays booked
        (("--compute", "30"), (30, 100), "best-effort"),
        (("--compute", "20", "--policy", "bs"), (20, 100), "burst-share"),
        (("--memory", "25%"), (20, 100), "burst-share"),
        (("--class", "offline"), (20, 100), "burst-share"),
    ]
    for options, (compute, limit), policy in steps:
        install.text("set", "a" * 12, *options)
        found = now(install, web)
        assert (found.shares[0].compute, found.shares[0].compute_limit, found.terms.policy) == (compute, limit, policy)
    assert (found.shares[0].memory_mib, found.terms.priority_class) == (6144, "offline")
    data = install.data("set", "web", "--class", "offline")
    assert data["before"] == data["after"] and data["after"]["class"] == "offline"


def test_class_online_frees_a_fixed_share_of_its_ceiling_and_back(install: Install) -> None:
    """With the setting online_compute: booking, which the grant carries (Grant.online_competes)."""
    fixed = Share("GPU-0", 4096, 30, 30, slot=1)
    web = install.grant("a" * 64, fixed, who=POD, policy="fixed-share", online_competes=True)
    install.grant("batch", Share("GPU-0", 8192, 50, 50, slot=2), policy="fixed-share", online_competes=True)
    steps = [
        (("--class", "online"), (30, 100)),
        (("--compute", "40"), (40, 100)),
        (("--compute-limit", "60"), (40, 60)),
        (("--memory", "5Gi"), (40, 60)),
        (("--class", "default"), (40, 40)),
        (("--class", "online", "--compute-limit", "50"), (40, 50)),
        (("--policy", "bs"), (40, 50)),
        (("--policy", "fs"), (40, 50)),
        (("--class", "offline", "--compute", "20"), (20, 20)),
        (("--policy", "bs", "--compute-limit", "60"), (20, 60)),
        (("--class", "online"), (20, 60)),
        (("--compute-limit", "100"), (20, 100)),
    ]
    for options, expected in steps:
        install.text("set", "shop/web", *options)
        found = now(install, web)
        assert (found.shares[0].compute, found.shares[0].compute_limit) == expected, options
    before = install.ledger()
    assert install.text("set", "web", "--compute", "51", status=1).startswith(NO_ROOM + "50 of 100 % compute")  # booked
    said = "GH-103: --compute-limit is for the policy burst-share, here it is fixed-share"
    options = ("--class", "default", "--policy", "fs", "--compute-limit", "30")
    assert install.text("set", "web", *options, status=1).startswith(said)
    assert install.ledger() == before


def test_class_online_keeps_its_ceiling_where_compute_is_a_share(install: Install) -> None:
    web = install.grant("a" * 64, Share("GPU-0", 4096, 30, 30, slot=1), who=POD, policy="fixed-share")
    install.text("set", "web", "--class", "online")
    assert now(install, web).shares == web.shares


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory", "9Gi"), NO_ROOM + "8192 of 24576 MiB for it beside the others, 9216 asked;"),
        (("--compute", "51"), NO_ROOM + "50 of 100 % compute for it beside the others, 51 asked;"),
        (("--compute", "81"), "GH-103: the ceiling of 80 % is below the guarantee of 81 %; give --compute-limit too"),
        (("--compute-limit", "29"), "GH-103: the ceiling of 29 % is below the guarantee of 30 %; give --compute-limit"),
        (("--compute-limit", "90", "--policy", "fs"), "GH-103: --compute-limit is for the policy burst-share"),
        (("--memory", "4G"), "GH-101: --memory '4G' is not a size; did you mean 4Gi?\n"),
        (("--compute", "0", "--policy", "x"), "GH-101: --compute '0' is not within 1 to 100\nGH-101: --policy 'x' is"),
        (("--class", "first"), "GH-101: --class 'first' is not one of online, default, offline"),
        (("--policy", "\x1b[31m"), "GH-101: --policy '\\x1b[31m' is not one of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_changes_nothing(
    install: Install, two: tuple[Grant, Grant], options: tuple[str, ...], said: str
) -> None:
    before = install.ledger()
    assert install.text("set", "web", *options, status=1).startswith(said)
    assert install.ledger() == before
    assert now(install, two[0]) == two[0]


def test_a_number_without_its_unit(install: Install, two: tuple[Grant, Grant]) -> None:
    gpus = tuple(gpu.replace(context_mib=300) for gpu in install.inventory.gpus)
    save_inventory(install.settings, install.inventory.replace(gpus=gpus))
    for asked, said in (("4", "4 asked; did you mean 4Gi?\n"), ("200", "200 asked; ask for more\n")):
        assert install.text("set", "web", "--memory", asked, status=1).endswith(said)


def test_the_event_says_what_was_changed(install: Install, two: tuple[Grant, Grant]) -> None:
    install.text("set", "web", "--memory", "5Gi", "--compute", "40", "--class", "offline")
    install.text("set", "web", "--policy", "be")
    install.text("set", "web", "--policy", "be")  # changes nothing
    lines = [line for line in install.text("events").splitlines() if "  changed  " in line]
    assert len(lines) == 2, lines
    old = two[0].shares[0]
    assert f"GPU-0: memory {old.memory_mib} MiB -> 5120 MiB; GPU-0: compute {old.compute} % -> 40 %" in lines[0]
    assert lines[0].endswith(f"class {two[0].terms.priority_class} -> offline")
    assert "compute" not in lines[1] and lines[1].endswith("policy burst-share -> best-effort")


def test_a_change_that_the_ledger_could_not_keep_is_not_the_last_event(
    install: Install, two: tuple[Grant, Grant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, where the small event still fits."""

    def full(self: object, key: str, data: bytes) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(store.Ledger, "_save", full)
    assert "GH-303" in install.text("set", two[0].who.id, "--memory", "5Gi", status=1)
    told = map(json.loads, install.text("events", "--json").splitlines())
    there, back = (event for event in told if event["event"] == "changed")
    assert (back["before"], back["after"]) == (there["after"], there["before"])


def test_containers_that_cannot_be_changed(install: Install, two: tuple[Grant, Grant]) -> None:
    install.grant("whole", Share("GPU-1", 24576, whole=True), exclusive=True)
    install.grant("files", policy="best-effort")
    install.grant("b" * 64, Share("GPU-1", 1), who={**POD, "namespace": "other"})
    before = install.ledger()
    for command, line in (
        (("set", "whole", "--memory", "1Gi"), "GH-411: container whole has its GPUs whole"),
        (("set", "files", "--compute", "10"), "GH-411: container files has no GPU"),
        (("freeze", "whole"), "GH-411: container whole has its GPUs alone"),
        (("resume", "files"), "GH-411: container files has no GPU"),
        (("set", "nobody", "--class", "online"), "GH-410: no living container goes by nobody;"),
        (("freeze", "a"), "GH-410: a begins a container's id, but has fewer than six characters"),
        (("freeze", "c"), "GH-410: no living container goes by c;"),
        (("freeze", ""), "GH-410: no living container goes by an empty name;"),
        (("freeze", "web"), "GH-410: 2 containers go by web (shop/web/"),
    ):
        assert install.text(*command, status=1).startswith(line)
    assert install.text("set", "whole", status=2).count("say what to change") == 1
    assert install.ledger() == before
    install.text("set", "other/shop/web", "--class", "online")
    install.text("set", "whole", "--class", "online")


@pytest.mark.root
def test_a_limit_below_what_is_in_use(install: Install, tmp_path: Path) -> None:
    """It is set, and what the container has stays; `set` says so."""
    (tmp_path / "page").write_bytes(page(100, 2048))
    with container(f"cp {tmp_path}/page page") as life:
        install.grant("c", Share("GPU-0", 4096), Share("GPU-1", 4096), life=life)
        assert "above" not in install.text("set", "c", "--memory", "2Gi")
        (line,) = install.text("set", "c", "--memory", "1Gi").splitlines()[2:]
    then = "it keeps that, and gets no more until it has freed enough to be below"
    assert line == f"  it uses 2Gi of GPU GPU-1, above its limit of 1Gi: {then}"


def test_freeze_and_resume(install: Install, two: tuple[Grant, Grant]) -> None:
    web, batch = two
    assert install.text("freeze", "batch") == "container batch frozen\n"
    frozen = now(install, batch)
    assert frozen.frozen > 1_700_000_000 and now(install, web) == web
    assert install.text("freeze", "batch") == "container batch is frozen already\n"
    assert now(install, batch) == frozen
    assert "frozen since" in install.text("ps")
    assert [g["state"] for g in install.data("ps")["containers"]] == ["starting", "frozen"]
    install.text("set", "batch", "--compute", "40")
    assert now(install, batch).frozen == frozen.frozen
    done = {"id": "batch", "key": batch.key, "frozen_since": None, "changed": True, "in_effect": True}
    assert install.data("resume", "batch") == done
    assert install.text("resume", "batch") == "container batch is not frozen\n"
    assert now(install, batch).frozen == 0


def test_a_class_is_changed_where_its_compute_has_room(install: Install) -> None:
    """Class offline is booked apart: a change of the class alone books the compute anew."""
    web = install.grant("a" * 64, Share("GPU-0", 4096, 60, 100, slot=1), who=POD)
    install.grant("batch", Share("GPU-0", 4096, 60, 100, slot=2), priority_class="offline")
    for options in (("--class", "offline"), ("--class", "offline", "--memory", "5Gi")):
        said = install.text("set", "a" * 12, *options, status=1)
        assert said.startswith(NO_ROOM + "40 of 100 % offline compute for it beside the others, 60 asked"), said
    assert now(install, web) == web
    install.text("set", "a" * 12, "--class", "offline", "--compute", "40")
    assert now(install, web).terms.priority_class == "offline"
    assert install.text("set", "batch", "--compute", "61", status=1).startswith(NO_ROOM + "60 of 100 % offline compute")
    install.text("set", "batch", "--class", "online", "--compute", "100")
    assert install.text("set", "a" * 12, "--class", "default", status=1).startswith(NO_ROOM + "0 of 100 % compute")
