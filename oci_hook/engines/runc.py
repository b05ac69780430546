"""runc and crun called directly. They have no configuration to register with: call gpu-hook-runtime in their place, or
name the hooks in the bundle's config.json (runtime-config/runc)."""

from pathlib import Path

from oci_hook.engines.edits import Registration, Target

PROGRAMS = ("runc", "crun")
RELOAD = None


def paths(registration: Registration) -> list[Path]:
    return []


def target(path: Path, registration: Registration) -> Target:
    raise ValueError(path)


def place(registration: Registration) -> str:
    return f"call {registration.program} in place of runc, with the same arguments"
