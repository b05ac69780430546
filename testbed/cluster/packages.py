"""The Debian packages of packages.txt and packages-sid.txt: fetched by apt, their checksums compared."""

import shutil
from hashlib import sha256
from pathlib import Path

from testbed.cluster.programs import PACKAGES, CannotRun
from testbed.debian import CannotFetch, apt

SUITE = "bookworm"


def pins(file: Path) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Binary packages and source files: name -> version, sha256."""
    rows = [line.split() for line in file.read_text().splitlines() if line and not line.startswith("#")]
    named = {name: (version, digest) for name, version, digest in rows}
    sources = {name: pin for name, pin in named.items() if name.endswith((".dsc", ".tar.gz", ".tar.xz"))}
    return {name: pin for name, pin in named.items() if name not in sources}, sources


def fetch(work: Path, file: Path = PACKAGES, suite: str = SUITE) -> tuple[list[Path], Path | None]:
    """The packages' files and the source's .dsc, below `work`. Files that are there are not fetched again."""
    debs, sources = pins(file)
    folder = work / "fetched"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(name, f"{name}={version}") for name, (version, _) in debs.items() if not _deb(folder, name)]
    source_missing = [name for name in sources if not (folder / name).exists()]
    if wanted or source_missing:
        for needed in ("dpkg-source", "patch"):
            if not shutil.which(needed):
                raise CannotRun(f"{needed} is missing; the programs are built from Debian's packages (dpkg-dev, patch)")
        try:
            with apt(suite, sources=bool(source_missing)) as get:
                if wanted:
                    get(folder, "download", *(pin for _, pin in wanted))
                if source_missing:
                    name, _, _ = source_missing[0].partition("_")
                    version = next(iter(sources.values()))[0]
                    get(folder, "source", "--download-only", f"{name}={version}")
        except CannotFetch as e:
            raise CannotRun(str(e)) from None
    for name, (_, digest) in (debs | sources).items():
        path = folder / name if name in sources else _deb(folder, name)
        if path is None or not path.exists():
            raise CannotRun(f"apt did not bring {name}")
        found = sha256(path.read_bytes()).hexdigest()
        if found != digest:
            path.unlink()
            raise CannotRun(f"{path.name} has the sha256 {found}, not {digest} as in {file.name}; it is deleted")
    return [path for name in debs if (path := _deb(folder, name))], next(folder.glob("*.dsc"), None)


def _deb(folder: Path, name: str) -> Path | None:
    return next(folder.glob(f"{name}_*.deb"), None)
