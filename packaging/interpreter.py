"""The Python that packages carry, so that a machine needs none: Debian's, with its libraries and its loader, in one folder.

Pinned by version and checksum in python/debian.txt, and trimmed to what our code imports (python/trim.py). FOLDER/bin/python3
is a static program of ours (oci_hook/launcher/own_python.c), which starts FOLDER/lib/python by FOLDER/lib/gpu-hook-python,
the loader, whatever libraries the machine has.
"""

import functools
import json
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

import compiled
from payload import ROOT, Files, below, lay, read

from oci_hook.core.layout import OWN_PYTHON_HOT
from oci_hook.install import prefix
from oci_hook.launcher.build import own_python_folder
from testbed.debian import CannotFetch, apt, unpack

HERE = ROOT / "packaging/python"
PINS = HERE / "debian.txt"
TRIM = HERE / "trim.py"
SUITE, VERSION = "trixie", "python3.13"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
# Of glibc: what drivers' libraries need, and looks names up.
LIBRARIES = "libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 libz.so.1 libexpat.so.1 libffi.so.8"
COLD_LIBRARIES = "libssl.so.3 libcrypto.so.3 libzstd.so.1"
PROGRAM = "gpu-hook-python"  # what scripts/build calls the static program


def pinned(pins: Path, suite: str, arch: str, root: Path) -> None:
    """Unpack the packages that a file of pins names: architecture, package, version, sha256. suite: "": of the machine's sources."""
    architecture = ARCHITECTURES[arch]
    lines = [line.split() for line in pins.read_text().splitlines()]
    wanted = [line[1:] for line in lines if line[0] == architecture]
    with tempfile.TemporaryDirectory() as scratch:
        debs = Path(scratch)
        try:
            with apt(suite, architecture="" if not suite and arch == platform.machine() else architecture) as get:
                get(debs, "download", *(f"{name}={version}" for name, version, _ in wanted))
        except CannotFetch as e:
            raise SystemExit(
                f"scripts/package: Debian's Python cannot be had as {pins.relative_to(ROOT)} says: {e}"
            ) from None
        for name, _, digest in wanted:
            (file,) = debs.glob(f"{name}_*.deb")
            if sha256(file.read_bytes()).hexdigest() != digest:
                raise SystemExit(f"scripts/package: {file.name} has another sha256 than {pins.relative_to(ROOT)} says")
            unpack([file], root)


def kept(name: str, arch: str, key: Iterable[bytes], make: Callable[[Path], object]) -> Path:
    """build/ARCH/NAME-DIGEST, made once for the same key; what older keys gave goes."""
    digest = sha256()
    for part in key:
        digest.update(len(part).to_bytes(8, "little") + part)
    place = ROOT / "build" / arch / f"{name}-{digest.hexdigest()[:16]}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f"{name}.") as scratch:
            half = Path(scratch, "half")
            half.mkdir()
            make(half)
            half.rename(place)
        for old in place.parent.glob(f"{name}-*"):
            if old != place:
                shutil.rmtree(old, ignore_errors=True)
    return place


@functools.cache
def debian(arch: str) -> Path:
    return kept("debian-python", arch, [PINS.read_bytes()], lambda half: pinned(PINS, SUITE, arch, half))


def stdlib(arch: str) -> Path:
    return debian(arch) / f"usr/lib/{VERSION}"


