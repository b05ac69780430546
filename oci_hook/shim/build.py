"""Plans the shim libraries libcuda.so.1 and libnvidia-ml.so.1.

They export every name of data/driver-symbols: those in intercepts.def are C functions, the rest are generated jump
stubs that look the real function up at the first call. The real library is an absolute DT_NEEDED, which a linker
writes when it links against a library whose soname is a path.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_c.native_build import Plan

HERE = Path(__file__).parent
SYMBOLS = HERE.parent.parent / "data" / "driver-symbols"
GLIBC = "2.17"
FLAGS = [
    "-std=c11",
    "-O2",
    "-flto",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-sanitize=undefined",
]
LINK = ["-shared", "-Wl,--no-as-needed", "-Wl,-z,relro", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,--build-id=none", "-s"]
INTERCEPTED = {"allocates", "frees", "informs", "context", "lookup", "view", "gated", "starts"}
EXEMPT = {"cuGetExportTable"}  # returns private tables without names, whose functions we cannot recognise
# The folders of each library; README.md says what each is for. cuda_*.c are libcuda's alone.
COMMON = ("pages", "process", "account", "driver")


class Library:
    """One shim: its soname, the symbol lists that it exports, what a missing function returns, its folders."""

    def __init__(self, soname: str, lists: str, taken: str, uses: str, real: str, missing: int, folders: str) -> None:
        self.soname = soname
        self.lists = lists
        self.taken = taken
        self.uses = uses
        self.real = real
        self.missing = missing
        self.folders = (*COMMON, *folders.split())

    def files(self) -> list[str]:
        """The library's C files."""
        found = [path for folder in self.folders for path in sorted((HERE / folder).glob("*.c"))]
        if self.soname != "libcuda.so.1":
            found = [path for path in found if not path.name.startswith("cuda_")]
        return [str(path) for path in found]


LIBRARIES = (
    # 500 = CUDA_ERROR_NOT_FOUND, 13 = NVML_ERROR_FUNCTION_NOT_FOUND
    Library("libcuda.so.1", "*cuda-*.txt", "GH_CUDA", "GH_USES", "driver/cuda", 500, "gate memory lookup"),
    Library("libnvidia-ml.so.1", "*nvidia-ml-*.txt", "GH_NVML", "GH_NVML_USES", "driver/ml", 13, "nvml"),
)


def table(macro: str) -> list[str]:
    """The exported symbols (last argument) of one kind of row in intercepts.def."""
    rows = re.findall(rf"^{macro}\(([^)]*)\)", (HERE / "intercepts.def").read_text(), re.MULTILINE)
    return [row.split(",")[-1].strip() for row in rows]


def known(lists: str) -> list[str]:
    """Every exported name of the drivers that we know."""
    return sorted({name for path in SYMBOLS.glob(lists) for name in path.read_text().split()})


def classes() -> dict[str, str]:
    """What each known function does to a GPU's memory: name -> class (data/driver-symbols/classes.txt)."""
    rows = [line.split() for line in (SYMBOLS / "classes.txt").read_text().splitlines() if not line.startswith("#")]
    return {name: kind for kind, name in rows}


def check() -> None:
    """Raise SystemExit if a known function has no class, or its class needs an interceptor that is missing; or if one that
    we intercept is in no list."""
    kinds = classes()
    taken = {
        "GH_CUDA": set(table("GH_CUDA")),
        "GH_NVML": set(table("GH_NVML")),
        "refused": set(table("GH_NVML_REFUSED")),
    }
    wrong = []
    for library in LIBRARIES:
        unlisted = sorted(taken[library.taken] - set(known(library.lists)))
        wrong += [f"{name}: in intercepts.def, but in no list of data/driver-symbols" for name in unlisted]
        for name in known(library.lists):
            kind = kinds.get(name)
            if kind is None:
                wrong.append(f"{name}: not classified in data/driver-symbols/classes.txt")
            elif kind in INTERCEPTED and name not in taken[library.taken] and name not in EXEMPT:
                wrong.append(f"{name}: {kind}, but not in intercepts.def")
            elif (kind == "refused") != (name in taken["refused"]):
                wrong.append(f"{name}: class {kind} and intercepts.def disagree on refusing it")
    if wrong:
        raise SystemExit("\n".join(wrong))


def _names_header(library: Library, private: str) -> tuple[str, list[str]]:
    taken = table(library.taken)
    refused = table("GH_NVML_REFUSED")
    called = taken + [name for name in table(library.uses) if name not in taken]
    stubs = [name for name in known(library.lists) if name not in taken and name not in refused]
    names = called + [name for name in stubs if name not in called]
    offsets, at = [], 0
    for name in names:
        offsets.append(str(at))
        at += len(name) + 1
    lines = [
        "enum gh_real_index {",
        *(f"    GH_REAL_{name}," for name in names),
        "    GH_REALS",
        "};",
        f"#define GH_MISSING {library.missing}",
        f'#define GH_REAL_FILE "{private}/{library.real}"',
        "#define GH_REAL_NAMES " + " ".join(f'"{name}\\0"' for name in names),
        "#define GH_REAL_OFFSETS {" + ",".join(offsets) + "}",
        "",
    ]
    return "\n".join(lines), [f"{name} {names.index(name)}" for name in stubs]


