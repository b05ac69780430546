"""settings.yaml, which people write -> checked -> settings.json and launcher.conf, which the hot path reads.

Not for the hot path: it imports PyYAML. All problems are reported at once, with their lines.
"""

import ipaddress
import os
import re
import stat
import subprocess
from collections.abc import Callable
from typing import Any

import yaml

from oci_hook import __version__
from oci_hook.config.settings import Settings
from oci_hook.config.settings_template import default_settings_yaml as default_settings_yaml
from oci_hook.config.settings_template import quoted
from oci_hook.core import dialects, units, value_parsers
from oci_hook.core.dialects import qgpu
from oci_hook.core.layout import LAUNCHER_CONF, SETTINGS_JSON, SETTINGS_YAML
from oci_hook.core.rules import Rules
from oci_hook.errors import Problem, SettingsError, refuse
from oci_hook.install import state_move, state_owner
from oci_hook.ledger import claims
from oci_hook.linux import own_path
from oci_hook.oci import fastjson

MAX_SIZE = 64 << 10
MODES = ("standalone", "on-top", "below")
RUNTIME_NAME = "gpu-hook-runtime"
DRIVER_ROOT_LINE = re.compile(r"^driver_root:.*$", re.MULTILINE)

Reader = Callable[[Any], Any]


def one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return str(value)

    return read


def whole(low: int, high: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"is not a whole number from {low} to {high}")
        return value

    return read


def memory(low: int) -> Reader:
    """MiB: a number, or a size as in an annotation."""

    def read(value: Any) -> int:
        if value == 0 and type(value) is int and low == 0:
            return 0
        try:
            return units.size(str(value) if type(value) is int else value)
        except (ValueError, TypeError):
            raise ValueError("is not a size from 1Mi to 16Ti; write 4Gi, 512Mi or a number of MiB") from None

    return read


def linger(value: Any) -> int:
    """Nanoseconds; 0 for adaptive."""
    if value == "adaptive":
        return 0
    try:
        return units.duration(value)
    except (ValueError, TypeError, AttributeError):
        raise ValueError("is not adaptive and no time from 1us to 4s, such as 100ms") from None


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is not true or false")
    return value


def path(value: Any) -> str:
    """Absolute and in its shortest form, so that two spellings never name two places; one line of text."""
    if not isinstance(value, str) or not value.startswith("/") or value.startswith("//"):
        raise ValueError("is not an absolute path")
    if not value.isprintable() or len(value) >= 1024:
        raise ValueError("has characters that a path in settings may not have, or is too long")
    if os.path.normpath(value) != value:
        raise ValueError(f"is not in its shortest form; write {os.path.normpath(value)}")
    return value


def state_dir(value: Any) -> str:
    if path(value) == "/" or f"{value}/".startswith(f"{claims.CLAIMS}/"):
        raise ValueError("must be a directory of its own")
    return str(value)


def dialect_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or any(name not in dialects.NAMES for name in value):
        raise ValueError(f"is not a list of {', '.join(dialects.NAMES)}")
    return tuple(dict.fromkeys(value))


# What a profile fixes, whatever `rules` says. qgpu: https://cloud.tencent.com/document/product/457/61448.
PROFILES: dict[str, dict[str, Any]] = {
    "none": {},
    "qgpu": {"memory_min": 1024, "memory_step": 1024, "compute_step": 5, "memory_per_share": 4096},
}

SETTINGS: dict[str, Reader] = {
    "mode": one_of(*MODES),
    "runtime": path,
    "python": path,
    "driver_root": path,
    "state_dir": state_dir,
    "profile": one_of(*PROFILES),
}
RULES: dict[str, Reader] = {
    "default_policy": one_of(*value_parsers.POLICIES),
    "placement": one_of(*value_parsers.PLACEMENTS, value_parsers.BY_CLASS),
    "whole_gpus": one_of("exclusive", "shared"),
    "memory_reserve": memory(0),
    "memory_step": memory(1),
    "memory_min": memory(1),
    "compute_step": whole(1, 100),
    "max_shares_per_gpu": whole(1, 64),
    "memory_per_share": memory(0),
    "trust_env": flag,
    "dialects": dialect_names,
    "qgpu_memory_unit": one_of("none", *qgpu.UNITS),
    "linger": linger,
}