def run(*words: str) -> str:
    """What a program prints that the Python of this machine's architecture runs."""
    arch = platform.machine()
    libraries = debian(arch) / f"usr/lib/{arch}-linux-gnu"
    program = [
        str(libraries / LOADERS[arch]),
        "--library-path",
        str(libraries),
        str(debian(arch) / f"usr/bin/{VERSION}"),
    ]
    done = subprocess.run(
        [*program, "-I", "-S", "-B", *words], capture_output=True, text=True, env={"PYTHONHASHSEED": "0"}
    )
    if done.returncode:
        raise SystemExit(f"scripts/package: {words[0]}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def key(files: Files) -> Iterable[bytes]:
    for name, (data, _) in sorted(files.items()):
        yield from (name.encode(), data)


def code(files: Files) -> Files:
    """The compiled form of each module among these files, for the Python that packages carry: __pycache__/NAME.pyc."""
    sources = {name: file for name, file in files.items() if name.endswith(".py")}

    def make(half: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lay(Path(folder), sources)
            run(str(TRIM), "compile", folder, "cache", str(half), "0", *sorted(sources))

    name = f"code-{sha256(' '.join(sorted(sources)).encode()).hexdigest()[:8]}"
    return below_folder(kept(name, "any", [PINS.read_bytes(), TRIM.read_bytes(), *key(sources)], make))


def below_folder(folder: Path) -> Files:
    return {str(path.relative_to(folder)): read(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def files(arch: str, package: Files) -> Files:
    """FOLDER with the interpreter, its name telling which one, for these Python files; FOLDER/hot lists what installs copy."""
    sources = {name: file for name, file in package.items() if name.endswith(".py")}
    hot = {
        f"oci_hook/{name}"
        for name in (*prefix.hot_modules(), *("launcher/load.py", "launcher/start.py", "install/pack.py"))
    }

    def make(half: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lay(folder / "all", sources)
            lay(folder / "hot", {name: file for name, file in sources.items() if name in hot})
            said = run(str(TRIM), "choose", str(stdlib(arch)), str(folder / "hot"), str(folder / "all"))
            few, all_ = json.loads(said)
            names = [name for name in all_ if name.endswith(".py")]
            run(str(TRIM), "compile", str(stdlib(arch)), "alone", str(half / VERSION), "2", *names)
            for name in all_:
                if name.endswith(".so"):
                    (half / VERSION / name).parent.mkdir(exist_ok=True)
                    shutil.copyfile(stdlib(arch) / name, half / VERSION / name)
            (half / "hot").write_text("".join(f"{name}c\n" if name.endswith(".py") else f"{name}\n" for name in few))

    found = kept("python", arch, [PINS.read_bytes(), TRIM.read_bytes(), *key(sources)], make)
    libraries = debian(arch) / f"usr/lib/{arch}-linux-gnu"
    made = {f"lib/{name}": file for name, file in below_folder(found).items() if name != "hot"}
    made |= {f"lib/{name}": read(libraries / name) for name in f"{LIBRARIES} {COLD_LIBRARIES}".split()}
    made["lib/gpu-hook-python"] = read(libraries / LOADERS[arch], 0o755)
    made["lib/python"] = read(debian(arch) / f"usr/bin/{VERSION}", 0o755)
    made["bin/python3"] = program(arch)
    names = ["lib/gpu-hook-python", "lib/python", "bin/python3", *(f"lib/{name}" for name in LIBRARIES.split())]
    names += [f"lib/{VERSION}/{name}" for name in (found / "hot").read_text().split()]
    made[OWN_PYTHON_HOT] = "".join(f"{name}\n" for name in sorted(names)).encode(), 0o644
    licences = sorted((debian(arch) / "usr/share/doc").glob("*/copyright"))
    made |= {f"licences/{path.parent.name}": read(path) for path in licences}
    made["licences/SOURCE"] = source().encode(), 0o644
    return below(own_python_folder(), made)


def program(arch: str) -> tuple[bytes, int]:
    """Starts the interpreter: FOLDER/bin/python3, and beside FOLDER the command gpu-hook."""
    compiled.parts("oci_hook", arch)
    return read(ROOT / "build" / arch / PROGRAM, 0o755)


def source() -> str:
    """Where the programs' sources are, as the licence of glibc wants it said."""
    lines = {" ".join(line.split()[1:3]) for line in PINS.read_text().splitlines() if not line.startswith("#")}
    return (
        "These are programs and libraries of Debian's packages, not changed:\n"
        + "".join(f"  {line}\n" for line in sorted(lines))
        + "`apt-get source PACKAGE=VERSION` gets the sources from Debian, whose snapshot archive keeps each version.\n"
        "Who passes this on offers them with it. libc, libm and the loader are under the GNU Lesser General Public License.\n"
    )
