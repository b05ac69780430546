"""Who can change what a path leads to: each directory and link on the way."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.install import own_path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
NOBODY = 65534


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "a/b/c"
    path.mkdir(parents=True)
    yield path


def test_roots_alone(deep: Path) -> None:
    assert own_path.changeable(str(deep)) is None
    assert own_path.changeable("/") is None
    assert own_path.changeable(f"{deep}/not/there") is None


@pytest.mark.parametrize("part", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o2775])
def test_a_folder_that_others_may_write_to(deep: Path, tmp_path: Path, part: str, mode: int) -> None:
    (tmp_path / part).chmod(mode)
    assert own_path.changeable(f"{deep}") == str(tmp_path / part)
    assert own_path.changeable(f"{deep}/../c/./x/y") == str(tmp_path / part)


@pytest.mark.parametrize("part", ["a", "a/b", "a/b/c"])
def test_a_folder_of_somebody_else(deep: Path, tmp_path: Path, part: str) -> None:
    os.chown(tmp_path / part, NOBODY, NOBODY)
    assert own_path.changeable(str(deep)) == str(tmp_path / part)


def test_sticky_folders_may_be_on_the_way_and_not_its_end(deep: Path, tmp_path: Path) -> None:
    top = tmp_path / "a"
    top.chmod(0o1777)
    assert own_path.changeable(str(deep)) is None
    assert own_path.changeable(str(top)) == str(top)
    assert own_path.cleaned(str(deep)) in (str(top), "/tmp")  # the first
    os.chown(top, NOBODY, NOBODY)  # whose owner may rename what is in it
    assert own_path.changeable(str(deep)) == str(top)
    os.chown(top, 0, 0)
    os.chown(top / "b", NOBODY, 0)
    assert own_path.changeable(str(deep)) == str(top / "b")


def test_what_links_lead_through_counts_too(deep: Path, tmp_path: Path) -> None:
    """The link's own folder, the link, and every folder of its target."""
    links = tmp_path / "links"
    links.mkdir()
    (links / "up").symlink_to("../a")
    (links / "here").symlink_to(f"{links}/up/b")
    path = f"{links}/here/c"
    assert own_path.changeable(path) is None
    for part in (links, tmp_path / "a", tmp_path / "a/b", deep):
        part.chmod(0o777)
        assert own_path.changeable(path) == str(part)
        part.chmod(0o755)
    for link in ("up", "here"):  # in /tmp its owner can make it anew
        os.chown(links / link, NOBODY, NOBODY, follow_symlinks=False)
        assert own_path.changeable(path) == str(links / link)
        os.chown(links / link, 0, 0, follow_symlinks=False)


def test_links_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("y")
    (tmp_path / "y").symlink_to("x")
    assert own_path.changeable(str(tmp_path / "x/z")) is None  # it leads nowhere, and nobody can change that
    (tmp_path / "gone").symlink_to("/nonexistent/x")
    assert own_path.changeable(str(tmp_path / "gone")) is None
