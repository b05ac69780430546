"""Compiles the launcher: two static programs from one source, gpu-hook-runtime and oci-gpu-hook; and gpu-hook-boundary.

What the launcher shares with the Python code is compiled in: the words of core/dialects without which a config.json
asks for nothing, and the defaults of the settings that it reads.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = [f"{name}.c" for name in ("launcher", "flags", "flat_yaml", "owner", "exec_env", "process_json", "blake2b")]
PACKAGE = HERE.parent
READ = [PACKAGE / name for name in ("core/dialects/__init__.py", "core/layout.py", "config/settings.py")]
PROGRAMS = {
    "gpu-hook-runtime": SOURCES,
    "oci-gpu-hook": ["-DHOOK", *SOURCES],
    "gpu-hook-boundary": ["boundary_client.c"],
}
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", "-fstack-protector-strong"]


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Compile into `out` for `arch` (as `uname -m` says) with zig's C compiler `cc`, unless newer than the source.

    Raises subprocess.CalledProcessError when it does not compile.
    """
    out.mkdir(parents=True, exist_ok=True)
    newest = max(file.stat().st_mtime_ns for file in (*HERE.glob("*.[ch]"), *READ, Path(__file__)))
    for name, words in PROGRAMS.items():
        target = out / name
        if not target.exists() or target.stat().st_mtime_ns < newest:
            options = ["-target", f"{arch}-linux-musl", *FLAGS, *shared(), "-o", str(target)]
            given = [str(HERE / word) if word.endswith(".c") else word for word in words]
            subprocess.run([*cc, *options, *given], check=True)


def shared() -> list[str]:
    """The compiler's options that define what the Python code says."""
    if str(PACKAGE.parent) not in sys.path:
        sys.path.insert(0, str(PACKAGE.parent))
    from oci_hook.config.settings import Settings
    from oci_hook.core import dialects
    from oci_hook.core.layout import MARKER, PAGES_DIR

    defaults = Settings("/")
    words = {"ASKS": dialects.triggers(), "NEAR_KEYS": dialects.NEAR_KEYS, "NEAR_MOUNTS": dialects.NEAR_MOUNTS}
    lists = [f"-D{name}=" + ", ".join(f'"{word}"' for word in found) for name, found in words.items()]
    paths = {
        "RUNTIME": defaults.runtime,
        "PYTHON": defaults.python,
        "STATE_DIR": defaults.state_dir,
        "PAGES_DIR": PAGES_DIR,
        "MARKER": MARKER,
    }
    return [*lists, *(f'-D{name}="{path}"' for name, path in paths.items())]
