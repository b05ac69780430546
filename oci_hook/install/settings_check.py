"""The whole check of settings.yaml, for commands: what every start checks, and the programs, the owners of paths, the
state directory and the agent's settings. All problems are reported at once, with their lines."""

import os
import stat

from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Reading, Settings
from oci_hook.core.units import show
from oci_hook.errors import SettingsError
from oci_hook.install import agent_settings, answer, own_path, own_python, state_owner
from oci_hook.ledger import gpu_owner

RUNTIME_NAME = "gpu-hook-runtime"


def check(prefix: str) -> Settings:
    """The settings that settings.yaml says, fit to be used. Raises SettingsError GH-501/503/504 with every problem."""
    return checked(prefix, node_settings.read(prefix))


def checked(prefix: str, data: bytes) -> Settings:
    """Checks a settings.yaml of this content."""
    reading = node_settings.parse(prefix, data)
    settings = node_settings.interpret(prefix, reading)
    agent_settings.check(reading)
    if "runtime" in reading.values or "runtime" not in reading.lines:
        check_program(reading, settings, "runtime", settings.runtime, "GH-503")
        check_mode(reading, settings)
    if "python" in reading.values or "python" not in reading.lines:
        check_program(reading, settings, "python", own_python.program(settings), "GH-501")
        check_python(reading, own_python.program(settings))
    if os.path.exists(settings.driver_root) and not os.path.isdir(settings.driver_root):
        reading.complain(f"driver_root: {settings.driver_root} is not a directory", reading.lines.get("driver_root"))
    for name, folder in (("driver_root", settings.driver_root), ("state_dir", settings.state_dir)):
        if (part := own_path.changeable(folder)) is not None:
            why = f"{part} can be changed by others than root; choose another place, or chmod go-w, chown root"
            reading.complain(f"{name}: {why}", reading.lines.get(name))
    if "state_dir" in reading.values or "state_dir" not in reading.lines:
        check_state_dir(reading, prefix, settings.state_dir)
    if reading.problems:
        raise SettingsError(*reading.problems)
    return settings


def is_own(state_dir: str) -> bool:
    """True if it is neither the machine's root directory nor the directory of the GPUs' owner files."""
    return state_dir != "/" and not f"{state_dir}/".startswith(f"{gpu_owner.OWNERS}/")


def check_state_dir(reading: Reading, prefix: str, state_dir: str) -> None:
    line = reading.lines.get("state_dir")
    if not is_own(state_dir):
        reading.complain(f"state_dir: {show(state_dir)} must be a directory of its own", line)
    elif taken := state_owner.other(prefix, state_dir):
        reading.complain(f"state_dir: {show(state_dir)} is that of the install in {taken}; choose another", line)
    elif why := state_owner.unfit(prefix, state_dir):
        reading.complain(f"state_dir: {state_dir[:80]} {why}", line, "GH-504")


def check_program(reading: Reading, settings: Settings, name: str, program: str, code: str) -> None:
    """The program will be run as root: it must be an executable file that only root (or this user) can change."""
    line = reading.lines.get(name)
    real = os.path.realpath(program)
    try:
        st = os.stat(real)
    except OSError as e:
        reading.complain(f"{name}: {program}: {e.strerror}; set it to the program's absolute path", line, code)
        return
    if not stat.S_ISREG(st.st_mode) or not st.st_mode & 0o111:
        reading.complain(f"{name}: {program} is not an executable file", line, code)
    elif (part := own_path.changeable(program)) is not None:
        reading.complain(f"{name}: {part} can be changed by others than root; chmod go-w, chown root", line, code)
    elif os.path.basename(real) == RUNTIME_NAME or same_file(st, os.path.join(settings.prefix, "bin", RUNTIME_NAME)):
        reading.complain(f"{name}: {program} is gpu-hook itself; name the real one, like /usr/sbin/runc", line, code)


KERNELS_OF_THEIR_OWN = ("runsc", "kata", "containerd-shim-kata", "crun-krun", "krun")


def check_mode(reading: Reading, settings: Settings) -> None:
    """The NVIDIA runtime may be `runtime` in mode on-top only. A runtime with kernels of its own cannot share GPUs."""
    name = os.path.basename(settings.runtime)
    if name.startswith(KERNELS_OF_THEIR_OWN):
        why = "runs containers behind a kernel of their own, which the pages of a share do not reach; use runc or crun"
        reading.complain(f"runtime: {settings.runtime} {why}", reading.lines.get("runtime"), "GH-503")
    if settings.mode != "on-top" and os.path.basename(settings.runtime).startswith("nvidia-container-runtime"):
        why = "is called by gpu-hook in mode on-top only; set mode, or name the real runtime, like /usr/sbin/runc"
        reading.complain(f"runtime: {settings.runtime} {why}", reading.lines.get("runtime"))


def check_python(reading: Reading, program: str) -> None:
    """Python must start, and be new enough for the code that it will run."""
    if any("python: " in problem.message for problem in reading.problems):
        return
    said = answer.ask(program, "-I", "-S", "-c", "import sys; print(sys.version_info >= (3, 10))")
    if said.out != "True\n":
        why = f"{said.fault or 'is not Python 3.10 or newer'}; name one that is, such as /usr/bin/python3.11"
        reading.complain(f"python: {program} {why}", reading.lines.get("python"))


def same_file(st: os.stat_result, other: str) -> bool:
    try:
        return os.path.samestat(st, os.stat(other))
    except OSError:
        return False
