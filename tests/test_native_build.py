"""What scripts/build compiles again, and what it leaves."""

import subprocess
import sys
from pathlib import Path

import pytest

from build_c.native_build import Plan
from testbed import compiled

ROOT = Path(__file__).resolve().parents[1]
CC = [sys.executable, "-m", "ziglang", "cc"]
TARGET = "x86_64-linux-gnu.2.17"


class Sources:
    """Two programs: `one` of a.c, which includes a header, and b.c; `two` of b.c alone."""

    def __init__(self, folder: Path, cc: list[str] = CC) -> None:
        self.folder, self.out, self.cc = folder / "src", folder / "o u t", cc
        self.folder.mkdir()
        self.write("a.h", "#define A 1")
        self.write("a.c", '#include "a.h"\nint b(void); int main(void) { return b() + A; }')
        self.write("b.c", "int b(void) { return 2; }")
        self.write("main.c", "int b(void); int main(void) { return b(); }")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text + "\n")

    def build(self, *flags: str) -> list[str]:
        """What was made."""
        plan, made = Plan(self.out, "x86_64", self.cc), list[str]()
        for name, sources in {"one": ("a.c", "b.c"), "two": ("main.c", "b.c")}.items():
            objects = plan.objects(
                self.out / "objects", TARGET, ("-O1", *flags), [self.folder / source for source in sources]
            )
            plan.link(self.out / name, TARGET, ["-O1", "-s"], objects)
        plan.run(lambda line: made.append(line.split()[1]))
        return sorted(made)

    def status(self, name: str) -> int:
        return subprocess.run([str(self.out / name)], check=False).returncode


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def test_a_header_makes_what_includes_it_and_no_more(sources: Sources) -> None:
    assert sources.build() == ["one", "two"] and sources.status("one") == 3
    assert sources.build() == []
    sources.write("a.h", "#define A 5")
    assert sources.build() == ["one"] and sources.status("one") == 7
    sources.write("b.c", "int b(void) { return 4; }")
    assert sources.build() == ["one", "two"] and sources.status("two") == 4


def test_other_flags_make_it_again(sources: Sources) -> None:
    sources.build()
    assert sources.build("-O2") == ["one", "two"]
    assert sources.build("-O2") == []


def test_what_does_not_compile_leaves_the_old_file(sources: Sources, capfd: pytest.CaptureFixture[str]) -> None:
    sources.build()
    sources.write("a.h", "#define A nothing")
    with pytest.raises(subprocess.CalledProcessError):
        sources.build()
    assert "nothing" in capfd.readouterr().err
    assert sources.status("one") == 3
    sources.write("a.h", "#define A 0")
    assert sources.build() == ["one"] and sources.status("one") == 2


def test_a_program_that_runs_keeps_its_file(sources: Sources) -> None:
    sources.write("a.c", "#include <unistd.h>\nint main(void) { pause(); }")
    sources.build()
    with subprocess.Popen([str(sources.out / "one")]) as running:
        sources.write("a.c", "int main(void) { return 9; }")
        assert sources.build() == ["one"] and sources.status("one") == 9
        assert running.poll() is None
        running.kill()


def test_two_builds_at_once_make_each_file_once(sources: Sources) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]; import test_native_build as t;"
        "s = t.Sources.__new__(t.Sources); f = Path(sys.argv[1]);"
        "s.folder, s.out, s.cc = f / 'src', f / 'o u t', t.CC; print(*s.build())"
    )
    command = [sys.executable, "-c", code, str(sources.folder.parent), str(Path(__file__).parent), str(ROOT)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in both) == ["", "one two"]


def test_a_program_of_the_tests_follows_its_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KEPT", tmp_path / "kept")
    (tmp_path / "inc").mkdir()
    (tmp_path / "a.c").write_text('#include "a.h"\n#include "b.h"\nint main(void) { return A * B; }\n')
    header, other = tmp_path / "a.h", tmp_path / "inc/b.h"
    header.write_text("#define A 3\n")
    other.write_text("#define B 5\n")

    def made() -> tuple[int, int]:
        """Exit status and inode."""
        program = compiled.compiled("a", [*compiled.ZIG, f"-I{tmp_path}/inc", str(tmp_path / "a.c")])
        return subprocess.run([program]).returncode, program.stat().st_ino

    first = made()
    assert first[0] == 15 and made() == first
    header.write_text("#define A 4\n")
    assert made()[0] == 20
    other.write_text("#define B 6\n")
    assert made()[0] == 24
