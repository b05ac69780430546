"""config.json as type checkers see it, once oci/spec.py has checked it; no program loads this module.

Only the parts that we read or edit are named (OCI runtime spec, config.md). Any of them may be missing, or None, which
is how Go writes an empty list. What is not checked is an Object.
"""

from typing import Any, TypedDict

Object = dict[str, Any]


class Process(TypedDict, total=False):
    """The program that the container runs. env: NAME=VALUE. args and cwd are not checked."""

    env: list[str] | None
    args: object
    cwd: object


class Root(TypedDict, total=False):
    """path: absolute, or relative to the bundle."""

    path: str | None


class Mount(TypedDict, total=False):
    """destination: an absolute path in the container."""

    destination: str | None
    type: str | None
    source: str | None
    options: list[str] | None


class Resources(TypedDict, total=False):
    """devices: rules of the device cgroup, in their order."""

    devices: list[Object] | None


class Linux(TypedDict, total=False):
    """devices: nodes to make. cgroupsPath is not checked."""

    devices: list[Object] | None
    resources: Resources | None
    cgroupsPath: object


class Spec(TypedDict, total=False):
    """The whole document. hooks is not checked: a table of stages in a valid document."""

    annotations: dict[str, str] | None
    process: Process | None
    root: Root | None
    mounts: list[Mount] | None
    linux: Linux | None
    hooks: Any
