"""The command line: a file per command, loaded when it is called. The only layer that prints and uses click."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  RHEL 9 and Amazon Linux 2023 have 3.9
    raise SystemExit(f"gpu-hook needs Python 3.10 or newer, and {sys.executable} is {sys.version.split()[0]}")
