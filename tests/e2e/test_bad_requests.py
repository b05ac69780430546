"""What tenants write into annotations, through the shipped wrapper: coded lines in its log, and nothing changed."""

import json
import os
from pathlib import Path

import pytest

from oci_hook.errors import MAX_LINE
from testbed.containers import Bundle, Runc
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

P = "gpu-hook.io/"
T9K = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "30"}
BAD = {
    "unparsable": ({P + "memory": "4 GB"}, ["GH-101"]),
    "negative": ({**T9K, "T9K_GPU_PERCENT": "-30"}, ["GH-101"]),
    "huge number": ({P + "memory": "9" * 4000}, ["GH-101"]),
    "unknown key": ({**T9K, P + "memroy": "1Gi"}, ["GH-102"]),
    "key of a container without a name": ({P + "memory.web": "1Gi"}, ["GH-102"]),
    "contradiction": ({P + "gpus": "2", P + "devices": "0"}, ["GH-103"]),
    "dialects": ({**T9K, P + "memory": "4Gi"}, ["GH-104"]),
    "NUL": ({P + "memory": "1Gi\0"}, ["GH-105"]),
    "newline": ({P + "memory": "1Gi\nlevel=info"}, ["GH-105"]),
    "escape sequence": ({P + "devices": "\x1b]0;x\x07"}, ["GH-105"]),
    "long": ({P + "devices": "0," * 40_000}, ["GH-105"]),
    "1 MB beside it": ({**T9K, "other": "x" * (1 << 20)}, ["GH-105"]),
    "capability": ({**T9K, P + "capabilities": "graphics"}, ["GH-106"]),
    "all at once": ({P + "memory": "x", P + "gpus": "-1", P + "x": "1"}, ["GH-101", "GH-101", "GH-102"]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_refused_in_coded_lines(
    prefix: Install, bundle: Bundle, runc: Runc, tmp_path: Path, name: str, log_format: str
) -> None:
    annotations, codes = BAD[name]
    folder = bundle(annotations)
    before = (folder / "config.json").read_bytes(), (folder / "config.json").stat()
    log = tmp_path / "log"
    done = runc.create(folder, prefix, flags=["--log", str(log), "--log-format", log_format])
    assert done.returncode == 1
    lines = log.read_text().splitlines()
    if log_format == "json":
        entries = [json.loads(line) for line in lines]
        assert all(entry["level"] == "error" and entry["time"] for entry in entries)
        messages = [entry["msg"] for entry in entries]
    else:
        assert all(line.startswith('time="') and ' level=error msg="GH-' in line for line in lines)
        messages = [line.split('msg="')[1].removesuffix('"') for line in lines]
    assert sorted(message[:6] for message in messages) == codes
    assert all(len(message) <= MAX_LINE + 60 and message.isprintable() for message in messages)
    assert sorted(line[:6] for line in done.stderr.splitlines()) == codes
    assert prefix.grants() == ()
    assert not (runc.root / runc.ids[-1]).exists()
    after = (folder / "config.json").read_bytes(), (folder / "config.json").stat()
    assert (before[0], before[1].st_ino, before[1].st_mtime_ns) == (after[0], after[1].st_ino, after[1].st_mtime_ns)


def test_the_same_words_from_explain(prefix: Install, bundle: Bundle, runc: Runc) -> None:
    from click.testing import CliRunner

    from oci_hook.cli.main import cli

    folder = bundle(BAD["all at once"][0])
    args = ["explain", "--prefix", str(prefix.prefix), "--spec", str(folder / "config.json")]
    said = CliRunner().invoke(cli, args)
    done = runc.create(folder, prefix, flags=["--log", str(folder / "log")])
    assert said.exit_code == 1
    assert [line.split(" (and ")[0] for line in done.stderr.splitlines()] == said.stderr.splitlines()