def address(value: Any) -> str:
    """HOST:PORT or [HOST]:PORT with a number for a host; "none"."""
    host, _, port = str(value).rpartition(":")
    try:
        if value != "none":
            ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
        if value != "none" and not 0 <= int(port) <= 65535:
            raise ValueError
    except ValueError:
        raise ValueError("is not an address like 127.0.0.1:9409, [::1]:9409 or none") from None
    return str(value)


def path_or_none(value: Any) -> str:
    return "none" if value == "none" else str(path(value))


# The agent's (agent/options.py), with their defaults.
AGENT: dict[str, Reader] = {
    "address": address,
    "token_file": path_or_none,
    "textfile": path_or_none,
    "policy": one_of("protect", "report", "freeze", "kill"),
    "tolerance": memory(0),
    "compute_tolerance": whole(1, 100),
    "interval": whole(1, 60),
}


SECTIONS = {"rules": RULES, "agent": AGENT}


class Checker:
    """One pass over a settings.yaml: what it says, and every problem with it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []

    def complain(self, message: str, line: int | None = None, code: str = "GH-501") -> None:
        where = f"{self.file}:{line}" if line else self.file
        self.problems.append(Problem(code, f"{where}: {message}"))

    def section(self, node: yaml.Node | None, readers: dict[str, Reader], name: str = "") -> dict[str, Any]:
        """The values of one mapping; `name` with its dot goes before the keys in messages."""
        if node is None:
            return {}
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            what = f"{name[:-1]} must be" if name else "settings must be"
            self.complain(f"{what} lines of key: value", line)
            return {}
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = name + (key_node.value if isinstance(key_node, yaml.ScalarNode) else "?")
            if key in self.lines:
                self.complain(f"{key} is set twice, first in line {self.lines[key]}", line)
            elif key in SECTIONS:
                self.lines[key] = line
                values[key] = self.section(value_node, SECTIONS[key], key + ".")
            elif key.removeprefix(name) not in readers:
                known = ", ".join(readers) + ("" if name else "".join(f", {section}" for section in SECTIONS))
                self.complain(f"{units.show(key)} is not a setting; there are {known}", line)
            else:
                self.lines[key] = line
                self.value(values, key.removeprefix(name), key, value_node, readers)
        return values

    def value(self, values: dict[str, Any], key: str, name: str, node: yaml.Node, readers: dict[str, Reader]) -> None:
        try:
            value = scalars(node)
            values[key] = readers[key](value)
        except ValueError as e:
            said = node.value if isinstance(node, yaml.ScalarNode) else None
            shown = f"{name}: {units.show(said)}" if said is not None else name
            self.complain(f"{shown} {e}", node.start_mark.line + 1)


def scalars(node: yaml.Node) -> Any:
    """A scalar as YAML's safe types, or a list of them; nothing deeper, so an alias cannot grow."""
    if isinstance(node, yaml.ScalarNode):
        try:
            return yaml.SafeLoader("").construct_object(node)
        except Exception:  # PyYAML's readers of explicit tags (!!bool x) let KeyError and AttributeError through
            raise ValueError("has a type that settings do not have") from None
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [scalars(item) for item in node.value]
    raise ValueError("is not a single value or a list of them")


def read(prefix: str) -> tuple[str, os.stat_result]:
    """The text of settings.yaml and the stat of what was read. Raises SettingsError GH-501."""
    file = os.path.join(prefix, SETTINGS_YAML)
    try:
        with open(file, "rb") as f:
            data = f.read(MAX_SIZE + 1)
            st = os.fstat(f.fileno())
        if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
            raise ValueError("can be changed by others than root; chmod go-w, chown root")
        if len(data) > MAX_SIZE:
            raise ValueError(f"more than {MAX_SIZE} bytes")
        return data.decode(), st
    except OSError as e:
        raise refuse("GH-501", f"{file}: {e.strerror}; `gpu-hook install --prefix {prefix}` writes one") from None
    except ValueError as e:
        raise refuse("GH-501", f"{file}: {e}") from None


