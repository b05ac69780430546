"""docs/guide/troubleshooting.md: every block of commands, on a node with simulated GPUs and a container named `web`.

The commands of a block `sh` succeed, those of a block `sh fails GH-x` fail with this code. The container is the sample
bundle of runtime-config/runc.
"""

import re
import subprocess

import pytest

from testbed import REPO
from tests.e2e.test_readme import ENTER, NAMESPACE

PAGE = (REPO / "docs/guide/troubleshooting.md").read_text()
NODE = """export PATH="$PWD/.venv/bin:$PATH"
gpu-hook install --no-engines --prefix /opt/gpu-hook && gpu-hook sim up --gpus 2 --memory 24Gi
cp -r runtime-config/runc/bundle /tmp/web
mkdir -p /tmp/web/rootfs/bin && cp "$(command -v busybox)" /tmp/web/rootfs/bin/sh
/opt/gpu-hook/bin/gpu-hook-runtime run --detach --bundle /tmp/web web </dev/null >/tmp/web/log 2>&1
trap '/opt/gpu-hook/bin/gpu-hook-runtime delete --force web' EXIT
set +e
"""


def commands() -> list[tuple[str, str]]:
    """(what follows "sh", a line) of each fenced block, in the page's order."""
    blocks = re.findall(r"^```sh([^\n]*)\n(.*?)^```", PAGE, re.M | re.S)
    return [(label.strip(), line) for label, text in blocks for line in text.splitlines()]


@pytest.mark.root
def test_every_command_does_what_the_page_says() -> None:
    script = f"{NAMESPACE}cd '{REPO}'\n{NODE}"
    for i, (_, line) in enumerate(commands()):
        script += f"echo '@@ {i}'\n{line}\necho \"status $?\"\n"
    argv = [*ENTER, f"exec 2>&1\n{script}"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=300)
    steps = re.split(r"^@@ \d+\n", done.stdout, flags=re.M)[1:]
    assert len(steps) == len(commands()), done.stdout
    for (label, line), step in zip(commands(), steps, strict=True):
        output, _, status = step.rpartition("status ")
        assert (status.split()[0] == "0") is not label.startswith("fails"), f"{line}: {step}"
        if code := label.removeprefix("fails").strip():
            assert f"{code}: " in output, f"{line}: {step}"
