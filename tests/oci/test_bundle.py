"""The runtime's command line as runc and crun read it."""

import os
from pathlib import Path

import pytest

from oci_hook.oci.bundle import default_root, read_call


@pytest.mark.parametrize(
    ("args", "command", "id", "bundle"),
    [
        ([], "", "", "."),
        (["create", "x"], "create", "x", "."),
        (["create", "--bundle", "/b", "x"], "create", "x", "/b"),
        (["create", "-bundle=/b", "x"], "create", "x", "/b"),
        (["create", "x", "-b", "/b"], "create", "x", "/b"),
        (["create", "-b", "/a", "--bundle=/b/../c", "x"], "create", "x", "/c"),
        (["run", "-d", "--no-pivot", "--preserve-fds=3", "--pid-file", "/p", "-b=/b", "x"], "run", "x", "/b"),
        (["--root", "create", "--log=/l", "state", "x"], "state", "x", "."),
        (["--new", "create", "-b", "/b", "x"], "create", "x", "/b"),
        (["--new", "value", "create", "-b", "/b", "x"], "create", "x", "/b"),
        (["--new=create", "run", "x"], "run", "x", "."),
        (["create", "--new", "x"], "create", "x", "."),
        (["create", "--new", "v", "x"], "create", "x", "."),
        (["create", "x", "--new", "v"], "create", "x", "."),
        (["run", "-d", "x", "--new", "v"], "run", "x", "."),
        (["create", "--no-pivot", "--keep=1", "x", "--new=1", "--other", "v"], "create", "x", "."),
        (["create", "--new=1", "-b", "/b", "x"], "create", "x", "/b"),
        (["create", "-b", "/b", "--", "-x"], "create", "-x", "/b"),
        (["create", "--bund", "/b", "x"], "create", "x", "/b"),
        (["run", "--det", "--bun=/b", "--no-pi", "x"], "run", "x", "/b"),
        (["create", "--con", "v", "-b", "/b", "x"], "create", "x", "/b"),
        (["create", "--bundle"], "create", "", "."),
        (["create", "--pidfd-socket", "s", "x"], "create", "x", "."),
        (["--debug", "delete", "--force", "x"], "delete", "x", "."),
    ],
)
def test_words(args: list[str], command: str, id: str, bundle: str) -> None:
    call = read_call(args)
    assert (call.command, call.id, call.bundle) == (command, id, os.path.abspath(bundle))
    assert call.config == call.bundle + "/config.json"


def test_global_flags() -> None:
    call = read_call(["--root", "r", "--log", "/l", "-log-format=json", "--systemd-cgroup", "create", "x"])
    assert (call.root, call.log, call.log_format) == (os.path.abspath("r"), "/l", "json")
    call = read_call(["--log-format", "other", "create", "x"])
    assert (call.root, call.log, call.log_format) == ("", "", "text")


def test_crun_config() -> None:
    """Relative to the working directory, but for its default; letters in one word as argp takes them."""
    assert read_call(["create", "-b", "/b", "--config", "c.json", "x"]).config == os.path.abspath("c.json")
    assert read_call(["create", "-b", "/b", "--config=config.json", "x"]).config == "/b/config.json"
    assert read_call(["create", "-f", "/etc/c.json", "x"]).config == "/etc/c.json"
    assert read_call(["create", "--conf", "/etc/c.json", "x"]).config == "/etc/c.json"
    for words in (["-b/b", "-f/c"], ["-db/b", "-df", "/c"], ["-ddb", "/b", "--config", "/a", "-f/c"]):
        call = read_call(["run", *words, "x"])
        assert (call.id, call.bundle, call.config) == ("x", "/b", "/c"), words


def test_above_a_link_is_above_its_target(tmp_path: Path) -> None:
    (tmp_path / "far/there").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/there")
    call = read_call(["run", "-b", f"{tmp_path}/link/../b", "--config", f"{tmp_path}/link/../c", "x"])
    assert (call.bundle, call.config) == (f"{tmp_path}/far/b", f"{tmp_path}/far/c")
    assert read_call(["run", "-b", f"{tmp_path}/link", "x"]).bundle == f"{tmp_path}/link"


def test_an_unknown_flag_may_name_the_bundle() -> None:
    known = ["--root", "/r", "--debug", "run", "-d", "--preserve-f=3", "--no-pivot", "--keep=1", "--config", "/c", "x"]
    assert not read_call(known).assumed
    assert read_call(["run", "--new=/b", "x"]).assumed
    assert read_call(["run", "--new", "/b", "x"]).assumed
    assert not read_call(["run", "--new", "/b", "-b", "/c", "x"]).assumed


def test_default_root() -> None:
    assert default_root("/usr/sbin/runc") == "/run/runc"
    assert default_root("/usr/bin/crun-wasm") == "/run/crun"
    assert default_root("/opt/youki") == "/run/youki"
    assert default_root("/opt/other") == "/run/runc"
