"""A whole Debian machine in emulation, without KVM: its kernel, systemd, AppArmor and container engines, for tests.

`build` makes its image of Debian's packages, once; `up` boots it, with this checkout read-only in /share; `run` runs a
command in it as root; `down` powers it off and removes what `up` made. Nothing of this machine is changed. Needs root.
"""

import argparse
import sys
from pathlib import Path

from testbed.debian import CannotFetch
from testbed.machine import image
from testbed.machine.machine import CannotRun, Machine


def main() -> int:
    options = parser().parse_args()
    try:
        return int(options.does(options) or 0)
    except (CannotRun, CannotFetch) as e:
        print(f"machine: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("scripts/machine", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, does: object, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help)
        made.set_defaults(does=does)
        made.add_argument("suite", choices=image.SUITES)
        return made

    command("build", do_build, "make its image, unless it is there: some minutes")
    p = command("up", do_up, "boot it: about a minute")
    p.add_argument("--with", dest="beside", type=Path, metavar="DIR", help="a folder that it has as /share/with")
    p = command("run", do_run, "run a command of bash in it, as root; its output and exit status are the command's")
    p.add_argument("words", nargs=argparse.PARSER, metavar="COMMAND")
    p.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="default: %(default)s")
    command("console", do_console, "print what its console showed")
    command("cut", do_cut, "as if the power failed: end it at once; up boots it again with its disk")
    command("down", do_down, "power it off, and remove its disk")
    return top


def say(text: str) -> None:
    print(f"machine: {text}", file=sys.stderr, flush=True)


def do_build(options: argparse.Namespace) -> None:
    print(image.build(image.SUITES[options.suite], say))


def do_up(options: argparse.Namespace) -> None:
    image.build(image.SUITES[options.suite], say)
    Machine(options.suite).up(say, options.beside)
    say(f"try: scripts/machine run {options.suite} uname -a")


def do_run(options: argparse.Namespace) -> int:
    done = Machine(options.suite).run(" ".join(options.words), options.timeout)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


def do_console(options: argparse.Namespace) -> None:
    print(Machine(options.suite).console())


def do_cut(options: argparse.Namespace) -> None:
    Machine(options.suite).cut()


def do_down(options: argparse.Namespace) -> None:
    Machine(options.suite).down()


if __name__ == "__main__":
    sys.exit(main())