def _x86_64(stubs: list[str]) -> str:
    """Tail jumps. The slow path saves the argument registers (System V: integers, xmm0-7, al), calls the resolver."""
    out = [".text", ".p2align 4", "gh_lazy:"]
    integers = ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax"]
    out += [f"push %{r}" for r in integers]
    out += ["sub $128, %rsp", *(f"movups %xmm{i}, {16 * i}(%rsp)" for i in range(8))]
    # On entry rsp was 8 below a multiple of 16; 7 pushes and 128 bytes leave it a multiple of 16.
    out += ["mov %r11d, %edi", "call gh_real_resolve", "mov %rax, %r11"]
    out += [*(f"movups {16 * i}(%rsp), %xmm{i}" for i in range(8)), "add $128, %rsp"]
    out += [f"pop %{r}" for r in reversed(integers)]
    out += ["jmp *%r11"]
    for stub in stubs:
        name, index = stub.split()
        out += [
            f".globl {name}", f".type {name}, @function", ".p2align 4", f"{name}:", "endbr64",
            f"mov gh_real_pointer+{8 * int(index)}(%rip), %r11", "test %r11, %r11", "je 1f", "jmp *%r11",
            f"1: mov ${index}, %r11d", "jmp gh_lazy", f".size {name}, .-{name}",
        ]  # fmt: skip
    return "\n".join(out) + '\n.section .note.GNU-stack,"",@progbits\n'


def _aarch64(stubs: list[str]) -> str:
    """The same for AAPCS64: x0-x8 and q0-q7 carry arguments, x16 and x17 are the linker's scratch registers."""
    out = [".text", ".p2align 4", "gh_lazy:", "stp x29, x30, [sp, #-224]!", "mov x29, sp"]
    pairs = [("x0", "x1", 16), ("x2", "x3", 32), ("x4", "x5", 48), ("x6", "x7", 64)]
    vectors = [(f"q{i}", f"q{i + 1}", 96 + 16 * i) for i in range(0, 8, 2)]
    out += [f"stp {a}, {b}, [sp, #{at}]" for a, b, at in pairs + vectors] + ["str x8, [sp, #80]"]
    out += ["mov w0, w17", "bl gh_real_resolve", "mov x16, x0"]
    out += [f"ldp {a}, {b}, [sp, #{at}]" for a, b, at in pairs + vectors] + ["ldr x8, [sp, #80]"]
    out += ["ldp x29, x30, [sp], #224", "br x16"]
    for stub in stubs:
        name, index = stub.split()
        out += [
            f".globl {name}", f".type {name}, %function", ".p2align 4", f"{name}:", "bti c",
            f"adrp x16, gh_real_pointer+{8 * int(index)}", f"ldr x16, [x16, :lo12:gh_real_pointer+{8 * int(index)}]",
            "cbz x16, 1f", "br x16", f"1: mov w17, #{index}", "b gh_lazy", f".size {name}, .-{name}",
        ]  # fmt: skip
    return ".arch armv8.5-a\n" + "\n".join(out) + '\n.section .note.GNU-stack,"",@progbits\n'


STUBS = {"x86_64": _x86_64, "aarch64": _aarch64}


def plan(plan: "Plan", out: Path, private: str = "/run/gpu-hook", flags: tuple[str, ...] = ()) -> None:
    """Plan both libraries in `out`. private: the container's private directory; only tests use another one.

    Raises SystemExit as `check` does.
    """
    check()
    target = f"{plan.arch}-linux-gnu.{GLIBC}"
    for library in LIBRARIES:
        place = out / "shim" / library.soname.split(".")[0]
        header, stubs = _names_header(library, private)
        plan.text(place / "real_names.h", header)
        assembler = plan.text(place / "stubs.S", STUBS[plan.arch](stubs))
        needed = place / "needed.so"
        empty = plan.objects(place, target, (), [plan.text(place / "empty.c", "")])
        # -nostdlib: else the compiler first builds its own runtime library anew, for 20 s of processor time.
        plan.link(needed, target, ["-shared", "-nostdlib", "-s", f"-Wl,-soname,{private}/{library.real}"], empty)
        options = [*FLAGS, *flags, f'-DGH_PRIVATE="{private}"', f"-I{place}", f"-I{HERE}"]
        objects = plan.objects(place, target, options, [*map(Path, library.files()), assembler])
        link = [*FLAGS, *flags, *LINK, f"-Wl,-soname,{library.soname}"]
        plan.link(out / library.soname, target, link, objects, [str(needed), "-ldl", "-lpthread"])
