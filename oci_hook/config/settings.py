"""The settings of an install: PREFIX/etc/settings.yaml -> Settings. Read at every container start.

A change of the file is in effect at the next start. The one exception is `state_dir`: containers of the old directory's
ledger would be forgotten. So the install remembers the directory that it uses in PREFIX/etc/state_dir, and while
settings.yaml names another one, every start is refused until `gpu-hook settings set state_dir=DIR` has moved the install
(install/state_move.py).

Here are the checks that every start makes. Those that take longer are in install/settings_check.py.
"""

import os
from stat import S_ISREG

from oci_hook.config import flat_yaml, keys
from oci_hook.core.layout import CLUSTER_SETTINGS, DEFAULT_PREFIX, SETTINGS_YAML, STATE_IN_USE
from oci_hook.core.rules import Rules
from oci_hook.core.units import show
from oci_hook.core.value import Value
from oci_hook.errors import Problem, SettingsError, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any


OFF = "off"
AUTO = keys.AUTO
DRA = "dra"  # ResourceClaims alone give a share of this node's GPUs (kube/dra/)


class Settings(Value):
    """prefix: the install's root. runtime: the real runtime, absolute. python: AUTO for the
    install's own, or else the machine's. driver_root: where the driver's files are.
    state_dir: tmpfs directory of ledger, pages and inventory. mode: "standalone" | "on-top" | "below". cluster: "off" |
    "local" | "required" | "dra"."""

    prefix: str
    mode: str = "standalone"
    runtime: str = "/usr/sbin/runc"
    python: str = AUTO
    driver_root: str = "/"
    state_dir: str = "/run/gpu-hook"
    rules: Rules = Rules()
    cluster: str = OFF


class Reading:
    """A settings.yaml as read. lines: the line of each key that is set. values: as the readers understood them,
    without those that are wrong. problems: everything that is wrong, in the order of the lines."""

    __slots__ = ("file", "lines", "values", "problems")

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        self.values: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def complain(self, message: str, line: int | None = None, code: str = "GH-501") -> None:
        where = f"{self.file}:{line}" if line else self.file
        self.problems.append(Problem(code, f"{where}: {message}"))


def load(prefix: str) -> Settings:
    """The settings in effect. Raises SettingsError, and then no container starts: GH-501 with every problem of
    settings.yaml and its line; GH-504 where the file names a state directory that the install does not use yet."""
    reading = parse(prefix, read(prefix))
    if reading.values.get("cluster", OFF) != OFF:
        add_cluster(prefix, reading)
    settings = interpret(prefix, reading)
    if reading.problems:
        raise SettingsError(*reading.problems)
    used = state_in_use(prefix)
    if used != settings.state_dir:
        why = f"this install still uses {used[:100]}" if used else "this install does not say which one it uses"
        move = f"`gpu-hook settings set state_dir={settings.state_dir}`"
        raise refuse("GH-504", f"state_dir in settings.yaml has changed, and {why}; move it with {move}")
    return settings


def option(prefix: str) -> str:
    """What commands need to mean this install: " --prefix PREFIX", or nothing for that at the usual place."""
    from shlex import quote

    return "" if prefix == DEFAULT_PREFIX else f" --prefix {quote(prefix)}"


def read(prefix: str) -> bytes:
    """settings.yaml, if only root can change it. Raises SettingsError GH-501."""
    path = os.path.join(prefix, SETTINGS_YAML)
    try:
        return read_own(path, flat_yaml.MAX_SIZE + 1)
    except FileNotFoundError:
        from shlex import quote

        text = f"no gpu-hook install in {prefix}: `gpu-hook install --prefix {quote(prefix)}` makes one; or name yours"
        raise refuse("GH-501", f"{text} with --prefix") from None
    except OSError as e:
        raise refuse("GH-501", f"{path}: {e.strerror}; it must be a file that can be read") from None
    except ValueError as e:
        raise refuse("GH-501", f"settings {path} {e}; chmod go-w, chown root") from None


