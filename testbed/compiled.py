"""C programs of the tests, compiled once for each content of their sources and kept below build/ for all runs."""

import fcntl
import hashlib
import platform
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

import ziglang

# Not by `python -m`: twice the time for small files. With the target of what is shipped, since the compiler
# builds its runtime library anew for each other target and kind of optimisation, without -O for 20 s of processor time.
ZIG = [
    str(Path(ziglang.__file__).with_name("zig")),
    "cc",
    "-target",
    f"{platform.machine()}-linux-gnu.2.17",
    "-O1",
    "-s",
]
KEPT = Path(__file__).resolve().parent.parent / "build" / platform.machine() / "tests"
C = (".c", ".h", ".def", ".S")


def compiled(name: str, command: Sequence[str]) -> Path:
    """The file called `name` that a compiler's command makes, given without -o. All processes share it: it is read only.

    It is made anew when the compiler's version differs, or a file that the command names, or a C file in such a file's
    folder or below one of -I. Raises subprocess.CalledProcessError.
    """
    place = KEPT / _hash(name, *command)
    place.mkdir(parents=True, exist_ok=True)
    made, of = place / name, place / "of"
    compiler = takewhile(lambda word: word[0] != "-", command)
    now = _hash(_version(*compiler), *(_content(file, file.stat().st_mtime_ns) for file in _inputs(command)))
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or not of.exists() or of.read_text() != now:
            subprocess.run([*command, "-o", str(place / "new")], check=True)
            (place / "new").rename(made)
            of.write_text(now)
    return made


def source(name: str, text: str) -> Path:
    """A generated file with this text, for a command of `compiled`."""
    file = KEPT / _hash(name, text) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            (file.parent / "new").write_text(text)
            (file.parent / "new").rename(file)
    return file


def _inputs(command: Sequence[str]) -> Iterator[Path]:
    for word in command[1:]:
        if word.startswith("-I"):
            yield from (file for file in sorted(Path(word[2:]).rglob("*")) if file.suffix in C)
        elif word.startswith("/") and Path(word).is_file():
            yield Path(word)
            yield from (file for file in sorted(Path(word).parent.iterdir()) if file.suffix in C)


@cache
def _content(file: Path, changed: int) -> str:
    return _hash(str(file), file.read_bytes())


@cache
def _version(*compiler: str) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout


def _hash(*parts: str | bytes) -> str:
    whole = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.sha256(whole).hexdigest()[:20]
