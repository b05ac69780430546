"""scripts/newcomer against a real dockerd that hides from this machine: a fresh clone of what is checked out, set-up,
install, a container with a share, and nothing left."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import ziglang

from testbed import REPO
from testbed.engines import box
from testbed.engines.box import IMAGE, Place
from testbed.long import long

pytestmark = [pytest.mark.root, pytest.mark.slow]
STEPS = 11


if (
    long()
):  # all that is C is compiled once more; each run of CI begins with set-up in a fresh clone, and test_docker installs

    def test_from_a_clone_to_a_share_and_away_again(native: Path, tmp_path: Path) -> None:
        place = Place(native)
        try:
            flags = (f"--data-root={place.dir}/data", f"--cgroup-parent=/{place.cgroup}", "--bridge=none")
            command = place.hideout.command("dockerd", *flags, "--iptables=false", "--ip-forward=false")
            ready = lambda: place.hideout.run("docker", "version").returncode == 0  # noqa: E731
            process = box.serve(command, place.dir / "dockerd.log", ready)
            try:
                assert place.hideout.run("docker", "load", "--quiet", "--input", str(place.archive)).returncode == 0
                source = tmp_path / "source"
                as_it_is(source)
                script = [str(REPO / "scripts/newcomer"), "--from", str(source), "--image", IMAGE]
                # In its mount namespace alone: set-up may need the network. zig keeps the C libraries that it has compiled by
                # the place of their sources: those of this checkout's zig are there, and take it 40 s of processor time else.
                variables = (f"TMPDIR={tmp_path}", f"ZIG_LIB_DIR={Path(ziglang.__file__).parent / 'lib'}")
                enter = ("nsenter", f"--target={place.hideout.keeper.pid}", "--mount", "--", "env", *variables)
                done = box.run(*enter, *script, "--prefix", f"{place.dir}/new", seconds=600)
            finally:
                process.terminate()
                process.wait(box.WAIT)
        finally:
            place.close()
        assert done.returncode == 0, done.stdout + done.stderr
        times = re.findall(r"^ *([\d.]+) s  ", done.stdout, re.M)
        assert len(times) == STEPS + 1 and float(times[-1]) >= max(map(float, times[:-1]))
        assert list(tmp_path.iterdir()) == [source]


def as_it_is(folder: Path) -> None:
    """A repository with this checkout's files, also those that are not committed."""
    listed = ["git", "-C", str(REPO), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (REPO / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, folder / name, follow_symlinks=False)
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@x.invalid"]
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "as it is")):
        subprocess.run([*git, *words], check=True, stdout=subprocess.DEVNULL)