def parse(prefix: str, data: bytes, file: str = SETTINGS_YAML, allowed: "Container[str]" = keys.READERS) -> Reading:
    """Every line of settings.yaml, each value read by its key's reader. Problems are in the answer."""
    reading = Reading(os.path.join(prefix, file))
    for line, key, value, problem in flat_yaml.lines(data):
        if problem:
            reading.complain(problem, line)
        elif key not in allowed:
            reading.complain(f"{show(key)} is not a setting; {keys.suggest(key)}", line)
        elif key in reading.lines:
            reading.complain(f"{key} is set twice, first in line {reading.lines[key]}", line)
        else:
            reading.lines[key] = line
            try:
                reading.values[key] = keys.READERS[key](value)
            except ValueError as e:
                shown = f"{key}: {show(value)}" if isinstance(value, str) else key
                reading.complain(f"{shown} {e}", line)
    return reading


def interpret(prefix: str, reading: Reading) -> Settings:
    """The settings, with defaults for what is not set or is wrong. Adds problems that concern more than one line."""
    values = reading.values
    said = {name: values[name] for name in keys.RULES if name in values}
    profile = values.get(keys.PROFILE, "none")
    for name, fixed in keys.PROFILES[profile].items():
        if said.get(name, fixed) not in (fixed, getattr(Rules(), name)):
            text = f"{name} is {fixed} in profile {profile}; remove the line, or the profile"
            reading.complain(text, reading.lines[name])
    said["default_policy"] = said.get("default_policy") or keys.DEFAULT_POLICY[profile]
    rules = Rules(**{**said, **keys.PROFILES[profile], "profile": profile})
    unit_is_wrong = "qgpu_memory_unit" in reading.lines and "qgpu_memory_unit" not in said
    if "qgpu" in rules.dialects and rules.qgpu_memory_unit == "none" and not unit_is_wrong:
        why = "qgpu needs qgpu_memory_unit: MiB or GiB, as your manifests mean qgpu-memory"
        reading.complain(f"dialects: {why}", reading.lines["dialects"])
    return Settings(prefix, rules=rules, **{name: values[name] for name in keys.INSTALL if name in values})


def add_cluster(prefix: str, reading: Reading) -> None:
    """The cluster's settings for this node, in the reporter's file, count before settings.yaml."""
    path = os.path.join(prefix, CLUSTER_SETTINGS)
    try:
        said = parse(prefix, of_cluster(prefix), CLUSTER_SETTINGS, keys.OF_CLUSTER)
    except (OSError, ValueError) as e:
        reading.complain(f"{path} cannot be used: {getattr(e, 'strerror', e)}; remove it, the agent writes it anew")
        return
    reading.values.update(said.values)
    reading.problems += said.problems


def of_cluster(prefix: str) -> bytes:
    """The reporter's file, b"" where there is none. Raises OSError, ValueError."""
    try:
        return read_own(os.path.join(prefix, CLUSTER_SETTINGS), flat_yaml.MAX_SIZE + 1)
    except FileNotFoundError:
        return b""


def state_in_use(prefix: str) -> str:
    """The state directory that the install uses, as install/state_move.py wrote it down; "" where it says none."""
    try:
        text = read_own(os.path.join(prefix, STATE_IN_USE), keys.MAX_PATH + 1).decode()
    except (OSError, ValueError):
        return ""
    return text[:-1] if text.endswith("\n") else ""


def read_own(path: str, size: int, secret: bool = False) -> bytes:
    """The first `size` bytes. Raises OSError, ValueError where others than root (and this user) can change the file; if it
    is secret, also where they can read it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        st = os.fstat(fd)
        if not S_ISREG(st.st_mode):
            raise ValueError("is not a regular file")
        if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
            raise ValueError("can be changed by others than root")
        if secret and st.st_mode & 0o077:
            raise ValueError("can be read by others than root")
        data = b""
        while more := os.read(fd, size - len(data)):
            data += more
        return data
    finally:
        os.close(fd)
