"""Images, volumes and mounts that are made to be expensive to look at must cost about what ordinary ones do.

The whole of `create` is measured, our part and runc's, and compared with an ordinary image: greatest resident set and
processor time, by wait4(2). The bounds are some times the budget (64 MB and 100 ms), so that a busy machine passes;
the attacks took gigabytes or minutes before they were bounded.
"""

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_hook.apply.image import check_destinations, look
from oci_hook.apply.image_search import Command
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.plan import make_plan
from oci_hook.errors import ApplyError
from testbed import REPO, tiny_image
from testbed.containers import Bundle, Runc
from testbed.expensive_images import ASK, SHAPES, Edit, cache, cost, folder
from testbed.installs import Install, make_inventory
from testbed.long import draws

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
SECONDS, MEGABYTES = 0.6, 64


# With the other images runc fails before it calls the hook.
BEFORE_HOOKS = [name for name in SHAPES if not name.startswith(("thousands", "volumes", "a_search_path_of_megabytes"))]

ORDINARY: dict[str, tuple[float, float]] = {}  # front: an ordinary image's seconds and MB


def hooks(install: Install) -> dict[str, Any]:
    text = (REPO / "runtime-config/runc/config.json").read_text().replace("/opt/gpu-hook", str(install.prefix))
    return {"prestart": json.loads(text)["hooks"]["prestart"]}


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Path]:
    """An image, and a volume beside it. On a tmpfs, since some are too deep for pytest to remove, or a disk takes long."""
    place = tmp_path / "hostile"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "hostile", place], check=True)
    try:
        yield tiny_image.busybox(place / "image")
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "front"), [*((n, "wrapper") for n in SHAPES), *((n, "hook") for n in BEFORE_HOOKS)])
def test_costs_what_an_ordinary_one_does(
    prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path, rootfs: Path, hostile: Path, name: str, front: str
) -> None:
    """The container is refused with one line, or gets its share."""
    change = SHAPES[name](hostile)
    err = tmp_path / "err"

    def create(image: Path, edit: "Edit | None") -> tuple[int, float, float]:
        def edits(spec: dict[str, Any]) -> None:
            if edit:
                edit(spec)
            if front == "hook":
                spec["hooks"] = hooks(prefix)

        b = bundle(ASK, rootfs=image, edit=edits)
        program = prefix.program if front == "wrapper" else "runc"
        command = [program, "--root", str(runc.root), "create", "--bundle", str(b), runc.new_id()]
        return cost(command, err)

    if front not in ORDINARY:
        plain = [create(rootfs, None) for _ in range(2)]
        assert [status for status, *_ in plain] == [0, 0], err.read_text()
        ORDINARY[front] = plain[1][1:]
    status, seconds, megabytes = create(hostile, change)
    said = err.read_text()
    ordinary, ordinary_megabytes = ORDINARY[front]
    print(f"{name} {front}: {status} {seconds - ordinary:+.3f} s {megabytes - ordinary_megabytes:+.1f} MB {said[:300]}")
    assert seconds < ordinary + SECONDS
    assert megabytes < ordinary_megabytes + MEGABYTES
    if status:
        assert "GH-402: " in said or "GH-" not in said, said  # or runc cannot make it either
    else:
        assert runc.ids[-1] in runc.living()


# --- any image ---

words = st.lists(st.sampled_from(["a", "..", ".", "", "tls", "none", "usr", "lib64", "/"]), min_size=1, max_size=5)
texts = st.tuples(words, st.integers(1, 900)).map(lambda w: ("/".join(w[0]) + "/") * w[1])
targets = st.one_of(texts, st.sampled_from(["/", ".", "..", "usr", "lib64", "tls", "cuda-1", "/c0"]))
places = st.sampled_from(
    ["usr/lib64/tls", "usr/lib64/haswell", "usr/lib64/glibc-hwcaps", "usr/local", "usr/local/cuda-1", "usr/lib", "lib"]
    + ["opt/conda", "opt/conda/lib", "opt/conda/envs", "opt/conda/envs/a", "opt/conda/bin/python"]
    + ["usr/local/lib", "usr/local/nvidia", "a", "none", "c0", "run", "usr/bin", "usr/lib64/libcuda.so.1", "etc"]
)


def inside(root: Path, path: Path) -> bool:
    """False where the image's own links lead out of it on this machine: what is made there would be the host's."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


@settings(max_examples=draws(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(links=st.dictionaries(places, targets, max_size=8), path=texts, seed=st.integers(0, 1 << 30))
def test_any_image_of_links(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], path: str, seed: int
) -> None:
    """The image is refused, or looked through, within the bounds."""
    base = tmp_path_factory.mktemp("image")
    root = folder(base, "root")
    folder(root, "usr/lib64")
    for place, target in links.items():
        where = root / place
        if not inside(root, where.parent):
            continue
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            where.symlink_to(target[:4000])
        except OSError:  # of a folder that is a link, or there
            continue
    dice = random.Random(seed)
    if inside(root, root / "etc/ld.so.cache"):
        with contextlib.suppress(OSError):
            parts = (b"/libcuda.so", b"/libnvidia-ml.so", b"\0", b"/a", b"/tls")
            cache(root, b"".join(dice.choice(parts) for _ in range(4000)))
    inventory = make_inventory(base / "driver", base / "state")
    grant = Grant("k" * 32, Identity("/r", "id", "/b"), Life("b"), (Share(inventory.gpus[0].uuid, 100),))
    began = time.process_time()
    try:
        facts = look(
            str(root),
            [],
            Command(("python", path[:99]), env={"LD_LIBRARY_PATH": path, "PATH": f"/opt/conda/bin:{path}"}),
        )
        plan = make_plan(grant, inventory, facts, "/opt/g", "/run/g")
        check_destinations(str(root), [], plan)
    except ApplyError as e:
        assert [p.code for p in e.problems] == ["GH-402"] and len(str(e)) < 300
    assert time.process_time() - began < SECONDS
