"""Paths inside a root: the same answers as the kernel gives in a chroot, and nothing outside is ever seen."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oci_hook.errors import ApplyError
from oci_hook.linux.walk import MAX_FOLDERS, Tree, Work
from testbed.long import draws


@pytest.fixture
def root(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    (root / "a/file").write_text("x")
    for name, target in {
        "abs": "/a/b",
        "rel": "a/../a/b",
        "up": "../../../..",
        "out": "../outside/secret",
        "out2": str(outside / "secret"),
        "loop": "loop",
        "ping": "pong",
        "pong": "/ping",
        "dangling": "/not/here",
        "a/back": "../abs/c",
        "slashes": "//a///b//",
        "magic": "/proc/self/root",
        "dot": ".",
    }.items():
        os.symlink(target, root / name)
    return root


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", "/"),
        ("", "/"),
        ("/a", "/a"),
        ("a/b/", "/a/b"),
        ("/a/./b/..", "/a"),
        ("/../../a", "/a"),
        ("/abs", "/a/b"),
        ("/rel/x", "/a/b/x"),
        ("/up", "/"),
        ("/up/a/file", "/a/file"),
        ("/out", "/outside/secret"),
        ("/a/back", "/a/b/c"),
        ("/dangling/x", "/not/here/x"),
        ("/no/../a", "/a"),
        ("/no/such/../../a/file", "/a/file"),
        ("/slashes", "/a/b"),
        ("/dot/dot/a", "/a"),
        ("/magic/etc", "/proc/self/root/etc"),
    ],
)
def test_resolve(root: Path, path: str, found: str) -> None:
    with Tree(str(root)) as tree:
        assert tree.resolve(path)[0] == found


def test_kinds(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with Tree(str(root)) as tree:
        assert stat.S_ISDIR(tree.resolve("/")[1])
        assert stat.S_ISDIR(tree.resolve("/abs")[1])
        assert stat.S_ISREG(tree.resolve("/up/a/file")[1])
        assert stat.S_ISFIFO(tree.resolve("/fifo")[1])
        assert tree.resolve("/out")[1] == 0  # not the secret outside
        assert tree.resolve("/out2")[1] == 0
        assert tree.resolve("/nothing")[1] == 0


@pytest.mark.parametrize("path", ["/loop", "/ping/x", "/a/file/x", "/a/file/..", "/" + "n" * 300])
def test_errors(root: Path, path: str) -> None:
    with Tree(str(root)) as tree, pytest.raises(OSError):
        tree.resolve(path)


@pytest.mark.parametrize("known", [[], ["/a"], ["/abs", "/a/file"]])
def test_what_is_mounted_on_is_not_looked_into(root: Path, known: list[str]) -> None:
    with Tree(str(root)) as tree:
        for path in known:
            tree.resolve(path)
        tree.mount("/a")
        assert tree.resolve("/abs/deep") == ("/a/b/deep", 0)
        assert tree.resolve("/a/back") == ("/a/back", 0)
        assert tree.resolve("/a/file/x") == ("/a/file/x", 0)
        assert tree.names("/a") == []
        tree.mount("/")
        assert tree.resolve("/abs/../x") == ("/x", 0)


def test_what_is_mounted_is_looked_into_when_it_is_needed(root: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "below").mkdir(parents=True)
    (volume / "below/file").write_text("text")
    (volume / "out").symlink_to("../b/deep")
    (volume / "abs").symlink_to("/a/b/deep")
    with Tree(str(root)) as tree:
        assert not tree.mount("/a/v", str(volume))
        assert not tree.mount("/new/folder/v", str(volume))
        assert not tree.mount("/a/one", str(volume / "below/file"))
        assert not tree.mount("/a/none", "/nowhere")
        os.symlink("below", volume / "late")
        assert tree.resolve("/a/v/late/file") == ("/a/v/below/file", (volume / "below/file").stat().st_mode)
        assert sorted(tree.names("/a")) == ["b", "back", "file", "none", "one", "v"]
        assert tree.names("/new") == ["folder"] and stat.S_ISDIR(tree.resolve("/new/folder")[1])
        assert sorted(tree.names("/new/folder/v")) == ["abs", "below", "late", "out"]
        assert tree.resolve("/a/v/out") == tree.resolve("/new/folder/v/abs") == tree.resolve("/a/b/deep")
        assert tree.read("/a/one", 9) == tree.read("/a/v/below/file", 9) == b"text"
        assert tree.resolve("/a/none") == ("/a/none", 0) and tree.names("/a/none") == []
        # The last one counts.
        assert tree.is_mount("/a/v") and tree.mount("/a", str(volume))
        assert not tree.is_mount("/a/v") and tree.is_mount("/new/folder/v")
        assert sorted(tree.names("/a")) == ["abs", "below", "late", "out"]
        assert not tree.mount("/a/below", keep=True) and tree.names("/a/below") == ["file"]


def test_a_tree_that_is_meant_to_be_expensive(root: Path) -> None:
    """Links that each name hundreds of folders, thousands together: without a bound this takes gigabytes."""
    for n in range(60):
        os.symlink(f"y{n}/" * 600, root / f"m{n}")
    work = Work(1 << 16)
    with Tree(str(root), work) as tree:
        assert tree.resolve("/m0/../m1")[1] == 0
        with pytest.raises(ApplyError, match="GH-402"):
            for n in range(60):
                tree.resolve(f"/m{n}")
        for call in (tree.resolve, tree.names, tree.mount):  # and no more
            with pytest.raises(ApplyError, match="GH-402"):
                call("/a")
    with Tree(str(root), work) as other, pytest.raises(ApplyError, match="GH-402"):
        other.resolve("/a")
    with Tree(str(root)) as tree, pytest.raises(OSError):
        tree.resolve("/a/" + "z/" * 2100)
    with Tree(str(root)) as tree, pytest.raises(OSError):
        tree.resolve("/a/" + "/" * 5000)


def test_what_is_known_is_not_free(root: Path) -> None:
    """A chain of links through `..`, again and again: nothing new is looked at, and it ends all the same."""
    for n in range(39):
        os.symlink("a/../" * 800 + f"c{n + 1}", root / f"c{n}")
    with Tree(str(root), Work(1 << 16)) as tree:
        tree.resolve("/c0")
        with pytest.raises(ApplyError, match="GH-402"):
            tree.resolve("/c0")


def test_a_folder_is_listed_to_the_limit_only(root: Path) -> None:
    for n in range(300):
        (root / f"a/b/{n}").touch()
    with Tree(str(root), Work(380)) as tree:
        assert len(tree.names("/a/b")) == 300
        with pytest.raises(ApplyError, match="GH-402"):
            tree.names("/a/b")


def test_more_folders_than_descriptors(root: Path) -> None:
    for n in range(MAX_FOLDERS):
        (root / f"a/b/{n}").mkdir()
    with Tree(str(root)) as tree, pytest.raises(ApplyError, match="GH-402"):
        for n in range(MAX_FOLDERS):
            tree.resolve(f"/a/b/{n}")
    with Tree(str(root)) as tree:
        for n in range(MAX_FOLDERS):  # what is mounted on is not kept open
            tree.mount(tree.resolve(f"/a/b/{n}")[0])


def test_names(root: Path) -> None:
    with Tree(str(root)) as tree:
        assert sorted(tree.names(tree.resolve("/a")[0])) == ["b", "back", "file"]
        assert tree.names("/a/file") == []
        assert tree.names("/never/resolved") == []
        assert "abs" in tree.names("/")


def test_no_descriptor_is_left(root: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with Tree(str(root)) as tree:
        for path in ("/abs", "/up/a/file", "/nothing"):
            tree.resolve(path)
        tree.names("/a")
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(OSError):
        Tree(str(root / "a/file"))


names = st.sampled_from(["a", "b", "l", "..", ".", ""])
paths = st.lists(names, min_size=1, max_size=5).map("/".join)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@settings(max_examples=draws(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(links=st.dictionaries(st.sampled_from(["l", "a/l", "a/b/l", "b"]), paths, max_size=4), asked=paths)
def test_as_the_kernel_in_a_chroot(tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], asked: str) -> None:
    """Wherever the kernel, chrooted, finds something, we name the same inode; what loops for it loops for us."""
    root = tmp_path_factory.mktemp("t")
    (root / "a/b").mkdir(parents=True)
    for where, target in links.items():
        if target and not (root / where).exists():
            os.symlink(target, root / where)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.chroot(root)
            os.chdir("/")
            try:
                found = os.stat("/" + asked)
                os.write(write, f"{found.st_ino}".encode())
            except OSError as e:
                os.write(write, f"error {e.errno}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as f:
        said = f.read()
    os.waitpid(pid, 0)
    with Tree(str(root)) as tree:
        if said == "error 40":
            with pytest.raises(OSError):
                tree.resolve(asked)
        elif not said.startswith("error"):
            path, mode = tree.resolve(asked)
            assert mode and os.stat(f"{root}{path}", follow_symlinks=False).st_ino == int(said)
