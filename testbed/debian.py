"""Debian's packages, by this machine's apt with lists and a cache of its own; nothing on the machine changes."""

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Its mounts are in a namespace of their own: none is left where a command is interrupted.
APART = ("unshare", "--mount", "--propagation", "private")
# Runs a command ("$@") with the programs for arm64 by an emulator ($0). A user namespace has a binfmt_misc of its own since
# Linux 6.7, so nothing outside of it is emulated. The header of such a program: ELF(5), e_machine EM_AARCH64.
EMULATED = r"""echo here; read -r mapped; exec </dev/null; b=/proc/sys/fs/binfmt_misc; x=\\xff\\xff\\xff\\xff\\xff\\xff\\xff
mount -t binfmt_misc none $b || { echo "$0 needs binfmt_misc in a user namespace: Linux 6.7" >&2; exit 1; }
set -e; head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
printf %s ":arm64:M::$head:$x\\x00$x\\xff\\xfe\\xff\\xff\\xff:$0:FP" >$b/register
exec "$@"
"""


class CannotFetch(Exception):
    """Why a package cannot be had, in a sentence."""


@contextmanager
def alone(place: Path, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Nobody else makes `place` meanwhile. say: is told where another process makes it now."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_name(f"{place.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say:
                say("another build runs; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def mirror() -> str:
    """The Debian mirror that this machine's apt uses. Raises CannotFetch."""
    for program in ("apt-get", "dpkg"):
        if not shutil.which(program):
            raise CannotFetch(f"{program} is missing, which fetches Debian's packages")
    listed = subprocess.run(["apt-get", "--print-uris", "update"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        uri = line.split("'")[1] if "'" in line else ""
        if "/debian/dists/" in uri:
            return uri.partition("/dists/")[0]
    raise CannotFetch("apt names no mirror of Debian: add one to its sources")


@contextmanager
def apt(
    suite: str = "", component: str = "main", architecture: str = "", sources: bool = False
) -> Iterator[Callable[..., None]]:
    """get(FOLDER, "download", "name=version"...) is apt-get in that folder, with fresh lists. suite: of Debian, signed with
    its keyring; "": what the machine's own sources have. sources: also lists of source packages. Raises CannotFetch,
    and so does `get`."""
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        for part in ("lists/partial", "archives/partial"):
            (own / part).mkdir(parents=True)
        options = [f"-oDir::State::Lists={own}/lists", f"-oDir::Cache={own}", "-oDir::State::status=/dev/null"]
        options += ["-oAPT::Sandbox::User=root", "-oAcquire::Languages=none"]
        options += ["-oAcquire::http::Timeout=20", "-oAcquire::Retries=1"]
        if architecture:
            options += [f"-oAPT::Architecture={architecture}", f"-oAPT::Architectures={architecture}"]
        if suite:
            if not KEYRING.exists():
                raise CannotFetch(f"{KEYRING} is missing (package debian-archive-keyring)")
            line = f"[signed-by={KEYRING}] {mirror()} {suite} {component}\n"
            (own / "sources.list").write_text(f"deb {line}" + f"deb-src {line}" * sources)
            options += [f"-oDir::Etc::SourceList={own}/sources.list", "-oDir::Etc::SourceParts=/dev/null"]

        def get(folder: Path, *arguments: str) -> None:
            try:
                done = subprocess.run(
                    ["apt-get", "-q", *options, *arguments], cwd=folder, capture_output=True, text=True
                )
            except FileNotFoundError:
                raise CannotFetch("apt-get is missing, which fetches Debian's packages") from None
            if done.returncode:
                raise CannotFetch(f"apt-get {' '.join(arguments)[:200]}: {(done.stderr or done.stdout).strip()[-400:]}")

        get(own, "update")
        yield get


def unpack(packages: Iterable[Path], root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)  # dpkg-deb makes only the last folder of a path
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True, capture_output=True)


def bootstrap(
    root: Path,
    suite: str,
    packages: Iterable[str],
    variant: str = "minbase",
    architecture: str = "",
    emulator: Path | None = None,
) -> None:
    """A Debian at `root`, by mmdebstrap. variant: "extract" only unpacks these packages and what they depend on, so that
    architecture may be another than this machine's. emulator: QEMU's static program that runs what is for arm64, on a machine
    for which that is another architecture. Raises CannotFetch."""
    for program in ("mmdebstrap", "unshare"):
        if not shutil.which(program):
            raise CannotFetch(f"{program} is missing, which makes a root of Debian's packages")
    # A mirror that has not been renewed for a week is signed all the same.
    options = ['--aptopt=Acquire::Check-Valid-Until "false"']
    options += [f"--arch={architecture}"] if architecture else []
    command = ["mmdebstrap", "-q", "--mode=root", f"--variant={variant}", f"--include={','.join(packages)}", *options]
    command += ["--skip=check/qemu"] if emulator else []
    command += [suite, str(root), mirror()]
    whole = [*APART, *command]
    done = emulated(emulator, command) if emulator else subprocess.run(whole, capture_output=True, text=True)
    if done.returncode:
        raise CannotFetch(f"mmdebstrap of {suite}: {(done.stderr or done.stdout).strip()[-400:]}")


def emulated(emulator: Path, command: list[str]) -> "subprocess.CompletedProcess[str]":
    """What a command did, run with EMULATED in a user namespace with the same users, which only a process outside of it
    can give it."""
    pipe = subprocess.PIPE
    whole = [*APART, "--user", "--keep-caps", "sh", "-c", EMULATED, str(emulator), *command]
    with subprocess.Popen(whole, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline():
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{process.pid}/{name}").write_text("0 0 4294967295")
            out, errors = process.communicate("\n")
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, errors)
