"""Where programs of an image look beside the usual places; and files that are no honest programs."""

import os
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oci_hook.apply import image_search
from oci_hook.apply.image import look
from oci_hook.apply.image_search import Command
from oci_hook.errors import ApplyError
from oci_hook.linux import elf
from oci_hook.linux.walk import Tree, Work
from testbed.compiled import ZIG

CC = [*ZIG, "-fno-sanitize=undefined"]


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for folder in ("bin", "etc", "run", "usr/lib64", "usr/bin"):
        (root / folder).mkdir(parents=True)
    return root


def put(root: Path, path: str, content: bytes = b"", mode: int = 0o755) -> Path:
    at = root / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(content)
    at.chmod(mode)
    return at


def covered(root: Path, *args: str, mounts: list[dict[str, Any]] | None = None, cwd: str = "/", **env: str) -> set[str]:
    facts = look(str(root), mounts or [], Command(args, cwd, env))
    return {*facts.cover_cuda, *facts.cover_nvml}


@pytest.fixture(scope="session")
def run_path_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A program with the run path $ORIGIN/../lib:/srv/a:relative:$LIB:${ORIGIN}/b."""
    place = tmp_path_factory.mktemp("elf")
    (place / "p.c").write_text("int main(void) { return 0; }")
    flags = ["-Wl,-rpath,$ORIGIN/../own:/srv/a:relative:/x/$LIB:${ORIGIN}/b"]
    subprocess.run([*CC, *flags, "-o", str(place / "p"), str(place / "p.c")], check=True)
    return (place / "p").read_bytes()


def test_known_names_in_known_folders(rootfs: Path) -> None:
    for path in ("lib/libcuda.so.1", "lib/libcuda.so", "lib/libnvidia-ml.so.1", "cuda-compat/libcuda.so.1"):
        put(rootfs, f"opt/conda/{path}")
    put(rootfs, "opt/conda/lib/libcudart.so.12")
    put(rootfs, "opt/conda/envs/a/lib/libcuda.so.1")
    put(rootfs, "root/miniconda3/lib64/libcuda.so.1")
    assert covered(rootfs) == {
        "/opt/conda/lib/libcuda.so.1",
        "/opt/conda/lib/libcuda.so",
        "/opt/conda/lib/libnvidia-ml.so.1",
        "/opt/conda/cuda-compat/libcuda.so.1",
        "/opt/conda/envs/a/lib/libcuda.so.1",
        "/root/miniconda3/lib64/libcuda.so.1",
    }


def test_prefixes_of_the_environment(rootfs: Path) -> None:
    for prefix in ("srv/a", "srv/b", "srv/c", "srv/d", "srv/none"):
        put(rootfs, f"{prefix}/lib/libcuda.so.1")
    (rootfs / "srv/d/bin").mkdir()
    (rootfs / "usr/link").symlink_to("/srv/d/bin")
    found = covered(
        rootfs, PATH="/srv/a/bin:relative/bin::/usr/bin:/usr/link:/srv/none", CONDA_PREFIX="/srv/b", CUDA_HOME="srv/c"
    )
    assert found == {f"/srv/{name}/lib/libcuda.so.1" for name in "abd"}
    assert covered(rootfs, PATH=":".join(["/x/bin"] * 64 + ["/srv/a/bin"])) == set()
    assert covered(rootfs, PATH="/srv/a/bin/" + "x" * 5000) == set()


def test_files_that_variables_name(rootfs: Path) -> None:
    for name in ("a/libcuda.so.1", "b/libcuda.so", "c/libnvidia-ml.so.1", "d/libcudart.so", "d/libother.so"):
        put(rootfs, f"srv/{name}")
    (rootfs / "srv/link").symlink_to("a")
    preload = "libx.so /srv/link/libcuda.so.1:/srv/none/libcuda.so.1 /srv/c/libnvidia-ml.so.1:/srv/d/libother.so"
    assert covered(rootfs, LD_PRELOAD=preload) == {"/srv/link/libcuda.so.1", "/srv/c/libnvidia-ml.so.1"}
    assert covered(rootfs, NUMBA_CUDA_DRIVER="/srv/b/libcuda.so") == {"/srv/b/libcuda.so"}
    assert covered(rootfs, NUMBA_CUDA_DRIVER="srv/b/libcuda.so") == set()


def test_a_stub_under_its_plain_name_is_left(rootfs: Path) -> None:
    for folder in ("opt/conda/lib/stubs", "srv/cuda/lib64/stubs", "usr/local/cuda/lib64/stubs"):
        put(rootfs, f"{folder}/libcuda.so")
    put(rootfs, "srv/cuda/lib64/stubs/libcuda.so.1")
    assert covered(rootfs, CUDA_HOME="/srv/cuda") == {"/srv/cuda/lib64/stubs/libcuda.so.1"}


def test_the_run_path_of_the_program(rootfs: Path, run_path_program: bytes) -> None:
    put(rootfs, "srv/app/bin/server", run_path_program)
    for path in ("srv/app/own", "srv/a", "srv/app/bin/b", "relative", "x/lib"):
        put(rootfs, f"{path}/libcuda.so.1")
    expected = {f"/{path}/libcuda.so.1" for path in ("srv/app/own", "srv/a", "srv/app/bin/b")}
    assert covered(rootfs, "/srv/app/bin/server") == expected
    assert covered(rootfs, "server", PATH="/bin:/srv/app/bin") == expected
    assert covered(rootfs, "bin/server", cwd="/srv/app") == expected
    assert covered(rootfs, "tini", "-g", "--", "server", PATH="/bin:/srv/app/bin") == expected
    assert covered(rootfs, "server") == covered(rootfs) == set()
    put(rootfs, "run.sh", b"#!/srv/app/bin/server -x\n", 0o755)
    put(rootfs, "run.py", b"#!/usr/bin/env -S server\n", 0o755)
    assert covered(rootfs, "/run.sh") == expected
    assert covered(rootfs, "/run.py", PATH="/srv/app/bin") == expected
    (rootfs / "srv/app/bin/server").chmod(0o644)
    assert covered(rootfs, "/srv/app/bin/server") == set()


def test_links_go_nowhere_outside(rootfs: Path, tmp_path: Path) -> None:
    put(tmp_path, "host/libcuda.so.1")
    (rootfs / "opt/conda").mkdir(parents=True)
    (rootfs / "opt/conda/lib").symlink_to(tmp_path / "host")
    assert covered(rootfs) == set()
    (rootfs / "opt/conda/envs").symlink_to("/opt/conda/envs")
    (rootfs / "bin/loop").symlink_to("loop")
    assert covered(rootfs, "loop", PATH="/bin") == set()
    os.mkfifo(rootfs / "bin/pipe", 0o777)
    assert covered(rootfs, "pipe", PATH="/bin") == set()


def test_more_environments_than_are_looked_at(rootfs: Path) -> None:
    for n in range(image_search.MAX_ENVIRONMENTS + 1):
        (rootfs / f"opt/conda/envs/{n:04}/lib").mkdir(parents=True)
    for n in (0, image_search.MAX_ENVIRONMENTS - 1, image_search.MAX_ENVIRONMENTS):
        put(rootfs, f"opt/conda/envs/{n:04}/lib/libcuda.so.1")
    last = f"/opt/conda/envs/{image_search.MAX_ENVIRONMENTS - 1:04}/lib/libcuda.so.1"
    assert covered(rootfs) == {"/opt/conda/envs/0000/lib/libcuda.so.1", last}


@pytest.mark.parametrize("count", (64, 65))
def test_at_most_64_copies(rootfs: Path, count: int) -> None:
    for n in range(count):
        put(rootfs, f"opt/conda/envs/{n:03}/lib/libcuda.so.1")
    if count == 64:
        assert len(covered(rootfs)) == 64
        return
    with pytest.raises(ApplyError, match="more than 64 copies"):
        covered(rootfs)


def test_what_config_json_may_have_for_a_command() -> None:
    assert image_search.command({}) == Command()
    for args in (None, "python", [], [1, None], {"a": 1}):
        assert image_search.command({"process": {"args": args, "cwd": 7}}) == Command()
    spec = image_search.command({"process": {"args": ["a", 1, *"bcdefghij"], "cwd": "/x", "env": ["A=b=c", "D"]}})
    assert spec == Command(("a", *"bcdefg"), "/x", {"A": "b=c"})


def test_names_that_are_none(rootfs: Path) -> None:
    for word in ("", "\0", "a\0b", "/" * 5000, "\udcff", "\ud800", "x" * 300, "a\nb", ".", "..", "/"):
        assert covered(rootfs, word, PATH=f"/bin:/{word}", CONDA_PREFIX=f"/{word}") == set()


def spent(data: bytes, path: Path) -> tuple[str, int]:
    path.write_bytes(data)
    work = Work(1 << 16)
    fd = os.open(path, os.O_RDONLY)
    try:
        facts = elf.read(fd, elf.RPATH, elf.RUNPATH, spend=work.spend)
        return ":".join(facts.texts.values()) if facts else "", (1 << 16) - work.left
    finally:
        os.close(fd)


def test_files_that_are_no_programs(tmp_path: Path, run_path_program: bytes) -> None:
    """Cut short, with changed bytes, with counts and offsets as large as they can be: no error, and little work."""
    file = tmp_path / "file"
    text, work = spent(run_path_program, file)
    assert text.startswith("$ORIGIN/../own:") and work < 1000
    dice = random.Random(7)
    for size in (0, 1, 4, 6, 63, 64, 65, 120, 500, 1000):
        assert spent(run_path_program[:size], file)[1] < 3000
    for _ in range(2000):
        data = bytearray(run_path_program)
        for _ in range(dice.randint(1, 6)):
            data[dice.randrange(1200) if dice.random() < 0.8 else dice.randrange(len(data))] = dice.choice(
                (0, 1, 255, 127)
            )
        assert spent(bytes(data), file)[1] < 3000
    head = bytearray(run_path_program)
    for offset, form in ((32, "<Q"), (54, "<H"), (56, "<H")):  # e_phoff, e_phentsize, e_phnum
        for value in (0, 1, 64, 65, 0xFFFF, 1 << 63, (1 << 64) - 1):
            one = bytearray(head)
            size = struct.calcsize(form)
            one[offset : offset + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            assert spent(bytes(one), file)[1] < 3000


def test_a_file_without_end_is_not_read(tmp_path: Path, run_path_program: bytes) -> None:
    """The look reads a few pieces, however large the file is."""
    root = tmp_path / "root"
    at = put(root, "bin/huge", run_path_program)
    os.truncate(at, 1 << 40)
    with Tree(str(root)) as tree:
        before = tree.work.left
        image_search.paths(tree, Command(("/bin/huge",)))
        assert before - tree.work.left < 3000