def check(prefix: str) -> Settings:
    """The settings that settings.yaml says, fit to be used. Raises SettingsError GH-501/503 with every problem."""
    return checked(prefix, read(prefix)[0])


def checked(prefix: str, text: str) -> Settings:
    checker = Checker(os.path.join(prefix, SETTINGS_YAML))
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        checker.complain(f"not YAML: {getattr(e, 'problem', None) or e}", mark.line + 1 if mark else None)
        raise SettingsError(*checker.problems) from None
    values = checker.section(node, SETTINGS)
    rules = check_rules(checker, values.pop("profile", "none"), values.pop("rules", {}))
    values.pop("agent", None)
    settings = Settings(prefix=prefix, rules=rules, **values)
    if "runtime" in values or "runtime" not in checker.lines:
        check_program(checker, settings, "runtime", settings.runtime, "GH-503")
        check_mode(checker, settings)
    if "python" in values or "python" not in checker.lines:
        check_program(checker, settings, "python", settings.python, "GH-501")
        check_python(checker, settings.python)
    if os.path.exists(settings.driver_root) and not os.path.isdir(settings.driver_root):
        checker.complain(f"driver_root: {settings.driver_root} is not a directory", checker.lines.get("driver_root"))
    for name, folder in (("driver_root", settings.driver_root), ("state_dir", settings.state_dir)):
        if (part := own_path.changeable(folder)) is not None:
            why = f"{part} can be changed by others than root; choose another place, or chmod go-w, chown root"
            checker.complain(f"{name}: {why}", checker.lines.get(name))
    if taken := state_owner.other(prefix, settings.state_dir):
        why = f"is that of the install in {taken}; choose another"
        checker.complain(f"state_dir: {units.show(settings.state_dir)} {why}", checker.lines.get("state_dir"))
    elif why := state_owner.unfit(prefix, settings.state_dir):
        where = checker.lines.get("state_dir")
        checker.complain(f"state_dir: {settings.state_dir[:80]} {why}", where, "GH-504")
    if checker.problems:
        raise SettingsError(*checker.problems)
    return settings


def check_rules(checker: Checker, profile: str, said: dict[str, Any]) -> Rules:
    """The rules, where a profile has its own with those; each as people wrote it is checked already."""
    defaults = Rules().fields()
    for name, fixed in PROFILES[profile].items():
        if said.get(name, fixed) not in (fixed, defaults[name]):
            line = checker.lines.get("rules." + name)
            checker.complain(f"rules.{name} is {fixed} in profile {profile}; remove the line, or the profile", line)
    rules = Rules(**{**said, **PROFILES[profile]})
    unit_is_wrong = "rules.qgpu_memory_unit" in checker.lines and "qgpu_memory_unit" not in said
    if "qgpu" in rules.dialects and rules.qgpu_memory_unit == "none" and not unit_is_wrong:
        why = "qgpu needs rules.qgpu_memory_unit: MiB or GiB, as your manifests mean qgpu-memory"
        checker.complain(f"rules.dialects: {why}", checker.lines.get("rules.dialects"))
    return rules


def check_program(checker: Checker, settings: Settings, name: str, program: str, code: str) -> None:
    """It will be run as root: an executable file that only root (or the user who runs this check) can change."""
    line = checker.lines.get(name)
    real = os.path.realpath(program)
    try:
        st = os.stat(real)
    except OSError as e:
        checker.complain(f"{name}: {program}: {e.strerror}; set it to the program's absolute path", line, code)
        return
    if not stat.S_ISREG(st.st_mode) or not st.st_mode & 0o111:
        checker.complain(f"{name}: {program} is not an executable file", line, code)
    elif (part := own_path.changeable(program)) is not None:
        checker.complain(f"{name}: {part} can be changed by others than root; chmod go-w, chown root", line, code)
    elif os.path.basename(real) == RUNTIME_NAME or same_file(st, os.path.join(settings.prefix, "bin", RUNTIME_NAME)):
        checker.complain(f"{name}: {program} is gpu-hook itself; name the real one, like /usr/sbin/runc", line, code)


KERNELS_OF_THEIR_OWN = ("runsc", "kata", "containerd-shim-kata", "crun-krun", "krun")


