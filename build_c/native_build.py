"""Runs the plans of each C part's build.py through ninja, which compiles what is out of date.

An object is made again when its source, a header that it includes or its command has changed, and nothing else with it.
"""

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

STATUS = "%f of %t\t"  # finished steps, all steps; ninja(1), NINJA_STATUS
QUIET = 10.0  # seconds between two lines of progress
ROOT = Path(__file__).resolve().parent.parent
# Builds a checkout's C parts: another Python has its compiler elsewhere, and would compile all of it again.
PYTHON = str(ROOT / ".venv/bin/python") if (ROOT / ".venv/bin/python").exists() else sys.executable
SHOWN = "made "  # first word of a step's description that is shown


class Plan:
    """The steps of one build. out: where its files go. arch: as `uname -m` says. cc: the compiler's command."""

    def __init__(self, out: Path, arch: str, cc: Sequence[str]) -> None:
        self.out, self.arch, self.cc = out, arch, list(cc)
        self._steps: dict[Path, str] = {}
        self._texts: dict[Path, str] = {}
        self._rules = ["rule run", "  command = $words", "  description = $say"]
        self._rules += ["rule object", "  command = $words -MMD -MF $out.d", "  depfile = $out.d", "  deps = gcc"]
        self._rules += ["  description = $in"]

    def text(self, path: Path, text: str) -> Path:
        """A generated file; it is written only when its text changes."""
        self._texts[path] = text
        return path

    def objects(self, folder: Path, target: str, flags: Sequence[str], sources: Sequence[Path]) -> list[Path]:
        """Compile each source for `target`. Files that compile alike share their objects below `folder`."""
        command = [*self.cc, "-target", target, *flags, "-c"]
        place = folder / hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
        made = []
        for source in sources:
            made.append(place / f"{source.stem}.o")
            words = shlex.join([*command, str(source), "-o", str(made[-1])])
            self._step(made[-1], "object", [source], words)
        return made

    def link(
        self, made: Path, target: str, flags: Sequence[str], objects: Sequence[Path], more: Sequence[str] = ()
    ) -> None:
        """Link `objects` into `made`, then the words `more`. Those of `more` that are planned files are made first.

        A program that runs keeps the file it has: the new one takes the name.
        """
        place = objects[0].parent
        # Short names: zig 0.17 cannot start its linker with many long ones.
        names = [os.path.relpath(each, place) for each in objects]
        first = [path for path in map(Path, more) if path in self._steps]
        command = [*self.cc, "-target", target, *flags, "-o", f"{made}.new", *names, *more]
        words = f"cd {shlex.quote(str(place))} && {shlex.join(command)} && mv {shlex.join([f'{made}.new', str(made)])}"
        shown = "" if made.parent == place.parent else SHOWN  # not what only later steps need
        self._step(made, "run", [*objects, *first], words, f"{shown}{made.relative_to(self.out)}")

    def run(self, say: Callable[[str], object] = lambda line: None) -> None:
        """Bring all files up to date. say: called with each library or program that was made, and every 10 s with the progress.

        Raises subprocess.CalledProcessError with the compiler's words on stderr. Two builds at once: the second waits.
        """
        work = self.out / ".ninja"
        work.mkdir(parents=True, exist_ok=True)
        with open(work / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for path, text in self._texts.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists() or path.read_text() != text:
                    path.write_text(text)
            file = work / "build.ninja"
            file.write_text("\n".join([f"builddir = {_escaped(work)}", *self._rules, *self._steps.values(), ""]))
            _ninja(file, say)

    def _step(self, made: Path, rule: str, inputs: Sequence[Path], words: str, say: str = "") -> None:
        needs = " ".join(map(_escaped, inputs))
        variables = [("words", words), ("say", say)]
        lines = [f"build {_escaped(made)}: {rule} {needs}"]
        lines += [f"  {name} = {value.replace('$', '$$')}" for name, value in variables]
        self._steps[made] = "\n".join(lines)


def _ninja(file: Path, say: Callable[[str], object]) -> None:
    import ninja

    began = last = time.monotonic()
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-f", str(file)]
    environment = {**os.environ, "NINJA_STATUS": STATUS}
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        for line in process.stdout:
            said.append(line)
            count, _, what = line.rstrip("\n").partition("\t")
            now = time.monotonic()
            if what.startswith(SHOWN) or now - last > QUIET:
                say(f"{what if what.startswith(SHOWN) else 'compiled'} ({count}), {now - began:.0f} s")
                last = now
    if process.returncode == 130:  # ninja was interrupted
        raise KeyboardInterrupt
    if process.returncode:
        sys.stderr.write("".join(line for line in said if "\t" not in line))
        raise subprocess.CalledProcessError(process.returncode, command)


def _escaped(path: Path) -> str:
    text = str(path)
    for char in ("$", " ", ":"):
        text = text.replace(char, f"${char}")
    return text
