"""The running daemons of an engine: which of them read a configuration file and have not read it since it was changed,
and what makes them read it."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from oci_hook.engines import containerd_place, cri, docker, engine
from oci_hook.engines.cri import Offered
from oci_hook.engines.edits import NAME, Registration
from oci_hook.errors import GhError
from oci_hook.linux.proc import seconds_since, start_time
from oci_hook.observe.daemons import flag_value, flag_values, running

SOCKET = "unix:///run/docker.sock"  # dockerd's default
SYSTEMD = "/run/systemd/system"
FOLDERS = {"docker": "/etc/docker", "containerd": "/etc/containerd", "crio": "/etc/crio"}
USUAL = {"docker": docker.FILE, "containerd": containerd_place.FILE, "crio": "/etc/crio/crio.conf"}
INIT_SCRIPTS = "/etc/init.d"
SECONDS = 10  # in which a dockerd has read its file after SIGHUP
SIGNAL_SECONDS = 0.5  # in which it has begun to
SYSTEMCTL_SECONDS = 300  # in which a unit is restarted


def readers(name: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """(pid, arguments) of the engine's daemons that read this file: by the flag for it, or without one in the usual folder."""
    for pid, words in running(engine(name).PROGRAMS[0]):
        file = file_of(name, words)
        read = [Path(file), *joined(name, file)] if file else []
        usual = not file and path.is_relative_to(os.path.realpath(FOLDERS[name]))
        made = name == "containerd" and bool(file) and containerd_place.has(file, path)
        if usual or made or path.resolve() in [each.resolve() for each in read]:
            yield pid, words


def joined(name: str, file: str) -> list[Path]:
    """The files that a daemon reads by this one."""
    found: list[Path] = engine(name).joined(file) if hasattr(engine(name), "joined") else []
    return found


def stale(name: str, path: Path) -> list[int]:
    """The processes that read this file and have not read it since gpu-hook was registered in it. dockerd is asked for its
    runtimes; the others read their files only at their start, and CRI-O its hooks, also after a reload of its runtimes."""
    if engine(name).RELOAD is None:
        return []
    told = [(pid, offered(name, words)) for pid, words in readers(name, path)]
    return [
        pid
        for pid, has in told
        if has is not None
        and NAME not in has.runtimes
        or started_before(pid, path)
        and (name == "crio" or name != "docker" and has is None)
    ]


def elsewhere(name: str, path: Path) -> list[tuple[int, str]]:
    """(pid, file) of the daemons that run and do not read this file, where none that runs does. dockerd's own containerd, which
    serves nobody else, is none of them."""
    if engine(name).RELOAD is None or list(readers(name, path)):
        return []
    found = ((pid, file_of(name, words) or USUAL[name]) for pid, words in running(engine(name).PROGRAMS[0]))
    return [(pid, file) for pid, file in found if not file.endswith("/containerd/containerd.toml")]


def file_of(name: str, words: list[str]) -> str:
    """The file that the flags of a daemon name; "" for the usual one."""
    return flag_value(words, "--config-file") if name == "docker" else flag_value(words, "--config", "-c")


def address(name: str, words: list[str]) -> str:
    """The socket at which the containerd or CRI-O with this command line answers."""
    flag = flag_value(words, "--address", "-a", "--listen").removeprefix("unix://")
    return flag or str(engine(name).socket(file_of(name, words)))


def known(name: str) -> bool:
    """True if the machine's containerd or CRI-O knows our handler, or does not tell. Raises as cri.offered."""
    place = str(containerd_place.of(Registration("/")).address if name == "containerd" else engine(name).socket(""))
    has = cri.offered(place)
    return has is None or NAME in has.runtimes


def offered(name: str, words: list[str]) -> Offered | None:
    """The runtimes that the daemon with this command line says it has; None where it does not answer."""
    if name == "docker":
        return docker_has(listens(words)[0])
    try:
        return cri.offered(address(name, words))
    except (OSError, ValueError):
        return None


def not_to_reload(name: str, path: Path) -> str:
    """Why the running daemons that read this file must not be told to reload it; "" if they may."""
    whys = (docker.not_to_reload(words, path) for _, words in readers(name, path)) if name == "docker" else ()
    return next(filter(None, whys), "")


def reload(name: str, path: Path) -> tuple[str, str]:
    """(systemd unit, verb); no unit where what starts the engine lets it read its files by itself."""
    unit, verb = engine(name).RELOAD
    return (containerd_place.unit_of(path) if name == "containerd" else unit), verb


