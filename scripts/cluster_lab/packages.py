"""The Debian packages of packages.txt: fetched by apt, their checksums compared, unpacked."""

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from scripts.cluster_lab.programs import PACKAGES, CannotRun

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITE = "bookworm"


def pins() -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Binary packages and source files: name -> version, sha256."""
    rows = [line.split() for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]
    named = {name: (version, digest) for name, version, digest in rows}
    sources = {name: pin for name, pin in named.items() if name.endswith((".dsc", ".tar.gz", ".tar.xz"))}
    return {name: pin for name, pin in named.items() if name not in sources}, sources


def fetch(work: Path) -> tuple[list[Path], Path]:
    """The packages' files and the source's .dsc, below `work`. What is there already is not fetched again."""
    debs, sources = pins()
    folder = work / "fetched"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(name, f"{name}={version}") for name, (version, _) in debs.items() if not _deb(folder, name)]
    source_missing = [name for name in sources if not (folder / name).exists()]
    if wanted or source_missing:
        options = _options(work)
        _apt(folder, *options, "update")
        if wanted:
            _apt(folder, *options, "download", *(pin for _, pin in wanted))
        if source_missing:
            name, _, _ = source_missing[0].partition("_")
            version = next(iter(sources.values()))[0]
            _apt(folder, *options, "source", "--download-only", f"{name}={version}")
    for name, (_, digest) in (debs | sources).items():
        path = folder / name if name in sources else _deb(folder, name)
        if path is None or not path.exists():
            raise CannotRun(f"apt did not bring {name}")
        found = sha256(path.read_bytes()).hexdigest()
        if found != digest:
            path.unlink()
            raise CannotRun(f"{path.name} has the sha256 {found}, not {digest} as in {PACKAGES.name}; it is deleted")
    return [path for name in debs if (path := _deb(folder, name))], next(folder.glob("*.dsc"))


def unpack(debs: list[Path], root: Path) -> None:
    for deb in debs:
        subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)


def _deb(folder: Path, name: str) -> Path | None:
    return next(folder.glob(f"{name}_*.deb"), None)


def _options(work: Path) -> list[str]:
    """apt with lists of its own, of the Debian mirror that this machine's apt uses; nothing is installed."""
    for part in ("lists/partial", "archives/partial"):
        (work / part).mkdir(parents=True, exist_ok=True)
    line = f"[signed-by={KEYRING}] {_mirror()} {SUITE} main"
    listed = work / "sources.list"
    listed.write_text(f"deb {line}\ndeb-src {line}\n")
    return [
        f"-oDir::Etc::SourceList={listed}",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::State::Lists={work}/lists",
        f"-oDir::Cache={work}",
        "-oDir::State::status=/dev/null",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Languages=none",
    ]


def _mirror() -> str:
    for needed in ("apt-get", "dpkg", "dpkg-source", "patch"):
        if not shutil.which(needed):
            raise CannotRun(
                f"{needed} is missing; the programs are built from Debian's packages (apt, dpkg-dev, patch)"
            )
    if not Path(KEYRING).exists():
        raise CannotRun(f"{KEYRING} is missing (package debian-archive-keyring)")
    listed = subprocess.run(["apt-get", "--print-uris", "update"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        uri = line.split("'")[1] if "'" in line else ""
        if "/debian/dists/" in uri:
            return uri.partition("/dists/")[0]
    raise CannotRun("apt names no mirror of Debian: add one to its sources")


def _apt(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["apt-get", "-q", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"apt-get cannot bring the packages: {(done.stderr or done.stdout).strip()[-500:]}")
