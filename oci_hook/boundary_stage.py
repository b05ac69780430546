"""The helper of gpu-hook-boundary, `oci-gpu-hook boundary set KEY PID`, `boundary end KEY` and `boundary clear KEY`: it does
without the agent's server, since that did not answer, or failed.

set, at createRuntime: exit status 1 and a coded line on standard error: the container does not start, and its grant is
released. end, before the runtime's kill or delete, and clear, at poststop: exit status 0 whatever happens; what could not
be cleared stays recorded.
"""

from oci_hook import program
from oci_hook.boundary import start
from oci_hook.boundary.nvml_limits import LimitError
from oci_hook.config import settings as node_settings
from oci_hook.errors import refuse
from oci_hook.oci import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oci_hook.errors import Problem

DEADLINE = 20.0  # seconds; apply/to_spec.py gives the hook 30
CLEAR_SECONDS = 8.0
ENDS = ["end"], ["clear"]


class Stage(program.Program):
    """One call of the helper."""

    __slots__ = ("prefix", "args")

    def __init__(self, prefix: str, args: "Sequence[str]") -> None:
        self.prefix = prefix
        self.args = args
        super().__init__("the hook", DEADLINE, failed=0 if args[:1] in ENDS else 1)

    def work(self) -> None:
        program.isolate()
        settings = node_settings.load(self.prefix)
        self.state_dir = settings.state_dir
        if self.args[:1] == ["set"] and len(self.args) == 3 and self.args[2].isdecimal():
            start.at_start(self.args[1], int(self.args[2]), settings)
        elif self.args[:1] in ENDS and len(self.args) == 2:
            try:
                start.at_end(self.args[1], settings, CLEAR_SECONDS, self.args[0])
            except LimitError as e:
                log.journal(f"the driver's limit of grant {self.args[1]} is not cleared yet: {e}")
        else:
            raise refuse(
                "GH-406", f"oci-gpu-hook boundary takes set KEY PID, end KEY or clear KEY, not {self.args!r:.80}"
            )

    def report(self, problems: "Sequence[Problem]") -> None:
        log.report_hook(self.container, problems)


def main(prefix: str, args: "Sequence[str]") -> int:
    """The exit status. `args`: boundary, and the helper's own arguments."""
    return program.run(Stage(prefix, list(args[1:])))