def command(name: str, path: Path) -> str:
    """The command that makes the running daemon read its files, as this machine starts daemons; "" if the engine needs none."""
    if engine(name).RELOAD is None:
        return ""
    unit, verb = reload(name, path)
    pids = [pid for pid, _ in readers(name, path)]
    if not unit:
        return ""
    if not_to_reload(name, path):
        return f"systemctl restart {unit}" if os.path.isdir(SYSTEMD) else f"a restart of process {pids[0]}"
    if os.path.isdir(SYSTEMD) or not pids:
        return f"systemctl {verb} {unit}"
    if name == "docker":
        return f"kill -HUP {' '.join(map(str, pids))}"
    return (
        f"service {unit} restart" if os.access(f"{INIT_SCRIPTS}/{unit}", os.X_OK) else f"a restart of process {pids[0]}"
    )


def take_effect(name: str, path: Path) -> bool:
    """Make a running engine read its configuration; False if none runs, or if we cannot. Raises OSError with systemctl's
    last line, or where a daemon ends at it or answers no more."""
    unit, verb = reload(name, path)
    if not unit or not_to_reload(name, path):
        return False
    told = [(pid, start_time(pid), asked(words)) for pid, words in readers(name, path)] if name == "docker" else []
    systemctl = shutil.which("systemctl")
    if (
        systemctl
        and os.path.isdir(SYSTEMD)
        and subprocess.run([systemctl, "is-active", "--quiet", unit]).returncode == 0
    ):
        for words in ((verb, unit), ("is-active", unit)):
            try:
                done = subprocess.run([systemctl, *words], capture_output=True, text=True, timeout=SYSTEMCTL_SECONDS)
            except subprocess.TimeoutExpired:
                raise OSError(f"no end after {SYSTEMCTL_SECONDS} s") from None
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip().splitlines()
                raise OSError(said[-1] if said else f"status {done.returncode}")
    elif not told:
        return False
    else:
        for pid, _, _ in told:
            os.kill(pid, signal.SIGHUP)
    for pid, start, host in told:
        goes_on(pid, start, host)
    return True


def asked(words: list[str]) -> str:
    """Where the dockerd with this command line answers; "" if it does not."""
    host = listens(words)[0]
    return host if docker_has(host) else ""


def goes_on(pid: int, start: int, host: str) -> None:
    """Waits until a dockerd has acted on its signal: docker 20.10 ends at some files. host: "" where it is not asked. Raises
    OSError."""
    time.sleep(SIGNAL_SECONDS)
    end = time.monotonic() + SECONDS
    while start_time(pid) == start:
        if not host or docker_has(host):
            return
        if time.monotonic() > end:
            raise OSError(f"dockerd ({pid}) does not answer any more")
    raise OSError(f"dockerd ({pid}) ended")


def have_read(name: str, path: Path) -> bool:
    """True when the daemons have read the file, for which dockerd needs some time after the signal."""
    end = time.monotonic() + SECONDS
    while late := stale(name, path):
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return not late


def listens(words: list[str]) -> list[str]:
    """The socket, of those on this machine, at which the dockerd with this command line listens."""
    found = flag_values(words, "-H", "--host")
    try:
        file = Path(flag_value(words, "--config-file") or docker.FILE)
        data = docker.parse(file.read_text(), file)
        found += [host for host in data.get("hosts", []) if isinstance(host, str)]
    except (OSError, ValueError, AttributeError, TypeError, GhError):
        pass
    return [host for host in found if host.startswith("unix://")] or [SOCKET]


def docker_hosts() -> list[str]:
    """Sockets of this machine's dockerds: those that run, the one that this user works with, and the usual one."""
    own = os.environ.get("DOCKER_HOST", "")
    found = [host for _, words in running("dockerd") for host in listens(words)]
    return list(dict.fromkeys([*found, *([own] if own.startswith("unix://") else []), SOCKET]))


def docker_has(host: str) -> Offered | None:
    """The runtimes of the dockerd that listens there; None if it cannot be asked."""
    command = [
        "docker",
        "--host",
        host,
        "info",
        "--format",
        '{"runtimes": {{json .Runtimes}}, "default": {{json .DefaultRuntime}}}',
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        said = json.loads(done.stdout)
        # docker 26 ends with 0 and says null where no dockerd answers.
        return Offered({name: each.get("path") or "" for name, each in said["runtimes"].items()}, said["default"] or "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, subprocess.TimeoutExpired):
        return None


def started_before(pid: int, path: Path) -> bool:
    """The times of /proc/PID itself are those at which somebody looked at it, as long as the kernel kept them."""
    try:
        start = start_time(pid)
        return start > 0 and time.time() - seconds_since(start) < os.stat(path).st_mtime
    except OSError:
        return False