def check_mode(checker: Checker, settings: Settings) -> None:
    """Only on top of the NVIDIA runtime is it the real one; and a sandbox shares neither pages nor GPUs."""
    name = os.path.basename(settings.runtime)
    if name.startswith(KERNELS_OF_THEIR_OWN):
        why = "runs containers behind a kernel of their own, which the pages of a share do not reach; use runc or crun"
        checker.complain(f"runtime: {settings.runtime} {why}", checker.lines.get("runtime"), "GH-503")
    if settings.mode != "on-top" and os.path.basename(settings.runtime).startswith("nvidia-container-runtime"):
        why = "is called by gpu-hook in mode on-top only; set mode, or name the real runtime, like /usr/sbin/runc"
        checker.complain(f"runtime: {settings.runtime} {why}", checker.lines.get("runtime"))


def check_python(checker: Checker, program: str) -> None:
    """It starts, and is new enough for the code that it will run."""
    if any("python: " in problem.message for problem in checker.problems):
        return
    question = "import sys; print(sys.version_info >= (3, 10))"
    try:
        answer = subprocess.run(
            [program, "-I", "-S", "-c", question], stdin=subprocess.DEVNULL, capture_output=True, timeout=20
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = b""
    if answer != b"True\n":
        checker.complain(f"python: {program} is not Python 3.10 or newer", checker.lines.get("python"))


def same_file(st: os.stat_result, other: str) -> bool:
    try:
        return os.path.samestat(st, os.stat(other))
    except OSError:
        return False


def compile(prefix: str) -> Settings:
    """Check settings.yaml and write what the hot path reads. Nothing is written unless all of it is valid.

    A state directory that is left is emptied. Raises SettingsError GH-501/503/504, NodeError GH-303 where containers
    hold shares in it, or that cannot be told.
    """
    text, st = read(prefix)
    settings = checked(prefix, text)
    data = settings.fields()
    data["agent"] = Checker("").section(yaml.compose(text, Loader=yaml.SafeLoader), SETTINGS).get("agent", {})
    rules = settings.rules.fields()
    rules["dialects"] = list(rules["dialects"])
    for name in ("prefix", "stale"):
        del data[name]
    data["rules"] = rules
    data["source"] = [st.st_size, st.st_mtime_ns]
    conf = (
        f"# gpu-hook {__version__}, written by `gpu-hook settings compile`; change settings.yaml instead\n"
        f"runtime={settings.runtime}\npython={settings.python}\nmode={settings.mode}\n"
    )
    with state_move.moving(prefix, settings.state_dir):
        write(os.path.join(prefix, LAUNCHER_CONF), conf)
        write(os.path.join(prefix, SETTINGS_JSON), fastjson.dumps(data) + "\n")
    return settings


def set_driver_root(prefix: str, root: str) -> Settings:
    """Change that one line of settings.yaml and compile it; comments and the other settings stay as they are.

    Raises SettingsError GH-501..; then the file is as it was.
    """
    path = f"{prefix}/{SETTINGS_YAML}"
    try:
        with open(path) as f:
            old = f.read()
    except OSError as e:
        raise refuse("GH-501", f"{path}: {e.strerror}; run `gpu-hook install --prefix {prefix}`") from None
    line = f"driver_root: {quoted(root)}"
    new = DRIVER_ROOT_LINE.sub(lambda _: line, old, count=1) if DRIVER_ROOT_LINE.search(old) else f"{old}\n{line}\n"
    write(path, new)
    try:
        return compile(prefix)
    except Exception:
        write(path, old)
        raise


def write(file: str, text: str) -> None:
    """Replace `file` in one step; its mode is 0644 whatever the umask. Raises SettingsError GH-504."""
    temporary = f"{file}.{os.getpid()}.new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            with open(fd, "w", encoding="ascii" if file.endswith(".json") else "utf-8") as f:
                f.write(text)
                f.flush()
                os.fchmod(f.fileno(), 0o644)
                os.fsync(f.fileno())
            os.rename(temporary, file)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as e:
        raise refuse("GH-504", f"{file} cannot be written: {e.strerror}; run as root, or choose --prefix") from None
