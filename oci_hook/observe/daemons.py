"""The engines' daemons that run on this machine, and what their command lines say."""

import os
from collections.abc import Iterator
from pathlib import Path


def running(program: str) -> Iterator[tuple[int, list[str]]]:
    """(pid, arguments) of the processes of that name that have our /etc, which leaves out those in containers; seen from a container
    in a chroot of the machine, these are the machine's."""
    own = os.stat("/etc")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n") == program.encode() and os.path.samestat(
                os.stat(f"/proc/{pid}/root/etc"), own
            ):
                yield int(pid), Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue


def flag_values(words: list[str], *flags: str) -> list[str]:
    """The values of a flag, given by all its spellings, in the order of the command line."""
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in flags:
            found.append(value if equals else following)
    return found


def flag_value(words: list[str], *flags: str) -> str:
    """The flag's first value; "" where it is not given."""
    return next(iter(flag_values(words, *flags)), "")
