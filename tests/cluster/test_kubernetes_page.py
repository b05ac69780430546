"""docs/guide/kubernetes.md: every command on it, in order, on a cluster whose nodes have GPUs and no gpu-hook."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed import REPO
from testbed.cluster import lab
from testbed.cluster.node import SIMULATOR

PAGE = REPO / "docs/guide/kubernetes.md"
BLOCK = re.compile(r"^```sh (\w+)\n(.*?)^```$", re.M | re.S)


@pytest.mark.promise
def test_every_command(bare: lab.Cluster, archives: list[Path], tmp_path: Path) -> None:
    dist = bare.state / "dist"
    dist.mkdir()
    for archive in archives:
        shutil.copy(archive, dist)
    for node in bare.nodes:  # in place of the driver that a real node has; an install keeps these settings
        node.machine.write("/opt/gpu-hook/etc/settings.yaml", f"driver_root: {SIMULATOR}/sim/root\n")
    bare.kubectl("label", "nodes", "--all", "gpu-hook.io/node-")  # another test's
    kubectl = tmp_path / "bin/kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f'#!/bin/sh\nexec "{REPO}/scripts/cluster" --state "{bare.state}" kubectl "$@"\n')
    kubectl.chmod(0o755)
    environment = {**os.environ, "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
    said = ""
    kinds = []
    for kind, commands in BLOCK.findall(PAGE.read_text()):
        kinds.append(kind)
        if kind == "build":  # the fixture ran them, into another folder
            built = [line.replace("--out dist", "") for line in commands.splitlines()]
            assert built == ["scripts/package image ", "scripts/package controller-image "]
        elif kind == "node":
            for node in bare.nodes:
                node.machine.run("sh", "-ec", f'cd "{bare.state}"\n{commands}')
        else:
            shell = ["bash", "-euo", "pipefail", "-c", commands]
            done = subprocess.run(shell, cwd=REPO, env=environment, capture_output=True, text=True, timeout=400)
            assert (done.returncode == 0) == (kind != "refused"), done.stdout + done.stderr
            said += done.stdout + done.stderr
    assert kinds == ["build", "node", "kubectl", "kubectl", "kubectl", "refused", "kubectl"]
    assert re.search(r"^n[12] \{.*GPU-51de.*\"sig\":", said, re.M), "the node and the decision"
    assert "GH-101" in said, "the typo is refused with its code"
    for node in bare.nodes:
        lab.wait(
            60, f"{node.name} is as it was", lambda node=node: node.machine.run("test", "!", "-e", "/opt/gpu-hook")
        )  # type: ignore[misc]
