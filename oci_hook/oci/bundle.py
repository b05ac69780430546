"""The OCI runtime's command line (runc, crun, youki): which command, which bundle, which container, where errors go.

The launcher (launcher.c) reads the same words, and hands on to us what it does not understand. So this reader knows
more. The word after an unknown flag may be the flag's value or the container's id, which is the only word that is not a
flag: it is the id if no other word is.
"""

import os

from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = frozenset(
    ("checkpoint", "create", "delete", "events", "exec", "features", "help", "init", "kill", "list", "mounts", "pause")
    + ("ps", "restore", "resume", "run", "spec", "start", "state", "update")
)
STARTS = ("create", "run", "restore")  # the commands that make a container of a bundle
GLOBAL_VALUES = frozenset(("root", "log", "log-format", "criu", "rootless", "cgroup-manager", "log-level"))
GLOBAL_SWITCHES = frozenset(("debug", "systemd-cgroup", "version", "v", "help", "h"))
CREATE_VALUES = frozenset(  # those of restore too
    ("bundle", "console-socket", "pid-file", "pidfd-socket", "preserve-fds", "config")
    + ("image-path", "work-path", "manage-cgroups-mode", "empty-ns", "lsm-profile", "lsm-mount-context")
)
CREATE_SWITCHES = frozenset(
    ("no-pivot", "no-new-keyring", "no-subreaper", "keep", "detach", "auto-dedup", "lazy-pages", "shell-job")
    + ("tcp-established", "ext-unix-sk", "file-locks")
)
LETTERS = {"b": "bundle", "d": "detach", "f": "config"}  # crun takes several in one word, "-dbDIR"; -f is crun's alone


class Call(Value):
    """One call of the runtime. Paths are absolute. id is "" when none was found.

    command: the first word that is no flag, "" when there is none. config: path of config.json.
    root: of --root, "" when it is left to the runtime. log: path or "". log_format: "text" or "json".
    assumed: no flag names the bundle, and one that is not known may.
    """

    command: str
    id: str
    bundle: str
    config: str
    root: str
    log: str = ""
    log_format: str = "text"
    assumed: bool = False


def default_root(runtime: str) -> str:
    """The folder of a runtime's containers if it runs as root without --root: /run/runc, /run/crun, /run/youki."""
    name = os.path.basename(runtime)
    for known in ("crun", "youki"):
        if known in name:
            return "/run/" + known
    return "/run/runc"


def read_call(args: "Sequence[str]") -> Call:
    """The call. args: without the program's name. Never fails: what is missing gets the runtime's own default."""
    flags, rest = _global_flags(args)
    words, maybe = _command_words(rest[1:], flags)
    bundle = _absolute(flags.get("bundle") or ".")
    return Call(
        rest[0] if rest else "",
        (words or maybe or [""])[-1],
        bundle,
        _config(bundle, flags.get("config", "")),
        os.path.abspath(flags["root"]) if flags.get("root") else "",
        flags.get("log", ""),
        "json" if flags.get("log-format") == "json" else "text",
        "bundle" not in flags and not flags.keys() <= GLOBAL_VALUES | GLOBAL_SWITCHES | CREATE_VALUES,
    )


def named(args: "Sequence[str]") -> str:
    """The bundle's folder as the call names it; "" where it does not. args: as of `read_call`."""
    flags, rest = _global_flags(args)
    _command_words(rest[1:], flags)
    return flags.get("bundle", "")


def _config(bundle: str, given: str) -> str:
    """crun's --config is relative to the working directory, but for its default (src/create.c there)."""
    return _absolute(given) if given not in ("", "config.json") else os.path.join(bundle, "config.json")


def _absolute(path: str) -> str:
    """The path that the runtime opens: after a link, `..` leads to the folder above the link's target."""
    return os.path.realpath(path) if ".." in path.split("/") else os.path.abspath(path)


def _global_flags(args: "Sequence[str]") -> "tuple[dict[str, str], Sequence[str]]":
    """(the flags before the command, the words from the command on). An unknown flag's next word is its value unless
    that is a flag or a command."""
    flags: dict[str, str] = {}
    i = 0
    while i < len(args) and args[i].startswith("-"):
        name, equals, value = args[i].lstrip("-").partition("=")
        i += 1
        if not equals and i < len(args):
            unknown = name not in GLOBAL_SWITCHES and args[i] not in COMMANDS and not args[i].startswith("-")
            if name in GLOBAL_VALUES or unknown:
                value = args[i]
                i += 1
        flags[name] = value
    return flags, args[i:]


def _flag(word: str) -> tuple[str, str, str]:
    """(a flag's long name, "=" where its value is in the same word, that value)"""
    name, equals, value = word.lstrip("-").partition("=")
    last = word[1:].lstrip("d")
    long = CREATE_VALUES | CREATE_SWITCHES
    if name not in long | LETTERS.keys():
        if last[:1] in LETTERS:
            name, equals, value = last[0], "=" if last[1:] else "", last[1:]
        elif word.startswith("--") and len(meant := [one for one in long if one.startswith(name)]) == 1:
            (name,) = meant  # crun takes any beginning that only one flag has (getopt_long(3)); runc refuses it
    return LETTERS.get(name, name), equals, value


def _command_words(args: "Sequence[str]", flags: dict[str, str]) -> tuple[list[str], list[str]]:
    """(the words after the command that are no flags, the words after unknown flags: their values, or the id). The
    command's own flags are added to `flags`."""
    words: list[str] = []
    maybe: list[str] = []
    i = 0
    while i < len(args):
        word = args[i]
        i += 1
        if word == "--":
            words += args[i:]
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, equals, value = _flag(word)
        if name in CREATE_SWITCHES:
            continue
        following = args[i] if i < len(args) else ""
        if not equals and name in CREATE_VALUES:
            value = following
            i += 1
        elif not equals and following and not following.startswith("-"):
            maybe.append(following)
            i += 1
        flags[name] = value
    return words, maybe
