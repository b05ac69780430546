"""Runs test modules that numba-cuda's wheel ships, each in a process of its own, and says how each test ended."""

import os
import re
import sys
import time
import traceback
import unittest
import warnings

from steps import said

SECONDS = 120  # for a module
NOISE = re.compile(r"0x[0-9a-fA-F]+|\b\d{5,}\b|/tmp/\S+|\d+\.\d+ ?m?s\b|pid \d+")


def plain(error: BaseException) -> str:
    """The first line of an error, without addresses and names of temporary files."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {NOISE.sub('…', first)[:160]}"


class Said(unittest.TestResult):
    """One step for each test; subtests that fail count for their test."""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.how = "passed"

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        said(name(test), self.how)

    def _failed(self, error) -> None:  # type: ignore[no-untyped-def]
        traceback.print_exception(*error, limit=-6)
        if not self.how.startswith("failed"):
            self.how = f"failed: {plain(error[1])}"

    def addError(self, test, error) -> None:  # type: ignore[no-untyped-def]
        if isinstance(test, unittest.TestCase):
            self._failed(error)
        else:  # setUpClass, setUpModule
            said(str(test), f"failed: {plain(error[1])}")

    def addFailure(self, test, error) -> None:  # type: ignore[no-untyped-def]
        self._failed(error)

    def addSubTest(self, test, subtest, error) -> None:  # type: ignore[no-untyped-def]
        if error:
            self._failed(error)

    def addSkip(self, test, reason) -> None:  # type: ignore[no-untyped-def]
        if isinstance(test, unittest.TestCase):
            self.how = f"skipped: {reason}"
        else:
            said(str(test), f"skipped: {reason}")

    def addExpectedFailure(self, test, error) -> None:  # type: ignore[no-untyped-def]
        self.how = "passed, expected to fail"

    def addUnexpectedSuccess(self, test) -> None:  # type: ignore[no-untyped-def]
        self.how = "failed: did not fail as expected"


def name(test: unittest.TestCase) -> str:
    return test.id().removeprefix("numba.cuda.tests.")


def run(module: str) -> None:
    suite = unittest.defaultTestLoader.loadTestsFromName(f"numba.cuda.tests.{module}")
    suite.run(Said())


def ended(pid: int) -> str:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return f"still running after {SECONDS} s"


def main() -> None:
    warnings.simplefilter("ignore")
    import numba.cuda  # noqa: F401  before the forks, for all of them

    for module in sys.argv[1:]:
        sys.stdout.flush()
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
                run(module)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        status = ended(pid)
        if status != "0":
            said(f"{module}: exit status", f"failed: {status}")
        print(f"{module} {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":  # its tests start processes that load this file again
    main()
