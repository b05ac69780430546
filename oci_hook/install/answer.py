"""What a program that the settings name says about itself, whatever it does: hangs, prints without end, starts others."""

import os
import signal
import subprocess

from oci_hook.core.value import Value

SECONDS = 20.0  # until it must have ended
BYTES = 1 << 16  # of each output
# The outputs are files in memory, which can be limited, and have no end that a child holds open; blocks of 512 or 1024 bytes.
LIMITED = 'ulimit -c 0; ulimit -f 128; exec "$@"'


class Answer(Value):
    """The program's exit status, or minus its signal, with the beginnings of its outputs; fault: why there is none, else ""."""

    status: int
    out: str = ""
    err: str = ""
    fault: str = ""


def ask(*command: str) -> Answer:
    """Runs it to its end; one that has none is ended with all that it started."""
    with open(os.memfd_create("out"), "rb") as out, open(os.memfd_create("err"), "rb") as err:
        process = subprocess.Popen(
            ("/bin/sh", "-c", LIMITED, "sh", *command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
            process.wait()
            return Answer(-1, fault=f"does not answer within {SECONDS:.0f} s")
        said = [os.pread(file.fileno(), BYTES, 0).decode(errors="replace") for file in (out, err)]
        return Answer(process.returncode, *said)
